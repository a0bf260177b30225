"""The CUDA driver without a GPU: its structs, its reading of a status, and its errors."""

from __future__ import annotations

import ctypes.util
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cuda.bindings import driver as bindings

from memtopo.common.errors import Unavailable
from memtopo.driver.protocol import Driver
from memtopo.driver.types import (
    Access,
    Advice,
    AllocationType,
    DriverError,
    Grant,
    HandleType,
    Location,
    LocationKind,
    MemAttach,
    MemoryHandleType,
    Properties,
    RangeAttribute,
    SemaphoreHandleType,
    gpu,
)
from memtopo.drivers.cuda import kernel_release, numa_bytes, numa_nodes
from memtopo.drivers.cuda.bindings import (
    access_descriptors,
    allocation_prop,
    call,
    filled,
    mem_location,
    properties_of,
    shared_bytes,
)
from memtopo.drivers.cuda.driver import CudaDriver

ROOT = Path(__file__).parent.parent.parent
OPEN = """
from memtopo.drivers.cuda import open_cuda
from memtopo.common.errors import Unavailable
try:
    open_cuda()
except Unavailable as error:
    print(error.message, "|", error.hint)
"""


def opened(**environment: str) -> str:
    """Output of opening the driver in a new process."""
    variables = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    done = subprocess.run([sys.executable, "-c", OPEN], env=variables, capture_output=True, text=True, check=True)
    return done.stdout


def has_libcuda() -> bool:
    """Return whether the system has a driver; other tests load that of the simulator into this process."""
    return ctypes.util.find_library("cuda") is not None


def test_the_real_driver_keeps_the_protocol() -> None:
    """The type checker sees a driver of the boundary in it"""
    driver: Driver = CudaDriver()
    assert driver is not None


@pytest.mark.parametrize("handles", range(16))
@pytest.mark.parametrize("location", [gpu(0), gpu(7), Location(LocationKind.HOST), Location(LocationKind.HOST_NUMA, 3)])
def test_properties_are_read_back_as_they_were_written(location: Location, handles: int) -> None:
    """Every combination of handle types passes, fd with fabric too, which the bindings' enum refuses (fact 5)"""
    for rdma, compressible in [(False, False), (False, True), (True, False), (True, True)]:
        properties = Properties(location, HandleType(handles), rdma, compressible)
        assert properties_of(allocation_prop(properties)) == properties


def test_the_bindings_see_what_was_written() -> None:
    """Each field stands where the bindings, and with them the driver, look for it"""
    prop: Any = allocation_prop(
        Properties(Location(LocationKind.HOST_NUMA, 5), HandleType.FD, rdma=True, compressible=True)
    )
    assert int(prop.type) == 1
    assert int(prop.requestedHandleTypes) == 1
    assert (int(prop.location.type), prop.location.id) == (3, 5)
    assert (prop.allocFlags.compressionType, prop.allocFlags.gpuDirectRDMACapable, prop.allocFlags.usage) == (1, 1, 0)
    assert int(prop.win32HandleMetaData) == 0


def test_fd_with_fabric_is_the_raw_number_in_memory() -> None:
    """The handle types are the second 32-bit number of the struct"""
    prop = allocation_prop(Properties(gpu(1), HandleType.FD | HandleType.FABRIC))
    assert struct.unpack("4i", ctypes.string_at(prop.getPtr(), 16)) == (1, 9, 1, 1)


def test_what_has_no_name_is_read_as_a_number() -> None:
    """A location or type that memtopo has no name for, or none at all, is seen and not hidden by an error"""
    prop = bindings.CUmemAllocationProp()
    assert tuple(properties_of(prop)) == ((0, 0, ""), 0, False, False, 0)
    ctypes.memmove(prop.getPtr(), struct.pack("4i", 9, 64, 77, -1), 16)
    assert tuple(properties_of(prop)) == ((77, -1, ""), 64, False, False, 9)


