"""`memtopo apply`: build a spec, check it, report, and take it down; with `--hold` keep it until it is released."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import typer

from memtopo import language, planner
from memtopo.cli.hold import HoldOptions, ServiceOptions, hold_options
from memtopo.cli.nodes import OnNodes
from memtopo.cli.options import (
    AllowUid,
    AsJson,
    CheckLevel,
    Detach,
    Gpus,
    Grace,
    Hold,
    HoldFor,
    LogFile,
    LogLevel,
    MachineNames,
    MetricsPlace,
    On,
    ReadyFd,
    Rehearse,
    Reload,
    Socket,
    SpecFile,
    Timeout,
    TraceFile,
    With,
    duration,
    optional_duration,
    timeout_seconds,
)
from memtopo.cli.process import Interrupted, Stopper
from memtopo.cli.report import RunOutput, RunPage, run_output
from memtopo.cli.settings import Set, settings
from memtopo.cli.specs import Loaded, load
from memtopo.common.errors import UsageError
from memtopo.common.text import printable
from memtopo.driver.ledger import Ledger
from memtopo.driver.protocol import Driver
from memtopo.driver.trace import empty_folder, process_file, require_replaceable, traced
from memtopo.executor import Stopped
from memtopo.geometry import Geometry
from memtopo.machine import dump
from memtopo.machine.target import Target
from memtopo.output import plain
from memtopo.output.diagnostics import concise
from memtopo.output.diagram.build import build_diagram
from memtopo.output.progress import activity, progress
from memtopo.plans import saved
from memtopo.plans.progress import BothProgress, Progress
from memtopo.plans.report import Check, Report
from memtopo.rules import NeverTried, require_tried
from memtopo.rules.change import diagnose_change
from memtopo.rules.validation import validate
from memtopo.run import apply
from memtopo.run.request import RunRequest
from memtopo.sharing.endpoints import is_folder
from memtopo.sharing.errors import ExchangeError

if TYPE_CHECKING:  # imported where it is used: a layout of one process that nobody holds needs none of it
    from memtopo.cli.holder import Holder
    from memtopo.run.held import Revision
    from memtopo.sharing.imports import CommitWait, HolderHandles
    from memtopo.sharing.producers import Producers


def apply_command(
    spec: SpecFile,
    machine: MachineNames = None,
    given: Set = None,
    check: CheckLevel = "fast",
    hold: Hold = False,
    lasting: HoldFor = None,
    socket: Socket = None,
    grace: Grace = "5s",
    allow_uid: AllowUid = None,
    metrics: MetricsPlace = None,
    detach: Detach = False,
    log: LogFile = None,
    log_level: LogLevel = "info",
    ready_fd: ReadyFd = None,
    reload: Reload = False,
    bound: With = None,
    timeout: Timeout = "30s",
    rehearse: Rehearse = False,
    on: On = None,
    gpus: Gpus = None,
    trace: TraceFile = None,
    report: RunPage = None,
    as_json: AsJson = False,
    context: typer.Context = None,  # type: ignore[assignment]
) -> int:
    """Build a spec, compare its memory with what it declares, report, and take all of it down.

    With --hold the layout stays and serves its exports until a signal, 'memtopo release NAME' or --for.
    """
    output, trusted = run_output(report, trace, as_json=as_json), tuple(allow_uid or ())
    service, lasts = ServiceOptions(log, log_level, ready_fd, reload, detach), optional_duration(lasting)
    holding = hold_options(HoldOptions(socket, lasts, duration(grace), trusted, metrics, service), hold=hold)
    holders = bindings(bound or [], trusted, timeout_seconds(timeout), socket)
    request_of = partial(_request, spec=spec, check=check, timeout=holders.silence, rehearse=rehearse, trace=trace)
    if on is not None:
        return OnNodes(on, spec, machine, settings(given), gpus, holders, holding, request_of, output).apply()
    if holding and detach:
        return _detach(context, spec, holding, as_json=as_json)
    return _applied(load(spec, machine, settings(given), one_host=True), request_of, holders, holding, output)


def _applied(
    loaded: Loaded,
    request_of: Callable[[Loaded], RunRequest],
    bound: Bindings,
    holding: HoldOptions | None,
    output: RunOutput,
) -> int:
    """Apply a spec in this process and its workers. Returns the exit status."""
    if loaded.validated.geometry is None:
        return output.refuse(loaded)
    with activity("plan"):
        request = request_of(loaded)
    loaded.print_diagnostics(sys.stderr)
    application = _Application(request, loaded, bound, partial(_reread, loaded.origin, loaded))
    return application.run_and_show(holding, output)


def _detach(context: typer.Context, spec: str, holding: HoldOptions, *, as_json: bool) -> int:
    """Hold a spec in a process of its own, and with `--json` print the layout as `show` does. Returns the status."""
    if holding.service.ready_fd is not None:
        raise UsageError("--detach reports by its end that the layout is served", hint="leave --ready-fd out")
    from memtopo.cli import service
    from memtopo.cli.held import show_command

    status, path = service.detach(context, spec, holding.service.log)
    return show_command(socket=path, as_json=True) if path and as_json else status


def _reread(spec: str, loaded: Loaded) -> str:
    """The source of a spec as it is in its file now. Raises `ExchangeError` if it cannot be read again."""
    from memtopo.sharing.sources import layout_source

    if spec == "-" or loaded.saved:
        what = "a saved plan" if loaded.saved else "standard input"
        raise ExchangeError("invalid", f"the layout is from {what}, which is not read again", hint="use memtopo change")
    document = language.read_file(spec, settings=loaded.document.settings)
    if errors := concise([each for each in document.diagnostics if each.severity == "error"], document):
        raise ExchangeError("invalid", f"the spec cannot be changed to: {next(iter(errors))}")
    return layout_source(document, loaded.target.machine)


def _request(
    loaded: Loaded, *, spec: str, check: Check, timeout: float, rehearse: bool, trace: str | None
) -> RunRequest:
    """The request to apply a spec. Raises `StalePlan` if a saved plan no longer agrees with it, and `NeverTried`."""
    geometry, machine = loaded.validated.geometry, loaded.target.machine
    assert geometry
    if trace:
        _require_replaceable(trace, geometry)
    require_tried(geometry, loaded.target.machines)
    plan = planner.plan(geometry, loaded.target.machines)
    if loaded.saved:
        saved.compare(loaded.saved, spec, geometry, plan)
    request = RunRequest(
        plan=plan,
        geometry=geometry,
        machine=loaded.target.line,
        machine_facts=machine,
        check=check,
        timeout=timeout,
        rehearse=rehearse,
        trace=os.path.abspath(trace) if trace else None,  # noqa: PTH100 as it is, without its links followed
    )
    return _of_spec(request, loaded)


def _require_replaceable(trace: str, geometry: Geometry) -> None:
    """Raise `UsageError` where a trace, or that of a process in a folder, would replace another file."""
    if not geometry.processes:
        require_replaceable(trace)
    for process in geometry.processes:
        require_replaceable(process_file(trace, process), link=False)


def _of_spec(request: RunRequest, loaded: Loaded) -> RunRequest:
    """A request with what it reports of a spec."""
    return replace(
        request,
        spec=loaded.document.name,
        position_of=loaded.document.position,
        picture=build_diagram(request.geometry, loaded.target.machines),
        warnings=loaded.warnings,
        params=loaded.document.values,
    )


def revision(source: str, before: RunRequest, target: Target) -> Revision:
    """The request to which a held layout is to be changed, from a source of a client. Raises `ExchangeError`."""
    from memtopo.run.held import Revision
    from memtopo.sharing.sources import layout_source, parsed_source

    document, machine = parsed_source(source)
    if machine not in ("", dump(target.machine)):
        raise ExchangeError("invalid", f"the change is for another machine than {target.name!r}", hint="plan it again")
    loaded = Loaded(validate(document, target.machine), target, document.name)
    geometry = loaded.validated.geometry
    found = tuple(loaded.validated.diagnostics if geometry is None else diagnose_change(before.geometry, geometry))
    if geometry is None or found:
        first, *more = concise([each for each in found if each.severity == "error"], document)
        others = f" (and {len(more)} more)" if more else ""
        raise ExchangeError("invalid", f"the spec cannot be changed to: {first}{others}")
    try:
        require_tried(geometry, target.machine)
    except NeverTried as refused:
        raise ExchangeError("invalid", refused.message, hint=refused.hint) from refused
    request = replace(before, geometry=geometry, plan=planner.plan(geometry, target.machine))
    return Revision(_of_spec(request, loaded), layout_source(document, target.machine))


@dataclass(frozen=True, slots=True)
class _Application:
    """One application of a spec; `stop` returns the number of a signal, or 0, and `reread` the spec's source now."""

    request: RunRequest
    loaded: Loaded
    bindings: Bindings
    reread: Callable[[], str]
    stop: Callable[[], int] = lambda: 0

    def run_and_show(self, holding: HoldOptions | None, output: RunOutput) -> int:
        """Apply the spec until it is done or a signal stops it, and show the report. Returns the exit status."""
        with Stopper(ending=True) as stopper:  # around the report too: a second signal must not cut it off
            return output.show(replace(self, stop=stopper.signal).run(holding))

    def run(self, holding: HoldOptions | None) -> Report:
        """Claim the layout's name if it is to be held, start its producers, and apply."""
        apply_request = self._in_processes if self.request.geometry.processes else self._in_process
        with self._holder(holding) as holder:
            if not self.bindings.values and not self.request.geometry.imports_from_outside:
                return apply_request(holder, {})
            with ExitStack() as stack:
                with activity("start producers"):
                    bound = self.bindings.producers(self.request.geometry, self.loaded.target, self.stop)
                    producers = stack.enter_context(bound)
                report = producers.with_notes(apply_request(holder, producers.sockets))
            return producers.with_survivors(report)

    def _holder(self, holding: HoldOptions | None) -> AbstractContextManager[Holder | None]:
        if holding is None:
            return nullcontext()
        from memtopo.cli.holder import claimed_holder
        from memtopo.sharing.holder import HolderInfo
        from memtopo.sharing.sources import layout_source

        source = layout_source(self.loaded.document, self.loaded.target.machine)
        about = HolderInfo(self.request.plan.name, self.request.spec, self.request.machine, source)
        target = self.loaded.target
        gpus = [device.uuid for device in target.machine.devices]
        return claimed_holder(holding, about, self.stop, partial(revision, target=target), gpus, self.reread)

    def _in_process(self, holder: Holder | None, sockets: Mapping[str, str]) -> Report:
        outside = holder is not None or self.request.geometry.imports_from_outside  # a change may bring imports
        request = self.request
        with (
            traced(self.loaded.target.open(), request.trace, request.about_trace) as (driver, context),
            progress(simulated=request.machine.simulated) as shown,
        ):
            ledger = Ledger(driver)
            return apply.apply(
                request,
                ledger,
                progress=_shared(shown, holder),
                stop=self.stop,
                handle_source=self._handles_of_holders(ledger, sockets) if outside else None,
                hold=holder.hold if holder else None,
                context=context,
            )

    def _handles_of_holders(self, driver: Driver, sockets: Mapping[str, str]) -> HolderHandles:
        from memtopo.sharing.imports import HolderHandles

        gpus = [driver.device_get_uuid(ordinal).hex() for ordinal in range(driver.device_get_count())]
        return HolderHandles(self.request.geometry, gpus, sockets, self.bindings.allow_uids, self._commits)

    @property
    def _commits(self) -> CommitWait:
        """Wait for the commit of imports, which a signal ends."""
        from memtopo.sharing.imports import CommitWait

        def advance() -> None:
            if self.stop():
                raise Stopped

        return CommitWait(self.bindings.silence, advance, lambda text: plain.print_lines([printable(text)], sys.stderr))

    def _in_processes(self, holder: Holder | None, sockets: Mapping[str, str]) -> Report:
        from memtopo.run import processes

        if self.request.trace:
            empty_folder(self.request.trace)
        ensemble = processes.Ensemble(
            self.request,
            self.loaded.document.text,
            self.loaded.target.machine,
            self.bindings.silence,
            sockets,
            self.bindings.allow_uids,
            settings=self.loaded.document.settings,
            log=holder.service.log if holder else None,  # a pipe of the caller would not end while they live
        )
        held = holder.hold_processes if holder else None
        with progress(simulated=self.request.machine.simulated) as shown:
            return processes.apply(ensemble, progress=_shared(shown, holder), stop=self.stop, held=held)


