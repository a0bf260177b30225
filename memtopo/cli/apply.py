"""`memtopo apply`: build a spec, check it, report, and take it down; with `--hold` keep it until it is released."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import typer

from memtopo.cli.application import Application
from memtopo.cli.bindings import Bindings, bindings
from memtopo.cli.hold import HoldOptions, ServiceOptions, hold_options
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
from memtopo.cli.report import RunOutput, RunPage, run_output
from memtopo.cli.settings import Set, settings
from memtopo.cli.specs import load, print_diagnostics, run_request
from memtopo.common.errors import UsageError
from memtopo.output.progress import activity
from memtopo.session.composition import Composition
from memtopo.session.request import RunRequest

if TYPE_CHECKING:
    from memtopo.cli.nodes import OnNodes


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
    """Build a spec, check it, report, and take it down.

    With --hold the layout stays and serves its exports until a signal, 'memtopo release NAME' or --for.
    """
    output, trusted = run_output(report, trace, as_json=as_json), tuple(allow_uid or ())
    service, lasts = ServiceOptions(log, log_level, ready_fd, reload, detach), optional_duration(lasting)
    holding = hold_options(HoldOptions(socket, lasts, duration(grace), trusted, metrics, service), hold=hold)
    holders = bindings(bound or [], trusted, timeout_seconds(timeout), socket)
    request_of = partial(run_request, check=check, timeout=holders.silence, rehearse=rehearse, trace=trace)
    if on is not None:
        return _nodes()(on, spec, machine, settings(given), gpus, holders, holding, request_of, output).apply()
    if holding and detach:
        return _detach(context, spec, holding, as_json=as_json)
    return _applied(load(spec, machine, settings(given), one_host=True), request_of, holders, holding, output)


def _nodes() -> type[OnNodes]:
    """The class of applications on the nodes of a cluster, which is imported for them alone."""
    from memtopo.cli.nodes import OnNodes

    return OnNodes


def _applied(
    loaded: Composition,
    request_of: Callable[[Composition], RunRequest],
    bound: Bindings,
    holding: HoldOptions | None,
    output: RunOutput,
) -> int:
    """Apply a spec in this process and its workers. Returns the exit status."""
    with activity("plan"):
        request = request_of(loaded)
    print_diagnostics(loaded)
    return Application(request, loaded, bound).run_and_show(holding, output)


def _detach(context: typer.Context, spec: str, holding: HoldOptions, *, as_json: bool) -> int:
    """Hold a spec in a process of its own, and with `--json` print the layout as `show` does. Returns the status."""
    if holding.service.ready_fd is not None:
        raise UsageError("--detach reports by its end that the layout is served", hint="leave --ready-fd out")
    from memtopo.cli import service
    from memtopo.cli.held import show_command

    status, path = service.detach(context, spec, holding.service.log)
    return show_command(socket=path, as_json=True) if path and as_json else status
