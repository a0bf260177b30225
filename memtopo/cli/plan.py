"""`memtopo plan`: show the driver calls that would build a spec, with equal steps folded, without making them."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Annotated, Literal

import typer

from memtopo import planner
from memtopo.cli.change import HeldChange
from memtopo.cli.files import save, save_in_folder
from memtopo.cli.held import connect_to
from memtopo.cli.options import AsJson, MachineNames
from memtopo.cli.settings import Set, settings
from memtopo.cli.specs import Loaded, load
from memtopo.common.errors import UsageError
from memtopo.drivers.target import Target
from memtopo.geometry import Geometry
from memtopo.language import Document, SpecText
from memtopo.output import humanize, json, plain
from memtopo.output.diagram.build import build_diagram
from memtopo.planner import Plan
from memtopo.plans.calls import CallsDocument, ListedCalls, listed, named
from memtopo.run.planned_calls import first_calls, planned_calls
from memtopo.session.saved import SavedPlan, saved_facts, saved_nodes, spec_digest

SpecOrName = Annotated[
    str,
    typer.Argument(
        metavar="SPEC", help="A spec; - reads standard input. With AFTER: a held layout.", show_default=False
    ),
]
Output = Annotated[
    str | None,
    typer.Option(
        "--output",
        "-o",
        envvar="MEMTOPO_PLAN_OUTPUT",
        metavar="FILE",
        help="Save the plan for 'memtopo apply FILE', or 'memtopo change NAME FILE'; with --as the program, or several "
        "in a folder.",
    ),
]


Calls = Annotated[
    bool,
    typer.Option(
        "--calls",
        envvar="MEMTOPO_PLAN_CALLS",
        help="List every driver call with its arguments, those of the teardown too.",
    ),
]
As = Annotated[
    Literal["c", "cuda-python"] | None,
    typer.Option(
        "--as",
        envvar="MEMTOPO_PLAN_AS",
        metavar="c|cuda-python",
        help="Print a program with the same driver calls, which needs no memtopo.",
        show_default=False,
    ),
]
After = Annotated[
    str | None,
    typer.Argument(metavar="[AFTER]", help="A spec that a held layout is to be changed to.", show_default=False),
]


def plan_command(
    spec: SpecOrName,
    after: After = None,
    machine: MachineNames = None,
    given: Set = None,
    output: Output = None,
    calls: Calls = False,
    language: As = None,
    as_json: AsJson = False,
) -> int:
    """Show what apply would do, or a change of a held layout.

    A saved plan contains the spec and the machine; apply plans the spec again, and refuses the plan if it changed.
    That of a change is refused if the held layout was changed since.
    """
    _require_one_output(calls=calls, language=language, output=output, as_json=as_json)
    if after is not None:
        if calls or language:
            raise UsageError("--calls and --as are of one spec, and not of a change", hint="leave AFTER out")
        return _plan_change(spec, settings(given).read(after), output, as_json=as_json)
    loaded = load(spec, machine, settings(given))
    geometry = loaded.validated.geometry
    if geometry is None:
        return loaded.refuse(as_json=as_json)
    planned = planner.plan(geometry, loaded.target.machines)
    loaded.print_diagnostics(sys.stderr)
    if language:
        return _write_programs(planned, geometry, loaded.target, language, output)
    if calls:
        return _list_calls(planned, geometry, loaded.target, as_json=as_json)
    return _show(planned, geometry, loaded, output, as_json=as_json)


def _show(planned: Plan, geometry: Geometry, loaded: Loaded, output: str | None, *, as_json: bool) -> int:
    """Show a plan, or print it as JSON, and save it."""
    machines = loaded.target.machines
    states = planner.memory_by_state(planned, geometry)
    summary = planned.summary(build_diagram(geometry, machines), loaded.warnings, states, loaded.document.values)
    text = SpecText.of(loaded.document)
    facts, nodes = saved_facts(loaded.target.machine, geometry), saved_nodes(machines, geometry)
    document = SavedPlan(1, loaded.target.line, summary, text, facts, spec_digest(loaded.document), nodes)
    if output is not None:
        save(output, json.dumps(replace(document, plan=replace(summary, picture=None)), compact=True))
    if as_json:
        plain.print_document(json.dumps(document).splitlines())
    else:
        from memtopo.output import console, plan
        from memtopo.output.calls import in_short

        first = first_calls(planned, geometry)
        below = {label: [in_short(each) for each in rows] for label, rows in first.items()}
        console.show(plan.page(summary, loaded.target.line, document.digest, below))
    return 0


def _require_one_output(*, calls: bool, language: str | None, output: str | None, as_json: bool) -> None:
    """Raise `UsageError` for options that ask for several outputs at once."""
    if calls and language:
        raise UsageError("--calls and --as are two outputs", hint="leave one of them out")
    if calls and output is not None:
        raise UsageError("-o saves plans and programs, and no list of calls", hint="--calls --json prints the list")
    if language and as_json:
        raise UsageError("--as prints a program, and no JSON", hint="--calls --json lists the calls")


def _list_calls(plan: Plan, geometry: Geometry, target: Target, *, as_json: bool) -> int:
    """Print all driver calls of a plan by process."""
    found = {label: tuple(named(calls)) for label, calls in planned_calls(plan, geometry).items()}
    if as_json:
        processes = tuple(ListedCalls(label, tuple(map(listed, calls))) for label, calls in found.items())
        plain.print_document(json.dumps(CallsDocument(1, plan.name, target.line, processes)).splitlines())
    else:
        from memtopo.output.calls import listing

        plain.print_lines([f"calls  {plan.name}  on {humanize.machine(target.line)}", "", *listing(found)])
    return 0


def _write_programs(
    plan: Plan, geometry: Geometry, target: Target, language: Literal["c", "cuda-python"], output: str | None
) -> int:
    """Print the program of a layout's only process, or write those of all processes into a folder."""
    from memtopo.output import programs

    if geometry.nodes:
        raise programs.NotExpressible("the layout has several nodes, and a program is of one", hint="see plan --calls")
    texts = programs.texts(plan.name, target.line, planned_calls(plan, geometry), language, plan.common_ranges)
    if not geometry.processes:
        ((_, text),) = texts.items()
        if output is None:
            plain.print_lines(text.splitlines())
        else:
            save(output, text)
    elif not output or output == "-":
        raise UsageError("the layout has several processes, with a program each", hint="name a folder: -o DIR")
    else:
        save_in_folder(output, texts)
    return 0


def _plan_change(name: str, document: Document, output: str | None, *, as_json: bool) -> int:
    """Show, and save, what a change of a held layout to a spec would do."""
    with connect_to(name, None, ()) as client:
        planned = HeldChange.of(client, document)
        planned.require_awake()
    if planned.after.validated.geometry is None:
        return planned.after.refuse(as_json=as_json)
    planned.after.print_diagnostics(sys.stderr)
    found = planned.document
    if output is not None:
        save(output, json.dumps(found, compact=True))
    if as_json:
        plain.print_document(json.dumps(found).splitlines())
    else:
        from memtopo.output import console, plan

        console.show(plan.difference(found.plan, found.machine, "plan"))
    return 0
