"""Trials that the alternatives of a spec need, made on the local machine before the spec is validated."""

from __future__ import annotations

from msgspec.structs import replace

from memtopo import spec
from memtopo.drivers.target import Target
from memtopo.kinds.alternatives import needed_trials
from memtopo.language import Document
from memtopo.machine import Machine


def with_needed_trials(found: Target, document: Document) -> Target:
    """Return a target with the trials that decide the alternatives of a spec; a recorded machine has those it has."""
    if found.nodes:
        return replace(found, nodes={node: with_needed_trials(each, document) for node, each in found.nodes.items()})
    if found.simulated or not _has_alternatives(document):
        return found
    return replace(found, machine=tried_for(found.machine, document, simulated=False))


def tried_for(machine: Machine, document: Document, *, simulated: bool) -> Machine:
    """Return a machine with those trials, made in child processes; a machine that has them is returned as it is."""
    if not _has_alternatives(document):
        return machine
    read, _ = spec.read(document.root, document.left_out)
    if not (names := needed_trials(read)):
        return machine
    from memtopo.probe.run import tried  # noqa: PLC0415 only such a spec needs the probe

    return tried(machine, names, simulated=simulated)


def _has_alternatives(document: Document) -> bool:
    """Return true if the word `else` may separate alternatives in a spec, as almost none has it."""
    return not document.text or any("else" in text for text in (document.text, *document.settings.values()))
