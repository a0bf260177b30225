"""Words of a call and what its pointers point to, as functions in C get them, with the memory of this process."""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from memtopo import machine
from memtopo.driver.types import HandleType, Location, LocationKind, PoolProperties, gpu
from memtopo.drivers.sim import SimDriver
from memtopo.machine import queries
from memtopo.testing.abi import error_numbers, exported, newest
from memtopo.testing.program import FUNCTIONS, Fault, Leak, SharedMachine, SimulatedProgram
from memtopo.testing.server import RemoteProgram
from tests.helpers.processes import open_descriptors
from tests.helpers.simulator_state import difference, state_of

SIZE = 2 << 20
PAGE = 4096
GARBAGE = 0xABCD_EF01 << 32
NAMES = {number: name for name, number in error_numbers().items()}

CallFunction = Callable[..., str]


@pytest.fixture
def shared(request: pytest.FixtureRequest) -> SharedMachine:
    return SharedMachine(getattr(request, "param", machine.load("h200x2")))


@pytest.fixture
def program(shared: SharedMachine) -> Iterator[SimulatedProgram]:
    port = RemoteProgram(os.getpid())
    program = SimulatedProgram(shared, port)
    yield program
    program.close()
    port.ended()


@pytest.fixture
def call(program: SimulatedProgram) -> CallFunction:
    """Call of a function with words, or with objects that it points to; returns the name of the status."""

    def call(name: str, *words: object) -> str:
        numbers = [word if isinstance(word, int) else ctypes.addressof(word) for word in words]  # type: ignore[arg-type]
        return NAMES[program.answer(exported().index(name), [*numbers, *[0] * (8 - len(numbers))])]

    return call


def properties(
    kind: LocationKind = LocationKind.GPU, id: int = 0, flags: bytes = b"\0\0"
) -> ctypes.Array[ctypes.c_char]:
    """`CUmemAllocationProp`: pinned, without handles."""
    return ctypes.create_string_buffer(struct.pack("=iiiiQ2s6x", 1, 0, kind, id, 0, flags), 32)


def words(count: int = 1) -> ctypes.Array[ctypes.c_uint64]:
    return (ctypes.c_uint64 * count)()


@pytest.fixture
def use(call: CallFunction) -> int:
    """Context of gpu0, which is current."""
    context = words()
    assert call("cuInit", 0) == call("cuDevicePrimaryCtxRetain", context, 0) == "CUDA_SUCCESS"
    assert call("cuCtxSetCurrent", context[0]) == "CUDA_SUCCESS"
    return context[0]


def made(call: CallFunction, name: str, *arguments: object) -> int:
    """Result of a call that has to succeed."""
    result = words()
    assert call(name, result, *arguments) == "CUDA_SUCCESS"
    return result[0]


def test_before_init_no_argument_is_looked_at(call: CallFunction) -> None:
    """As an H200 did (driver 580.159)."""
    for name, *arguments in (
        ("cuMemCreate", 0, SIZE, 0, 0), ("cuMemGetInfo_v2", 0, 0), ("cuMemAdvise", PAGE, PAGE, 999, 0),
        ("cuPointerGetAttribute", 0, 2, 0), ("cuDeviceGetAttribute", words(), 12345, 0),
    ):  # fmt: skip
        assert call(str(name), *arguments) == "CUDA_ERROR_NOT_INITIALIZED"


def test_upper_halves_of_numbers_of_32_bits_are_not_looked_at(call: CallFunction) -> None:
    assert call("cuInit", GARBAGE) == "CUDA_SUCCESS"
    context, flags, data = words(), ctypes.c_uint32(), ctypes.create_string_buffer(8)
    assert call("cuDevicePrimaryCtxRetain", context, GARBAGE | 1) == "CUDA_SUCCESS"
    assert call("cuCtxSetCurrent", context[0]) == "CUDA_SUCCESS"
    pinned = made(call, "cuMemHostAlloc", PAGE, GARBAGE | 1)
    assert call("cuMemHostGetFlags", flags, pinned) == "CUDA_SUCCESS"
    assert flags.value & 1
    assert call("cuMemsetD8_v2", pinned, GARBAGE | 0x107, 2) == "CUDA_SUCCESS"
    assert call("cuMemsetD16_v2", pinned + 2, GARBAGE | 0x1_0908, 1) == "CUDA_SUCCESS"
    assert call("cuMemsetD32_v2", pinned + 4, GARBAGE | 0x0D0C0B0A, 1) == "CUDA_SUCCESS"
    assert call("cuMemcpyDtoH_v2", data, pinned, 8) == "CUDA_SUCCESS"
    assert data.raw == b"\7\7\x08\x09\x0a\x0b\x0c\x0d"


