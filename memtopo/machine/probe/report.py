"""The whole of a probe as data, from which its page and its JSON are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from memtopo.machine import Machine
from memtopo.machine.probe.comparison import Difference, differences
from memtopo.machine.probe.diagnosis import Cause, causes
from memtopo.machine.probe.run import Probed, Timing


@dataclass(frozen=True, slots=True)
class Against:
    """How a recorded machine compares: it `fits` unless one of the differences may make a valid spec fail here."""

    name: str
    fits: bool
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds: of all trials as the clock saw them, of the slowest child's start, of all contexts, and of each trial.

    Trials of several GPUs are made side by side, and contexts stand apart.
    """

    total: float
    starting: float
    contexts: float
    trials: tuple[Timing, ...]


@dataclass(frozen=True, slots=True)
class Told:
    """A probe of a machine by its name: the record that -o writes, and what belongs to this one probe."""

    memtopo_probe: Literal[1]
    name: str
    simulated: bool
    machine: Machine
    why_not: tuple[Cause, ...]
    against: Against | None
    notes: tuple[str, ...]
    left: tuple[str, ...]
    seconds: Times


def told(
    probed: Probed, kept: Machine, name: str, *, simulated: bool, against: tuple[str, Machine] | None = None
) -> Told:
    """All of it; `kept` is the machine as it is to be shown, with its identity or without, `against` a record."""
    found = differences(against[1], probed.machine) if against else []
    compared = Against(against[0], not any(each.breaks for each in found), tuple(found)) if against else None
    times = Times(probed.seconds, probed.starting, probed.contexts, probed.trials)
    return Told(1, name, simulated, kept, tuple(causes(kept)), compared, probed.notes, probed.left, times)
