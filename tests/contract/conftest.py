"""The driver under contract: the simulator, or with --gpu the real one; a test that leaves anything open fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from uuid import UUID

import pytest

from memtopo.driver.kernels import ExternalApi, KernelDriver
from memtopo.driver.ledger import Ledger
from memtopo.driver.types import Properties, gpu
from memtopo.drivers.target import external_api
from tests.contract.other_process import Other
from tests.helpers.vulkan import why_unavailable


@pytest.fixture
def on_hardware(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--gpu"))


@pytest.fixture
def bare(on_hardware: bool) -> Iterator[KernelDriver]:
    """The driver itself, before init."""
    if on_hardware:
        from memtopo.drivers.cuda.driver import CudaDriver

        yield CudaDriver()
    else:
        # Not above: a machine with a GPU may lack what the simulator's machines are read with.
        from memtopo.drivers.sim import SimDriver
        from tests.helpers.machines import invented

        with SimDriver(invented(2)) as simulated:
            yield simulated


@pytest.fixture
def driver(bare: KernelDriver) -> Iterator[Ledger]:
    """An initialised driver under a ledger, which must be empty at the end of the test."""
    ledger = Ledger(bare)
    ledger.init()
    assert ledger.device_get_count() > 0
    yield ledger
    assert ledger.empty, ledger.counts()


@pytest.fixture
def start(on_hardware: bool, driver: Ledger) -> Iterator[Callable[..., Other]]:
    """A function that starts another process with a driver of the same kind and the given GPUs, in order, or all.

    It must leave nothing open either.
    """
    started: list[Other] = []

    def begin(*visible: int) -> Other:
        uuids = [f"GPU-{UUID(bytes=driver.device_get_uuid(device))}" for device in visible]
        started.append(
            Other(None, ",".join(uuids) or None) if on_hardware else Other(_machine(driver.device_get_count(), uuids))
        )
        return started[-1]

    try:
        yield begin
        for other in started:
            other.end()
    finally:
        for other in started:
            other.give_up()


def _machine(gpus: int, uuids: list[str]) -> str:
    """The machine of `bare` as JSON, or a machine with GPUs of the given UUIDs."""
    from memtopo.machine import dump
    from tests.helpers.machines import identified, invented

    return dump(identified(uuids) if uuids else invented(gpus))


@pytest.fixture
def other(start: Callable[..., Other]) -> Other:
    """Another process with every GPU."""
    return start()


@pytest.fixture(scope="session")
def makers() -> Iterator[tuple[ExitStack, dict[bytes, ExternalApi]]]:
    """Another API's devices by the UUIDs of their GPUs, kept because Vulkan's take long to create."""
    with ExitStack() as stack:
        yield stack, {}


@pytest.fixture
def make(
    on_hardware: bool, driver: Ledger, makers: tuple[ExitStack, dict[bytes, ExternalApi]]
) -> Callable[[int], ExternalApi]:
    """Another API on one of the driver's GPUs, by ordinal."""
    stack, made = makers

    def on(device: int) -> ExternalApi:
        uuid = driver.device_get_uuid(device)
        if uuid not in made:
            if on_hardware and (reason := why_unavailable(uuid)):
                pytest.skip(reason)
            made[uuid] = stack.enter_context(external_api(simulated=not on_hardware)(uuid))
        return made[uuid]

    return on


@pytest.fixture
def maker(make: Callable[[int], ExternalApi]) -> ExternalApi:
    """Another API on the first GPU."""
    return make(0)


@pytest.fixture
def two_gpus(driver: Ledger) -> None:
    if driver.device_get_count() < 2:
        pytest.skip("needs two GPUs")


@pytest.fixture
def granule(driver: Ledger) -> int:
    """The granularity of a plain chunk on the first GPU."""
    return driver.mem_get_allocation_granularity(Properties(gpu(0)))