@pytest.mark.usefixtures("use")
def test_a_null_pointer_to_a_result_is_refused_without_an_effect(
    program: SimulatedProgram, shared: SharedMachine, call: CallFunction
) -> None:
    used = dict(shared.budget.used)
    assert call("cuMemCreate", 0, SIZE, properties(), 0) == "CUDA_ERROR_INVALID_VALUE"
    assert call("cuMemAlloc_v2", 0, SIZE) == "CUDA_ERROR_INVALID_VALUE"
    assert call("cuCtxGetCurrent", 0) == "CUDA_ERROR_INVALID_VALUE"
    assert shared.calls[-1].reason == "a pointer to a result is null"
    assert (shared.budget.used, program.leaks()) == (used, [])


def grants(kind: int, id: int, access: int) -> ctypes.Array[ctypes.c_char]:
    """`CUmemAccessDesc`."""
    return ctypes.create_string_buffer(struct.pack("=iii", kind, id, access), 12)


@pytest.mark.parametrize(
    ("name", "arguments", "shown"),
    [
        ("cuMemSetAccess", (16, SIZE, grants(1, 0, 3), 1), "address=0x10, size=2097152, {gpu0 rw}"),
        ("cuMemSetAccess", (16, SIZE, grants(3, 1, 5), 1), "address=0x10, size=2097152, {host:1 flags 5}"),
        ("cuMemSetAccess", (16, SIZE, grants(0, 0, 3), 1), "address=0x10, size=2097152, grants=?"),
        (
            "cuMemMap",
            (16, SIZE, 0x3E00_0000, 0, 0),
            "address=0x10, size=2097152, offset=0x3e000000, handle=0x0, flags=0",
        ),
        ("cuMemCreate", (words(), 1, properties(), 0), "size=1, {gpu0}, flags=0"),
        ("cuMemCreate", (words(), SIZE, 0, 0), "size=2097152, properties=?, flags=0"),
        ("cuMemAllocManaged", (words(), 0, 1), "size=0, flags=GLOBAL"),
    ],
)
@pytest.mark.usefixtures("use")
def test_a_refused_call_is_shown_with_the_words_of_specs_and_headers(
    call: CallFunction, shared: SharedMachine, name: str, arguments: tuple[object, ...], shown: str
) -> None:
    """What cannot be decoded does not hide the other arguments."""
    call(name, *arguments)
    assert str(shared.calls[-1]).startswith(f"{name}({shown}): CUDA_ERROR_INVALID_VALUE (")


def test_results_that_the_reference_makes_optional_may_be_null(call: CallFunction, use: int) -> None:
    """As an H200 did (driver 580.159)."""
    address, found = made(call, "cuMemAlloc_v2", SIZE), words()
    assert call("cuMemGetAddressRange_v2", 0, found, address) == "CUDA_SUCCESS"
    assert found[0] == SIZE
    assert call("cuMemGetAddressRange_v2", found, 0, address) == "CUDA_SUCCESS"
    assert found[0] == address
    assert call("cuMemGetInfo_v2", 0, found) == call("cuMemGetInfo_v2", 0, 0) == "CUDA_SUCCESS"
    assert found[0] > SIZE
    assert call("cuCtxGetStreamPriorityRange", 0, ctypes.c_int()) == "CUDA_SUCCESS"
    assert call("cuCtxPushCurrent_v2", use) == call("cuCtxPopCurrent_v2", 0) == "CUDA_SUCCESS"
    assert made(call, "cuCtxGetCurrent") == use
    assert call("cuDevicePrimaryCtxGetState", 0, 0, ctypes.c_int()) == "CUDA_ERROR_INVALID_VALUE"


