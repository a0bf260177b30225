"""What the ways to prove have in common: who proves what, and in which turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from memtopo.driver.kernels import KernelDriver
from memtopo.kinds.layout import Layout, current
from memtopo.plans.report import Finding, Rate
from memtopo.run.contents import Contents, Identity, Recorded


@dataclass(frozen=True, slots=True)
class Scene:
    """What one process, by its label, proves with: what each process sees, and its own driver and layout.

    `stop` raises where somebody asked to stop, `advance` is told of bytes that are done. `seed` is the run's, the same
    in all processes. On a simulator nothing is timed.
    """

    process: str
    seen: Mapping[str, Sequence[Contents]]
    events: Mapping[str, Sequence[Recorded]]
    driver: KernelDriver
    layout: Layout
    stop: Callable[[], None] = lambda: None
    advance: Callable[[int], None] = lambda _: None
    seed: int = 0
    simulated: bool = True

    @property
    def mine(self) -> Sequence[Contents]:
        """What this process sees."""
        return self.seen[self.process]


class Prover(Protocol):
    """One way to prove, in `turns` turns: in each of them all processes write before any of them reads."""

    @property
    def doing(self) -> str:
        """What it is called where it fails."""

    @property
    def aspect(self) -> str:
        """What its findings are about."""

    @property
    def verbs(self) -> tuple[str, str]:
        """What its writing and its reading are called; the first is empty where nothing is written."""

    @property
    def turns(self) -> int:
        """How many there are, the same in all processes."""

    @property
    def volume(self) -> int:
        """Bytes that this process writes and reads in all turns; 0 where they are too few to tell."""

    def write(self, turn: int) -> int:
        """Write what is this process's to write, and wait until it has arrived; gives how many things those were."""

    def read(self, turn: int) -> Iterator[Finding]:
        """Read what everybody wrote in this turn, as far as this process may."""

    def expected(self, turn: int) -> int:
        """How many things are to be read in a turn."""

    def unseen(self) -> Iterator[tuple[int, str]]:
        """What is in no turn: how many mappings or windows, and why."""

    def rates(self) -> Iterator[Rate]:
        """How fast it went."""


Recorders = Mapping[Identity, str]
"""Which process records each event in one turn."""


@dataclass(slots=True)
class Events:
    """Events, recorded by one process and waited for by all others: its creator first, then an importer."""

    scene: Scene
    turns: list[Recorders] = field(init=False)

    def __post_init__(self) -> None:
        created: dict[Identity, str] = {}
        imported: dict[Identity, str] = {}
        for process, recorded in self.scene.events.items():
            for event in recorded:
                (created if event.identity.owner == process else imported).setdefault(event.identity, process)
        self.turns = [created, imported] if imported else [created]

    def record(self, turn: int) -> None:
        """Record what is this process's to record. Raises `DriverError`."""
        for event in self._of(turn, mine=True):
            with current(self.scene.driver, self.scene.layout.contexts[event.device]):
                self.scene.driver.event_record(self.scene.layout.events[event.event])

    def wait(self, turn: int) -> Iterator[Finding]:
        """Wait on each GPU for what another process recorded, and see it complete. Raises `DriverError`."""
        driver, layout = self.scene.driver, self.scene.layout
        for event in self._of(turn, mine=False):
            self.scene.stop()
            with current(driver, layout.contexts[event.device]):
                driver.stream_wait_event(0, layout.events[event.event])
                driver.ctx_synchronize()
            seen = "complete" if driver.event_query(layout.events[event.event]) else "not ready"
            subject = f"{event.event}, recorded by {event.identity.owner or 'this process'}"
            yield Finding("event", subject, "complete", seen, event.path)

    def _of(self, turn: int, *, mine: bool) -> Iterator[Recorded]:
        recorders = self.turns[turn] if turn < len(self.turns) else {}
        for event in self.scene.events[self.scene.process]:
            recorder = recorders.get(event.identity)
            if recorder is not None and (recorder == self.scene.process) is mine:
                yield event
