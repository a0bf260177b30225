"""`memtopo change`: bring a held layout to another spec, in place; `memtopo diff`: what a change would do.

`memtopo plan` shows and saves the plan of a change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from memtopo.cli import options
from memtopo.cli.held import connect_to, followed
from memtopo.cli.results import pages, show
from memtopo.cli.settings import Settings, settings
from memtopo.cli.specs import load, loaded_on, print_diagnostics, valid
from memtopo.common.errors import Exit, UsageError
from memtopo.diagnostics.messages import not_awake
from memtopo.drivers.target import recorded
from memtopo.language import Document, SpecText
from memtopo.language.names import AWAKE, NAME
from memtopo.machine import parse
from memtopo.output.diagram.build import build_diagram
from memtopo.plans.difference import difference
from memtopo.plans.report import PlanDifference
from memtopo.rules.validation import diagnose_processes
from memtopo.session.composition import Composition
from memtopo.session.saved import SavedChange, digest_of, open_saved_change
from memtopo.sharing.client import Client
from memtopo.sharing.errors import ExchangeError
from memtopo.sharing.offers import Offer
from memtopo.sharing.sources import held_source, parsed_source
from memtopo.sharing.status import Status

_HELD = "A spec, or the name of a held layout."
Before = Annotated[str, options.argument("BEFORE", _HELD)]
After = Annotated[str, options.argument("AFTER", "The spec to change to.")]
NewSpec = Annotated[str, options.argument("SPEC", "The spec to change to, or a saved plan.")]
_CHECK = "What is checked afterwards: fast: queries, and samples of new memory; full: all its bytes."
Check = Annotated[Literal["fast", "full"], options.option("--check", _CHECK, variable="MEMTOPO_CHANGE_CHECK")]


def change_command(
    name: options.HeldName,
    spec: NewSpec,
    given: options.Set = None,
    check: Check = "fast",
    force: options.ForceChange = False,
    wait: options.WaitForImporters = "5s",
    socket: options.Socket = None,
    as_json: options.AsJson = False,
) -> int:
    """Bring a held layout to another spec, in place.

    What both have is not touched. Others that imported memory that goes have --wait to let go of it; if one still
    has handles then, the change is refused. If a call fails, the layout stays as it was. The exit status is 6 if
    the check afterwards finds a difference, 5 if the layout was lost.
    """
    patience = options.duration(wait)
    chosen = settings(given)
    if saved := open_saved_change(spec):
        chosen.refuse_for_plan(spec)
    document = saved.spec.read() if saved else chosen.read(spec)
    with connect_to(name, socket, ()) as client:
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
        done = replace(done, emptied=tuple(_emptied(planned.status.offers, client.offers())))
    show(done, lambda: pages("held").changed(done, document.name), as_json=as_json, marker="change")
    return Exit.DIFFERENT if done.checks.different else Exit.OK


def _emptied(before: Sequence[Offer], after: Mapping[str, Offer]) -> Iterator[str]:
    """Names of the exports that were committed, and are to be committed again."""
    for offer in before:
        if offer.commit == "committed" and offer.name in after and after[offer.name].commit in ("empty", "writing"):
            yield offer.name


def differences(before: Composition, after: Composition, name: str) -> PlanDifference:
    """Difference of the plans of two specs, of which the first one is called `name`."""
    return difference(
        before.plan.steps_by_process,
        after.plan.steps_by_process,
        (name, after.document.file),
        (before.document.values, after.document.values),
        (before.geometry, after.geometry),
    )


@dataclass(frozen=True)
class HeldChange:
    """A held layout, and a spec that it is to be changed to, both validated on the machine of the holder.

    The geometry of `after` is None if the layout cannot be changed to the spec.
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
        before, after = Composition.of(held.document, found, status.name), Composition.of(document, found)
        if before.valid:
            after = after.after(before.geometry)
        return cls(status, digest_of(source, status.layout_state), before, after)

    def require_awake(self) -> None:
        """Raise `ExchangeError` if some memory of the layout is gone: it cannot be changed before it is awake."""
        if self.status.layout_state not in (None, AWAKE):
            message, hint = not_awake(self.status.name, self.status.layout_state)
            raise ExchangeError("state", message, hint=f"{hint}; 'memtopo diff' compares its spec in any state")

    @cached_property
    def difference(self) -> PlanDifference:
        """Difference that the change makes. Raises `UsageError` if a spec is invalid here."""
        if not (self.before.valid and self.after.valid):
            hint = "the change itself is planned by the holder"
            raise UsageError(f"the change of layout {self.status.name!r} cannot be planned here", hint=hint)
        return differences(self.before, self.after, self.status.name)

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
        )


def _loaded(before: str, after: str, machine: list[str] | None, given: Settings) -> tuple[Composition, Composition]:
    """Both specs on one machine: that of the held layout, if the first one names one. Raises `MemtopoError`."""
    if before == "-" or Path(before).exists() or not NAME.fullmatch(before):
        return load(before, machine, given), load(after, machine, given)
    with connect_to(before, None, ()) as client:
        line, source = client.status().machine, held_source(client)
    if source is None:
        raise ExchangeError("source", f"layout {before!r} does not send its spec", hint="compare two files")
    document, record = source
    found = recorded(line.name, record)
    held = valid(Composition.of(replace(document, name=before), found, before))
    return held, loaded_on(found, given.read(after), after)


def diff_command(
    before: Before,
    after: After,
    machine: options.MachineNames = None,
    given: options.Set = None,
    as_json: options.AsJson = False,
) -> int:
    """Show what a change from one spec to another would do.

    Addresses, handles and bytes of what both have stay. The exit status is 1 if anything differs.
    """
    both = _loaded(before, after, machine, settings(given))
    valid(both[1].with_errors(diagnose_processes(both[0].geometry, both[1].geometry)))
    for loaded in both:
        print_diagnostics(loaded)
    target = both[0].target
    found = differences(*both, both[0].document.file)
    if not found.empty:
        pictures = [build_diagram(each.geometry, target.machines) for each in both]
        found = replace(found, picture_before=pictures[0], picture_after=pictures[1])
    show(found, lambda: pages("plan").difference(found, target.line), as_json=as_json, marker="difference")
    return Exit.OK if found.empty else Exit.INVALID
