"""Rules: requirements on a geometry and a machine, which prevent requests that the driver would refuse."""

from __future__ import annotations

from memtopo.diagnostics import messages
from memtopo.diagnostics.model import Diagnostic
from memtopo.geometry.model import Geometry
from memtopo.kinds import KINDS
from memtopo.kinds.kind import Rule
from memtopo.machine import Machine
from memtopo.rules import limits, unused

RULES: tuple[Rule, ...] = (
    *(rule for kind in KINDS for rule in kind.rules()),
    limits.address_space,
    unused.chunks,
    unused.ranges,
)
"""Rules about one process."""

JOINT_RULES: tuple[Rule, ...] = (limits.fits, *(rule for kind in KINDS for rule in kind.joint_rules()))
"""Rules about all processes together."""


def diagnose(geometry: Geometry, machine: Machine) -> list[Diagnostic]:
    """Diagnostics of all rules; equal ones of the instances of a counted process are merged."""
    members = list({id(member): member for member in geometry.members.values()}.values())
    found = [
        diagnostic
        for rule in RULES
        for diagnostic in dict.fromkeys(each for member in members for each in messages.first(rule(member, machine)))
    ]
    for rule in JOINT_RULES:
        found += messages.first(dict.fromkeys(rule(geometry, machine)))
    return found
