"""`memtopo plan`: the driver calls that would build a spec, folded by like steps. Makes none of them."""

from __future__ import annotations

import sys

from memtopo import planner
from memtopo.cli.loading import load, machine_line, refuse, show_faults
from memtopo.cli.options import AsJson, MachineName, SpecFile
from memtopo.picturing import picture
from memtopo.render import json, plain


def command(spec: SpecFile, machine: MachineName = "local", as_json: AsJson = False) -> int:
    """Show what apply would do, without doing it."""
    validated, found = load(spec, machine)
    if validated.geometry is None:
        return refuse(validated, as_json=as_json)
    drawn = picture(validated.geometry, found.machine)
    summary = planner.plan(validated.geometry, found.machine).summary(drawn)
    line = machine_line(found)
    show_faults(validated, sys.stderr)
    if as_json:
        plain.print_lines(json.dumps(json.plan(line, summary)).splitlines())
    else:
        from memtopo.render import plan, terminal  # rich is slow to import

        terminal.show(plan.renderable(summary, line))
    return 0
