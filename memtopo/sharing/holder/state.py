"""State of a hold: its description, supervision, events and progress, its shutdown, and its result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal, Protocol

from msgspec import Struct, field

from memtopo.common.errors import ExchangeError
from memtopo.machine import MachineLine
from memtopo.plans.progress import CountedProgress
from memtopo.plans.report import Checks
from memtopo.sharing import status
from memtopo.sharing.status import CheckResult, HeapUse, Importer, LayoutEnd, LocationMemory, NodeStatus, Status

if TYPE_CHECKING:
    from memtopo.sharing.holder.metrics import MetricsTarget

Severity = Literal["info", "warning", "error"]
EventFields = Mapping[str, str | float]

MOST_OF_CLIENTS = 1000
"""Events of clients that are recorded in each `PERIOD`; a client can cause any number of them."""

PERIOD = 60.0
LISTED = 4


class HolderEvent(Struct, frozen=True):
    """One event. Texts among the values may come from clients, and are not safe to print as they are."""

    text: str
    fields: EventFields
    severity: Severity = "info"


class HolderEvents:
    """Records events by calling `write`, which must not wait or raise; `now` returns seconds."""

    def __init__(
        self, write: Callable[[HolderEvent], None] = lambda _: None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._write, self._now = write, now
        self._until = 0.0
        self._of_clients = 0

    def add(self, text: str, fields: EventFields, severity: Severity = "info") -> None:
        """Record an event."""
        self._write(HolderEvent(text, fields, severity))

    def add_of_client(self, text: str, fields: EventFields) -> None:
        """Record an event that a client caused; beyond `MOST_OF_CLIENTS` in a period, only their number."""
        if (now := self._now()) >= self._until:
            left_out, self._of_clients = self._of_clients - MOST_OF_CLIENTS, 0
            self._until = now + PERIOD
            if left_out > 0:
                self.add("client events omitted", {"count": left_out}, "warning")
        self._of_clients += 1
        if self._of_clients <= MOST_OF_CLIENTS:
            self.add(text, fields)


Why = Literal["signal", "release", "deadline", "failure", "ended"]
"""Reason for the end of a hold; `ended` is that of a process or another part of the layout."""


class HolderInfo(Struct, frozen=True):
    """Description that a holder reports: the layout's name, the path of its spec, and the machine.

    `source` is the text from which clients can draw the layout; empty if it is not reported. The content of `committed`
    exports was restored.
    """

    name: str
    spec: str | None
    machine: MachineLine
    source: str = ""
    committed: frozenset[str] = frozenset()


class HoldSummary(Struct, frozen=True):
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


class Counters(Struct):
    """Counts of events of a layout while it is held; `statistics` makes a record of them."""

    changes: int = 0
    rolled_back: int = 0
    last_check: CheckResult | None = None
    clients: int = 0
    handles: int = 0
    epoch: Callable[[], float] = time.time

    def add_check(self, checks: Checks) -> None:
        """Record the result of a check that has just ended."""
        self.last_check = CheckResult(self.epoch(), checks.different)

    def statistics(self, memory: Sequence[LocationMemory]) -> status.Statistics:
        """Record of the counters, with the memory that the layout has now."""
        found = tuple(memory[: status.MOST_LOCATIONS])
        return status.Statistics(found, self.changes, self.rolled_back, self.last_check, self.clients, self.handles)


class Shutdown(Struct):
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


INTERVAL = 1.0
"""Seconds before the first notice, and between two of them."""


class Receiver(Protocol):
    """A connection that takes messages."""

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message, or queue it. Raises `OSError`."""


class ProgressNotices(CountedProgress):
    """Progress of the work of a holder, whose hooks send notices to the clients that wait for it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self._receivers: tuple[Receiver, ...] = ()
        self._due = 0.0

    @contextmanager
    def to(self, *receivers: Receiver) -> Iterator[None]:
        """Send notices to these clients while the code inside works for them."""
        self._receivers, self._due = receivers, self._clock() + INTERVAL
        try:
            yield
        finally:
            self._receivers = ()

    def advance(self, steps: int, process: str = "") -> None:
        super().advance(steps, process)
        if not self._receivers or self._clock() < self._due:
            return
        self._due = self._clock() + INTERVAL
        state = self.state
        if state is None or state.in_bytes:
            return
        notice = {"notice": "progress", "phase": state.name, "done": state.whole.done, "total": state.whole.total}
        for each in self._receivers:
            with suppress(OSError):  # found when it is answered
                each.send(notice)


class HeldNodes(Struct, frozen=True):
    """Nodes of a layout by name.

    `statuses` returns what their holders reported last; `report` reports on the holder of the `own` one.
    """

    names: tuple[str, ...]
    statuses: Callable[[], Sequence[NodeStatus]]
    report: Callable[[Status], None] = lambda _: None
    own: str = ""

    def require_unbound(self) -> None:
        """Raise `ExchangeError` for a release while importers on other nodes than the own use exports over ipc."""
        others = (each for each in self.statuses() if each.node != self.own)
        bound = [each.node for each in others for importer in each.importers if importer.bound]
        if bound:
            processes = f"{len(bound)} process{'es' * (len(bound) > 1)}"
            nodes = list(dict.fromkeys(bound))
            raise still_bound(f"{processes} on {', '.join(nodes[:LISTED])}{' …' * (len(nodes) > LISTED)}")


def still_bound(processes: str) -> ExchangeError:
    """Return the refusal of a release while processes are bound to the layout."""
    message = f"its exports over ipc or from pools are in use by {processes}"
    return ExchangeError("attached", message, hint="--force notifies them, and releases it after --grace")


Reload = Callable[[], Callable[[], str] | None]
"""Function that reads the spec again, if a signal has requested it since the last call, or None.

It returns a source, or raises `MemtopoError`.
"""


class Supervision(Struct, frozen=True):
    """Reports of a holder, and its reloads.

    `memory` returns the memory that the layout has now. Metrics are kept where `metrics` says. `reload` is called as
    often as the holder's `stop`; a function that it returns reads the source of a spec to change to. `log` receives the
    events. `contexts` returns the GPU of each context that the processes of the layout keep; None if it is unknown.
    `processes` returns their numbers by label, and `heaps` what is allocated in the heaps of its processes.
    `nodes` are those of a layout of several. `progress` has hooks for the work on the layout. `reports_end` is true if
    the caller passes a report of the teardown to `Claim.report_end`. `end` returns the end of the layout once one of
    its processes has ended or left.
    """

    memory: Callable[[], Sequence[LocationMemory]] = tuple
    metrics: MetricsTarget | None = None
    reload: Reload = lambda: None
    log: Callable[[HolderEvent], None] = lambda _: None
    contexts: Callable[[], Sequence[str]] | None = None
    processes: Callable[[], Mapping[str, int]] = dict
    heaps: Callable[[], Sequence[HeapUse]] = tuple
    nodes: HeldNodes | None = None
    progress: ProgressNotices = field(default_factory=ProgressNotices)
    reports_end: bool = False
    end: Callable[[], LayoutEnd | None] = lambda: None
