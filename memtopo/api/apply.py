"""`memtopo.applied` and `memtopo.hold`: context managers that build a spec, for this process or for others."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, get_args

from memtopo.api.errors import NotApplied, Unsuitable, ViewOutlived, require_tried
from memtopo.api.live import Live
from memtopo.api.session import OwnSession, uuids
from memtopo.api.specs import MachineLike, Params, SpecLike, plan_new
from memtopo.common.arguments import checked, refused, seconds
from memtopo.common.signals import deferred
from memtopo.geometry import Geometry
from memtopo.language import SpecText
from memtopo.machine import MachineLine
from memtopo.output import monitoring
from memtopo.plans.report import Check, Report
from memtopo.run.apply import Application
from memtopo.run.holder import Holder, about_holder
from memtopo.session.composition import Composition, Holding, RunRequest, revision
from memtopo.sharing.claims import Claim, claim
from memtopo.sharing.endpoints import endpoint
from memtopo.sharing.holder import Background
from memtopo.sharing.holder.state import Supervision
from memtopo.sharing.imports import HolderHandles
from memtopo.sharing.producers import Bound, Producers, start_producers, unused

BoundLike = str | os.PathLike[str] | Sequence[str]
"""Path of a socket, or a command as a list of words."""


L = TypeVar("L", bound=Live)


class LiveContext(Generic[L]):
    """Context manager of a live layout: builds it on entering and takes it down on leaving, once.

    `build` enters what must exist as long as the layout, such as its producers.
    """

    def __init__(self, build: Callable[[ExitStack], L]) -> None:
        self._build = build
        self._live: L | None = None
        self._entered = False
        self._resources = ExitStack()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the layout is built on entering: 'with … as layout', and then layout.{name}")

    def __enter__(self) -> L:
        if self._entered:
            raise Unsuitable("a layout can be entered only once; call the function again for another one")
        self._entered = True
        with ExitStack() as stack:
            stack.push(self._resources)
            self._live = self._build(self._resources)
            stack.pop_all()
        return self._live

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with deferred():  # Ctrl-C is raised after the teardown
            live, self._live = self._live, None
            if live is None:
                return
            with self._resources:
                report, outlived = live.end()
            live.report = report = live.completed(report)
            if outlived and error is None:  # else the traceback keeps them
                message = f"layout {live.name!r} was taken down while views are still in use: {', '.join(outlived)}"
                warnings.warn(f"{message}; delete them within the 'with'", ViewOutlived, stacklevel=2)
            if not report.exit_code:
                return
            if error is None:
                raise NotApplied(report, built=True)
            error.add_note(str(NotApplied(report, built=True)))


class Applied(LiveContext[Live]):
    """Layout that exists for the duration of a `with`."""


@checked()
def applied(
    spec: SpecLike,
    machine: MachineLike = "local",
    bind: Mapping[str, BoundLike] | None = None,
    *,
    allow_uids: Collection[int] = (),
    params: Params | None = None,
    source: str | os.PathLike[str] | None = None,
) -> Applied:
    """Build and check a spec, for the duration of a `with`; at its end, wait for the GPUs and take everything down.

    `bind` maps the names of external holders in the spec to the path of a socket, or to a command as a list of words,
    which runs until the end and serves at the path in its MEMTOPO_SOCKET. `allow_uids` are other users whose layouts
    may be imported. `params` are values of the spec's parameters, in place of the declared ones. The initial
    contents of the memory are undefined, but for what comes back from `source`, a folder that `save` has written: the
    bytes of all memory of the same name and size, each chunk once its checksum was compared.

    Entering raises `InvalidSpec` with all diagnostics, `Unavailable` if there is no such machine, `Unsuitable` if the
    spec imports nothing from a name in `bind`, `ProducerFailed` if a command does not serve, `FolderRefused` if
    `source` has no bytes of the layout, and `NotApplied` with the report after everything was undone. Views that are
    still in use at the end are named in a `ViewOutlived` warning.
    """
    folder = None if source is None else os.fspath(source)
    return Applied(partial(_build, spec, machine, bound_holders(bind), allow_uids, params, folder))


def _build(
    spec: SpecLike,
    machine: MachineLike,
    bind: Mapping[str, Bound],
    allow_uids: Collection[int],
    params: Params | None,
    source: str | None,
    resources: ExitStack,
) -> Live:
    planned = plan_new(spec, machine, params)
    if planned.geometry.processes:
        message = f"{planned.document.name} is a multi-process spec, and 'applied' builds in this process only"
        raise Unsuitable(
            message, hint="memtopo.hold starts a process for each; memtopo.join is for a process of your own"
        )
    require_tried(planned)
    running = resources.enter_context(producers_of(planned, bind))
    driver = planned.target.open()

    def handles_for(geometry: Geometry) -> HolderHandles | None:
        if not any(group.origin for group in geometry.every):
            return None
        return HolderHandles(geometry, uuids(driver), running.sockets, allow_uids)

    handles = handles_for(planned.geometry)
    session = OwnSession(planned, driver, handles, running.with_notes, handles_for, source=source)
    live = Live(session)
    live.completed = running.with_survivors
    live.begin()
    return live


def bound_holders(bind: Mapping[str, BoundLike] | None) -> dict[str, Bound]:
    """Return the sockets and commands of holders by name. Raises `UsageError`."""
    found: dict[str, Bound] = {}
    for name, given in (bind or {}).items():
        value = os.fspath(given) if isinstance(given, os.PathLike) else given
        if isinstance(value, str) and value:
            found[name] = value
        elif isinstance(value, Sequence) and value and all(isinstance(each, str) for each in value):
            found[name] = tuple(value)
        else:
            raise refused(f"bind[{name!r}]", given, "a socket or a command", "write a path, or a list of words")
    return found


def producers_of(found: Composition, bind: Mapping[str, Bound], **limits: Any) -> AbstractContextManager[Producers]:
    """Return the producers of a layout, to be entered. Raises `Unsuitable` for a name that it imports nothing from."""
    if wrong := unused(bind, found.geometry):
        raise Unsuitable(f"bind: {wrong[0]}", hint=wrong[1])
    machine = found.target.machine if found.target.simulated else None
    return start_producers(found.geometry, bind, machine, name=found.target.name, **limits)


def _composed(
    spec: SpecLike, machine: MachineLike, params: Params | None, check: Check, timeout: float, source: str | None
) -> tuple[Composition, RunRequest]:
    """Return a layout on its machine, and the request for it. A spec of Python becomes a text, which workers read."""
    composition = plan_new(spec, machine, params)
    document = composition.document
    if composition.geometry.nodes:
        raise Unsuitable(
            f"{document.name} is a spec of several nodes", hint="'memtopo apply --on' starts it on a cluster"
        )
    require_tried(composition)
    if not document.text:
        composition = Composition.of(SpecText.of(document).read(), composition.target)
    composition = composition.held_part
    return composition, composition.request(check=check, timeout=timeout, exclusive=False, source=source)


class Held:
    """Layout that is held for the duration of a `with`. A thread serves it, and the program goes on meanwhile."""

    def __init__(
        self,
        compose: Callable[[], tuple[Composition, RunRequest]],
        terms: Holding,
        bind: Mapping[str, Bound],
        timeout: float,
        log: Callable[[str], None] | None,
    ) -> None:
        self._compose, self._terms, self._bind, self._timeout = compose, terms, bind, timeout
        self._program_log = log
        self._resources = ExitStack()
        self._background = Background("memtopo-hold")
        self.name = ""
        """Name of the layout, by which other processes attach to it."""
        self.path = ""
        """Path of its socket."""
        self.machine: MachineLine
        """Description of the machine, as in a report; known within the `with`."""
        self.report: Report | None = None
        """Report from building to taking down; None until then."""

    @property
    def over(self) -> bool:
        """True once the layout was taken down: by a release, its deadline, a lost process, or the end of the `with`."""
        return self._background.over.is_set()

    @checked()
    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the layout is taken down, for at most `timeout` seconds. Return whether it is."""
        return self._background.over.wait(timeout)

    def __enter__(self) -> Self:
        if self.name:
            raise Unsuitable("a layout can be entered only once; call the function again for another one")
        composition, request = self._compose()
        self.name, self.machine = request.plan.name, request.machine
        with ExitStack() as stack:
            claims = stack.enter_context(ExitStack())
            where = endpoint(self.name, self._terms.socket)
            claimed = claims.enter_context(claim(where, self._terms.allow_uids))
            self.path = claimed.endpoint.path
            stack.enter_context(self._background.running(partial(self._run, composition, request, claims, claimed)))
            if self.report and not self._background.served:
                raise NotApplied(self.report)
            self._resources = stack.pop_all()
        return self

    def _run(self, composition: Composition, request: RunRequest, claims: ExitStack, claimed: Claim) -> None:
        """Build the layout, serve it, and take it down."""
        thread, supervision = self._background, Supervision(log=lambda event: self._log(monitoring.event_line(event)))
        holder = Holder(
            claimed,
            about_holder(composition, request),
            partial(revision, target=composition.target),
            self._terms,
            gpus=[device.uuid for device in composition.target.machine.devices],
            ready=thread.report_ready,
            supervised=lambda: nullcontext(supervision),
            wake=thread.wake,
            stopped_by="the end of its 'with'",
        )
        application = Application(
            composition,
            request,
            lambda: producers_of(composition, self._bind, stop=self._signal, patience=self._timeout),
            self._terms.allow_uids,
            self._timeout,
            self._signal,
            report_wait=self._log,
        )
        with claims:  # a client that releases the layout waits for their end
            self.report = application.run(holder)

    def _log(self, line: str) -> None:
        """Call the function of the program. Its errors are shown, and do not end the layout."""
        try:
            if self._program_log:
                self._program_log(line)
        except Exception:  # noqa: BLE001 of the program
            sys.excepthook(*sys.exc_info())

    def _signal(self) -> int:
        return signal.SIGINT if self._background.stopping else 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with deferred():  # Ctrl-C is raised after the teardown
            self._resources.close()
            failed = self._background.error
            if self.report and self.report.exit_code:
                failed = NotApplied(self.report)
            if failed and error is None:
                raise failed
            if failed and error:
                error.add_note(str(failed))


