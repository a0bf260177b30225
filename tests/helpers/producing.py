"""Producers of what a spec takes from another API, which live as long as the tests of one process do.

Specs are run hundreds of times; to start a producer each time would take longer than all the rest.
"""

from __future__ import annotations

import atexit
from functools import cache

from memtopo.geometry import Geometry
from memtopo.kinds.layout import HandleSource
from memtopo.machine import Machine, target
from memtopo.run.request import RunRequest
from memtopo.sharing.imports import HolderHandles
from memtopo.sharing.producers import producer_specs, simulated_program
from memtopo.sharing.simulated_producer import ProducerSpec


def sockets(geometry: Geometry, machine: Machine) -> dict[str, str]:
    """The socket of a producer for each holder of another API's objects."""
    members = geometry.members.values()
    if not any(member.produced for member in members):
        return {}
    found = producer_specs(members, "test", target.uuids(machine))
    return {holder: _served(holder, script) for holder, script in found.items()}


def handle_source(run_request: RunRequest, machine: Machine) -> HandleSource | None:
    """What gives a request of one process what it takes from another API."""
    if not run_request.geometry.produced:
        return None
    return HolderHandles(run_request.geometry, target.uuids(machine), sockets(run_request.geometry, machine))


@cache
def _served(holder: str, script: ProducerSpec) -> str:
    program = simulated_program(holder, script).__enter__()
    atexit.register(program.__exit__)
    program.wait_until_serving(lambda: 0, patience=60.0)
    return program.socket
