"""What is held, and how a hold ended, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from memtopo.plans.report import MachineLine
from memtopo.sharing.status import Importer

Why = Literal["signal", "release", "deadline"]


@dataclass(frozen=True, slots=True)
class About:
    """What a holder tells about itself: the layout's name, the spec that it was built from, and the machine.

    `source` is what the layout can be drawn from, as text for whoever asks; where that is nothing, it is not told.
    """

    name: str
    spec: str | None
    machine: MachineLine
    source: str = ""


@dataclass(frozen=True, slots=True)
class Held:
    """How a hold ended, after `seconds`: by a `signal` (its number, or 0), a `release`, or its deadline.

    `lost` are importers that used something over ipc until the end; `kept` those whose descriptors, handles and
    mappings keep memory from being free. `clients` and `handles` count what was served. `notes` say what did not go as
    it should.
    """

    why: Why
    signal: int
    seconds: float
    clients: int
    handles: int
    lost: tuple[Importer, ...] = ()
    kept: tuple[Importer, ...] = ()
    notes: tuple[str, ...] = ()
