"""Machines of a spec: those that it names, a warning on another one, and the trials that its alternatives need."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec.structs import replace

from memtopo import spec
from memtopo.common.errors import Unavailable
from memtopo.diagnostics.model import Diagnostic
from memtopo.diagnostics.model import Path as Position
from memtopo.drivers import target
from memtopo.drivers.target import Target
from memtopo.kinds.chunks.support import needed_trials
from memtopo.language import Document
from memtopo.machine import Machine, is_file, shipped
from memtopo.spec import MACHINES


def own_targets(
    document: Document, resolve: Callable[[str], Target] = target.resolve
) -> tuple[dict[str, Target], list[Diagnostic]]:
    """Targets of the machines that a document names, and the diagnostics of files that are no record of one."""
    found: dict[str, Target] = {}
    wrong: list[Diagnostic] = []
    for path, name in _names(document):
        try:
            is_path = is_file(name) and os.path.exists(name)  # noqa: PTH110 what is too long for a path is none
            if is_path and Path(name).is_fifo():  # a holder that reads its spec again would wait for it
                raise Unavailable(f"machine file {name!r} is a pipe", hint="name a file")  # noqa: TRY301 as `resolve`
            found[name] = resolve(name)
        except Unavailable as error:
            wrong.append(Diagnostic("MT205", error.message, path, help=error.hint))
    return found, wrong


def _names(document: Document) -> Iterator[tuple[Position, str]]:
    """Yield machines by name or by the path of a file, which a spec has from its own folder; no unknown names."""
    written = document.root.get(MACHINES)
    for number, name in enumerate(written if isinstance(written, list) else [written]):
        if isinstance(name, str) and is_file(name):
            file = os.path.normpath(Path(document.name).parent / name)
            yield (MACHINES, number), file if is_file(file) else f"./{file}"
        elif name in shipped():
            yield (MACHINES, number), str(name)


def warned(document: Document, target: Target) -> Document:
    """Return a document with a warning if a machine has not the GPUs of any that the document names.

    There is none if one of them cannot be read, as where a spec is applied without its files.
    """
    if any(name == target.name for _, name in _names(document)):
        return document  # which most often saves the reading of all records
    own, unread = own_targets(document)
    machines = [each.machine for each in target.nodes.values()] or [target.machine]
    named = [_gpus(record.machine) for record in own.values()]
    other = next((each for each in machines if not any(gpus <= _gpus(each) for gpus in named)), None)
    if not own or unread or other is None:
        return document
    names = ", ".join(f"{count} × {name}" for name, count in _gpus(other).items())
    message = f"the spec is for {', '.join(own)}, and {target.name} has other GPUs: {names}"
    help = "if it is for such a machine too, add the record that 'memtopo probe -o FILE' makes"
    warning = Diagnostic("MT507", message, (MACHINES,), help=help)
    return replace(document, diagnostics=(*document.diagnostics, warning))


def _gpus(machine: Machine) -> Counter[str]:
    return Counter(device.name for device in machine.devices)


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
    from memtopo.probe import tried  # noqa: PLC0415 only such a spec needs the probe

    return tried(machine, names, simulated=simulated)


def _has_alternatives(document: Document) -> bool:
    """Return true if the word `else` may separate alternatives in a spec, as almost none has it."""
    return not document.text or any("else" in text for text in (document.text, *document.settings.values()))
