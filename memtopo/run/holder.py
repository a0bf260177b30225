"""Holder of a layout: serves its exports until a stop, a release or a deadline."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

from memtopo.common.text import process_name
from memtopo.driver.types import Location, LocationKind
from memtopo.planner import Plan
from memtopo.run.conductor import Conductor
from memtopo.run.held import HeldLayout
from memtopo.run.imports import Follower
from memtopo.session.composition import Composition
from memtopo.session.request import Holding, HoldResult, Revise, RunRequest
from memtopo.sharing.claims import Claim
from memtopo.sharing.holder import INTERVAL, HolderInfo, HoldSummary, Supervision, hold
from memtopo.sharing.holder.state import ProgressNotices
from memtopo.sharing.status import Importer, LocationMemory


@dataclass(frozen=True, slots=True)
class Holder:
    """Serves a layout that was built and checked, at a claimed endpoint, and returns notes for the report.

    The conductor's stop ends the hold, and is asked at once when `wake` can be read; the notes name that end as
    `stopped_by`. `revise` validates a changed spec, and `ready` is called when clients can connect. `supervised` is
    entered while the layout is served, for the log, the metrics and reloads. `log` is the descriptor for the output of
    the layout's processes.
    """

    claim: Claim
    about: HolderInfo
    revise: Revise
    terms: Holding = field(default_factory=Holding)
    gpus: Sequence[str | None] = ()
    ready: Callable[[], None] = lambda: None
    supervised: Callable[[], AbstractContextManager[Supervision]] = lambda: nullcontext(Supervision())
    wake: socket.socket | None = None
    stopped_by: str = "a signal"
    log: int | None = None
    progress: ProgressNotices = field(default_factory=ProgressNotices)
    """Hooks for the work on the layout, whose clients get notices of it."""

    def hold(self, conductor: Conductor) -> HoldResult:
        """Serve the exports of a layout, until one of its processes ends."""
        conductor.release_contexts()
        layout, follower = HeldLayout(conductor, self.about.source, self.revise), Follower(conductor)
        interval = min(INTERVAL, conductor.interval)
        return HoldResult([*self._serve(layout, follower.stop, interval), *follower.notes], self.claim.kept_open)

    def _serve(self, layout: HeldLayout, stop: Callable[[], int], interval: float) -> list[str]:
        with self.supervised() as supervision:
            held = hold(
                layout,
                self.claim,
                self.about,
                stop=stop,
                lasting=self.terms.lasting,
                grace=self.terms.grace,
                allow_uids=self.terms.allow_uids,
                ready=self.ready,
                wake=self.wake,
                interval=interval,
                changeable=layout,
                supervision=replace(
                    supervision,
                    memory=lambda: _location_memory(layout.plans, self.gpus),
                    contexts=lambda: layout.contexts,
                    progress=self.progress,
                    reports_end=True,
                ),
            )
        return list(_notes(held, self.stopped_by))


def about_holder(composition: Composition, request: RunRequest) -> HolderInfo:
    """Return what a holder tells its clients of a layout."""
    return HolderInfo(request.plan.name, request.spec, request.machine, composition.source)


def _location_memory(plans: Iterable[Plan], gpus: Sequence[str | None]) -> tuple[LocationMemory, ...]:
    """Memory that the steps of plans allocate by location; `gpus` are UUIDs by ordinal."""
    sizes: dict[Location, list[int]] = {}
    allocated = (step.allocates for plan in plans for step in plan.steps)
    for location, size in (each for each in allocated if each):
        sizes.setdefault(location, []).append(size)
    return tuple(
        LocationMemory(
            str(location),
            gpus[location.id] if location.kind is LocationKind.GPU and location.id < len(gpus) else None,
            sum(found),
            len(found),
        )
        for location, found in sorted(sizes.items())
    )


def _notes(held: HoldSummary, stopped_by: str) -> Iterator[str]:
    ends = {
        "signal": stopped_by,
        "release": "a release",
        "deadline": "its deadline",
        "failure": "a failed change",
        "ended": "one of its processes ended",
    }
    served = f"{held.handles:,} handles to {held.clients:,} client{'s' * (held.clients != 1)}"
    yield f"held for {held.seconds:.1f} s, until {ends[held.why]}; served {served}"
    for importer in held.lost:
        yield f"{_process(importer)} lost what it used over ipc, or of pools: {_exports(importer)}"
    for importer in held.kept:
        yield f"{_process(importer)} keeps memory alive that it imported: {_exports(importer)}"
    yield from held.notes


def _process(importer: Importer) -> str:
    return f"{process_name(importer.pid)} of user {importer.uid}"


def _exports(importer: Importer) -> str:
    return ", ".join(f"{taken.handles:,} of {taken.export}" for taken in importer.taken)
