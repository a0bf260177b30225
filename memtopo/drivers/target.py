"""Targets: the machine of a `--machine` option, and how to open its driver.

The real driver and the simulator are imported when they are opened, so that validation against a recorded machine
loads neither.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from msgspec import Struct

from memtopo.common.errors import InternalError, Unavailable, UsageError
from memtopo.driver.types import DriverError
from memtopo.machine import Cluster, Fabric, Machine, MachineLine, Machines, load, parse

if TYPE_CHECKING:
    from memtopo.driver.kernels import ExternalApi, KernelDriver, TrialCalls
    from memtopo.drivers.cuda.meter import CudaMeter
    from memtopo.drivers.sim import SimDriver
    from memtopo.drivers.sim.devices import SimMemoryBudget

_NODE = "[A-Za-z][A-Za-z0-9_-]*"

LOCAL = "local"
"""Name of the machine that this process runs on."""

NONE = "none"
"""Name that stands for no machine, without which specs are validated as far as possible."""


class Target(Struct, frozen=True):
    """Machine by its requested name; `simulated` is true if its driver is a simulator."""

    name: str
    machine: Machine
    simulated: bool
    _opener: Callable[[], KernelDriver]
    nodes: Mapping[str, Target] = {}
    """Targets of the nodes of a spec by name, of which `machine` is the first; empty for one machine."""

    @property
    def machines(self) -> Machines:
        """The machine, or those of the nodes."""
        return Cluster({node: each.machine for node, each in self.nodes.items()}) if self.nodes else self.machine

    @property
    def line(self) -> MachineLine:
        """Description of the machine for a report; it has the GPUs of all nodes."""
        machines = [each.machine for each in self.nodes.values()] or [self.machine]
        names = tuple(device.name for machine in machines for device in machine.devices)
        estimated = any(machine.estimated is not None for machine in machines)
        return MachineLine(self.name, self.simulated, names, self.machine.driver.name, estimated)

    def open(self) -> KernelDriver:
        """Return an initialised driver; for a recorded machine, a new simulator of the machine of this process."""
        return self._opener()


def resolve(text: str) -> Target:
    """Return the target for `local`, for the name of a shipped machine, or for the path of a recorded machine.

    `local` queries the real GPUs, including UUIDs and bus ids. Raises `Unavailable` if there is no such machine; there
    is no fallback to another one. Raises `UsageError` for `none`.
    """
    if text == LOCAL:
        return _local()
    if text == NONE:
        hint = "name one, such as h200x2 (--machine h200x2)"
        raise UsageError("without a machine, specs are only validated", hint=hint)
    return recorded(text, load(text))


def of_node(text: str) -> tuple[str, str] | None:
    """Return the node and the machine that a text such as `a=h200x4` names; None if it names no node."""
    node, equals, name = text.partition("=")
    return (node, name) if equals and re.fullmatch(_NODE, node) else None


def resolve_nodes(texts: Sequence[str]) -> Target:
    """Return the target of the machines of several nodes: `a=h200x4`, `b=local`.

    Raises `UsageError` for a node that is named twice and for a machine without a node, and `Unavailable`.
    """
    named = [(text, of_node(text)) for text in texts]
    if without := next((text for text, found in named if found is None), None):
        hint = "name one machine for all nodes, or one for each: --machine NODE=NAME"
        raise UsageError(f"machine {without!r} has no node, but others have one", hint=hint)
    pairs = [found for _, found in named if found]
    if twice := next((node for node, _ in pairs if [other for other, _ in pairs].count(node) > 1), None):
        raise UsageError(f"node {twice!r} has two machines", hint="name one of them")
    return of_nodes({node: resolve(name) for node, name in pairs})


def of_nodes(nodes: Mapping[str, Target]) -> Target:
    """Return the target of the machines of several nodes by name, at least one; it is simulated if all of them are."""
    first = next(iter(nodes.values()))
    name = " ".join(f"{node}={each.name}" for node, each in nodes.items())
    return Target(name, first.machine, all(each.simulated for each in nodes.values()), first.open, nodes)


def recorded(name: str, machine: Machine) -> Target:
    """Return the target of a record, which is simulated."""
    return Target(name, machine, simulated=True, _opener=lambda: _simulator(machine, _shared_memory(name, machine)))


def of_another_host(name: str, machine: Machine, *, simulated: bool) -> Target:
    """Return the target of the machine of a node, whose driver is not opened here."""
    return Target(name, machine, simulated, _opener=_not_here)


def open_in_worker(machine: Machine | None, *, simulated: bool, visible: Sequence[int]) -> KernelDriver:
    """Return an initialised driver for a worker process, which uses the ordinals of the process that launched it.

    With `visible`, the driver has only these GPUs, in this order; for real GPUs the environment has been set
    accordingly, and `machine` is not needed. Raises `Unavailable`.
    """
    from memtopo.driver.wrappers import Renumbered  # noqa: PLC0415

    driver: KernelDriver
    if simulated:
        from memtopo.drivers.sim.devices import machine_of  # noqa: PLC0415

        assert machine
        if visible:
            machine = machine_of(machine, visible)
        driver = _simulator(machine)
    else:
        from memtopo.drivers.cuda import open_cuda  # noqa: PLC0415

        driver = open_cuda()
    return Renumbered(driver, visible) if visible else driver


def open_for_trials(record: bytes | None) -> tuple[KernelDriver, TrialCalls]:
    """Return an initialised driver with the extra calls for trials: the real driver, or a simulator of a record.

    Raises `Unavailable`.
    """
    if record is None:
        from memtopo.drivers.cuda import open_cuda  # noqa: PLC0415
        from memtopo.drivers.cuda.kernels import CudaTrialCalls  # noqa: PLC0415

        return open_cuda(), CudaTrialCalls()
    from memtopo.drivers.sim import SimTrialCalls  # noqa: PLC0415

    simulated = _simulator(parse(record, "the probed machine"))
    return simulated, SimTrialCalls(simulated)


def external_api(*, simulated: bool) -> Callable[[bytes], ExternalApi]:
    """Return a function that opens an external API for a GPU's UUID: Vulkan, or its simulation."""
    if simulated:
        from memtopo.drivers.sim import SimExternalApi  # noqa: PLC0415

        return SimExternalApi

    def open_vulkan(uuid: bytes) -> ExternalApi:
        from memtopo.vulkan import Gpu  # noqa: PLC0415

        return Gpu(uuid)

    return open_vulkan