@pytest.mark.usefixtures("use")
@pytest.mark.parametrize(("attribute", "width"), [(1, 4), (3, 4), (4, 8), (5, 8), (8, 8)])
def test_an_attribute_of_a_pool_has_the_bytes_of_its_type(call: CallFunction, attribute: int, width: int) -> None:
    data = ctypes.create_string_buffer(b"\xee" * 16, 16)
    pool = made(call, "cuDeviceGetDefaultMemPool", 0)
    assert call("cuMemPoolGetAttribute", pool, attribute, data) == "CUDA_SUCCESS"
    assert data.raw[width:] == b"\xee" * (16 - width)
    assert data.raw[width - 1] == 0


@pytest.mark.usefixtures("use")
def test_a_list_of_gpus_of_a_range_is_filled_up_with_none(call: CallFunction) -> None:
    address, found = made(call, "cuMemAllocManaged", PAGE, 1), (ctypes.c_int * 5)(*[7] * 5)
    assert call("cuMemAdvise", address, PAGE, 5, 1) == "CUDA_SUCCESS"
    assert call("cuMemRangeGetAttribute", found, 16, 3, address, PAGE) == "CUDA_SUCCESS"
    assert [*found] == [1, -2, -2, -2, 7]


@pytest.mark.usefixtures("use")
@pytest.mark.parametrize(("flags", "field"), [(b"\1\0", "compressible"), (b"\0\1", "rdma")])
def test_flags_of_a_chunk_are_where_the_header_has_them(
    shared: SharedMachine, call: CallFunction, flags: bytes, field: str
) -> None:
    handle, found = made(call, "cuMemCreate", SIZE, properties(flags=flags), 0), properties()
    given = shared.calls[-1].arguments["properties"]
    assert given.flags == (field,)
    assert call("cuMemGetAllocationPropertiesFromHandle", found, handle) == "CUDA_SUCCESS"
    assert found.raw == properties(flags=flags).raw


@pytest.mark.usefixtures("use")
@pytest.mark.parametrize(
    ("kind", "id"),
    [(LocationKind.GPU, 1), (LocationKind.HOST, 0), (LocationKind.HOST_NUMA, 1), (LocationKind.HOST_NUMA_CURRENT, 0)],
)
def test_only_gpus_and_nodes_of_the_host_have_a_number(
    shared: SharedMachine, call: CallFunction, kind: LocationKind, id: int
) -> None:
    handle = words()
    call("cuMemCreate", handle, SIZE, properties(kind, 1), 0)
    assert shared.calls[-1].arguments["properties"].location == Location(kind, id)


@pytest.mark.parametrize(
    ("version", "name"),
    [
        (11_000, "cuCtxCreate_v2"), (11_040, "cuCtxCreate_v3"), (12_040, "cuCtxCreate_v3"), (12_050, "cuCtxCreate_v4"),
        (12_010, "cuMemAdvise"), (12_020, "cuMemAdvise_v2"), (11_000, "cuMemAlloc_v2"),
    ],
)  # fmt: skip
def test_a_program_gets_the_function_of_the_version_of_cuda_that_it_asks_for(version: int, name: str) -> None:
    assert newest(name.partition("_")[0], version, FUNCTIONS) == name


@pytest.mark.usefixtures("use")
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("cuMemAllocHost", (PAGE,)), ("cuMemHostAlloc", (PAGE, 0)), ("cuMemAllocManaged", (PAGE, 1)),
        ("cuMemAllocAsync", (PAGE, 0)), ("cuStreamCreateWithPriority", (1, 0)), ("cuEventCreate", (0,)),
    ],
)  # fmt: skip
def test_a_leak_has_the_function_that_the_program_called(
    program: SimulatedProgram, call: CallFunction, name: str, arguments: tuple[int, ...]
) -> None:
    exact = f"{name}_v2" if name == "cuMemAllocHost" else name
    found = made(call, exact, *arguments)
    assert [(leak.function, leak.key) for leak in program.leaks()] == [(name, found)]


