"""Rules: requirements on a geometry and a machine, which prevent requests that the driver would refuse."""

from __future__ import annotations

from memtopo.common.errors import MemtopoError
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


class NotBuilt(MemtopoError):
    """A valid spec that is not built on a machine: no trial shows that it works there. Nothing was changed."""

    exit_code = 4


def require_tried(geometry: Geometry, machine: Machine) -> None:
    """Raise `NotBuilt` for a layout with objects that may be planned, but were never tried on the machine."""
    members = list({id(member): member for member in geometry.members.values()}.values())
    found = [each for member in members for kind in KINDS for each in kind.untried(member, machine)]
    if found:
        hint = "validate, plan and draw work; no option makes apply build it"
        raise NotBuilt(f"not applied: {found[0]} of this machine", hint=hint, details=found[1:])


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
