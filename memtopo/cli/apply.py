"""`memtopo apply`: build a spec, check it, report, and take it down."""

from __future__ import annotations

import sys

from memtopo import applying, planner
from memtopo.cli.loading import load, machine_line, places, refuse, show_faults
from memtopo.cli.options import AsJson, MachineName, SpecFile
from memtopo.cli.signals import Stopper
from memtopo.driver.ledger import Ledger
from memtopo.render import json, plain
from memtopo.render.progress import progress


def command(spec: SpecFile, machine: MachineName = "local", as_json: AsJson = False) -> int:
    """Build a spec, check that the memory is as declared, and take it down again."""
    with Stopper() as stopper:
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
        )
        report = applying.apply(job, Ledger(found.open()), progress=progress(), stop=stopper.signal)
    if as_json:
        plain.print_lines(json.dumps(report).splitlines())
    else:
        from memtopo.render import report as rendering  # rich is slow to import
        from memtopo.render import terminal

        terminal.show(rendering.renderable(report))
    return report.exit_code
