"""How a hold comes to its end: who asked for it, and how long those who lose by it are waited for."""

from __future__ import annotations

from dataclasses import dataclass

from memtopo.sharing.holder.held import Why


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
