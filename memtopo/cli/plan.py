"""`memtopo plan`: show the driver calls that would build a spec, with equal steps folded, without making them."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Annotated

import typer

from memtopo import planner
from memtopo.cli.files import save
from memtopo.cli.options import AsJson, MachineName, SpecFile
from memtopo.cli.specs import load
from memtopo.machine.queries import anonymous
from memtopo.output import json, plain
from memtopo.output.diagram.build import build_diagram
from memtopo.plans.saved import SavedPlan, SpecText

Output = Annotated[
    str | None,
    typer.Option(
        "--output", "-o", envvar="MEMTOPO_PLAN_OUTPUT", metavar="FILE", help="Save the plan for 'memtopo apply FILE'."
    ),
]


def plan_command(spec: SpecFile, machine: MachineName = "local", output: Output = None, as_json: AsJson = False) -> int:
    """Show what apply would do, without doing it.

    A saved plan contains the spec and the machine; apply plans the spec again, and refuses the plan if it changed.
    """
    loaded = load(spec, machine)
    geometry, target_machine = loaded.validated.geometry, loaded.target.machine
    if geometry is None:
        return loaded.refuse(as_json=as_json)
    summary = planner.plan(geometry, target_machine).summary(build_diagram(geometry, target_machine), loaded.warnings)
    loaded.print_diagnostics(sys.stderr)
    text = SpecText(loaded.document.name, loaded.document.text)
    document = SavedPlan(1, loaded.target.line, summary, text, anonymous(target_machine))
    if output is not None:
        save(output, json.dumps(replace(document, plan=replace(summary, picture=None)), compact=True))
    if as_json:
        plain.print_document(json.dumps(document).splitlines())
    else:
        from memtopo.output import console, plan

        console.show(plan.renderable(summary, loaded.target.line))
    return 0
