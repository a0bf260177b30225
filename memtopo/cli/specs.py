"""What every command that takes a spec begins with: the text, the machine, and all faults at once."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TextIO

from memtopo import language
from memtopo.common.errors import UsageError
from memtopo.language import Document
from memtopo.machine import target
from memtopo.machine.target import Target
from memtopo.output import diagnostics, json, plain
from memtopo.plans import saved
from memtopo.plans.saved import SavedPlan, StalePlan
from memtopo.rules.validation import Validated, validate

INVALID = 1


@dataclass(frozen=True, slots=True)
class Loaded:
    """A spec held against a machine, and the saved plan that it came out of, if it did."""

    validated: Validated
    target: Target
    origin: str
    saved: SavedPlan | None = None

    @property
    def document(self) -> Document:
        """The spec's text."""
        return self.validated.document

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is wrong with the spec, a line each."""
        return tuple(diagnostics.concise(self.validated.diagnostics, self.document))

    def show_faults(self, stream: TextIO) -> None:
        """Write the diagnostics of the spec with their source lines, if there are any."""
        faults = self.validated.diagnostics
        look = (plain.width(stream), plain.colour(stream))
        plain.print_lines(diagnostics.text(faults, self.document, width=look[0], colour=look[1]), stream)

    def refuse(self, *, as_json: bool) -> int:
        """Say why a spec is not carried out: to stderr, and with `--json` as the document on stdout."""
        self.show_faults(sys.stderr)
        if self.saved:
            raise StalePlan(f"the spec in the saved plan {self.origin!r} is not valid on this machine")
        if as_json:
            found = json.diagnostics_document(self.validated.diagnostics, self.document, self.target.name)
            plain.print_lines(json.dumps(found).splitlines())
        return INVALID


def load(spec: str, machine: str) -> Loaded:
    """Read a spec, or a saved plan, and a machine, and hold one against the other.

    Raises `Unavailable` where there is no machine, `UsageError` where nothing is named, `UnreadablePlan` for a damaged
    saved plan.
    """
    if not spec:
        raise UsageError("SPEC is empty", hint="name a file, or - for standard input")
    found = target.resolve(machine)
    if plan := saved.open_saved(spec):
        within = language.read_text(plan.spec.text.encode(), plan.spec.name)
        return Loaded(validate(within, found.machine), found, spec, plan)
    document = language.read_stdin() if spec == "-" else language.read_file(spec)
    return Loaded(validate(document, found.machine), found, spec)
