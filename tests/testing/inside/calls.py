"""Calls of `cuda.bindings.driver`, answered by the simulator in this process."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType

import pytest
from cuda.bindings import driver

from memtopo.common.errors import UsageError
from memtopo.driver.types import DriverError
from memtopo.native import NoLibrary
from memtopo.testing import Simulation, simulated
from memtopo.testing.library import SOCKET
from tests.helpers.child_process import PATIENCE
from tests.helpers.client_calls import FD, GPU, SIZE, access, made, mapped, properties, unmap, use

INVALID = driver.CUresult.CUDA_ERROR_INVALID_VALUE
MEMORY = driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY


def test_results_have_the_types_of_the_package(simulated_gpus: Simulation) -> None:
    made(driver.cuInit(0))
    assert driver.cuDeviceGetCount() == (driver.CUresult.CUDA_SUCCESS, 2)
    handle = made(driver.cuMemCreate(SIZE, properties(1), 0))
    assert isinstance(handle, driver.CUmemGenericAllocationHandle)
    found = made(driver.cuMemGetAllocationPropertiesFromHandle(handle))
    assert (found.location.type, found.location.id, found.requestedHandleTypes) == (GPU, 1, FD)
    made(driver.cuMemRelease(handle))
    assert made(driver.cuDeviceGetName(64, 0)).rstrip(b"\0 ") == b"NVIDIA H200"
    assert made(driver.cuDriverGetVersion()) == 13000
    assert [call.function for call in simulated_gpus.calls[-2:]] == ["cuDeviceGetName", "cuDriverGetVersion"]


@pytest.mark.simulated_gpus("h100x1")
def test_the_marker_names_the_machine(simulated_gpus: Simulation) -> None:
    made(driver.cuInit(0))
    assert made(driver.cuDeviceGetCount()) == 1
    assert "H100" in simulated_gpus.machine.devices[0].name


def test_bytes_are_copied_and_filled(simulated_gpus: Simulation) -> None:
    use()
    address, handle = mapped()
    made(driver.cuMemcpyHtoD(address, b"written", 7))
    assert simulated_gpus.read(address, 8) == b"written\0"
    simulated_gpus.write(address, b"W")
    found = bytearray(7)
    made(driver.cuMemcpyDtoH(found, address, 7))
    assert found == b"Written"
    made(driver.cuMemcpyDtoD(address + 512, address, 7))
    made(driver.cuMemsetD8(address, 1, 3))
    made(driver.cuMemsetD16(address + 4, 0x0302, 2))
    made(driver.cuMemsetD32Async(address + 8, 0x07060504, 2, 0))
    assert simulated_gpus.read(address, 16) == b"\1\1\1t\2\3\2\3\4\5\6\7\4\5\6\7"
    assert simulated_gpus.read(address + 512, 7) == b"Written"
    unmap(address, handle)
    with pytest.raises(DriverError, match="no memory is mapped"):
        simulated_gpus.read(address, 1)


def test_memory_of_the_host_is_used_by_the_cpu_and_by_copies(simulated_gpus: Simulation) -> None:
    use()
    address, handle = mapped()
    pinned, managed = int(made(driver.cuMemHostAlloc(100, 0))), int(made(driver.cuMemAllocManaged(5000, 1)))
    for host in (pinned, managed):
        ctypes.memmove(host, b"by the cpu", 10)
        made(driver.cuMemcpyAsync(address, host, 10, 0))
        assert simulated_gpus.read(address, 10) == b"by the cpu"
        made(driver.cuMemsetD8(host, 7, 100))
        assert ctypes.string_at(host, 100) == b"\7" * 100
    own = mmap.mmap(-1, 1 << 16)
    start = ctypes.addressof(ctypes.c_char.from_buffer(own))
    made(driver.cuMemHostRegister(start, 1 << 16, 0))
    own[:4] = b"page"
    made(driver.cuMemcpyAsync(address, start, 4, 0))
    assert simulated_gpus.read(address, 4) == b"page"
    made(driver.cuMemHostUnregister(start))
    pageable = ctypes.create_string_buffer(b"pageable")
    made(driver.cuMemcpy(address, ctypes.addressof(pageable), 8))
    assert simulated_gpus.read(address, 8) == b"pageable"
    made(driver.cuMemFreeHost(pinned))
    made(driver.cuMemFree(managed))
    assert f"{pinned:x}" not in Path("/proc/self/maps").read_text()
    unmap(address, handle)


def test_the_cpu_uses_chunks_of_the_host_to_which_it_has_access(simulated_gpus: Simulation) -> None:
    use()
    host = properties()
    host.location.type, host.location.id = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST_NUMA, 0
    both = [access(), access()]
    both[1].location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST_NUMA
    handle, address = made(driver.cuMemCreate(SIZE, host, 0)), int(made(driver.cuMemAddressReserve(SIZE, 0, 0, 0)))
    made(driver.cuMemMap(address, SIZE, 0, handle, 0))
    made(driver.cuMemSetAccess(address, SIZE, both, 2))
    ctypes.memmove(address, b"by the cpu", 10)
    os.close(made(driver.cuMemExportToShareableHandle(handle, FD, 0)))
    ctypes.memmove(address, b"BY", 2)
    assert simulated_gpus.read(address, 10) == b"BY the cpu"
    unmap(address, handle)
    assert f"{address:x}" not in Path("/proc/self/maps").read_text()


def test_pools_streams_and_events(simulated_gpus: Simulation) -> None:
    use()
    stream, event = made(driver.cuStreamCreate(0)), made(driver.cuEventCreate(0))
    pool = made(driver.cuDeviceGetDefaultMemPool(0))
    assert int(made(driver.cuDeviceGetMemPool(0))) == int(pool)
    threshold = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    made(driver.cuMemPoolSetAttribute(pool, threshold, driver.cuuint64_t(1 << 40)))
    assert int(made(driver.cuMemPoolGetAttribute(pool, threshold))) == 1 << 40
    address = made(driver.cuMemAllocAsync(1000, stream))
    made(driver.cuMemsetD8Async(address, 9, 1000, stream))
    made(driver.cuEventRecord(event, stream))
    made(driver.cuEventSynchronize(event))
    made(driver.cuStreamSynchronize(stream))
    assert simulated_gpus.read(int(address), 1000) == b"\x09" * 1000
    made(driver.cuMemFreeAsync(address, stream))
    assert driver.cuMemPoolDestroy(pool)[0] == INVALID
    made(driver.cuEventDestroy(event))
    made(driver.cuStreamDestroy(stream))


def test_what_is_known_of_addresses(simulated_gpus: Simulation) -> None:
    use()
    address, handle = mapped(2 * SIZE)
    kinds = driver.CUpointer_attribute
    asked = [kinds.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, kinds.CU_POINTER_ATTRIBUTE_RANGE_SIZE]
    assert made(driver.cuPointerGetAttributes(2, asked, address + 5)) == [0, 2 * SIZE]
    assert made(driver.cuPointerGetAttribute(kinds.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address)) == 2
    assert not made(driver.cuPointerGetAttribute(kinds.CU_POINTER_ATTRIBUTE_IS_MANAGED, address))
    assert driver.cuPointerGetAttribute(kinds.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 4096)[0] == INVALID
    base, size = made(driver.cuMemGetAddressRange(address + SIZE))
    assert (int(base), size) == (address, 2 * SIZE)
    location = driver.CUmemLocation()
    location.type, location.id = GPU, 0
    assert made(driver.cuMemGetAccess(location, address)) == 3
    unmap(address, handle, 2 * SIZE)
    assert not simulated_gpus.leaks


def test_memory_of_a_pool_is_where_the_pool_is(simulated_gpus: Simulation) -> None:
    use(1)
    use(0)
    made(driver.cuDeviceSetMemPool(0, made(driver.cuDeviceGetDefaultMemPool(1))))
    address = int(made(driver.cuMemAllocAsync(SIZE, 0)))
    ordinal = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    assert made(driver.cuPointerGetAttribute(ordinal, address)) == 1
    made(driver.cuMemFree(address))


def test_one_gpu_reads_what_another_has(simulated_gpus: Simulation) -> None:
    use(1)
    address, handle = mapped()
    assert driver.cuMemcpyHtoD(address, b"peer", 4)[0] == INVALID
    assert "no rw access" in simulated_gpus.why(INVALID)
    made(driver.cuMemSetAccess(address, SIZE, [access(0), access(1)], 2))
    made(driver.cuMemcpyHtoD(address, b"peer", 4))
    assert made(driver.cuDeviceCanAccessPeer(0, 1)) == 1
    peer = made(driver.cuDevicePrimaryCtxRetain(0))
    made(driver.cuCtxEnablePeerAccess(peer, 0))
    assert driver.cuCtxEnablePeerAccess(peer, 0)[0] == driver.CUresult.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
    unmap(address, handle)


def test_contexts_are_of_threads(simulated_gpus: Simulation) -> None:
    context = use()
    assert int(made(driver.cuCtxGetCurrent())) == context
    made(driver.cuCtxSetCurrent(0))
    assert int(made(driver.cuCtxGetCurrent())) == 0
    assert driver.cuCtxSynchronize()[0] == driver.CUresult.CUDA_ERROR_INVALID_CONTEXT
    made(driver.cuCtxPushCurrent(context))
    assert int(made(driver.cuCtxGetDevice())) == 0
    with ThreadPoolExecutor(1) as other:
        assert other.submit(driver.cuCtxGetDevice).result()[0] == driver.CUresult.CUDA_ERROR_INVALID_CONTEXT
    assert int(made(driver.cuCtxPopCurrent())) == context


def test_a_leak_has_the_line_that_created_it() -> None:
    with simulated() as gpu:
        use()
        address, handle = mapped()
        made(driver.cuMemRetainAllocationHandle(address))
        made(driver.cuMemUnmap(address, SIZE))
        found = {leak.function: leak for leak in gpu.leaks}
    assert set(found) == {"cuMemCreate", "cuMemAddressReserve"}
    chunk, addresses = found["cuMemCreate"], found["cuMemAddressReserve"]
    assert (chunk.key, chunk.references, chunk.account) == (handle, 2, "handles")
    assert (addresses.key, addresses.size) == (address, SIZE)
    called, *callers = chunk.place.split(", from ")
    file, _, line = called.rpartition(":")
    assert "cuMemCreate" in Path(file).read_text().splitlines()[int(line) - 1]
    assert [each.rpartition(":")[0] for each in callers] == [__file__]
    assert str(chunk) == f"{handle:#x} (2 references) from cuMemCreate at {chunk.place}"


def test_an_object_that_was_freed_is_no_leak_even_if_its_number_is_used_again(simulated_gpus: Simulation) -> None:
    use()
    for _ in range(3):
        unmap(*mapped())
    assert not simulated_gpus.leaks
    assert simulated_gpus.free(0) == made(driver.cuMemGetInfo())[0]


def test_calls_fail_on_demand_and_change_nothing(simulated_gpus: Simulation) -> None:
    use()
    free = simulated_gpus.free()
    simulated_gpus.fail("cuMemCreate", nth=2)
    handles = [driver.cuMemCreate(SIZE, properties(), 0) for _ in range(3)]
    assert [each[0] for each in handles] == [0, MEMORY, 0]
    assert free - simulated_gpus.free() == 2 * SIZE
    assert "the test asked for this failure" in simulated_gpus.why("CUDA_ERROR_OUT_OF_MEMORY")
    with pytest.raises(UsageError, match="'12345' names no error of the driver"):
        simulated_gpus.why(12345)
    simulated_gpus.fail("cuMemCreate", "CUDA_ERROR_UNKNOWN", size=4 * SIZE)
    assert driver.cuMemCreate(4 * SIZE, properties(), 0)[0] == driver.CUresult.CUDA_ERROR_UNKNOWN
    small = made(driver.cuMemCreate(SIZE, properties(), 0))
    simulated_gpus.fail("cuMemRelease", "CUDA_ERROR_INVALID_VALUE")
    assert driver.cuMemRelease(small)[0] == INVALID
    simulated_gpus.clear_faults()
    for handle in (handles[0][1], handles[2][1], small):
        made(driver.cuMemRelease(handle))
    with pytest.raises(UsageError, match="'cuMemCreat' is not a simulated function"):
        simulated_gpus.fail("cuMemCreat")
    with pytest.raises(UsageError, match="not an error of the driver"):
        simulated_gpus.fail("cuMemCreate", "OUT_OF_MEMORY")
    with pytest.raises(UsageError, match="no call number 0"):
        simulated_gpus.fail("cuMemCreate", nth=0)


def test_several_faults_count_the_same_calls(simulated_gpus: Simulation) -> None:
    use()
    simulated_gpus.fail("cuMemAlloc_v2", nth=1)
    simulated_gpus.fail("cuMemAlloc", "CUDA_ERROR_UNKNOWN", nth=2)
    found = [driver.cuMemAlloc(SIZE) for _ in range(3)]
    assert [each[0] for each in found] == [MEMORY, driver.CUresult.CUDA_ERROR_UNKNOWN, 0]
    made(driver.cuMemFree(found[2][1]))


def test_threads_have_memory_of_their_own(simulated_gpus: Simulation) -> None:
    """Addresses are used again at once by another thread, and each has what it wrote."""
    context = use()

    def work(number: int) -> bool:
        made(driver.cuCtxSetCurrent(context))
        kept = True
        for _ in range(100):
            host, memory = int(made(driver.cuMemHostAlloc(4096, 0))), made(driver.cuMemAlloc(4096))
            ctypes.memset(host, number, 4096)
            made(driver.cuMemcpyAsync(memory, host, 4096, 0))
            kept &= simulated_gpus.read(int(memory), 4096) == bytes([number]) * 4096
            made(driver.cuMemFree(memory))
            made(driver.cuMemFreeHost(host))
        return kept

    with ThreadPoolExecutor(6) as threads:
        assert all(threads.map(work, range(1, 7)))
    assert not [call for call in simulated_gpus.calls if call.error]


def test_memory_of_the_host_ends_with_the_context_that_has_it(simulated_gpus: Simulation) -> None:
    context = use()
    first = int(made(driver.cuMemHostAlloc(4096, 0)))
    ctypes.memset(first, 1, 4096)
    made(driver.cuDevicePrimaryCtxRelease(0))
    assert not simulated_gpus.leaks
    assert int(made(driver.cuDevicePrimaryCtxRetain(0))) == context
    again = int(made(driver.cuMemHostAlloc(4096, 0)))
    assert again == first
    ctypes.memset(again, 2, 4096)
    assert simulated_gpus.read(again, 2) == b"\2\2"
    made(driver.cuMemFreeHost(again))


def test_ctrl_c_while_a_call_is_answered_is_raised_once_the_call_has_returned() -> None:
    def press(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_back and frame.f_back.f_code.co_name == "called":
            sys.setprofile(None)
            signal.raise_signal(signal.SIGINT)

    def call() -> None:
        sys.setprofile(press)
        assert driver.cuMemGetInfo()[0] == driver.CUresult.CUDA_ERROR_UNKNOWN
        threading.Event().wait(PATIENCE)
        pytest.fail("the signal is lost")

    with simulated():
        use()
        with pytest.raises(KeyboardInterrupt):
            call()
        made(driver.cuMemGetInfo())


def test_errors_and_gpus_that_there_are_not_are_named(simulated_gpus: Simulation) -> None:
    use()
    made(driver.cuCtxSetCurrent(0))
    assert driver.cuCtxSynchronize()[0] == driver.CUresult.CUDA_ERROR_INVALID_CONTEXT
    assert simulated_gpus.why(201) == simulated_gpus.why("CUDA_ERROR_INVALID_CONTEXT") != ""
    with pytest.raises(UsageError, match="names no error"):
        simulated_gpus.why("INVALID_CONTEXT")
    with pytest.raises(UsageError, match="the machine has no gpu9"):
        simulated_gpus.free(9)


def test_memory_is_as_much_as_the_machine_has(simulated_gpus: Simulation) -> None:
    use()
    free, total = made(driver.cuMemGetInfo())
    assert total == simulated_gpus.machine.devices[0].memory_bytes
    assert driver.cuMemCreate(free // SIZE * SIZE + SIZE, properties(), 0)[0] == MEMORY
    assert "gpu0 has" in simulated_gpus.why(MEMORY)


def test_wrong_values_are_answered_as_by_the_driver(simulated_gpus: Simulation) -> None:
    assert driver.cuInit(1)[0] == INVALID
    use()
    handle = made(driver.cuMemCreate(SIZE, properties(), 0))
    made(driver.cuMemRelease(handle))
    assert driver.cuMemRelease(handle)[0] == INVALID
    assert driver.cuMemMap(0, SIZE, 0, handle, 0)[0] == INVALID
    wrong = properties()
    wrong.location.id = 7
    assert driver.cuMemCreate(SIZE, wrong, 0)[0] == driver.CUresult.CUDA_ERROR_INVALID_DEVICE
    with pytest.raises(TypeError):
        driver.cuMemCreate("2MiB", properties(), 0)
    assert driver.cuMemCreate(SIZE, driver.CUmemAllocationProp(), 0)[0] == INVALID
    assert "0 is not a type of a location, such as 1 for a GPU" in simulated_gpus.why()
    assert driver.cuDeviceGetAttribute(driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX, 0)[0] == INVALID
    assert "cuDeviceGetAttribute" in simulated_gpus.why()
    assert simulated_gpus.why("CUDA_ERROR_UNKNOWN") == ""


def test_a_call_that_is_not_simulated_raises_with_its_name(simulated_gpus: Simulation) -> None:
    use()
    with pytest.raises(Exception, match="cuGraphCreate"):
        driver.cuGraphCreate(0)
    assert simulated_gpus.why() == ""


def test_a_second_simulation_at_once_is_refused(simulated_gpus: Simulation) -> None:
    with pytest.raises(UsageError, match="a simulation runs in this process already"), simulated():
        pass
    made(driver.cuInit(0))
    assert made(driver.cuDeviceGetCount()) == 2
    assert simulated_gpus.calls


def test_what_is_no_machine_is_refused_and_leaves_nothing() -> None:
    with pytest.raises(UsageError, match="3 is no machine"), simulated(3):  # type: ignore[arg-type]
        pass
    with simulated(Path("memtopo/machines/h100x1.json")) as gpu:
        assert len(gpu.machine.devices) == 1


def test_after_the_end_calls_are_refused_and_the_next_simulation_starts_afresh() -> None:
    with simulated() as first:
        context = use()
        address, _ = mapped()
        first.write(address, b"first")
    assert driver.cuDeviceGetCount()[0] == driver.CUresult.CUDA_ERROR_DEINITIALIZED
    with simulated("h100x1") as second:
        made(driver.cuCtxSetCurrent(context))  # which libraries remember
        assert made(driver.cuDeviceGetCount()) == 1
        assert not second.leaks
        with pytest.raises(DriverError):
            second.read(address, 1)


def test_a_leak_has_the_line_of_the_last_creation_at_its_address() -> None:
    with simulated() as gpu:
        use()
        first = made(driver.cuMemAlloc(SIZE))
        made(driver.cuMemFree(first))
        again = made(driver.cuMemAlloc(SIZE))  # here
        (leak,) = gpu.leaks
    assert int(again) == int(first) == leak.key
    file, _, line = leak.place.rpartition(":")
    assert Path(file).read_text().splitlines()[int(line) - 1].endswith("# here")


def test_failures_of_a_size_are_those_of_copies_too(simulated_gpus: Simulation) -> None:
    use()
    address, handle = mapped()
    simulated_gpus.fail("cuMemcpyHtoD", size=8)
    assert driver.cuMemcpyHtoD(address, b"12345678", 8)[0] == MEMORY
    made(driver.cuMemcpyHtoD(address, b"1234567", 7))
    unmap(address, handle)


def test_each_failure_counts_all_calls(simulated_gpus: Simulation) -> None:
    use()
    for nth in (1, 2, 4):
        simulated_gpus.fail("cuMemAlloc", nth=nth)
    answers = [driver.cuMemAlloc(SIZE) for _ in range(5)]
    assert [status for status, _ in answers] == [MEMORY, MEMORY, 0, MEMORY, 0]
    for address in (answers[2][1], answers[4][1]):
        made(driver.cuMemFree(address))


def test_all_failures_end_at_once(simulated_gpus: Simulation) -> None:
    use()
    simulated_gpus.fail("cuMemAlloc")
    simulated_gpus.fail("cuMemCreate")
    simulated_gpus.clear_faults()
    made(driver.cuMemFree(made(driver.cuMemAlloc(SIZE))))
    made(driver.cuMemRelease(made(driver.cuMemCreate(SIZE, properties(), 0))))


def test_what_a_context_has_is_not_mapped_after_its_end() -> None:
    with simulated():
        use()
        pinned, managed = made(driver.cuMemHostAlloc(4096, 0)), made(driver.cuMemAllocManaged(4096, 1))
        own = [f"{int(each):x}-" for each in (pinned, managed)]
        assert all(each in Path("/proc/self/maps").read_text() for each in own)
        made(driver.cuDevicePrimaryCtxRelease(0))
        assert not any(each in Path("/proc/self/maps").read_text() for each in own)


def test_host_memory_is_not_mapped_after_its_simulation() -> None:
    for data in (b"first", b"again"):
        with simulated():
            use()
            pinned = int(made(driver.cuMemHostAlloc(4096, 0)))
            ctypes.memmove(pinned, data, 5)
        assert f"{pinned:x}-" not in Path("/proc/self/maps").read_text()


def test_exported_descriptors_are_closed_by_exec(simulated_gpus: Simulation) -> None:
    use()
    handle = made(driver.cuMemCreate(SIZE, properties(), 0))
    fd = made(driver.cuMemExportToShareableHandle(handle, FD, 0))
    assert not os.get_inheritable(fd)
    os.close(fd)
    made(driver.cuMemRelease(handle))


def test_a_refused_import_leaves_the_descriptor_open_and_no_other(simulated_gpus: Simulation) -> None:
    use()
    with Path("/dev/null").open() as file:
        before = os.listdir("/proc/self/fd")
        assert driver.cuMemImportFromShareableHandle(file.fileno(), FD)[0]
        assert os.listdir("/proc/self/fd") == before


def test_contexts_that_libraries_remember_are_used_after_several_simulations() -> None:
    with simulated():
        context = use(1)
    with simulated() as unused:
        assert not unused.calls
    with simulated():
        made(driver.cuCtxSetCurrent(context))
        assert int(made(driver.cuCtxGetDevice())) == 1


def test_default_pools_are_the_same_in_each_simulation() -> None:
    found = []
    for creates in (False, True):
        with simulated():
            use()
            if creates:
                made(driver.cuMemPoolCreate(pool_properties()))
            found.append([int(made(driver.cuDeviceGetDefaultMemPool(gpu))) for gpu in (1, 0)])
    assert found[0] == found[1]


def pool_properties() -> driver.CUmemPoolProps:
    found = driver.CUmemPoolProps()
    found.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    found.location.type, found.location.id = GPU, 0
    return found


@pytest.mark.parametrize("value", [None, "", "/usr/lib/other"])
def test_variables_have_their_values_again_after_a_simulation(
    monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    for name in ("LD_LIBRARY_PATH", SOCKET):
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    before = dict(os.environ)
    with simulated():
        assert os.environ["LD_LIBRARY_PATH"].split(":")[1:] == ([value] if value else [])
        assert os.environ[SOCKET] != value
    assert dict(os.environ) == before


def test_a_simulation_without_a_library_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = threading.enumerate()
    with monkeypatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", "/proc/nowhere")
        with pytest.raises((NoLibrary, OSError)), simulated():
            pass
    assert {*threading.enumerate()} <= {*threads}
    with simulated() as gpu:
        assert not gpu.calls


def test_a_simulation_beside_a_driver_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    threads, driver_file = threading.enumerate(), tmp_path / "libcuda.so.1"
    driver_file.write_bytes(bytes(4096))
    with driver_file.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
        with pytest.raises(UsageError, match=r"this process has loaded .*/libcuda\.so\.1"), simulated():
            pass
        assert {*threading.enumerate()} <= {*threads}


def test_a_driver_that_is_loaded_meanwhile_does_not_keep_a_simulation_from_its_end(tmp_path: Path) -> None:
    driver_file = tmp_path / "libcuda.so.1"
    driver_file.write_bytes(bytes(4096))
    with driver_file.open("rb") as file:
        with simulated():
            use()
            loaded = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        loaded.close()
    assert driver.cuDeviceGetCount()[0] == driver.CUresult.CUDA_ERROR_DEINITIALIZED


@pytest.mark.simulated_gpus("h100x1", "allow")
class TestOfMarkedClass:
    """Tests of a class whose marker names the machine."""

    def test_machine_is_that_of_the_class(self, simulated_gpus: Simulation) -> None:
        use()
        mapped()
        assert "H100" in simulated_gpus.machine.devices[0].name
        assert simulated_gpus.leaks

    @pytest.mark.simulated_gpus(machine="h200x4")
    def test_machine_of_the_marker_of_a_test_comes_first(self, simulated_gpus: Simulation) -> None:
        assert len(simulated_gpus.machine.devices) == 4