def _shared(shown: Progress, holder: Holder | None) -> Progress:
    """Hooks that show the progress of a run here, and to the clients of its holder."""
    return BothProgress(shown, holder.progress) if holder else shown


_VARIABLE = "MEMTOPO_WITH"


@dataclass(frozen=True, slots=True)
class Bindings:
    """Values of `--with` by name, users that are trusted, and the seconds that a holder may be silent.

    A name that the spec does not use is an error if it was `typed` on the command line; the variable may be set for
    several specs.
    """

    values: Mapping[str, str]
    allow_uids: tuple[int, ...]
    silence: float
    typed: bool = False
    folder: str | None = None
    """Folder with the sockets of holders that have no value."""

    @contextmanager
    def producers(self, geometry: Geometry, target: Target, stop: Callable[[], int]) -> Iterator[Producers]:
        """Start the producers that a layout imports from. Raises `MemtopoError`, `Interrupted`."""
        from memtopo.sharing import producers

        if self.typed and (unused := producers.unused(self.values, geometry)):
            raise UsageError(f"--with: {unused[0]}", hint=unused[1])
        used = producers.holders(geometry)
        bound = {name: producers.resolve(name, value) for name, value in self.values.items() if name in used}
        if self.folder:
            bound = producers.in_folder(self.folder, used) | bound
        machine = target.machine if target.simulated else None
        try:
            with producers.start_producers(
                geometry, bound, machine, name=target.name, stop=stop, patience=self.silence
            ) as started:
                yield started
        except Stopped as error:
            raise Interrupted(stop()) from error


def bindings(given: list[str], allow_uids: Sequence[int], silence: float, socket: str | None = None) -> Bindings:
    """The bindings of the values of `--with`, and of `--socket` if it is a folder. Raises `UsageError`."""
    typed = given != os.environ.get(_VARIABLE, "").split()
    values = dict(map(_name_and_value, given if typed else _variable()))
    return Bindings(values, tuple(allow_uids), silence, typed, socket if socket and is_folder(socket) else None)


def _name_and_value(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        hint = "write --with NAME=/path/to/socket, or --with 'NAME=COMMAND'"
        raise UsageError(f"--with {text!r} names neither a socket nor a program", hint=hint)
    return name, value


def _variable() -> list[str]:
    """The values in MEMTOPO_WITH, split as by a shell; the option parser splits variables at every blank."""
    try:
        return shlex.split(os.environ.get(_VARIABLE, ""))
    except ValueError as error:
        raise UsageError(f"{_VARIABLE} cannot be split into words: {str(error).lower()}") from error
