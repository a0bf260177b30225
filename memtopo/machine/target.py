"""The target: what a `--machine` text means, as a machine and a way to open its driver.

The real driver and the simulator are imported where they are opened, and so is what only they need: checking against a
recorded machine loads neither, and is quick to start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from memtopo.common.errors import Unavailable
from memtopo.driver.kernels import KernelDriver
from memtopo.driver.renumbered import Renumbered
from memtopo.driver.trying import Extras, Foreign
from memtopo.driver.types import DriverError
from memtopo.machine import Machine, load, parse

if TYPE_CHECKING:
    from memtopo.driver.cuda import CudaMeter
    from memtopo.plans.report import MachineLine


@dataclass(frozen=True, slots=True)
class Target:
    """A machine by the name it was asked for; `simulated` says whether its driver would be."""

    name: str
    machine: Machine
    simulated: bool
    _opener: Callable[[], KernelDriver] = field(repr=False, compare=False)

    @property
    def line(self) -> MachineLine:
        """The machine in one line of a report."""
        from memtopo.plans.report import MachineLine  # noqa: PLC0415

        driver = self.machine.driver.release or f"CUDA {self.machine.driver.cuda}"
        return MachineLine(self.name, self.simulated, tuple(device.name for device in self.machine.devices), driver)

    def open(self) -> KernelDriver:
        """An initialised driver: of a recorded machine, a simulator of its own for each call."""
        return self._opener()


def resolve(text: str) -> Target:
    """The target of `local`, of a shipped machine's name, or of a path to a recorded machine.

    `local` reads the real GPUs, with their UUIDs and bus ids. Raises `Unavailable` where there is no such machine; no
    other one is ever taken in its place.
    """
    if text == "local":
        return _local()
    machine = load(text)
    return Target(text, machine, simulated=True, _opener=lambda: _simulator(machine))


def open_in_worker(machine: Machine | None, *, simulated: bool, visible: Sequence[int]) -> KernelDriver:
    """An initialised driver for one process of several, spoken to by the ordinals of the process that launched it.

    With `visible` it has these GPUs alone, in this order; of real ones the environment has seen to that, and the
    machine may be left out. Raises `Unavailable`.
    """
    driver: KernelDriver
    if simulated:
        assert machine
        driver = _simulator(_shown(machine, visible) if visible else machine)
    else:
        from memtopo.driver.cuda import open_cuda  # noqa: PLC0415

        driver = open_cuda()
    return Renumbered(driver, visible) if visible else driver


def open_for_trials(record: bytes | None) -> tuple[KernelDriver, Extras]:
    """An initialised driver, and what only trials ask of it: the real one, or a simulator of a recorded machine.

    Raises `Unavailable`.
    """
    if record is None:
        from memtopo.driver.cuda import CudaExtras, open_cuda  # noqa: PLC0415

        return open_cuda(), CudaExtras()
    from memtopo.driver.sim import SimDriver, SimExtras  # noqa: PLC0415

    simulated = SimDriver(parse(record, "the probed machine"))
    simulated.init()
    return simulated, SimExtras(simulated)


def foreign(*, simulated: bool) -> Callable[[bytes], Foreign]:
    """Another API by a GPU's UUID: Vulkan, or what stands for it on the simulator."""
    if simulated:
        from memtopo.driver.sim import SimForeign  # noqa: PLC0415

        return SimForeign

    def meet(uuid: bytes) -> Foreign:
        from memtopo.vulkan import Gpu  # noqa: PLC0415

        return Gpu(uuid)

    return meet


@cache
def meter() -> CudaMeter:
    """The one of this process that measures copies between real GPUs."""
    from memtopo.driver.cuda import CudaMeter  # noqa: PLC0415

    return CudaMeter()


def _local() -> Target:
    import platform  # noqa: PLC0415

    from memtopo.driver.cuda import free_memory, kernel_release, numa_nodes, open_cuda  # noqa: PLC0415
    from memtopo.machine import queries  # noqa: PLC0415 imported where it is used

    driver = open_cuda()
    try:
        machine = queries.read(
            driver, identify=True, release=kernel_release(), numa_nodes=numa_nodes(), host_name=platform.node() or None
        )
    except DriverError as error:
        raise Unavailable(f"the GPUs cannot be asked: {error.message}", hint="look at nvidia-smi") from error
    free = free_memory(device.uuid for device in machine.devices)
    pairs = zip(machine.devices, free, strict=True)
    machine = queries.changed(
        machine, devices=[device.model_copy(update={"free_bytes": left}) for device, left in pairs]
    )
    return Target("local", machine, simulated=False, _opener=lambda: driver)


def uuids(machine: Machine) -> list[str]:
    """The UUIDs of a machine's GPUs as hex text: the recorded ones, or those that all its simulators give them."""
    from memtopo.driver.sim import SimDriver  # noqa: PLC0415

    with SimDriver(machine) as driver:
        driver.init()
        return [driver.device_get_uuid(ordinal).hex() for ordinal in range(len(machine.devices))]


def _shown(machine: Machine, visible: Sequence[int]) -> Machine:
    """A recorded machine with some of its GPUs alone, each under the UUID that all its simulators give it."""
    from memtopo.machine import queries  # noqa: PLC0415 imported where it is used

    found = uuids(machine)
    return queries.only(machine, visible, [queries.uuid_text(bytes.fromhex(found[ordinal])) for ordinal in visible])


def _simulator(machine: Machine) -> KernelDriver:
    from memtopo.driver.sim import SimDriver  # noqa: PLC0415

    driver = SimDriver(machine)
    driver.init()
    return driver
