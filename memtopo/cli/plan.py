"""`memtopo plan`: show the driver calls that would build a spec, with equal steps folded, without making them."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

from memtopo import planner
from memtopo.cli.change import HeldChange
from memtopo.cli.held import connect_to
from memtopo.cli.options import AsJson, MachineNames, Set, argument, option
from memtopo.cli.results import pages, save, save_in_folder, show
from memtopo.cli.settings import settings
from memtopo.cli.specs import load, print_diagnostics, valid
from memtopo.common.errors import UsageError
from memtopo.drivers.target import Target
from memtopo.geometry import Geometry
from memtopo.language import Document, SpecText
from memtopo.output import humanize, json, plain
from memtopo.output.diagram.build import build_diagram
from memtopo.planner import Plan
from memtopo.plans.calls import CallsDocument, ListedCalls, listed, named
from memtopo.run.planned_calls import first_calls, planned_calls
from memtopo.session.composition import Composition
from memtopo.session.saved import SavedPlan, saved_facts, saved_nodes, spec_digest

SpecOrName = Annotated[str, argument("SPEC", "A spec; - reads standard input. With AFTER: a held layout.")]
After = Annotated[str | None, argument("[AFTER]", "A spec that a held layout is to be changed to.")]
_SAVE = "Save the plan for 'memtopo apply FILE', or 'memtopo change NAME FILE'; with --as the program, or several "
Output = Annotated[str | None, option("--output -o", f"{_SAVE}in a folder.", "FILE", "MEMTOPO_PLAN_OUTPUT")]
_CALLS = "List every driver call with its arguments, those of the teardown too."
Calls = Annotated[bool, option("--calls", _CALLS, variable="MEMTOPO_PLAN_CALLS")]
_AS = "Print a program with the same driver calls, which needs no memtopo."
As = Annotated[
    Literal["c", "cuda-python"] | None, option("--as", _AS, "c|cuda-python", "MEMTOPO_PLAN_AS", show_default=False)
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
    geometry, planned = loaded.geometry, loaded.plan
    print_diagnostics(loaded)
    if language:
        return _write_programs(planned, geometry, loaded.target, language, output)
    if calls:
        return _list_calls(planned, geometry, loaded.target, as_json=as_json)
    return _show(planned, geometry, loaded, output, as_json=as_json)


def _show(planned: Plan, geometry: Geometry, loaded: Composition, output: str | None, *, as_json: bool) -> int:
    """Show a plan, or print it as JSON, and save it."""
    machines = loaded.target.machines
    states = planner.memory_by_state(planned, geometry)
    summary = planned.summary(build_diagram(geometry, machines), loaded.warnings, states, loaded.document.values)
    text = SpecText.of(loaded.document)
    facts, nodes = saved_facts(loaded.target.machine, geometry), saved_nodes(machines, geometry)
    document = SavedPlan(1, loaded.target.line, summary, text, facts, spec_digest(loaded.document), nodes)
    if output is not None:
        save(output, json.dumps(replace(document, plan=replace(summary, picture=None)), compact=True))

    def page() -> Any:
        from memtopo.output import plan
        from memtopo.output.calls import in_short

        first = first_calls(planned, geometry)
        below = {label: [in_short(each) for each in rows] for label, rows in first.items()}
        return plan.page(summary, loaded.target.line, document.digest, below)

    show(document, page, as_json=as_json)
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
    print_diagnostics(valid(planned.after))
    found = planned.document
    if output is not None:
        save(output, json.dumps(found, compact=True))
    show(found, lambda: pages("plan").difference(found.plan, found.machine, "plan"), as_json=as_json)
    return 0
