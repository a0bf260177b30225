"""`memtopo plan`: what an apply or a change would do; `memtopo change`: change a held layout in place.

A plan lists the driver calls that would build a spec, with equal steps folded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Struct
from msgspec.structs import asdict, replace

from memtopo import planner
from memtopo.cli import options
from memtopo.cli.options import AllowUid, AsJson, MachineNames, Set, argument, option, settings
from memtopo.cli.results import pages, save, save_in_folder, show
from memtopo.cli.specs import load, print_diagnostics, valid
from memtopo.common.errors import ExchangeError, Exit, UsageError
from memtopo.common.processes import command_of, process_stat
from memtopo.diagnostics.messages import not_awake
from memtopo.drivers.target import Target, recorded
from memtopo.geometry import Geometry
from memtopo.language import Document, SpecText
from memtopo.language.names import AWAKE
from memtopo.machine import parse
from memtopo.output import humanize, json, plain
from memtopo.output.diagram.build import build_diagram
from memtopo.planner import Plan
from memtopo.plans.calls import CallsDocument, ListedCalls, listing_entry, named
from memtopo.plans.report import EntryChanges, PlanDifference
from memtopo.plans.transition import difference
from memtopo.run.planned_calls import count_calls, first_calls, list_calls, planned_calls
from memtopo.session.composition import Composition
from memtopo.session.saved import (
    AwaitedImporter,
    SavedChange,
    SavedPlan,
    digest_of,
    open_saved_change,
    saved_facts,
    saved_nodes,
    spec_digest,
)
from memtopo.sharing.wire import parsed_source

if TYPE_CHECKING:
    from memtopo.sharing.client import Client
    from memtopo.sharing.offers import Offer
    from memtopo.sharing.status import Status

_SAVE = "Save the plan for 'memtopo apply FILE', or 'memtopo change NAME FILE'; with --as the program, or several "
_CALLS = "List every driver call with its arguments, including the teardown."
_AS = "Print a program with the same driver calls, which needs no memtopo."
_SUMMARY = "Show memory by process and location, and numbers of calls, without the steps and the drawing."
Language = Literal["c", "cuda-python"]


class PlanOutput(Struct, frozen=True):
    """Form of a plan on stdout, and the file that it is saved to."""

    file: Annotated[str | None, option("--output -o", f"{_SAVE}in a folder.", "FILE", "MEMTOPO_PLAN_OUTPUT")] = None
    calls: Annotated[bool, option("--calls", _CALLS, variable="MEMTOPO_PLAN_CALLS")] = False
    language: Annotated[
        Language | None, option("--as", _AS, "c|cuda-python", "MEMTOPO_PLAN_AS", show_default=False)
    ] = None
    every: options.Every = False
    summary: Annotated[bool, option("--summary", _SUMMARY, variable="MEMTOPO_PLAN_SUMMARY")] = False
    as_json: AsJson = False

    def require_one(self) -> None:
        """Raise `UsageError` for options that ask for several outputs at once."""
        if self.summary and (self.calls or self.language):
            raise UsageError("--summary is another output than --calls and --as", hint="omit --summary")
        if self.calls and self.language:
            raise UsageError("--calls and --as are two outputs", hint="omit one of them")
        if self.calls and self.file is not None:
            raise UsageError("-o saves plans and programs, and no list of calls", hint="--calls --json prints the list")
        if self.language and self.as_json:
            raise UsageError("--as prints a program, and no JSON", hint="--calls --json lists the calls")


@options.grouped
def plan_command(
    spec: Annotated[str, argument("SPEC", "A spec; - reads standard input. With AFTER: a held layout.")],
    after: Annotated[str | None, argument("[AFTER]", "A spec that a held layout is to be changed to.")] = None,
    machine: MachineNames = None,
    given: Set = None,
    socket: options.Socket = None,
    allow_uid: AllowUid = None,
    *,
    output: PlanOutput,
) -> int:
    """Show what apply would do, or a change of a held layout.

    A saved plan contains the spec and the machine; apply plans the spec again, and refuses the plan if it changed.
    That of a change is refused if the held layout was changed since.
    """
    output.require_one()
    if after is not None:
        if output.calls or output.language:
            message = "--calls and --as are for a spec, not for a change"
            raise UsageError(message, hint="omit AFTER")
        from memtopo.cli.held import connect_to  # a plan of a spec connects to nobody

        document = settings(given).read(after)
        with connect_to(spec, socket, allow_uid) as client:
            return _plan_change(client, document, output)
    loaded = load(spec, machine, settings(given), dry=True)
    geometry, planned = loaded.geometry, loaded.plan
    print_diagnostics(loaded)
    if output.language:
        return _write_programs(planned, geometry, loaded.target, output.language, output.file)
    if output.calls:
        return _list_calls(planned, geometry, loaded.target, as_json=output.as_json)
    return _show(planned, geometry, loaded, output)


def saved_plan(loaded: Composition) -> SavedPlan:
    """Plan of a spec as it is saved, and with its picture."""
    geometry, machines = loaded.geometry, loaded.target.machines
    states = planner.memory_by_state(loaded.plan, geometry)
    summary = loaded.plan.summary(build_diagram(geometry, machines), loaded.warnings, states, loaded.document.values)
    text = SpecText.of(loaded.document)
    facts, nodes = saved_facts(loaded.target.machine, geometry), saved_nodes(machines, geometry)
    return SavedPlan(1, loaded.target.line, summary, text, facts, spec_digest(loaded.document), nodes)


def save_plan(file: str, plan: SavedPlan) -> None:
    """Save a plan without its picture, and its spec in lines. Raises `UsageError` and `NotWritten`.

    The digest is left out: git could merge no two plans, since both have another one.
    """
    kept = replace(plan, plan=replace(plan.plan, picture=None), digest=None)
    lines = {"name": plan.spec.name, "text": plan.spec.text.splitlines(keepends=True), "settings": plan.spec.settings}
    save(file, json.dumps_by_row(asdict(kept) | {"spec": lines}))


def _show(planned: Plan, geometry: Geometry, loaded: Composition, output: PlanOutput) -> int:
    """Show a plan, or print it as JSON, and save it."""
    document = saved_plan(loaded)
    summary = document.plan
    if output.file is not None:
        save_plan(output.file, document)

    def page() -> Any:
        from memtopo.output import plan
        from memtopo.output.calls import in_short

        if output.summary:
            counts = count_calls(planned, geometry)
            return plan.summary_page(summary, loaded.target.line, counts, every=output.every)
        first = first_calls(planned, geometry)
        below = {label: [in_short(each) for each in rows] for label, rows in first.items()}
        return plan.page(summary, loaded.target.line, document.digest, below, every=output.every)

    show(document, page, as_json=output.as_json)
    return 0


def _list_calls(plan: Plan, geometry: Geometry, target: Target, *, as_json: bool) -> int:
    """Print all driver calls of a plan by process."""
    if as_json:
        calls = planned_calls(plan, geometry)
        processes = tuple(ListedCalls(label, tuple(map(listing_entry, named(each)))) for label, each in calls.items())
        plain.print_document(json.dumps(CallsDocument(1, plan.name, target.line, processes)).splitlines())
        return 0
    # The calls of the first process are printed while they are listed, and those of the others after them.
    from memtopo.output.calls import CallLines

    plain.print_lines([f"calls  {plan.name}  on {humanize.machine(target.line)}", ""])
    first, *others = plan.steps_by_process
    kept: dict[str, list[str]] = {label: [] for label in others}
    lines = {first: CallLines(first, plain.print_lines)}
    lines |= {label: CallLines(label, each.extend) for label, each in kept.items()}
    list_calls(plan, geometry, {label: each.add for label, each in lines.items()})
    for label, each in lines.items():
        each.end()
        plain.print_lines(kept.pop(label, ()))
    return 0


def _write_programs(plan: Plan, geometry: Geometry, target: Target, language: Language, output: str | None) -> int:
    """Print the program of a layout's only process, or write those of all processes into a folder."""
    from memtopo.output.programs import NotExpressible
    from memtopo.output.programs.languages import texts

    if geometry.nodes:
        raise NotExpressible("the layout has several nodes, but a program runs on one", hint="see plan --calls")
    written = texts(plan.name, target.line, planned_calls(plan, geometry), language, plan.common_ranges)
    if not geometry.processes:
        ((_, text),) = written.items()
        if output is None:
            plain.print_lines(text.splitlines())
        else:
            save(output, text)
    elif not output or output == "-":
        raise UsageError("the layout has several processes, with a program each", hint="name a folder: -o DIR")
    else:
        save_in_folder(output, written)
    return 0


