"""`memtopo change`: bring a held layout to another spec, in place. `memtopo plan` shows and saves its plan."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Literal

import typer

from memtopo import planner
from memtopo.cli.held import connect_to, followed
from memtopo.cli.options import NOT_AS_DECLARED, AsJson, ForceChange, HeldName, Socket, WaitForImporters, duration
from memtopo.cli.settings import Set, settings
from memtopo.cli.specs import Loaded
from memtopo.common.errors import UsageError
from memtopo.diagnostics.messages import not_awake
from memtopo.drivers.target import recorded
from memtopo.language import Document, SpecText
from memtopo.language.names import AWAKE
from memtopo.machine import parse
from memtopo.output import json, plain
from memtopo.plans.difference import difference
from memtopo.plans.report import PlanDifference
from memtopo.rules.change import diagnose_change
from memtopo.rules.validation import validate
from memtopo.session.saved import SavedChange, digest_of, open_saved_change
from memtopo.sharing.client import Client
from memtopo.sharing.errors import ExchangeError
from memtopo.sharing.offers import Offer
from memtopo.sharing.sources import layout_source, parsed_source
from memtopo.sharing.status import Changed, Status

After = Annotated[
    str,
    typer.Argument(metavar="SPEC", help="The spec to change to, or a saved plan.", show_default=False),
]
Check = Annotated[
    Literal["fast", "full"],
    typer.Option(
        "--check",
        envvar="MEMTOPO_CHANGE_CHECK",
        help="What is checked afterwards: fast: queries, and samples of new memory; full: all its bytes.",
    ),
]


def change_command(
    name: HeldName,
    spec: After,
    given: Set = None,
    check: Check = "fast",
    force: ForceChange = False,
    wait: WaitForImporters = "5s",
    socket: Socket = None,
    as_json: AsJson = False,
) -> int:
    """Bring a held layout to another spec, in place.

    What both have is not touched. Others that imported memory that goes have --wait to let go of it; if one still
    has handles then, the change is refused. If a call fails, the layout stays as it was. The exit status is 6 if
    the check afterwards finds a difference, 5 if the layout was lost.
    """
    patience = duration(wait)
    chosen = settings(given)
    if saved := open_saved_change(spec):
        chosen.refuse_for_plan(spec)
    document = saved.spec.read() if saved else chosen.read(spec)
    with connect_to(name, socket, ()) as client:
        planned = HeldChange.of(client, document)
        if planned.after.validated.geometry is None:
            return planned.after.refuse(as_json=as_json)
        if saved:
            saved.compare(spec, planned.document, planned.status.layout_state)
        planned.after.print_diagnostics(sys.stderr)
        generation = saved.generation if saved else None
        with followed(client, "change"):
            done = client.change(
                planned.source, generation=generation, full=check == "full", force=force, wait=patience
            )
        done = replace(done, emptied=tuple(_emptied(planned.status.offers, client.offers())))
    _print_change(done, document.name, as_json=as_json)
    return NOT_AS_DECLARED if done.checks.different else 0


def _print_change(done: Changed, spec: str, *, as_json: bool) -> None:
    if as_json:
        plain.print_document(json.dumps(json.marked("change", done)).splitlines())
        return
    from memtopo.output import console
    from memtopo.output import held as page

    console.show(page.changed(done, spec))


def _emptied(before: Sequence[Offer], after: Mapping[str, Offer]) -> Iterator[str]:
    """Names of the exports that were committed, and are to be committed again."""
    for offer in before:
        if offer.commit == "committed" and offer.name in after and after[offer.name].commit in ("empty", "writing"):
            yield offer.name


@dataclass(frozen=True)
class HeldChange:
    """A held layout, and a spec that it is to be changed to, both validated on the machine of the holder.

    The geometry of `after` is None if the layout cannot be changed to the spec.
    """

    status: Status
    digest: str
    before: Loaded
    after: Loaded

    @classmethod
    def of(cls, client: Client, document: Document) -> HeldChange:
        """Request what is held, and validate the change. Raises `ExchangeError` if the holder sends no spec."""
        status, source = client.status(), client.source()
        if not source:
            raise ExchangeError("source", f"layout {status.name!r} does not send its spec")
        held = parsed_source(source)
        found = recorded(status.machine.name, parse(held.machine.encode(), "the holder"))
        before = Loaded(validate(held.document, found.machine), found, status.name)
        after = Loaded(validate(document, found.machine), found, document.name)
        if (old := before.validated.geometry) and (new := after.validated.geometry):
            after = after.with_errors(diagnose_change(old, new))
        return cls(status, digest_of(source, status.layout_state), before, after)

    def require_awake(self) -> None:
        """Raise `ExchangeError` if some memory of the layout is gone: it cannot be changed before it is awake."""
        if self.status.layout_state not in (None, AWAKE):
            message, hint = not_awake(self.status.name, self.status.layout_state)
            raise ExchangeError("state", message, hint=f"{hint}; 'memtopo diff' compares its spec in any state")

    @property
    def source(self) -> str:
        """Source of the spec, as the holder reads it."""
        return layout_source(self.after.document, self.after.target.machine)

    @cached_property
    def difference(self) -> PlanDifference:
        """Difference that the change makes. Raises `UsageError` if a spec is invalid here."""
        before, after = self.before.validated.geometry, self.after.validated.geometry
        if before is None or after is None:
            hint = "the change itself is planned by the holder"
            raise UsageError(f"the change of layout {self.status.name!r} cannot be planned here", hint=hint)
        steps = [planner.plan(each, self.after.target.machine).steps_by_process for each in (before, after)]
        names = self.status.name, self.after.document.name
        values = self.before.document.values, self.after.document.values
        return difference(steps[0], steps[1], names, values, (before, after))

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
