"""Specs and machines of the command line: loading, validation, and printing of diagnostics."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TextIO

from memtopo.cli.options import one_target
from memtopo.cli.settings import NONE_SET, Settings
from memtopo.common.errors import Unavailable, UsageError
from memtopo.diagnostics.model import Diagnostic
from memtopo.drivers.target import Target
from memtopo.kinds.nodes import names_nodes
from memtopo.language import Document
from memtopo.output import plain
from memtopo.output.progress import activity
from memtopo.rules.validation import Validated, validate
from memtopo.session import saved
from memtopo.session.saved import SavedPlan, StalePlan
from memtopo.session.trials import with_needed_trials

INVALID = 1


@dataclass(frozen=True, slots=True)
class Loaded:
    """A validated spec, the machine, and the saved plan that contains the spec, if there is one."""

    validated: Validated
    target: Target
    origin: str
    saved: SavedPlan | None = None

    @property
    def document(self) -> Document:
        """The text of the spec."""
        return self.validated.document

    @property
    def warnings(self) -> tuple[str, ...]:
        """The diagnostics of the spec, one line each."""
        if not self.validated.diagnostics:
            return ()
        from memtopo.output.diagnostics import concise

        return tuple(concise(self.validated.diagnostics, self.document))

    def with_errors(self, errors: Iterable[Diagnostic]) -> Loaded:
        """Return it with these errors added; without a geometry if there are any."""
        if not (found := tuple(errors)):
            return self
        validated = self.validated._replace(diagnostics=(*self.validated.diagnostics, *found), geometry=None)
        return replace(self, validated=validated)

    def print_diagnostics(self, stream: TextIO) -> None:
        """Print the diagnostics of the spec with their source lines."""
        if not self.validated.diagnostics:
            return
        from memtopo.output.diagnostics import text

        width, colour = plain.width(stream), plain.colour(stream)
        lines = text(self.validated.diagnostics, self.document, width=width, colour=colour)
        plain.print_lines(lines, stream, styled=True)

    def refuse(self, *, as_json: bool) -> int:
        """Print the diagnostics of an invalid spec: to stderr, and with `--json` also on stdout. Returns the status."""
        self.print_diagnostics(sys.stderr)
        if self.saved:
            raise StalePlan(f"the spec in the saved plan {self.origin!r} is not valid on this machine")
        if as_json:
            from memtopo.output import json

            found = json.diagnostics_document(self.validated.diagnostics, self.document, self.target.name)
            plain.print_document(json.dumps(found).splitlines())
        return INVALID


def load(spec: str, machines: list[str] | None, given: Settings = NONE_SET, *, one_host: bool = False) -> Loaded:
    """Load a spec or a saved plan and a machine, and validate the spec.

    Raises `Unavailable` for an unknown machine, `UnreadablePlan` for a damaged plan, and `UsageError` for an empty
    name, for a saved plan with settings, and with `one_host` for a spec with nodes.
    """
    if not spec:
        raise UsageError("SPEC is empty", hint="name a file, or - for standard input")
    plan = saved.open_saved(spec)
    if plan:
        given.refuse_for_plan(spec)
    document = plan.spec.read() if plan else given.read(spec)
    if one_host:
        require_one_host(document)
    with activity("plan"):  # the driver may take seconds to start, as trials do
        return replace(_loaded(_target(machines, plan), document, spec), saved=plan)


def _target(machines: list[str] | None, plan: SavedPlan | None) -> Target:
    """The machine of a spec or a saved plan. Raises `Unavailable`."""
    try:
        return one_target(machines)
    except Unavailable as error:
        if plan and not machines and plan.machine.simulated:
            error.hint = f"the plan is of {plan.machine.name}: use --machine {plan.machine.name}"
        raise


def loaded_on(target: Target, spec: str, given: Settings = NONE_SET) -> Loaded:
    """Load a spec for a machine, and validate it."""
    return _loaded(target, given.read(spec), spec)


def _loaded(target: Target, document: Document, spec: str) -> Loaded:
    target = with_needed_trials(target, document)
    return Loaded(validate(document, target.machines), target, spec)


def require_one_host(document: Document) -> None:
    """Raise `UsageError` for a spec whose processes name nodes, which one host cannot build."""
    if nodes := names_nodes(document):
        message = f"the processes of {document.name!r} are on nodes: {', '.join(nodes)}"
        raise UsageError(message, hint=f"start it on a Ray cluster: memtopo apply {document.name} --on ray")
