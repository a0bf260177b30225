"""cuda.core on the simulator."""

from __future__ import annotations

import pytest
from cuda.bindings import driver, runtime
from cuda.core import Device, VirtualMemoryResource, VirtualMemoryResourceOptions

from memtopo.testing import Simulation, simulated


@pytest.mark.parametrize("again", [False, True])
def test_devices_streams_and_pools(simulated_gpus: Simulation, again: bool) -> None:
    """Again in a second simulation, although the package remembers devices, contexts and pools."""
    device = Device(0)
    device.set_current()
    assert device.name == "NVIDIA H200"
    assert device.compute_capability == (9, 0)
    device.sync()
    stream = device.create_stream()
    buffer = device.allocate(1 << 20, stream=stream)
    assert simulated_gpus.read(int(buffer.handle), 4) == bytes(4)
    buffer.close()
    stream.close()
    assert [call for call in simulated_gpus.calls if call.error] == []


def test_the_handle_that_virtual_memory_keeps_is_a_leak() -> None:
    """A buffer retains its handle beside the one of its creation, and releases one of them."""
    with simulated() as gpu:
        device = Device(0)
        device.set_current()
        memory = VirtualMemoryResource(device, VirtualMemoryResourceOptions(handle_type="posix_fd"))
        buffer = memory.allocate(2 << 20)
        buffer.close()
        (leak,) = gpu.leaks
    assert (leak.function, leak.account, leak.references) == ("cuMemCreate", "handles", 1)
    assert leak.place.startswith(__file__)


def test_the_refused_call_of_an_exception_is_found(simulated_gpus: Simulation) -> None:
    device = Device(0)
    device.set_current()
    simulated_gpus.fail("cuMemAllocFromPoolAsync", "CUDA_ERROR_NOT_PERMITTED")
    with pytest.raises(Exception, match="CUDA_ERROR_NOT_PERMITTED") as raised:
        device.allocate(1 << 20, stream=device.default_stream)
    simulated_gpus.fail("cuDeviceGetCount", "CUDA_ERROR_UNKNOWN")
    driver.cuDeviceGetCount()
    assert simulated_gpus.why().startswith("cuDeviceGetCount(")
    assert simulated_gpus.why(raised.value).startswith("cuMemAllocFromPoolAsync(")


def test_the_runtime_synchronizes_by_itself_again_after_a_simulation() -> None:
    before = runtime.cudaDeviceSynchronize
    with simulated():
        assert runtime.cudaDeviceSynchronize is not before
    assert runtime.cudaDeviceSynchronize is before