@pytest.mark.usefixtures("use")
def test_a_pointer_that_was_imported_from_a_pool_is_a_leak_without_a_size(
    program: SimulatedProgram, call: CallFunction
) -> None:
    exporter = SimDriver(program.shared.machine)
    with exporter:
        exporter.init()
        exporter.ctx_push_current(exporter.device_primary_ctx_retain(0))
        pool = exporter.mem_pool_create(PoolProperties(gpu(0), HandleType.FD))
        fd = exporter.mem_pool_export_to_shareable_handle(pool, HandleType.FD)
        secret = exporter.mem_pool_export_pointer(exporter.mem_alloc_from_pool_async(PAGE, pool, 0))
        assert isinstance(fd, int)
        imported = made(call, "cuMemPoolImportFromShareableHandle", fd, 1, 0)
        os.close(fd)
        grant = ctypes.create_string_buffer(struct.pack("=iii", 1, 0, 3), 12)
        assert call("cuMemPoolSetAccess", imported, grant, 1) == "CUDA_SUCCESS"
        address = made(call, "cuMemPoolImportPointer", imported, ctypes.create_string_buffer(secret, 64))
        found = {leak.function: str(leak) for leak in program.leaks()}
        assert found["cuMemPoolImportPointer"] == f"{address:#x} from cuMemPoolImportPointer"


@pytest.mark.usefixtures("use")
def test_access_to_a_peer_that_was_disabled_is_enabled_again(call: CallFunction) -> None:
    peer = made(call, "cuDevicePrimaryCtxRetain", 1)
    for _ in range(2):
        assert call("cuCtxEnablePeerAccess", peer, 0) == "CUDA_SUCCESS"
        assert call("cuCtxDisablePeerAccess", peer) == "CUDA_SUCCESS"
    assert call("cuCtxDisablePeerAccess", peer) == "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED"


APART = queries.changed(
    machine.load("h200x2"),
    peers=[
        [each and each.model_copy(update={"access": False}) for each in row] for row in machine.load("h200x2").peers
    ],
)


@pytest.mark.usefixtures("use")
@pytest.mark.parametrize("shared", [APART], indirect=True)
def test_access_to_a_peer_without_a_path_is_not_enabled(call: CallFunction) -> None:
    peer = made(call, "cuDevicePrimaryCtxRetain", 1)
    assert call("cuCtxEnablePeerAccess", peer, 0) == "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"
    assert call("cuCtxEnablePeerAccess", peer, 1) == "CUDA_ERROR_INVALID_VALUE"


def test_a_size_beyond_the_memory_of_a_program_is_refused_before_so_much_is_allocated() -> None:
    data = ctypes.create_string_buffer(16)
    with pytest.raises(OSError, match="is not memory that the program can use"):
        RemoteProgram(os.getpid()).read(ctypes.addressof(data), 1 << 41)


POOL = struct.pack("=iiiiQQ56x", 1, 0, 1, 0, 0, 0)
"""`CUmemPoolProps`: of gpu0, without handles."""


@pytest.mark.usefixtures("use")
def test_a_device_has_its_default_pool_again_after_another_one_was_destroyed(call: CallFunction) -> None:
    default = made(call, "cuDeviceGetDefaultMemPool", 0)
    assert call("cuInit", 0) == "CUDA_SUCCESS"
    pool = made(call, "cuMemPoolCreate", ctypes.create_string_buffer(POOL, len(POOL)))
    assert call("cuDeviceSetMemPool", 0, pool) == "CUDA_SUCCESS"
    assert made(call, "cuDeviceGetMemPool", 0) == pool
    assert call("cuMemPoolDestroy", pool) == "CUDA_SUCCESS"
    assert made(call, "cuDeviceGetMemPool", 0) == made(call, "cuDeviceGetDefaultMemPool", 0) == default
    assert made(call, "cuMemAllocAsync", PAGE, 0)


