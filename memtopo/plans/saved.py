"""Saved plans: a plan that carries the spec's text and the machine's facts, to be applied later if it still holds.

Nothing of it is carried out as it stands: the text is validated and planned again, and the two plans are compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from memtopo.common.errors import MemtopoError
from memtopo.common.units import exact
from memtopo.diagnostics.model import Diagnostic
from memtopo.geometry import Geometry
from memtopo.language import Document, read_text
from memtopo.machine import Machine
from memtopo.planner import Plan
from memtopo.plans.report import MachineLine, PlanSummary, Row
from memtopo.rules.validation import validate
from memtopo.run.contents import everything

MARKER = b'"memtopo_plan"'
LARGEST_FILE = 256 << 20
SHOWN = 20
"""Changes that a message names."""

_AGAIN = "make it again with 'memtopo plan SPEC -o FILE'"


class Stale(MemtopoError):
    """A saved plan does not hold any more."""

    exit_code = 7


class Unreadable(MemtopoError):
    """A file that should be a saved plan is none."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class SpecText:
    """A spec as it was written, with the name of its file."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class SavedPlan:
    """What `plan` writes: the plan, the machine it is for, that machine's facts, and the spec that it was made from."""

    memtopo_plan: Literal[1]
    machine: MachineLine
    plan: PlanSummary
    spec: SpecText
    facts: Machine


def open_saved(name: str) -> SavedPlan | None:
    """The saved plan in a file; None where the file is something else, or cannot be read.

    Raises `Unreadable` where it is damaged or of another version.
    """
    try:
        if not Path(name).is_file():
            return None
        with open(name, "rb") as file:  # noqa: PTH123 as everywhere: a name that is no path is no error here
            start = file.read(256)
            if not _begins(start):
                return None
            return read(start + file.read(LARGEST_FILE), name)
    except (OSError, ValueError):
        return None


def spec_in(document: Document) -> Document:
    """The spec in a saved plan, under its own name; a document that is no saved plan, as it is."""
    start = document.text[:256].encode()
    if not _begins(start):
        return document
    try:
        spec = read(document.text.encode(), document.name).spec
    except Unreadable as error:
        return Document(document.name, diagnostics=(Diagnostic("MT001", error.message, help=error.hint),))
    return read_text(spec.text.encode(), spec.name)


def read(text: bytes, name: str) -> SavedPlan:
    """A saved plan from JSON. Raises `Unreadable` where it is damaged or of another version."""
    try:
        return TypeAdapter(SavedPlan).validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        told = f"saved plan {name!r} is damaged: {where or 'it'}: {first['msg'].lower()}"
        raise Unreadable(told, hint=_AGAIN) from error


def compare(saved: SavedPlan, name: str, geometry: Geometry, now: Plan) -> None:
    """Raise `Stale`, with what changed, unless `now` is the plan that was saved.

    The rows are compared as they were saved, since another version of memtopo may have made them; and where every chunk
    is, by laying the saved text out on the saved facts once more. That is not possible where the spec names a GPU by
    its identity, which is not saved.
    """
    validated = validate(read_text(saved.spec.text.encode(), saved.spec.name), saved.facts)
    then = validated.geometry or geometry
    old, new = list(_lines(saved.plan)), list(_lines(now.summary()))
    if old == new and everything(then) == everything(geometry):
        return
    changed = list(unified_diff(old, new, n=0, lineterm=""))[2:]
    told = [line for line in changed if line[:1] in "+-"] or ["the same calls, at other offsets"]
    more = [f"… and {len(told) - SHOWN} more"] if len(told) > SHOWN else []
    raise Stale(f"the saved plan {name!r} does not hold on this machine", hint=_AGAIN, details=[*told[:SHOWN], *more])


def _begins(start: bytes) -> bool:
    return start.lstrip().startswith(b"{") and MARKER in start


def _lines(plan: PlanSummary) -> Iterator[str]:
    """A plan as lines that can be compared: what the calls are, not what is drawn of them."""
    yield from map(_line, plan.rows)
    for process in plan.processes:
        name = process.first if process.count == 1 else f"{process.first} … {process.last}"
        yield from (f"{name}: {_line(row)}" for row in process.rows)
    for place, amount in plan.memory.items():
        yield f"memory on {place}: {exact(amount)}"
    yield f"{plan.calls} calls to build, {plan.teardown_calls} to take down"


def _line(row: Row) -> str:
    subjects = row.first if row.calls == 1 else f"{row.first} … {row.last} ({row.calls} calls)"
    size = f", {exact(row.bytes_each)} each" if row.bytes_each else ""
    where = f", {', '.join(row.where)}" if row.where else ""
    return f"{row.verb} {subjects}{size}{where}{f' ({row.note})' if row.note else ''}"
