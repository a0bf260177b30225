"""Holder of a layout: serves its exports until a signal, a release or a deadline."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from memtopo.cli.hold import HoldOptions
from memtopo.cli.metrics import metrics_target
from memtopo.cli.service import Service, opened_service
from memtopo.common.errors import UsageError
from memtopo.common.text import printable, process_name
from memtopo.driver.types import Location, LocationKind
from memtopo.output import plain
from memtopo.planner import Plan
from memtopo.run.conductor import Conductor
from memtopo.run.held import HeldLayout, Revise
from memtopo.run.imports import Follower
from memtopo.run.request import HoldResult
from memtopo.sharing.claims import Claim, claim
from memtopo.sharing.endpoints import endpoint, is_folder
from memtopo.sharing.holder import INTERVAL, HolderInfo, HoldSummary, MetricsTarget, Supervision, hold, passed_claim
from memtopo.sharing.holder.progress import ProgressNotices
from memtopo.sharing.statistics import LocationMemory
from memtopo.sharing.status import Importer


@dataclass(frozen=True, slots=True)
class Holder:
    """Serves a layout that was built and checked; returns notes for the report. `revise` validates a changed spec."""

    options: HoldOptions
    claim: Claim
    about: HolderInfo
    stop: Callable[[], int]
    revise: Revise
    gpus: Sequence[str | None]
    metrics: MetricsTarget | None
    service: Service
    reread: Callable[[], str]
    progress: ProgressNotices = field(default_factory=ProgressNotices)
    """Hooks for the work on the layout, whose clients get notices of it."""

    def hold(self, conductor: Conductor) -> HoldResult:
        """Serve the exports of a layout, until one of its processes ends."""
        conductor.release_contexts()
        layout, follower = HeldLayout(conductor, self.about.source, self.revise), Follower(conductor)
        interval = min(INTERVAL, conductor.interval)
        return HoldResult([*self._serve(layout, follower.stop, interval), *follower.notes], self.claim.kept_open)

    def _serve(self, layout: HeldLayout, stop: Callable[[], int], interval: float) -> list[str]:
        with self.service.hangups as hangups:
            held = hold(
                layout,
                self.claim,
                self.about,
                stop=stop,
                lasting=self.options.lasting,
                grace=self.options.grace,
                allow_uids=self.options.allow_uids,
                ready=self._report_ready,
                interval=interval,
                changeable=layout,
                supervision=Supervision(
                    memory=lambda: _location_memory(layout.plans, self.gpus),
                    contexts=lambda: layout.contexts,
                    metrics=self.metrics,
                    reload=lambda: self.reread if hangups.take() else None,
                    log=self.service.record,
                    progress=self.progress,
                    reports_end=True,
                ),
            )
        return list(_notes(held))

    def _report_ready(self) -> None:
        if not self.service.in_journal:
            self._print_ready()
        self.service.report_ready(self.claim.endpoint.path)

    def _print_ready(self) -> None:
        socket = self.options.socket
        where = f"--socket {shlex.quote(socket)}" if socket else ""
        named = [self.about.name] if not socket or is_folder(socket) else []
        name = " ".join([*named, *filter(None, [where])])
        holding = f"holding {self.about.name} at {self.claim.endpoint.path}"
        log = f"; its log is {self.service.file}" if self.service.file else ""
        plain.print_lines([printable(f"{holding}; release it with 'memtopo release {name}'{log}")], sys.stderr)


@contextmanager
def claimed_holder(
    options: HoldOptions,
    about: HolderInfo,
    stop: Callable[[], int],
    revise: Revise,
    gpus: Sequence[str | None] = (),
    reread: Callable[[], str] = str,
) -> Iterator[Holder]:
    """Claim the layout's name and the place of its metrics, before anything is built; `gpus` are UUIDs by ordinal.

    `reread` returns the source of the spec as it is in its file. Raises `ExchangeError` if a place is taken,
    `UsageError`.
    """
    with (
        _claim(options, about.name) as claimed,
        metrics_target(options.metrics) as metrics,
        opened_service(options.service, about.name) as service,
    ):
        yield Holder(options, claimed, about, stop, revise, gpus, metrics, service, reread)


def _claim(options: HoldOptions, name: str) -> Claim:
    """Claim the socket that systemd passed, else the layout's name. Raises `ExchangeError`, `UsageError`."""
    passed = passed_claim()
    if passed is None:
        return claim(endpoint(name, options.socket), options.allow_uids)
    if options.socket and endpoint(name, options.socket).path != passed.endpoint.path:
        passed.close()
        message = f"--socket {options.socket} is another one than {passed.endpoint.path!r}, which systemd passed"
        raise UsageError(message, hint="leave --socket out")
    return passed


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


def _notes(held: HoldSummary) -> Iterator[str]:
    ends = {"signal": "a signal", "release": "a release", "deadline": "its deadline", "failure": "a failed change"}
    served = f"{held.handles:,} handles to {held.clients:,} client{'s' * (held.clients != 1)}"
    end = ends[held.why] if held.signal >= 0 else "one of its processes ended"
    yield f"held for {held.seconds:.1f} s, until {end}; served {served}"
    for importer in held.lost:
        yield f"{_process(importer)} lost what it used over ipc, or of pools: {_exports(importer)}"
    for importer in held.kept:
        yield f"{_process(importer)} keeps memory alive that it imported: {_exports(importer)}"
    yield from held.notes


def _process(importer: Importer) -> str:
    return f"{process_name(importer.pid)} of user {importer.uid}"


def _exports(importer: Importer) -> str:
    return ", ".join(f"{taken.handles:,} of {taken.export}" for taken in importer.taken)