def test_managed_is_written_as_asked() -> None:
    """Arguments that the driver will refuse still reach it (fact 3)"""
    properties = Properties(gpu(0), type=AllocationType.MANAGED)
    assert properties_of(allocation_prop(properties)) == properties


def test_grants_become_descriptors_in_order() -> None:
    """One descriptor for each grant, in the order given, which decides between two for one device (fact 20)"""
    grants = (
        Grant(gpu(1), Access.R),
        Grant(Location(LocationKind.HOST_NUMA, 2), Access.RW),
        Grant(gpu(1), Access.NONE),
    )
    descriptors: list[Any] = [*access_descriptors(grants)]
    assert [(int(d.location.type), d.location.id, int(d.flags)) for d in descriptors] == [
        (1, 1, 1),
        (3, 2, 3),
        (1, 1, 0),
    ]
    assert access_descriptors(()) == []


def test_a_location_is_packed_as_a_struct() -> None:
    """A location's kind and number stand where the bindings look for them"""
    location: Any = mem_location(Location(LocationKind.HOST_NUMA, 2))
    assert (int(location.type), location.id) == (3, 2)


def test_equal_properties_share_one_struct() -> None:
    """Structs of frequent calls are built once"""
    assert allocation_prop(Properties(gpu(0))) is allocation_prop(Properties(gpu(0)))


def cuMemMap(  # noqa: N802  # the name is what is shown
    status: object = bindings.CUresult.CUDA_SUCCESS, fails: type[Exception] | None = None
) -> tuple[object, int]:
    """A function as the bindings have them: its name, and a status first."""
    if fails:
        raise fails("no good")
    return status, 7


def test_a_status_that_is_no_success_is_an_error() -> None:
    """The error carries the driver's own names of call and status"""
    assert call(cuMemMap)[1] == 7
    with pytest.raises(DriverError) as caught:
        call(cuMemMap, bindings.CUresult.CUDA_ERROR_NOT_SUPPORTED)
    assert (caught.value.call, caught.value.name) == ("cuMemMap", "CUDA_ERROR_NOT_SUPPORTED")


@pytest.mark.parametrize(
    ("fails", "name"),
    [(OverflowError, "CUDA_ERROR_INVALID_VALUE"), (ValueError, "CUDA_ERROR_UNKNOWN"), (KeyError, "CUDA_ERROR_UNKNOWN")],
)
def test_what_the_bindings_refuse_is_the_drivers_error(fails: type[Exception], name: str) -> None:
    """Numbers that do not fit and statuses without a name do not reach the caller as Python's errors"""
    with pytest.raises(DriverError) as caught:
        call(cuMemMap, None, fails)
    assert caught.value.name == name


def test_a_function_that_the_driver_lacks_is_unavailable() -> None:
    """A driver too old for a call is the machine's fault, not memtopo's"""
    with pytest.raises(Unavailable, match="cuMemMap"):
        call(cuMemMap, None, RuntimeError)


def test_an_attribute_that_the_bindings_do_not_know_is_an_invalid_value() -> None:
    """Older bindings answer for a newer attribute as an older driver would"""
    with pytest.raises(DriverError) as caught:
        CudaDriver().device_get_attribute(0, 999_999)
    assert (caught.value.call, caught.value.name) == ("cuDeviceGetAttribute", "CUDA_ERROR_INVALID_VALUE")


def test_shared_handles_are_64_bytes() -> None:
    """Handles of bytes are unchanged by the structs"""
    data = bytes(range(64))
    assert shared_bytes(filled(bindings.CUipcMemHandle(), data)) == data
    assert shared_bytes(bindings.CUmemFabricHandle()) == bytes(64)