def _plan_change(client: Client, document: Document, output: PlanOutput) -> int:
    """Show, and save, what a change of a held layout to a spec would do."""
    planned = HeldChange.of(client, document)
    status = planned.status
    if status.layout_state not in (None, AWAKE):
        message, hint = not_awake(status.name, status.layout_state)
        raise ExchangeError("state", message, hint=f"{hint}; 'memtopo diff' compares its spec in any state")
    print_diagnostics(valid(planned.after))
    found = planned.document
    if output.file is not None:
        save(output.file, json.dumps_by_row(found))

    def page() -> Any:
        shown = pages("plan")
        form = shown.in_short if output.summary else partial(shown.difference, every=output.every)
        return shown.change(form(found.plan, found.machine, "plan"), found.awaited)

    show(found, page, as_json=output.as_json)
    return 0


_CHECK = "Extent of the check afterwards: fast: queries, and samples of new memory; full: all its bytes."


def change_command(
    name: options.HeldName,
    spec: Annotated[str, argument("SPEC", "The spec to change to, or a saved plan.")],
    given: Set = None,
    check: Annotated[Literal["fast", "full"], option("--check", _CHECK, variable="MEMTOPO_CHANGE_CHECK")] = "fast",
    force: options.ForceChange = False,
    wait: options.WaitForImporters = "5s",
    socket: options.Socket = None,
    allow_uid: AllowUid = None,
    as_json: AsJson = False,
) -> int:
    """Bring a held layout to another spec, in place.

    What both have is not touched. Others that imported memory that goes have --wait to let go of it; if one still
    has handles then, the change is refused. If a call fails, the layout stays as it was. The exit status is 6 if
    the check afterwards finds a difference, 5 if the layout was lost.
    """
    from memtopo.cli.held import connect_to, followed

    patience = options.duration(wait)
    chosen = settings(given)
    if saved := open_saved_change(spec):
        chosen.refuse_for_plan(spec)
    document = saved.spec.read() if saved else chosen.read(spec)
    with connect_to(name, socket, allow_uid) as client:
        planned = HeldChange.of(client, document)
        valid(planned.after)
        if saved:
            saved.compare(spec, planned.document, planned.status.layout_state)
        print_diagnostics(planned.after)
        generation = saved.generation if saved else None
        with followed(client, "change"):
            done = client.change(
                planned.after.source, generation=generation, full=check == "full", force=force, wait=patience
            )
        done = replace(done, emptied=planned.emptied(client.offers()), moved=planned.moved)
    show(done, lambda: pages("held").changed(done, document.name), as_json=as_json, marker="change")
    return Exit.DIFFERENT if done.checks.different else Exit.OK


