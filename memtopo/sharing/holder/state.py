"""What is held, and how a hold ended, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from memtopo.plans.report import MachineLine
from memtopo.sharing.status import Importer

Why = Literal["signal", "release", "deadline"]


@dataclass(frozen=True, slots=True)
class HolderInfo:
    """What a holder tells about itself: the layout's name, the spec that it was built from, and the machine.

    `source` is what the layout can be drawn from, as text for whoever asks; where that is nothing, it is not told.
    """

    name: str
    spec: str | None
    machine: MachineLine
    source: str = ""


@dataclass(frozen=True, slots=True)
class HoldResult:
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


@dataclass(slots=True)
class Ending:
    """The end of a hold, which has not come as long as `why` is None. Times are the monotonic clock's."""

    deadline: float | None
    why: Why | None = None
    signal: int = 0
    grace_until: float = 0.0

    def begin(self, why: Why, until: float, signal: int = 0) -> bool:
        """Let it come, with grace until then; whether it had not begun. A second request can only shorten the grace."""
        if self.why:
            self.grace_until = min(self.grace_until, until)
            return False
        self.why, self.grace_until, self.signal = why, until, signal
        return True

    def due(self, now: float) -> bool:
        """Whether it comes by its deadline."""
        return self.why is None and self.deadline is not None and now >= self.deadline

    def over(self, now: float, *, bound: bool) -> bool:
        """Whether nobody is served any more: nobody is bound to the layout, or their grace is over."""
        return self.why is not None and (not bound or now >= self.grace_until)

    def left(self, now: float) -> float | None:
        """Seconds until something comes by itself."""
        at = self.grace_until if self.why else self.deadline
        return None if at is None else max(at - now, 0.0)