def test_what_is_no_shared_handle_does_not_reach_the_driver() -> None:
    """Facts 44 and 48: what the bindings would refuse in Python's words, or read as a pointer, is an invalid value"""
    driver, fd, fabric = CudaDriver(), HandleType.FD, HandleType.FABRIC
    calls: list[tuple[str, Callable[[], object]]] = [
        ("cuMemImportFromShareableHandle", lambda: driver.mem_import_from_shareable_handle(-1, fd)),
        ("cuMemImportFromShareableHandle", lambda: driver.mem_import_from_shareable_handle((1 << 32) + 3, fd)),
        ("cuMemImportFromShareableHandle", lambda: driver.mem_import_from_shareable_handle(bytes(64), fd)),
        ("cuMemImportFromShareableHandle", lambda: driver.mem_import_from_shareable_handle(3, fd | fabric)),
        ("cuMemImportFromShareableHandle", lambda: driver.mem_import_from_shareable_handle(3, fabric)),
        ("cuMemImportFromShareableHandle", lambda: driver.mem_import_from_shareable_handle(bytes(63), fabric)),
        ("cuMemExportToShareableHandle", lambda: driver.mem_export_to_shareable_handle(1, fd | fabric)),
        ("cuMemExportToShareableHandle", lambda: driver.mem_export_to_shareable_handle(1, fd, -1)),
        ("cuMemAlloc", lambda: driver.mem_alloc(-1)),
        ("cuIpcOpenMemHandle", lambda: driver.ipc_open_mem_handle(bytes(65))),
        ("cuIpcOpenEventHandle", lambda: driver.ipc_open_event_handle(b"")),
    ]
    for name, made in calls:
        with pytest.raises(DriverError) as caught:
            made()
        assert (caught.value.call, caught.value.name) == (name, "CUDA_ERROR_INVALID_VALUE")


@pytest.mark.skipif(has_libcuda(), reason="a driver is installed here")
def test_without_a_driver_there_is_none_to_open() -> None:
    """No libcuda is said to be so, with what can be done without"""
    assert opened().startswith("no NVIDIA driver is installed here")
    assert "such as h200x2" in opened()


def test_hidden_gpus_are_no_gpus() -> None:
    """With every GPU hidden nothing opens, driver or not"""
    said = opened(CUDA_VISIBLE_DEVICES="")
    assert "such as h200x2" in said
    assert "CUDA_VISIBLE_DEVICES is ''" in said or not has_libcuda()


def test_missing_bindings_are_named(tmp_path: Path) -> None:
    """Without cuda-bindings the package imports, and opening says what to install"""
    (tmp_path / "cuda").mkdir()
    (tmp_path / "cuda" / "__init__.py").touch()
    said = opened(PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert said.startswith("the Python package cuda-bindings cannot be imported")
    assert "pip install cuda-python" in said


@pytest.mark.parametrize(
    ("line", "release"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Mon Jan 1 00:00:00 UTC 2026", "580.159.04"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs@x)  ", "570.86.15"),
        ("NVRM version: something else", None),
        ("", None),
    ],
)
def test_the_kernel_modules_release_is_read(tmp_path: Path, line: str, release: str | None) -> None:
    """The release of the open and of the closed module; nothing where the file says nothing"""
    (tmp_path / "version").write_text(f"{line}\nGCC version:  gcc version 13.3.0 (Ubuntu)\n")
    assert kernel_release(tmp_path / "version") == release
    assert kernel_release(tmp_path / "nothing") is None


@pytest.mark.parametrize(
    ("text", "nodes"), [("0\n", (0,)), ("0-1\n", (0, 1)), ("0,2-4,9\n", (0, 2, 3, 4, 9)), ("\n", None)]
)
def test_nodes_with_memory_are_read(tmp_path: Path, text: str, nodes: tuple[int, ...] | None) -> None:
    """Single nodes and spans of them, as the kernel lists them"""
    (tmp_path / "has_memory").write_text(text)
    assert numa_nodes(tmp_path / "has_memory") == nodes
    assert numa_nodes(tmp_path / "nothing") is None


