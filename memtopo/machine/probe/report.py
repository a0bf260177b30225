"""Report of a probe: the data from which its page and its JSON are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from memtopo.machine import Machine
from memtopo.machine.probe.comparison import Difference, differences
from memtopo.machine.probe.diagnosis import Cause, causes
from memtopo.machine.probe.run import Probed, Timing


@dataclass(frozen=True, slots=True)
class Comparison:
    """Differences from a recorded machine, which `fits` unless one of them may make a valid spec fail here."""

    name: str
    fits: bool
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds: `total` for all trials, of the slowest child's start, for all contexts, and for each trial.

    Trials of several GPUs are concurrent; those of each trial do not include contexts.
    """

    total: float
    starting: float
    contexts: float
    trials: tuple[Timing, ...]


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """A probe of a machine by its name: the record that -o writes, and data of this one run."""

    memtopo_probe: Literal[1]
    name: str
    simulated: bool
    machine: Machine
    why_not: tuple[Cause, ...]
    against: Comparison | None
    notes: tuple[str, ...]
    left: tuple[str, ...]
    seconds: Times


def probe_report(
    probed: Probed, machine: Machine, name: str, *, simulated: bool, against: tuple[str, Machine] | None = None
) -> ProbeReport:
    """Make the report; `machine` is the probed one, with its identity or without, `against` a record by its name."""
    found = differences(against[1], probed.machine) if against else []
    comparison = Comparison(against[0], not any(each.breaks for each in found), tuple(found)) if against else None
    times = Times(probed.seconds, probed.starting, probed.contexts, probed.trials)
    return ProbeReport(
        1, name, simulated, machine, tuple(causes(machine)), comparison, probed.notes, probed.left, times
    )