@checked(check=get_args(Check))
def hold(
    spec: SpecLike,
    machine: MachineLike = "local",
    bind: Mapping[str, BoundLike] | None = None,
    *,
    socket: str | os.PathLike[str] | None = None,
    allow_uids: Collection[int] = (),
    params: Params | None = None,
    check: Check = "fast",
    lasting: str | float | None = None,
    grace: str | float = 5.0,
    timeout: str | float = 30.0,
    log: Callable[[str], None] | None = None,
    source: str | os.PathLike[str] | None = None,
) -> Held:
    """Build and check a spec, and serve its exports to other processes, for the duration of a `with`.

    It is built in this process, and a spec with `processes` in processes that are started. Other processes attach to
    it, switch and change it as they do with `memtopo apply --hold`; it is taken down at the end of the `with`, after
    `lasting`, or when another process releases it. `machine`, `bind`, `params` and `source` are those of `applied`.

    `socket` is a path, or a folder in which it is named by the layout. `allow_uids` are other users who may import, and
    whose layouts may be imported. Importers over ipc have `grace` to end. `timeout` is how long a process, an external
    producer or a semaphore may be silent. Durations are seconds, or text such as "30s". `log` is called with a line for
    each event, in another thread.

    Entering raises as `applied` does, and `ExchangeError` if the name is held already. The end raises `NotApplied` if
    something is left, or was lost while the layout was held.
    """
    limit = None if lasting is None else seconds("lasting", lasting)
    patience = seconds("timeout", timeout)
    folder = None if source is None else os.fspath(source)
    terms = Holding(os.fspath(socket) if socket else None, limit, seconds("grace", grace), tuple(allow_uids))
    compose = partial(_composed, spec, machine, params, check, patience, folder)
    return Held(compose, terms, bound_holders(bind), patience, log)
