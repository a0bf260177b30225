"""Rules: requirements on a geometry and a machine, which prevent requests that the driver would refuse."""

from __future__ import annotations

from collections.abc import Collection

from memtopo.common.errors import MemtopoError
from memtopo.diagnostics import messages
from memtopo.diagnostics.model import Diagnostic
from memtopo.geometry.model import Geometry
from memtopo.kinds import KINDS
from memtopo.kinds.kind import Kind, Rule
from memtopo.machine import Machine, Machines
from memtopo.rules import limits, unused

RULES: tuple[tuple[Kind | None, Rule], ...] = (
    *((kind, rule) for kind in KINDS for rule in kind.rules()),
    *((None, rule) for rule in (limits.address_space, unused.chunks, unused.ranges)),
)
"""Rules about one process, each with the kind whose rule it is."""

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
    found = [
        diagnostic
        for kind, rule in RULES
        if kind is None or any(kind.concerned(member) for member, _ in members)
        for diagnostic in dict.fromkeys(each for member in members for each in messages.first(rule(*member)))
    ]
    for rule in JOINT_RULES:
        found += messages.first(dict.fromkeys(each for node in nodes for each in rule(*node)))
    return found


def _members(geometry: Geometry, machines: Machines) -> Collection[tuple[Geometry, Machine]]:
    """Different geometries of processes, each with the machine of its node."""
    nodes = [(each, machines.of(node)) for node, each in geometry.by_node]
    return {id(member): (member, machine) for each, machine in nodes for member in each.members.values()}.values()