def test_what_ends_with_a_context_is_no_leak_and_that_of_another_one_is(
    program: SimulatedProgram, call: CallFunction, use: int
) -> None:
    kinds = ("cuMemAlloc_v2", PAGE), ("cuMemHostAlloc", PAGE, 0), ("cuEventCreate", 0), ("cuStreamCreate", 0)
    leaking = []
    for device in (0, 1):
        context = made(call, "cuDevicePrimaryCtxRetain", device)
        assert call("cuCtxSetCurrent", context) == "CUDA_SUCCESS"
        leaking = [made(call, *kind) for kind in kinds]
    assert len(program.leaks()) == 2 * len(kinds)
    for _ in range(2):  # it was retained by the fixture, too
        assert call("cuDevicePrimaryCtxRelease_v2", 0) == "CUDA_SUCCESS"
    assert {leak.key for leak in program.leaks()} == {*leaking}
    assert use


def test_a_context_stays_current_after_calls_for_another_one(call: CallFunction, use: int) -> None:
    """One that is refused, one that synchronises, and one that ends the other context."""
    other = made(call, "cuCtxCreate_v2", 0, 1)
    assert made(call, "cuCtxPopCurrent_v2") == other
    assert call("cuCtxSetCurrent", 12345) == "CUDA_ERROR_INVALID_CONTEXT"
    assert made(call, "cuCtxGetCurrent") == use
    for name in ("cuCtxSynchronize_v2", "cuCtxDestroy_v2"):
        assert call(name, other) == "CUDA_SUCCESS"
        assert made(call, "cuCtxGetCurrent") == use


@pytest.mark.usefixtures("use")
@pytest.mark.parametrize(
    ("name", "described", "error"),
    [
        ("cuImportExternalMemory", "=i4xi12xQI", "INVALID_VALUE"),
        ("cuImportExternalMemory", "=i4xi12xQI", "UNKNOWN"),
        ("cuImportExternalSemaphore", "=i4xi12xI", "UNKNOWN"),
    ],
)
def test_a_refused_import_of_an_external_object_leaves_no_descriptor_open(
    call: CallFunction, name: str, described: str, error: str
) -> None:
    """The object would keep its memory."""
    with Path(os.devnull).open("r+b", buffering=0) as file:
        size = [PAGE if error == "UNKNOWN" else 0] if "Memory" in name else []
        words = ctypes.create_string_buffer(struct.pack(described, 1, file.fileno(), *size, 0), 104)
        before = open_descriptors()
        assert call(name, ctypes.c_uint64(), words) == f"CUDA_ERROR_{error}"
        assert open_descriptors() == before
        assert file.write(b"open") == 4


@pytest.mark.usefixtures("use")
@pytest.mark.parametrize(
    ("name", "arguments"),
    [("cuMemImportFromShareableHandle", (1,)), ("cuMemPoolImportFromShareableHandle", (1, 0))],
)
def test_a_number_that_is_not_open_is_refused_like_another_descriptor(
    call: CallFunction, name: str, arguments: tuple[int, ...]
) -> None:
    read, write = os.pipe()
    assert [call(name, words(), fd, *arguments) for fd in (read, write)] == ["CUDA_ERROR_UNKNOWN"] * 2
    os.close(read)
    os.close(write)
    assert call(name, words(), write, *arguments) == "CUDA_ERROR_UNKNOWN"


@pytest.mark.usefixtures("use")
def test_a_stream_has_its_flags_its_gpu_and_a_priority_within_the_range(call: CallFunction) -> None:
    for device in (0, 1):
        context = made(call, "cuDevicePrimaryCtxRetain", device)
        assert call("cuCtxSetCurrent", context) == "CUDA_SUCCESS"
        for flags, priority, expected in ((0, 3, 0), (1, -2, -2), (1, -9, -5)):
            stream, found = made(call, "cuStreamCreateWithPriority", flags, priority & 0xFFFF_FFFF), ctypes.c_int()
            assert call("cuStreamGetPriority", stream, found) == "CUDA_SUCCESS"
            assert found.value == expected
            assert call("cuStreamGetFlags", stream, found) == "CUDA_SUCCESS"
            assert found.value == flags
            own = words()
            assert call("cuStreamGetCtx", stream, own) == "CUDA_SUCCESS"
            assert own[0] == context
    assert call("cuStreamCreate", words(), 2) == "CUDA_ERROR_INVALID_VALUE"


