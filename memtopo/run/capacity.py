"""Memory that a transition needs at its peak, by location, compared with what is free."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from memtopo.common.errors import MemtopoError
from memtopo.common.units import rounded
from memtopo.driver.types import DriverError, Location, LocationKind
from memtopo.executor import Execution, StepFailed
from memtopo.kinds.layout import current
from memtopo.machine import CONTEXT_BYTES, Machine
from memtopo.plans.transition import Transition


class DoesNotFit(MemtopoError):
    """A change that needs more memory than is free, refused before its first call."""

    exit_code = 4


def require_room(
    execution: Execution, steps: Transition, growth: Mapping[Location, int], machine: Machine | None
) -> None:
    """Raise `DoesNotFit`, with the numbers of each location, if a transition needs more memory than is free.

    It needs the `growth` at its peak. GPUs that the layout uses are queried; others, and the host, have what the record
    of the `machine` says. Raises `StepFailed`.
    """
    if refusals := list(_refusals(execution, steps)):
        raise DoesNotFit(f"the change does not fit: {'; '.join(refusals)}", hint="unmap what is too many")
    if growth and (lacking := list(_lacking(execution, growth, machine))):
        raise DoesNotFit(f"the change does not fit: {'; '.join(lacking)}")


def _refusals(execution: Execution, steps: Transition) -> Iterator[str]:
    """Yield why the layout does not admit steps of a transition."""
    undone = {step.provides for step in steps.undo}
    yield from (reason for step in steps.do if (reason := step.refusal(execution.layout, undone)))


def _lacking(execution: Execution, growth: Mapping[Location, int], machine: Machine | None) -> Iterator[str]:
    for location, size in sorted(growth.items()):
        if location.kind is LocationKind.GPU:
            free = _free(execution, location.id, machine)
            if free is not None and size > free:
                yield _numbers(str(location), size, free)
    if machine:
        yield from lacking_on_host(growth, _used_on_host(execution), machine)


def lacking_on_host(growth: Mapping[Location, int], used: Mapping[Location, int], machine: Machine) -> Iterator[str]:
    """Numbers of the NUMA nodes that lack memory; if none does, those of the whole host if it does."""
    nodes = {node: size - used.get(node, 0) for node, size in machine.node_bytes.items()}
    lacking = [_numbers(str(node), growth[node], free) for node, free in nodes.items() if growth.get(node, 0) > free]
    host = sum(size for location, size in growth.items() if location.kind is not LocationKind.GPU)
    free = machine.host_room - sum(used.values())
    if host > free and not lacking:
        lacking.append(_numbers("the host", host, free))
    yield from lacking


def _numbers(where: str, size: int, free: int) -> str:
    return f"{where} needs {rounded(size)} more than now at its peak, and has {rounded(max(free, 0))} free"


def _free(execution: Execution, device: int, machine: Machine | None) -> int | None:
    """Free bytes of a GPU; None if they are not known."""
    context = execution.layout.contexts.get(device)
    if context is None:
        return machine.devices[device].room - CONTEXT_BYTES if machine else None
    try:
        with current(execution.driver, context):
            return execution.driver.mem_get_info()[0]
    except DriverError as error:
        raise StepFailed(None, "free memory before a change", error) from error


def _used_on_host(execution: Execution) -> Mapping[Location, int]:
    """Bytes that the layout has on the host, by location."""
    used: dict[Location, int] = {}
    for location, size in (step.allocates for step in execution.plan.steps if step.allocates):
        if location.kind is not LocationKind.GPU:
            used[location] = used.get(location, 0) + size
    return used
