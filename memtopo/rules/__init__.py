"""Rules: requirements on a geometry and a machine, which prevent requests that the driver would refuse."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from memtopo.common.errors import MemtopoError
from memtopo.diagnostics import messages
from memtopo.diagnostics.model import Diagnostic
from memtopo.geometry.groups import Group
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

JOINT_RULES: tuple[tuple[Kind | None, tuple[Rule, ...]], ...] = (
    (None, (limits.fits,)),
    *((kind, rules) for kind in KINDS if (rules := kind.joint_rules())),
)
"""Rules about all processes together, by the kind whose rules they are; first those of no kind in particular."""


class NeverTried(MemtopoError):
    """A valid spec that is not built on a machine: no trial shows that it works there. Nothing was changed."""

    exit_code = 4


def require_tried(geometry: Geometry, machines: Machines) -> None:
    """Raise `NeverTried` for a layout with objects that may be planned, but were never tried on the machine."""
    nodes = [(each, machines.of(node)) for node, each in geometry.by_node]
    found = [each for member in _members(nodes) for kind in KINDS for each in kind.untried(*member)]
    if found:
        hint = "validate, plan and draw work; no option makes apply build it"
        raise NeverTried(f"not applied: {found[0]} of this machine", hint=hint, details=found[1:])


class _Applicable(NamedTuple):
    """Rules that may find something in processes with groups of some classes, each once, in order."""

    own: Mapping[Rule, None]
    joint: Mapping[Rule, None]


@lru_cache(maxsize=256)
def _applicable(groups: frozenset[type[Group]]) -> _Applicable:
    own = (rule for kind, rules in RULES if kind is None or kind.concerned(groups) for rule in rules)
    joint = (rule for kind, rules in JOINT_RULES if kind is None or kind.jointly_concerned(groups) for rule in rules)
    return _Applicable(dict.fromkeys(own), dict.fromkeys(joint))


def diagnose(geometry: Geometry, machines: Machines) -> list[Diagnostic]:
    """Diagnostics of all rules; equal ones of the instances of a counted process are merged.

    Rules about all processes together are about those of one node.
    """
    nodes = [(each, machines.of(node)) for node, each in geometry.by_node]
    members = [(*each, _applicable(frozenset(each[0].groups)).own) for each in _members(nodes)]
    every = _applicable(frozenset(chain.from_iterable(each.groups for each, _, _ in members)))
    found: list[Diagnostic] = []
    for rule in every.own:
        reported: list[Diagnostic] = []
        for each, machine, own in members:
            if rule in own:
                reported += messages.first(rule(each, machine))
        if reported:
            found += dict.fromkeys(reported)
    for rule in every.joint:
        if joint := [one for each, machine in nodes for one in rule(each, machine)]:
            found += messages.first(dict.fromkeys(joint))
    return found


def _members(nodes: Sequence[tuple[Geometry, Machine]]) -> Collection[tuple[Geometry, Machine]]:
    """Different geometries of processes, each with the machine of its node."""
    return {id(member): (member, machine) for each, machine in nodes for member in each.members.values()}.values()