@pytest.mark.usefixtures("use")
def test_the_time_between_events_is_in_milliseconds_and_none_without_timing_or_a_record(call: CallFunction) -> None:
    first, second, untimed, never = (made(call, "cuEventCreate", flags) for flags in (0, 0, 2, 0))
    times = [time.monotonic()]
    for event in (first, untimed, second):
        assert call("cuEventRecord", event, 0) == "CUDA_SUCCESS"
        times.append(time.monotonic())
    found = ctypes.c_float()
    assert call("cuEventElapsedTime", found, first, second) == "CUDA_SUCCESS"
    least, most = 1000 * (times[2] - times[1]), 1000 * (times[3] - times[0])
    assert least * 0.999 < found.value < most * 1.001, "rounded"
    for event in (untimed, never):
        for pair in ((first, event), (event, second)):
            assert call("cuEventElapsedTime", found, *pair) == "CUDA_ERROR_INVALID_HANDLE"


def test_a_gpu_has_a_name_and_a_bus_id_that_end_where_there_is_no_more_room(call: CallFunction) -> None:
    """It is found by its bus id in capital letters, too."""
    assert call("cuInit", 0) == "CUDA_SUCCESS"
    text, device = ctypes.create_string_buffer(b"\xee" * 32, 32), ctypes.c_int()
    assert call("cuDeviceGetName", text, 7, 1) == "CUDA_SUCCESS"
    assert text.raw[:8] == b"NVIDIA\0\xee"
    assert call("cuDeviceGetName", text, 0, 1) == "CUDA_ERROR_INVALID_VALUE"
    assert call("cuDeviceGetPCIBusId", text, 32, 1) == "CUDA_SUCCESS"
    for bus in (text.value.lower(), text.value.upper()):
        assert call("cuDeviceGetByPCIBusId", device, ctypes.create_string_buffer(bus)) == "CUDA_SUCCESS"
        assert device.value == 1
    assert call("cuDeviceGetByPCIBusId", device, ctypes.create_string_buffer(b"ffff:00:00.0")) == (
        "CUDA_ERROR_INVALID_DEVICE"
    )


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("cuMemAlloc_v2", (SIZE,), {2: 2, 8: 0, 9: 1, 11: 0, 12: SIZE}),
        ("cuMemHostAlloc", (PAGE, 0), {2: 1, 4: 5, 8: 0, 9: 1, 11: 0, 12: PAGE}),
        ("cuMemAllocManaged", (PAGE, 1), {2: 2, 4: 5, 8: 1, 9: 1, 11: 0, 12: PAGE}),
    ],
)
def test_a_pointer_has_the_attributes_of_its_memory(
    call: CallFunction, name: str, arguments: tuple[int, ...], expected: dict[int, int]
) -> None:
    """Addresses are from the begin of the memory, and flags of 4 bytes. Memory of a GPU has no pointer of the host."""
    assert call("cuInit", 0) == "CUDA_SUCCESS"
    assert call("cuCtxSetCurrent", made(call, "cuDevicePrimaryCtxRetain", 1)) == "CUDA_SUCCESS"
    address = made(call, name, *arguments)
    found = {}
    for attribute in (2, 4, 8, 9, 11, 12):
        value = words()
        if call("cuPointerGetAttribute", value, attribute, address + 5) == "CUDA_SUCCESS":
            found[attribute] = value[0] - address if attribute in (4, 11) else value[0]
    assert found == expected


@pytest.mark.usefixtures("use")
def test_what_is_not_aligned_or_of_another_kind_is_refused_without_an_effect(
    call: CallFunction, program: SimulatedProgram
) -> None:
    address = made(call, "cuMemAlloc_v2", SIZE)
    for name, offset in (("cuMemsetD16_v2", 1), ("cuMemsetD32_v2", 2)):
        assert call(name, address + offset, 0x01010101, 4) == "CUDA_ERROR_INVALID_VALUE"
    assert program.read(address, 16) == bytes(16)
    program.write(address + 3, b"four")
    assert program.read(address + 2, 6) == b"\0four\0"
    assert call("cuMemGetHandleForAddressRange", words(), address, SIZE, 2, 0) == "CUDA_ERROR_INVALID_VALUE"