@cache
def meter() -> CudaMeter:
    """Return the process-wide instrument that measures copies between real GPUs."""
    from memtopo.drivers.cuda.meter import CudaMeter  # noqa: PLC0415

    return CudaMeter()


def _not_here() -> KernelDriver:
    raise InternalError("the driver of another node is opened here")


def _local() -> Target:
    import platform  # noqa: PLC0415

    from memtopo.drivers.cuda import host_memory, kernel_release, numa_bytes, numa_nodes, open_cuda  # noqa: PLC0415
    from memtopo.drivers.cuda.nvml import readings  # noqa: PLC0415
    from memtopo.machine import queries  # noqa: PLC0415 imported where it is used

    driver = open_cuda()
    try:
        machine = queries.read(
            driver,
            identify=True,
            release=kernel_release(),
            numa_nodes=numa_nodes(),
            numa_bytes=numa_bytes(),
            host_name=platform.node() or None,
            host_bytes=host_memory(),
        )
    except DriverError as error:
        raise Unavailable(f"the GPUs cannot be queried: {error.message}", hint="look at nvidia-smi") from error
    now_read = readings([device.uuid for device in machine.devices])
    found = zip(machine.devices, now_read, strict=True)
    devices = [each.model_copy(update={"free_bytes": now.free, "fabric": _fabric(now.clique)}) for each, now in found]
    machine = queries.changed(machine, devices=devices)
    return Target(LOCAL, machine, simulated=False, _opener=lambda: driver)


def _fabric(clique: tuple[str, int] | None) -> Fabric | None:
    """Record of a clique, with the UUID of its cluster."""
    return None if clique is None else Fabric(cluster=clique[0], clique=clique[1])


def ordinals(own: Sequence[str], every: Sequence[str]) -> tuple[int, ...]:
    """Return the ordinals, among the UUIDs of a machine, of the GPUs that a process sees; empty for all in order."""
    return () if [*own] == [*every] else tuple(every.index(uuid) for uuid in own if uuid in every)


def uuids(machine: Machine) -> list[str]:
    """Return the UUIDs of a machine's GPUs as hex text: the recorded ones, or the ones that all its simulators use."""
    from memtopo.drivers.sim import SimDriver  # noqa: PLC0415

    with SimDriver(machine) as driver:
        driver.init()
        return [driver.device_get_uuid(ordinal).hex() for ordinal in range(len(machine.devices))]


def _simulator(machine: Machine, memory: SimMemoryBudget | None = None) -> SimDriver:
    from memtopo.drivers.sim import SimDriver  # noqa: PLC0415

    driver = SimDriver(machine, memory)
    driver.init()
    return driver


_memories: WeakValueDictionary[str, SimMemoryBudget] = WeakValueDictionary()
"""Memory of simulated machines by name, while there are simulators of them in this process."""


def _shared_memory(name: str, machine: Machine) -> SimMemoryBudget:
    """Return the budget of another simulator of a machine, whose simulators in this process share its memory."""
    from memtopo.drivers.sim.devices import SimMemoryBudget  # noqa: PLC0415

    budget = _memories.get(name)
    if budget is None or budget.machine != machine:
        budget = _memories[name] = SimMemoryBudget(machine)
    return SimMemoryBudget(machine, budget)
