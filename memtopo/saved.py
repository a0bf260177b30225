"""Saved plans: a plan that carries the spec's text and the machine's facts, to be applied later if it still holds.

Nothing of it is carried out as it stands: the text is validated and planned again, and the two plans are compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import ndiff
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from memtopo.errors import MemtopoError
from memtopo.machine import Machine
from memtopo.report import MachineLine, PlanSummary, Row
from memtopo.units import rounded

MARKER = "memtopo_plan"
SHOWN = 20
"""Changes that a message names."""


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


def is_saved(text: str) -> bool:
    """Whether a text is a saved plan rather than a spec."""
    start = text[:64].lstrip()
    return start.startswith("{") and f'"{MARKER}"' in start


def read(text: str, name: str) -> SavedPlan:
    """A saved plan from JSON. Raises `Unreadable` where it is damaged or of another version."""
    try:
        return TypeAdapter(SavedPlan).validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        told = f"saved plan {name!r} is damaged: {where or 'it'}: {first['msg'].lower()}"
        raise Unreadable(told, hint="make it again with 'memtopo plan SPEC -o FILE'") from error


def compare(saved: SavedPlan, name: str, now: PlanSummary) -> None:
    """Raise `Stale`, with what changed, where planning the same text again gives another plan."""
    changed = [line for line in ndiff(list(_lines(saved.plan)), list(_lines(now))) if line[0] in "+-"]
    if changed:
        more = [f"… and {len(changed) - SHOWN} more"] if len(changed) > SHOWN else []
        told = "\n  ".join([f"the saved plan {name!r} does not hold on this machine:", *changed[:SHOWN], *more])
        raise Stale(told, hint="look at the new plan, and save it again with 'memtopo plan SPEC -o FILE'")


def _lines(plan: PlanSummary) -> Iterator[str]:
    """A plan as lines that can be compared: what the calls are, not what is drawn of them."""
    yield from map(_line, plan.rows)
    for place, amount in plan.memory.items():
        yield f"memory on {place}: {rounded(amount)}"
    yield f"{plan.calls} calls to build, {plan.teardown_calls} to take down"


def _line(row: Row) -> str:
    subjects = row.first if row.calls == 1 else f"{row.first} … {row.last} ({row.calls} calls)"
    size = f", {rounded(row.bytes_each)} each" if row.bytes_each else ""
    where = f", {', '.join(row.where)}" if row.where else ""
    return f"{row.verb} {subjects}{size}{where}{f' ({row.note})' if row.note else ''}"
