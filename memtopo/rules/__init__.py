"""What a geometry must hold to on a machine, so that the driver is never asked for what it refuses or must not do."""

from __future__ import annotations

from memtopo.diagnostics import messages
from memtopo.diagnostics.model import Diagnostic
from memtopo.geometry import Geometry
from memtopo.machine import Machine
from memtopo.rules import capability, fitting, foreign, granting, managing, memory, unused

RULES = (
    fitting.past_the_end,
    fitting.overlaps,
    fitting.address_space,
    fitting.fixed_addresses,
    granting.splits,
    granting.past_the_end,
    granting.reaches,
    capability.handle_types,
    capability.properties,
    capability.transports,
    managing.managed,
    foreign.imports,
    unused.chunks,
    unused.ranges,
)
"""What each process must hold to by itself."""


def judge(geometry: Geometry, machine: Machine) -> list[Diagnostic]:
    """Every fault of how entries fit together and fit the machine; the processes of a counted one share theirs."""
    members = list({id(member): member for member in geometry.members.values()}.values())
    found = [
        fault
        for rule in RULES
        for fault in dict.fromkeys(fault for member in members for fault in messages.first(rule(member, machine)))
    ]
    together = (memory.fits, foreign.alike, foreign.unsignalled)
    return [*found, *(fault for rule in together for fault in messages.first(dict.fromkeys(rule(geometry, machine))))]
