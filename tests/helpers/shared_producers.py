"""Simulated producers of the external entries of specs, shared by all tests of one process.

Random tests run hundreds of specs; starting a producer for each would take most of their time.
"""

from __future__ import annotations

import atexit
from functools import cache

from memtopo.drivers import target
from memtopo.geometry import Geometry
from memtopo.kinds.layout import HandleSource
from memtopo.machine import Machine
from memtopo.session.composition import RunRequest
from memtopo.sharing.imports import HolderHandles
from memtopo.sharing.producers import ProducerSpec, producer_specs, simulated_program


def sockets(geometry: Geometry, machine: Machine) -> dict[str, str]:
    """The socket of a simulated producer for each external holder."""
    members = geometry.members.values()
    if not any(member.produced for member in members):
        return {}
    found = producer_specs(members, "test", target.uuids(machine))
    return {holder: _served(holder, script) for holder, script in found.items()}


def handle_source(run_request: RunRequest, machine: Machine) -> HandleSource | None:
    """The source of the external handles of a request of one process."""
    if not run_request.geometry.produced:
        return None
    return HolderHandles(run_request.geometry, target.uuids(machine), sockets(run_request.geometry, machine))


@cache
def _served(holder: str, script: ProducerSpec) -> str:
    program = simulated_program(holder, script).__enter__()
    atexit.register(program.__exit__)
    program.wait_until_serving(lambda: 0, patience=60.0)
    return program.socket
