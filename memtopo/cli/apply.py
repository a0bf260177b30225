"""`memtopo apply`: build a spec, check it, report, and take it down; or hold it until it is released."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated

import typer

from memtopo import planner
from memtopo.cli.bindings import Outside, named, typed
from memtopo.cli.held import layout_source
from memtopo.cli.hold import Keeper, Terms, terms
from memtopo.cli.options import (
    AllowUid,
    AsJson,
    Grace,
    Hold,
    HoldFor,
    MachineName,
    Socket,
    SpecFile,
    Thoroughly,
    patience,
    seconds,
)
from memtopo.cli.signals import Stopper
from memtopo.cli.specs import Loaded, load
from memtopo.driver.ledger import Ledger
from memtopo.output import json, plain
from memtopo.output.diagram.build import build_diagram
from memtopo.output.progress import progress
from memtopo.plans import saved
from memtopo.plans.report import Check, Report
from memtopo.run import apply, processes
from memtopo.run.request import RunRequest
from memtopo.sharing.attaching import Holders
from memtopo.sharing.holder import About

Bound = Annotated[
    list[str] | None,
    typer.Option(
        "--with",
        envvar="MEMTOPO_WITH",
        metavar="NAME=SOCKET|COMMAND",
        help="Who a holder is that the spec names: a socket, or a program to start, which finds its socket's path in "
        "MEMTOPO_SOCKET.",
    ),
]
Timeout = Annotated[
    str,
    typer.Option(
        "--timeout",
        envvar="MEMTOPO_TIMEOUT",
        metavar="TIME",
        help="How long a silent process, a starting one or a semaphore is waited for.",
    ),
]


def command(
    spec: SpecFile,
    machine: MachineName = "local",
    check: Thoroughly = "fast",
    hold: Hold = False,
    lasting: HoldFor = None,
    socket: Socket = None,
    grace: Grace = "5s",
    allow_uid: AllowUid = None,
    bound: Bound = None,
    timeout: Timeout = "30s",
    as_json: AsJson = False,
) -> int:
    """Build a spec, check it, report, and take it down.

    What is checked is that the memory is as declared. After the report nothing of it is left. With --hold it stays
    until a signal, 'memtopo release NAME' or --for, and its exports are served to other processes meanwhile.
    """
    lasts = None if lasting is None else seconds(lasting)
    keeping = terms(hold=hold, socket=socket, lasting=lasts, grace=seconds(grace), allow_uids=allow_uid or [])
    outside = Outside(named(bound or []), tuple(allow_uid or ()), patience(timeout), typed(bound or []))
    loaded = load(spec, machine)
    if loaded.validated.geometry is None:
        return loaded.refuse(as_json=as_json)
    request = _request(loaded, spec, check, outside.silence)
    loaded.show_faults(sys.stderr)
    with Stopper(ending=True) as stopper:  # around the report too, which somebody who is impatient should get as well
        report = _run(request, loaded, stopper.signal, keeping, outside)
        _show(report, as_json=as_json)
    return report.exit_code


def _request(loaded: Loaded, spec: str, check: Check, timeout: float) -> RunRequest:
    """What is to be done. Raises `StalePlan` where a saved plan is not it."""
    geometry, facts = loaded.validated.geometry, loaded.target.machine
    assert geometry
    plan = planner.plan(geometry, facts)
    if loaded.saved:
        saved.compare(loaded.saved, spec, geometry, plan)
    return RunRequest(
        plan=plan,
        geometry=geometry,
        machine=loaded.target.line,
        spec=loaded.document.name,
        location_of=loaded.document.location,
        picture=build_diagram(geometry, facts),
        warnings=loaded.warnings,
        machine_facts=facts,
        check=check,
        timeout=timeout,
    )


def _run(
    request: RunRequest, loaded: Loaded, stop: Callable[[], int], keeping: Terms | None, outside: Outside
) -> Report:
    """Take the name, have everybody there that the spec takes something from, and apply."""
    work = _together if request.geometry.processes else _alone
    with (
        _keeper(keeping, request, loaded, stop) as keeper,
        outside.producers(request.geometry, loaded.target, stop) as producers,
    ):
        report = producers.noted(work(request, loaded, stop, keeper, outside, producers.sockets))
    return producers.over(report)


def _keeper(
    keeping: Terms | None, request: RunRequest, loaded: Loaded, stop: Callable[[], int]
) -> AbstractContextManager[Keeper | None]:
    if keeping is None:
        return nullcontext()
    source = layout_source(loaded.document, loaded.target.machine)
    return keeping.keeper(About(request.plan.name, request.spec, request.machine, source), stop)


def _alone(
    request: RunRequest,
    loaded: Loaded,
    stop: Callable[[], int],
    keeper: Keeper | None,
    outside: Outside,
    sockets: Mapping[str, str],
) -> Report:
    driver = Ledger(loaded.target.open())
    gpus = [driver.device_get_uuid(ordinal).hex() for ordinal in range(driver.device_get_count())]
    handle_source = Holders(request.geometry, gpus, sockets, outside.allow_uids)
    held = keeper.keep if keeper else None
    return apply.apply(request, driver, progress=progress(), stop=stop, handle_source=handle_source, hold=held)


def _together(
    request: RunRequest,
    loaded: Loaded,
    stop: Callable[[], int],
    keeper: Keeper | None,
    outside: Outside,
    sockets: Mapping[str, str],
) -> Report:
    ensemble = processes.Ensemble(
        request, loaded.document.text, loaded.target.machine, outside.silence, sockets, outside.allow_uids
    )
    return processes.apply(ensemble, progress=progress(), stop=stop, held=keeper.keep_all if keeper else None)


def _show(report: Report, *, as_json: bool) -> None:
    if as_json:
        plain.print_lines(json.dumps(json.marked("report", report)).splitlines())
    else:
        from memtopo.output import console
        from memtopo.output import report as rendering

        console.show(rendering.renderable(report))
    sys.stdout.flush()
