"""Rules: requirements on a geometry and a machine, which prevent requests that the driver would refuse."""

from __future__ import annotations

from collections.abc import Collection
from itertools import chain

from memtopo.common.errors import MemtopoError
from memtopo.diagnostics import messages
from memtopo.diagnostics.model import Diagnostic
from memtopo.geometry.model import Geometry
from memtopo.kinds import KINDS
from memtopo.kinds.kind import Kind, Rule
from memtopo.machine import Machine, Machines
from memtopo.rules import limits, unused

RULES: tuple[tuple[Kind | None, tuple[Rule, ...]], ...] = (
    *((kind, rules) for kind in KINDS if (rules := kind.rules())),
    (None, (limits.address_space, unused.chunks, unused.ranges)),
)
"""Rules about one process, by the kind whose rules they are; last those of no kind in particular."""

JOINT_RULES: tuple[Rule, ...] = (limits.fits, *(rule for kind in KINDS for rule in kind.joint_rules()))
"""Rules about all processes together."""


class NeverTried(MemtopoError):
    """A valid spec that is not built on a machine: no trial shows that it works there. Nothing was changed."""

    exit_code = 4


def require_tried(geometry: Geometry, machines: Machines) -> None:
    """Raise `NeverTried` for a layout with objects that may be planned, but were never tried on the machine."""
    found = [each for member in _members(geometry, machines) for kind in KINDS for each in kind.untried(*member)]
    if found:
        hint = "validate, plan and draw work; no option makes apply build it"
        raise NeverTried(f"not applied: {found[0]} of this machine", hint=hint, details=found[1:])


def diagnose(geometry: Geometry, machines: Machines) -> list[Diagnostic]:
    """Diagnostics of all rules; equal ones of the instances of a counted process are merged.

    Rules about all processes together are about those of one node.
    """
    nodes = [(each, machines.of(node)) for node, each in geometry.by_node]
    members = _members(geometry, machines)
    found: list[Diagnostic] = []
    for kind, rules in RULES:
        concerned = [each for each in members if kind is None or kind.concerned(each[0])]
        for rule in rules if concerned else ():
            found += dict.fromkeys(chain.from_iterable([messages.first(rule(*each)) for each in concerned]))
    for rule in JOINT_RULES:
        found += messages.first(dict.fromkeys(chain.from_iterable([rule(*each) for each in nodes])))
    return found


def _members(geometry: Geometry, machines: Machines) -> Collection[tuple[Geometry, Machine]]:
    """Different geometries of processes, each with the machine of its node."""
    nodes = [(each, machines.of(node)) for node, each in geometry.by_node]
    return {id(member): (member, machine) for each, machine in nodes for member in each.members.values()}.values()
