"""State of a hold: its description, its shutdown, and its result."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from memtopo.machine.cluster import MachineLine
from memtopo.plans.report import Checks
from memtopo.sharing.statistics import MOST_LOCATIONS, CheckResult, LocationMemory, Statistics
from memtopo.sharing.status import Importer

Why = Literal["signal", "release", "deadline", "failure", "ended"]
"""Reason for the end of a hold; `ended` is that of a process or another part of the layout."""


@dataclass(frozen=True, slots=True)
class HolderInfo:
    """Description that a holder reports: the layout's name, the path of its spec, and the machine.

    `source` is the text from which clients can draw the layout; empty if it is not reported.
    """

    name: str
    spec: str | None
    machine: MachineLine
    source: str = ""


@dataclass(frozen=True, slots=True)
class HoldSummary:
    """End of a hold, after `seconds`: by a `signal` (its number, else 0), or as `why` says.

    `lost` are importers that used an export over ipc until the end; `kept` those whose descriptors, handles and
    mappings keep memory from being freed. `clients` and `handles` count what was served. `notes` are failures that did
    not stop the holder.
    """

    why: Why
    signal: int
    seconds: float
    clients: int
    handles: int
    lost: tuple[Importer, ...]
    kept: tuple[Importer, ...]
    notes: tuple[str, ...]


@dataclass(slots=True)
class Counters:
    """Counts of events of a layout while it is held; `statistics` makes a record of them."""

    changes: int = 0
    rolled_back: int = 0
    last_check: CheckResult | None = None
    clients: int = 0
    handles: int = 0

    def add_check(self, checks: Checks) -> None:
        """Record the result of a check that has just ended."""
        self.last_check = CheckResult(time.time(), checks.different)

    def statistics(self, memory: Sequence[LocationMemory]) -> Statistics:
        """Record of the counters, with the memory that the layout has now."""
        return Statistics(
            tuple(memory[:MOST_LOCATIONS]), self.changes, self.rolled_back, self.last_check, self.clients, self.handles
        )


@dataclass(slots=True)
class Shutdown:
    """Shutdown of a hold, which has begun if `why` is set. Times are in seconds of the monotonic clock."""

    deadline: float | None
    why: Why | None = None
    signal: int = 0
    grace_until: float = 0.0

    def begin(self, why: Why, until: float, signal: int = 0) -> bool:
        """Begin the shutdown, with grace until then. Return false if it had begun: then the grace can only shorten."""
        if self.why:
            self.grace_until = min(self.grace_until, until)
            return False
        self.why, self.grace_until, self.signal = why, until, signal
        return True

    def due(self, now: float) -> bool:
        """Return whether the deadline has passed and the shutdown has not begun."""
        return self.why is None and self.deadline is not None and now >= self.deadline

    def complete(self, now: float, *, bound: bool) -> bool:
        """Return whether serving ends: no importer is bound to the layout, or the grace is over."""
        return self.why is not None and (not bound or now >= self.grace_until)

    def remaining(self, now: float) -> float | None:
        """Return the seconds until the deadline, or until the grace is over."""
        at = self.grace_until if self.why else self.deadline
        return None if at is None else max(at - now, 0.0)
