"""What `memtopo apply --hold` does with a layout that was built and found as declared: it serves it until the end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from memtopo.common.errors import UsageError
from memtopo.output import plain
from memtopo.run.apply import Run
from memtopo.run.processes import Coordinator, ProcessExports
from memtopo.run.request import HoldResult
from memtopo.sharing import Claim, ExportProvider, Importer, claim, endpoint
from memtopo.sharing.exports import LayoutExports
from memtopo.sharing.holder import HolderInfo, HoldSummary, hold


@dataclass(frozen=True, slots=True)
class Terms:
    """How a layout is to be held: where, for how many seconds, for which other users, and how patiently it ends."""

    socket: str | None
    lasting: float | None
    grace: float
    allow_uids: tuple[int, ...]

    @contextmanager
    def keeper(self, about: HolderInfo, stop: Callable[[], int]) -> Iterator[Keeper]:
        """Take the layout's name before anything is built. Raises `ExchangeError` where another one has it."""
        with claim(endpoint(socket=self.socket) if self.socket else endpoint(about.name)) as claimed:
            yield Keeper(self, claimed, about, stop)


@dataclass(frozen=True, slots=True)
class Keeper:
    """Holds what was built; gives a line for the report about each thing that should be known."""

    terms: Terms
    claim: Claim
    about: HolderInfo
    stop: Callable[[], int]

    def keep(self, run: Run) -> HoldResult:
        """Serve the exports of a layout in this process."""
        execution = run.execution
        shelf = LayoutExports(run.request.geometry.exports, execution.layout, execution.driver, run.recheck)
        return HoldResult(self._hold(shelf, self.stop), self.claim.kept_open)

    def keep_all(self, coordinator: Coordinator) -> list[str]:
        """Serve the exports of several processes, for as long as all of them live."""
        return self._hold(ProcessExports(coordinator), coordinator.watch)

    def _hold(self, shelf: ExportProvider, stop: Callable[[], int]) -> list[str]:
        held = hold(
            shelf,
            self.claim,
            self.about,
            stop=stop,
            lasting=self.terms.lasting,
            grace=self.terms.grace,
            allow_uids=self.terms.allow_uids,
            ready=self._say,
        )
        return list(_told(held))

    def _say(self) -> None:
        release = f"--socket {self.terms.socket}" if self.terms.socket else self.about.name
        where = f"holding {self.about.name} at {self.claim.endpoint.path}"
        plain.print_lines([f"{where}; let it go with 'memtopo release {release}'"], sys.stderr)


def terms(
    *, hold: bool, socket: str | None, lasting: float | None, grace: float, allow_uids: list[int]
) -> Terms | None:
    """What the flags ask for; None where nothing is to be held. Raises `UsageError`."""
    if hold:
        return Terms(socket, lasting, grace, tuple(allow_uids))
    for flag, given in (("--for", lasting is not None), ("--socket", socket is not None)):
        if given:
            raise UsageError(f"{flag} says how a layout is held, and it is not to be", hint="add --hold")
    return None


def _told(held: HoldSummary) -> Iterator[str]:
    ends = {"signal": "a signal", "release": "a release", "deadline": "its deadline"}
    served = f"{held.handles:,} handles to {held.clients:,} client{'s' * (held.clients != 1)}"
    end = ends[held.why] if held.signal >= 0 else "one of its processes ended"
    yield f"held for {held.seconds:.1f} s, until {end}; served {served}"
    for importer in held.lost:
        yield f"{_who(importer)} lost what it used over ipc: {_what(importer)}"
    for importer in held.kept:
        yield f"{_who(importer)} keeps memory alive that it imported: {_what(importer)}"
    yield from held.notes


def _who(importer: Importer) -> str:
    return f"process {importer.pid} of user {importer.uid}"


def _what(importer: Importer) -> str:
    return ", ".join(f"{taken.handles:,} of {taken.export}" for taken in importer.taken)