def test_the_memory_of_each_node_is_read(tmp_path: Path) -> None:
    """Nodes without memory, and those that say nothing, are left out"""
    files = {"node0": "Node 0 MemTotal:  9136344 kB\nNode 0 MemFree:  1 kB\n", "node1": "Node 1 MemTotal: 0 kB"}
    for node, text in {**files, "node12": "Node 12 MemTotal: 4 kB", "node2": "", "nodes": "MemTotal: 4 kB"}.items():
        (tmp_path / node).mkdir()
        (tmp_path / node / "meminfo").write_text(text)
    both = (9136344 << 10) + 4096
    assert numa_bytes(tmp_path, both) == {0: 9136344 << 10, 12: 4096}
    assert numa_bytes(tmp_path, both * 10 // 9) == {0: 9136344 << 10, 12: 4096}
    assert numa_bytes(tmp_path, both * 10 // 9 + 10) == {}, "the nodes of a virtual machine may lack memory"
    assert numa_bytes(tmp_path / "nothing", both) == {}


def test_numbers_that_no_struct_holds_are_invalid_values() -> None:
    """Values that do not fit a field of external memory or semaphores raise a driver error, not Python's"""
    driver, memory, timeline = CudaDriver(), MemoryHandleType.OPAQUE_FD, SemaphoreHandleType.TIMELINE_FD
    calls: list[Callable[[], object]] = [
        lambda: driver.import_external_memory(1 << 40, memory, 1),
        lambda: driver.import_external_memory(0, memory, -1),
        lambda: driver.import_external_memory(0, 99, 1),  # type: ignore[arg-type]
        lambda: driver.external_memory_get_mapped_buffer(1, -1, 1),
        lambda: driver.import_external_semaphore(1 << 40, timeline),
        lambda: driver.import_external_semaphore(0, 99),  # type: ignore[arg-type]
        lambda: driver.signal_external_semaphore(1, 1 << 64, 0),
        lambda: driver.wait_external_semaphore(1, -1, 0),
    ]
    for each in calls:
        with pytest.raises(DriverError) as caught:
            each()
        assert caught.value.name == "CUDA_ERROR_INVALID_VALUE"


@pytest.mark.skipif(has_libcuda(), reason="asks what happens where there is no driver")
def test_the_bindings_take_what_they_are_given() -> None:
    """Every call for managed memory, external memory, semaphores and streams gets as far as to a driver"""
    driver, place = CudaDriver(), gpu(0)
    calls: list[Callable[[], object]] = [
        lambda: driver.mem_alloc_managed(1, MemAttach.GLOBAL),
        lambda: driver.mem_advise(4096, 1, Advice.SET_ACCESSED_BY, place),
        lambda: driver.mem_prefetch_async(4096, 1, place),
        *[lambda each=each: driver.mem_range_get_attribute(4096, 1, each) for each in RangeAttribute],
        lambda: driver.stream_attach_mem_async(5, 4096, MemAttach.SINGLE),
        lambda: driver.pointer_is_managed(4096),
        lambda: driver.stream_create(),
        lambda: driver.stream_query(5),
        lambda: driver.stream_destroy(5),
        lambda: driver.import_external_memory(5, MemoryHandleType.OPAQUE_FD, 1, dedicated=True),
        lambda: driver.external_memory_get_mapped_buffer(5, 0, 1),
        lambda: driver.destroy_external_memory(5),
        lambda: driver.import_external_semaphore(5, SemaphoreHandleType.TIMELINE_FD),
        lambda: driver.signal_external_semaphore(5, 1, 5),
        lambda: driver.wait_external_semaphore(5, 1, 5),
        lambda: driver.destroy_external_semaphore(5),
    ]
    for each in calls:
        with pytest.raises(Unavailable):
            each()


def test_the_cpu_reads_and_writes_by_itself() -> None:
    """The CPU's own loads and stores go to any address of the process"""
    room = ctypes.create_string_buffer(16)
    CudaDriver().host_write(ctypes.addressof(room) + 3, b"abc")
    assert CudaDriver().host_read(ctypes.addressof(room) + 2, 5) == b"\0abc\0"
