"""`memtopo apply`: build a spec, check it, report, and take it down; or hold it until it is released."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated

import typer

from memtopo import applying, planner, processes, saved
from memtopo.attaching import Holders
from memtopo.cli.keeping import Keeper, Terms, terms
from memtopo.cli.loading import Loaded, load
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
    seconds,
)
from memtopo.cli.signals import Stopper
from memtopo.driver.ledger import Ledger
from memtopo.errors import UsageError
from memtopo.picturing import picture
from memtopo.render import json, plain
from memtopo.render.progress import progress
from memtopo.report import Report

Bound = Annotated[
    list[str] | None,
    typer.Option(
        "--with", envvar="MEMTOPO_WITH", metavar="NAME=PATH", help="The socket of a holder that the spec names."
    ),
]
Timeout = Annotated[
    str,
    typer.Option("--timeout", envvar="MEMTOPO_TIMEOUT", metavar="TIME", help="Silence that means a process's death."),
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
    sockets, silence = _sockets(bound or []), seconds(timeout)
    loaded = load(spec, machine)
    geometry, facts = loaded.validated.geometry, loaded.target.machine
    if geometry is None:
        return loaded.refuse(as_json=as_json)
    plan = planner.plan(geometry, facts)
    if loaded.saved:
        saved.compare(loaded.saved, spec, geometry, plan)
    loaded.show_faults(sys.stderr)
    job = applying.Job(
        plan=plan,
        geometry=geometry,
        machine=loaded.target.line,
        spec=loaded.document.name,
        place=loaded.document.place,
        picture=picture(geometry, facts),
        warnings=loaded.warnings,
        facts=facts,
        check=check,
    )
    with Stopper(ending=True) as stopper:  # around the report too, which somebody who is impatient should get as well
        with _keeper(keeping, job, stopper.signal) as keeper:
            work = _together if geometry.processes else _alone
            report = work(job, loaded, stopper.signal, keeper, _Outside(sockets, tuple(allow_uid or ()), silence))
        _show(report, as_json=as_json)
    return report.exit_code


class _Outside:
    """What the flags say of other processes: sockets by name, users that are trusted, how long they may be silent."""

    def __init__(self, sockets: dict[str, str], allow_uids: tuple[int, ...], silence: float) -> None:
        self.sockets, self.allow_uids, self.silence = sockets, allow_uids, silence


def _keeper(keeping: Terms | None, job: applying.Job, stop: Callable[[], int]) -> AbstractContextManager[Keeper | None]:
    return keeping.keeper(job.plan.name, job.spec, job.machine, stop) if keeping else nullcontext()


def _alone(
    job: applying.Job, loaded: Loaded, stop: Callable[[], int], keeper: Keeper | None, outside: _Outside
) -> Report:
    driver = Ledger(loaded.target.open())
    gpus = [driver.device_get_uuid(ordinal).hex() for ordinal in range(driver.device_get_count())]
    deliveries = Holders(job.geometry, gpus, outside.sockets, outside.allow_uids)
    held = keeper.keep if keeper else None
    return applying.apply(job, driver, progress=progress(), stop=stop, deliveries=deliveries, held=held)


def _together(
    job: applying.Job, loaded: Loaded, stop: Callable[[], int], keeper: Keeper | None, outside: _Outside
) -> Report:
    ensemble = processes.Ensemble(
        job, loaded.document.text, loaded.target.machine, outside.silence, outside.sockets, outside.allow_uids
    )
    return processes.apply(ensemble, progress=progress(), stop=stop, held=keeper.keep_all if keeper else None)


def _sockets(bound: list[str]) -> dict[str, str]:
    found = {}
    for each in bound:
        name, equals, path = each.partition("=")
        if not (name and equals and path):
            raise UsageError(f"--with {each!r} names no socket", hint="write --with NAME=/path/to/socket")
        found[name] = path
    return found


def _show(report: Report, *, as_json: bool) -> None:
    if as_json:
        plain.print_lines(json.dumps(json.report(report)).splitlines())
    else:
        from memtopo.render import report as rendering  # rich is slow to import
        from memtopo.render import terminal

        terminal.show(rendering.renderable(report))
    sys.stdout.flush()