def differences(before: Composition, after: Composition, name: str) -> PlanDifference:
    """Difference of the plans of two specs, of which the first one is called `name`."""
    found = difference(
        before.plan.steps_by_process,
        after.plan.steps_by_process,
        (name, after.document.file),
        (before.document.values, after.document.values),
        (before.geometry, after.geometry),
    )
    return replace(found, entries=EntryChanges.of(before.document, after.document))


class HeldChange(Struct, frozen=True, dict=True):
    """A held layout, and a spec that it is to be changed to, both validated on the machine of the holder.

    Processes that join are left out: others may join after the change. The geometry of `after` is None if the layout
    cannot be changed to the spec.
    """

    status: Status
    digest: str
    before: Composition
    after: Composition

    @classmethod
    def of(cls, client: Client, document: Document) -> HeldChange:
        """Request what is held, and validate the change. Raises `ExchangeError` if the holder sends no spec."""
        status, source = client.status(), client.source()
        if not source:
            raise ExchangeError("source", f"layout {status.name!r} does not send its spec")
        held = parsed_source(source)
        found = recorded(status.machine.name, parse(held.machine.encode(), "the holder"))
        specs = Composition.of(held.document, found, status.name), Composition.of(document, found)
        before, after = (each.held_part if each.valid else each for each in specs)
        if before.valid:
            after = after.after(before.geometry)
        return cls(status, digest_of(source, status.layout_state), before, after)

    @cached_property
    def difference(self) -> PlanDifference:
        """Difference that the change makes. Raises `UsageError` if a spec is invalid here."""
        if not (self.before.valid and self.after.valid):
            hint = "the change itself is planned by the holder"
            raise UsageError(f"the change of layout {self.status.name!r} cannot be planned here", hint=hint)
        return differences(self.before, self.after, self.status.name)

    def emptied(self, offers: Mapping[str, Offer]) -> tuple[str, ...]:
        """Exports that were committed before the change, and are not as they are offered after it."""
        committed = [offer.name for offer in self.status.offers if offer.commit == "committed"]
        return tuple(name for name in committed if name in offers and offers[name].commit in ("empty", "writing"))

    @property
    def moved(self) -> tuple[str, ...]:
        """Ranges and other memory that the change moves; none if the holder alone can plan the change."""
        return self.difference.moved if self.before.valid and self.after.valid else ()

    @property
    def document(self) -> SavedChange:
        """The plan of the change, as it is saved."""
        text = SpecText.of(self.after.document)
        return SavedChange(
            memtopo_change_plan=1,
            layout=self.status.name,
            generation=self.status.generation,
            digest=self.digest,
            machine=self.status.machine,
            plan=self.difference,
            spec=text,
            awaited=tuple(self._awaited()),
        )

    def _awaited(self) -> Iterator[AwaitedImporter]:
        """Yield the importers that have handles of exports which the change releases."""
        exports = {each.name for each in self.difference.exports if each.released}
        for each in self.status.importers:
            taken = [one for one in each.taken if one.export in exports and one.handles]
            if taken:
                pid = each.pid if self.status.pid_namespace == "same" else None
                name = process_stat(pid) if pid else None
                command = command_of(pid, name.command) if pid and name else None
                yield AwaitedImporter(pid, command, sum(one.bytes for one in taken), tuple(one.export for one in taken))
