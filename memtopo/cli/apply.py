"""`memtopo apply`: build a spec, check it, report, and take it down."""

from __future__ import annotations

import sys

from memtopo import applying, planner
from memtopo.cli.loading import load, machine_line, places, refuse, show_faults
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
    validated, found = load(spec, machine)
    if validated.geometry is None:
        return refuse(validated, as_json=as_json)
    show_faults(validated, sys.stderr)
    job = applying.Job(
        plan=planner.plan(validated.geometry, found.machine),
        geometry=validated.geometry,
        machine=machine_line(found),
        spec=validated.document.name,
        place=places(validated.document),
        picture=picture(validated.geometry, found.machine),
    )
    with Stopper(ending=True) as stopper:  # around the report too, which somebody who is impatient should get as well
        report = applying.apply(job, Ledger(found.open()), progress=progress(), stop=stopper.signal)
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