def test_a_fault_meets_the_call_with_its_number_or_each_of_its_size_or_more() -> None:
    second, large = Fault("f", "E", 2, None), Fault("f", "E", None, 8)
    assert [second.meets(name, {}) for name in ("f", "g", "f", "f")] == [False, False, True, False]
    sizes: list[dict[str, int]] = [{"size": 7}, {"size": 8}, {"count": 9}, {}]
    assert [large.meets("f", arguments) for arguments in sizes] == [False, True, True, False]


def test_a_leak_is_shown_with_its_size_its_references_and_where_it_is_from() -> None:
    leaks = [
        Leak("cuMemAlloc", "a.py:3", 16, "allocations", 4096), Leak("", "", 16, "handles", None, 2, 7),
        Leak("cuMemCreate", "a.py:3", 16, "handles", None, 1, 7),
    ]  # fmt: skip
    assert [*map(str, leaks)] == [
        "0x10 (4,096 bytes) from cuMemAlloc at a.py:3", "0x10 (2 references) of handles at process 7",
        "0x10 from cuMemCreate at a.py:3",
    ]  # fmt: skip


HOLE, LENGTH = 8 << 20, 40 << 20
COPIES = {  # function, destination, source, bytes
    "from a hole": ("cuMemcpyHtoD_v2", "memory", "program", LENGTH),
    "from a hole, in a stream": ("cuMemcpyAsync", "memory", "program", LENGTH),
    "to a hole": ("cuMemcpyDtoH_v2", "program", "memory", LENGTH),
    "to a small hole": ("cuMemcpyDtoH_v2", "program", "memory", HOLE + 2 * PAGE),
    "to memory that is read-only": ("cuMemcpyDtoH_v2", "readable", "memory", HOLE + 2 * PAGE),
    "between two places of the program": ("cuMemcpy", "whole", "program", LENGTH),
    "of more than the memory has": ("cuMemcpyDtoD_v2", "memory", "other", LENGTH + PAGE),
    "to more than the memory has": ("cuMemcpyHtoD_v2", "memory", "whole", LENGTH + (2 << 20)),
    "from more than the memory has": ("cuMemcpyDtoH_v2", "whole", "memory", LENGTH + (2 << 20)),
    "a fill of more than the memory has": ("cuMemsetD32_v2", "memory", 7, (LENGTH + (2 << 20)) // 4),
}  # fmt: skip


@pytest.mark.usefixtures("use")
@pytest.mark.parametrize("what", COPIES)
def test_a_refused_copy_has_changed_no_byte(call: CallFunction, program: SimulatedProgram, what: str) -> None:
    function, target, source, count = COPIES[what]
    libc, places = ctypes.CDLL(None), dict[str, int]()
    with ExitStack() as stack:
        for name, access in {
            "program": 0,
            "readable": mmap.PROT_READ,
            "whole": mmap.PROT_READ | mmap.PROT_WRITE,
        }.items():
            memory = stack.enter_context(mmap.mmap(-1, LENGTH + SIZE))
            memory[:HOLE] = b"\1" * HOLE
            places[name] = ctypes.addressof(ctypes.c_char.from_buffer(memory))
            assert libc.mprotect(ctypes.c_void_p(places[name] + HOLE), PAGE, access) == 0
        starts = [*places.values()]
        places |= {name: made(call, "cuMemAlloc_v2", LENGTH) for name in ("memory", "other")}
        assert call("cuMemsetD8_v2", places["other"], 2, LENGTH) == "CUDA_SUCCESS"
        before = state_of(program), [ctypes.string_at(at, HOLE) for at in starts]
        assert call(function, places[target], places.get(str(source), source), count) == "CUDA_ERROR_INVALID_VALUE"
        assert difference(before[0], state_of(program)) == {}
        assert [ctypes.string_at(at, HOLE) for at in starts] == before[1]
