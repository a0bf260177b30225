"""`memtopo apply`: build a spec, check it, report, and take it down."""

from __future__ import annotations

import sys

from memtopo import applying, planner, saved
from memtopo.cli.loading import load, places
from memtopo.cli.options import AsJson, MachineName, SpecFile
from memtopo.cli.signals import Stopper
from memtopo.driver.ledger import Ledger
from memtopo.picturing import picture
from memtopo.render import json, plain
from memtopo.render.progress import progress
from memtopo.report import Report


def command(spec: SpecFile, machine: MachineName = "local", as_json: AsJson = False) -> int:
    """Build a spec, check it, report, and take it down.

    What is checked is that the memory is as declared. After the report nothing of it is left.
    """
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
        machine=loaded.machine_line,
        spec=loaded.document.name,
        place=places(loaded.document),
        picture=picture(geometry, facts),
        warnings=loaded.warnings,
    )
    with Stopper(ending=True) as stopper:  # around the report too, which somebody who is impatient should get as well
        driver = Ledger(loaded.target.open())
        report = applying.apply(job, driver, progress=progress(), stop=stopper.signal)
        _show(report, as_json=as_json)
    return report.exit_code


def _show(report: Report, *, as_json: bool) -> None:
    if as_json:
        plain.print_lines(json.dumps(json.report(report)).splitlines())
    else:
        from memtopo.render import report as rendering  # rich is slow to import
        from memtopo.render import terminal

        terminal.show(rendering.renderable(report))
    sys.stdout.flush()
