"""Memory of the host that a transition needs, compared with what its NUMA nodes have."""

from __future__ import annotations

import pytest

from memtopo.common.units import GiB
from memtopo.driver.ledger import Ledger
from memtopo.driver.types import Location, LocationKind, gpu
from memtopo.drivers.sim import SimDriver
from memtopo.executor import Execution
from memtopo.machine import CONTEXT_BYTES
from memtopo.plans.transition import Transition, transition
from memtopo.run.transition import DoesNotFit, lacking_on_host, require_room
from tests.helpers.machines import invented, with_nodes
from tests.helpers.specs import plan_of

HOST, ONE, OTHER = Location(LocationKind.HOST), *(Location(LocationKind.HOST_NUMA, node) for node in (0, 1))
MACHINE = with_nodes(invented(1, memory=76 * GiB), 8 * GiB, 4 * GiB)


@pytest.mark.parametrize(
    ("growth", "used", "lacking"),
    [
        ({gpu(0): 99, ONE: 5, OTHER: 4}, {ONE: 3}, []),
        ({ONE: 5, OTHER: 4}, {ONE: 4}, ["host:0 needs 5 GiB more than now at its peak, and has 4 GiB free"]),
        ({OTHER: 5}, {}, ["host:1 needs 5 GiB more than now at its peak, and has 4 GiB free"]),
        ({OTHER: -4, HOST: 9}, {OTHER: 4}, []),
        ({HOST: 9}, {OTHER: 4}, ["the host needs 9 GiB more than now at its peak, and has 8 GiB free"]),
    ],
)
def test_a_node_has_what_the_layout_does_not_use_of_it(
    growth: dict[Location, int], used: dict[Location, int], lacking: list[str]
) -> None:
    grown, taken = ({where: size * GiB for where, size in sizes.items()} for sizes in (growth, used))
    assert list(lacking_on_host(grown, taken, MACHINE)) == lacking


def test_all_memory_of_a_layout_on_a_node_is_used_there() -> None:
    """Each chunk alone leaves room for the change, and both together do not."""
    text = "chunks: {a: {location: host:1, size: 1GiB}, b: {location: host:1, size: 2GiB}NEW}"
    old = plan_of(text.replace("NEW", ""), MACHINE)
    with SimDriver(MACHINE) as driver:
        driver.init()
        execution = Execution(old, Ledger(driver))
        execution.build()
        larger = with_nodes(MACHINE, 8 * GiB, 8 * GiB)
        for size, fits in ((1, True), (2, False)):
            new = plan_of(text.replace("NEW", f", c: {{location: host:1, size: {size}GiB}}"), larger)
            steps = transition(old.steps, new.steps)
            if fits:
                require_room(execution, steps, steps.growth, MACHINE)
                continue
            with pytest.raises(DoesNotFit, match="host:1 needs 2 GiB more than now at its peak, and has 1 GiB free"):
                require_room(execution, steps, steps.growth, MACHINE)
        execution.take_down()


def test_released_memory_that_importers_keep_is_no_room_for_what_comes() -> None:
    old, new = (plan_of(f"chunks: {{w: {{location: gpu0, size: {size}GiB}}}}", MACHINE) for size in (40, 38))
    steps = transition(old.steps, new.steps)
    with SimDriver(MACHINE) as driver:
        driver.init()
        execution = Execution(old, Ledger(driver))
        execution.build()
        require_room(execution, steps, steps.growth, MACHINE)
        in_use = {("", step.provides) for step in steps.undo}
        with pytest.raises(DoesNotFit, match=r"gpu0 needs 38 GiB more than now at its peak"):
            require_room(execution, steps, Transition.together({"": steps}, in_use).growth, MACHINE)
        execution.take_down()


def test_a_change_may_need_all_of_the_memory_that_is_free() -> None:
    """That of a GPU that the layout does not use yet is less by a context."""
    machine = with_nodes(invented(2), 8 * GiB)
    plan = plan_of("chunks: {a: {location: gpu0, size: 1GiB}}", machine)
    steps = transition(plan.steps, plan.steps)
    with SimDriver(machine) as driver:
        driver.init()
        execution = Execution(plan, Ledger(driver))
        execution.build()
        free = {
            gpu(0): execution.snapshot().free[0],
            gpu(1): machine.devices[1].room - CONTEXT_BYTES,
            HOST: machine.host_room,
        }
        require_room(execution, steps, free, machine)
        for where, size in free.items():
            with pytest.raises(DoesNotFit, match="needs"):
                require_room(execution, steps, {where: size + 1}, machine)
        execution.take_down()
