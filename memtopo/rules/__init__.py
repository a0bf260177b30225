"""Rules: requirements on a geometry and a machine, which prevent requests that the driver would refuse."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import product

from memtopo.common.errors import Exit, MemtopoError
from memtopo.diagnostics import messages
from memtopo.diagnostics.model import Diagnostic
from memtopo.geometry.model import Geometry
from memtopo.kinds import KINDS
from memtopo.kinds.kind import Rule
from memtopo.kinds.multicast import MULTICAST
from memtopo.machine import Machine, Machines
from memtopo.rules.whole_layout import address_space, fits, unused_chunks, unused_ranges

RULES: tuple[Rule, ...] = tuple(
    dict.fromkeys([*(rule for kind in KINDS for rule in kind.rules()), address_space, unused_chunks, unused_ranges])
)
"""Rules about one process, each once, in order."""

JOINT_RULES: tuple[Rule, ...] = tuple(dict.fromkeys([fits, *(rule for kind in KINDS for rule in kind.joint_rules())]))
"""Rules about all processes together, each once, in order."""


class NeverTried(MemtopoError):
    """A valid spec that is not built on a machine: no trial shows that it works there. Nothing was changed."""

    exit_code = Exit.FAILED


def require_tried(geometry: Geometry, machines: Machines) -> None:
    """Raise `NeverTried` for a layout with objects that may be planned, but were never tried on the machine."""
    nodes = [(each, machines.of(node)) for node, each in geometry.by_node]
    found = [each for member in _members(nodes) for each in MULTICAST.untried(*member)]
    if found:
        hint = "validate, plan and draw work; no option makes apply build it"
        raise NeverTried(f"not applied: {found[0]} of this machine", hint=hint, details=found[1:])


def diagnose(geometry: Geometry, machines: Machines) -> list[Diagnostic]:
    """Diagnostics of all rules; equal ones of the instances of a counted process are merged.

    Rules about all processes together are about those of one node.
    """
    nodes = [(each, machines.of(node)) for node, each in geometry.by_node]
    members = _members(nodes)
    found: dict[Diagnostic, None] = {}
    for rule, member in product(RULES, members):
        found |= dict.fromkeys(messages.first(rule(*member)))
    for rule in JOINT_RULES:
        found |= dict.fromkeys(messages.first(dict.fromkeys(one for member in nodes for one in rule(*member))))
    return [*found]


def _members(nodes: Sequence[tuple[Geometry, Machine]]) -> Collection[tuple[Geometry, Machine]]:
    """Different geometries of processes, each with the machine of its node."""
    return {id(member): (member, machine) for each, machine in nodes for member in each.members.values()}.values()
