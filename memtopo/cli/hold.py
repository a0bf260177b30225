"""`memtopo apply --hold`: serve the exports of a layout until a signal, a release or a deadline."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from memtopo.cli.metrics import metrics_target
from memtopo.cli.service import Service, ServiceOptions
from memtopo.common.errors import UsageError
from memtopo.common.text import printable, process_name
from memtopo.output import plain
from memtopo.run.apply import Run
from memtopo.run.capacity import location_memory
from memtopo.run.held import HeldLayout, Revise
from memtopo.run.imports import Follower
from memtopo.run.processes import Coordinator, HeldProcesses
from memtopo.run.request import HoldResult
from memtopo.sharing.claims import Claim, claim
from memtopo.sharing.endpoints import endpoint, is_folder
from memtopo.sharing.holder import INTERVAL, HolderInfo, HoldSummary, MetricsTarget, Supervision, hold, passed_claim
from memtopo.sharing.status import Importer


@dataclass(frozen=True, slots=True)
class HoldOptions:
    """Options of a held layout: socket path, seconds until its deadline, grace in seconds, and trusted users."""

    socket: str | None
    lasting: float | None
    grace: float
    allow_uids: tuple[int, ...]
    metrics: str | None = None
    """File, or `unix:` and the path of a socket, for metrics."""
    service: ServiceOptions = field(default_factory=ServiceOptions)

    @contextmanager
    def holder(
        self,
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
            self._claim(about.name) as claimed,
            metrics_target(self.metrics) as metrics,
            self.service.service(about.name) as service,
        ):
            yield Holder(self, claimed, about, stop, revise, gpus, metrics, service, reread)

    def _claim(self, name: str) -> Claim:
        """Claim the socket that systemd passed, else the layout's name. Raises `ExchangeError`, `UsageError`."""
        passed = passed_claim()
        if passed is None:
            return claim(endpoint(name, self.socket), self.allow_uids)
        if self.socket and endpoint(name, self.socket).path != passed.endpoint.path:
            passed.close()
            message = f"--socket {self.socket} is another one than {passed.endpoint.path!r}, which systemd passed"
            raise UsageError(message, hint="leave --socket out")
        return passed


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

    def hold(self, run: Run) -> HoldResult:
        """Serve the exports of a layout in this process."""
        run.begin_hold()
        layout = HeldLayout(run, self.about.source, self.revise)
        follower = Follower(run, self.stop)
        notes = self._serve(layout, follower.stop, INTERVAL)
        if layout.failure:
            raise layout.failure
        return HoldResult([*notes, *follower.notes], self.claim.kept_open)

    def hold_processes(self, coordinator: Coordinator) -> list[str]:
        """Serve the exports of a multi-process layout, until one of its processes ends."""
        layout = HeldProcesses(coordinator, self.about.source, self.revise)
        return self._serve(layout, coordinator.watch, min(INTERVAL, coordinator.interval))

    def _serve(self, layout: HeldLayout | HeldProcesses, stop: Callable[[], int], interval: float) -> list[str]:
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
                    memory=lambda: location_memory(layout.plans, self.gpus),
                    contexts=lambda: layout.contexts,
                    metrics=self.metrics,
                    reload=lambda: self.reread if hangups.take() else None,
                    log=self.service.record,
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


def hold_options(options: HoldOptions, *, hold: bool) -> HoldOptions | None:
    """Return the options of `--hold`, or None without it. Raises `UsageError` for options that need it."""
    if hold:
        return options
    service = options.service
    values = {
        "--for": options.lasting,
        "--socket": None if options.socket and is_folder(options.socket) else options.socket,
        "--metrics": options.metrics,
        "--log": service.log,
        "--ready-fd": service.ready_fd,
        "--reload": service.reload or None,
        "--detach": service.detach or None,
    }
    for flag, given in ((flag, value is not None) for flag, value in values.items()):
        # The variables may be set for other commands, or by a memtopo that started this one.
        if given and f"MEMTOPO_{flag.removeprefix('--').replace('-', '_').upper()}" not in os.environ:
            raise UsageError(f"{flag} is for held layouts only", hint="add --hold")
    return None


def _notes(held: HoldSummary) -> Iterator[str]:
    ends = {"signal": "a signal", "release": "a release", "deadline": "its deadline", "failure": "a failed change"}
    served = f"{held.handles:,} handles to {held.clients:,} client{'s' * (held.clients != 1)}"
    end = ends[held.why] if held.signal >= 0 else "one of its processes ended"
    yield f"held for {held.seconds:.1f} s, until {end}; served {served}"
    for importer in held.lost:
        yield f"{_process(importer)} lost what it used over ipc: {_exports(importer)}"
    for importer in held.kept:
        yield f"{_process(importer)} keeps memory alive that it imported: {_exports(importer)}"
    yield from held.notes


def _process(importer: Importer) -> str:
    return f"{process_name(importer.pid)} of user {importer.uid}"


def _exports(importer: Importer) -> str:
    return ", ".join(f"{taken.handles:,} of {taken.export}" for taken in importer.taken)
