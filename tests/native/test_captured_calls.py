"""Every function that is captured: its parameters as CUPTI's headers declare them, and the line of the record."""

from __future__ import annotations

import ctypes
import json
import re
import struct
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from docs import make_captured_functions
from memtopo.driver.protocol import call_name
from memtopo.driver.wrappers import parameters
from memtopo.native import CAPTURE
from memtopo.plans.trace import TracedCall, read_traces
from tests.helpers import captures
from tests.native.captured_program import layout, value
from tests.native.sanitizers import sanitized

TABLE = re.compile(r'^    \{"(cu\w+)", "(\w+)",', re.MULTILINE)
MAKE_CALLS = """
import json, sys
driver = Driver().init(1)
for call in json.load(sys.stdin):
    assert driver.call(*call), call
"""
ADDRESS, SIZE, HANDLE, STREAM, POOL = 0x7F0000000000, 2 << 20, 0x55AA00001111, 0xABCDEF0, 0xC0FFEE
SECRET = bytes(range(64))
DIGEST = "handle:fdeab9acf3710362"
"""Of SHA-256 the first 64 bits."""


class Case(NamedTuple):
    """A call: the C function, its parameters in order, and the arguments and the result of its line."""

    name: str
    given: list[tuple[str, Any]]
    arguments: dict[str, Any]
    result: Any = None


def u64(value: int) -> tuple[str, Any]:
    return "u64", value


def i32(value: int) -> tuple[str, Any]:
    return "i32", value


def u32(value: int) -> tuple[str, Any]:
    return "u32", value


def made(value: int) -> tuple[str, Any]:
    """A pointer to the number that the call makes."""
    return "to_u64", value


def at(layout: str, *values: Any) -> tuple[str, Any]:
    """A pointer to a structure."""
    return "to_bytes", struct.pack(layout, *values).hex()


MADE, MADE_SECRET, BY_VALUE = made(ADDRESS), ("to_bytes", SECRET.hex()), ("bytes", SECRET.hex())
GPU, HOST, NODE = (1, 3), (2, 0), (3, 1)
GRANTS = at("6i", *GPU, 3, *NODE, 1)
GRANTED = [{"location": "gpu3", "access": "rw"}, {"location": "host:1", "access": "r"}]
# CUmemAllocationProp: type, handles, location, win32, compression, rdma, usage, reserved
PROPERTIES = at("4iPBBH4x", 1, 9, *GPU, 0, 1, 0, 0)
CREATED = {"location": "gpu3", "handles": ["fd", "fabric"], "rdma": False, "compressible": True}
POOL_PROPERTIES = at("4iPQH54x", 1, 1, *HOST, 0, SIZE, 0)
EXTERNAL = at("ii2PQI64x", 1, 0, 7, 0, SIZE, 1)
PART = at("2QI", 4096, SIZE, 0)
SEMAPHORE = at("ii2PI", 9, 0, 8, 0, 0)
TEAM = at("IxxxxQQQ", 4, SIZE, 1, 0)
ADDRESSED: dict[str, Any] = {"address": ADDRESS, "size": SIZE}
RANGE = [u64(ADDRESS), u64(SIZE)]

CASES = [
    Case(
        "cuMemAddressReserve",
        [MADE, u64(SIZE), u64(64), u64(5), u64(0)],
        {"size": SIZE, "alignment": 64, "address": 5, "flags": 0},
        ADDRESS,
    ),
    Case("cuMemAddressFree", RANGE, ADDRESSED),
    Case(
        "cuMemCreate",
        [made(HANDLE), u64(SIZE), PROPERTIES, u64(0)],
        {"size": SIZE, "properties": CREATED, "flags": 0},
        HANDLE,
    ),
    Case("cuMemRelease", [u64(HANDLE)], {"handle": HANDLE}),
    Case("cuMemMap", [*RANGE, u64(0), u64(HANDLE), u64(0)], {**ADDRESSED, "offset": 0, "handle": HANDLE, "flags": 0}),
    Case("cuMemUnmap", RANGE, ADDRESSED),
    Case("cuMemSetAccess", [*RANGE, GRANTS, u64(2)], {**ADDRESSED, "grants": GRANTED}),
    Case("cuMemRetainAllocationHandle", [made(HANDLE), u64(ADDRESS)], {"address": ADDRESS}, HANDLE),
    Case(
        "cuMemExportToShareableHandle",
        [("to_i32", 12), u64(HANDLE), i32(1), u64(0)],
        {"handle": HANDLE, "kind": 1, "flags": 0},
        12,
    ),
    Case(
        "cuMemExportToShareableHandle",
        [MADE_SECRET, u64(HANDLE), i32(8), u64(0)],
        {"handle": HANDLE, "kind": 8, "flags": 0},
        DIGEST,
    ),
    Case(
        "cuMemImportFromShareableHandle",
        [made(HANDLE), u64(12), i32(1)],
        {"location": "host:1", "shared": 12, "kind": 1},
        HANDLE,
    ),
    Case("cuMemImportFromShareableHandle", [made(0), MADE_SECRET, i32(8)], {"shared": DIGEST, "kind": 8}, 0),
    Case("cuMemGetHandleForAddressRange", [("to_i32", 13), *RANGE, i32(1), u64(0)], {**ADDRESSED, "flags": 0}, 13),
    Case("cuMemAlloc_v2", [MADE, u64(SIZE)], {"size": SIZE}, ADDRESS),
    Case(
        "cuMemAllocPitch_v2",
        [MADE, made(512), u64(500), u64(9), u32(16)],
        {"pitch": 512, "width": 500, "height": 9, "element": 16},
        ADDRESS,
    ),
    Case("cuMemFree_v2", [u64(ADDRESS)], {"address": ADDRESS}),
    Case("cuMemAllocAsync", [MADE, u64(SIZE), u64(STREAM)], {"size": SIZE, "stream": STREAM}, ADDRESS),
    Case("cuMemAllocAsync_ptsz", [MADE, u64(SIZE), u64(STREAM)], {"size": SIZE, "stream": STREAM}, ADDRESS),
    Case("cuMemFreeAsync", [u64(ADDRESS), u64(STREAM)], {"address": ADDRESS, "stream": STREAM}),
    Case("cuMemFreeAsync_ptsz", [u64(ADDRESS), u64(STREAM)], {"address": ADDRESS, "stream": STREAM}),
    Case(
        "cuMemAllocFromPoolAsync",
        [MADE, u64(SIZE), u64(POOL), u64(STREAM)],
        {"size": SIZE, "pool": POOL, "stream": STREAM},
        ADDRESS,
    ),
    Case("cuMemAllocManaged", [MADE, u64(SIZE), u32(1)], {"size": SIZE, "flags": 1}, ADDRESS),
    Case("cuMemAllocHost_v2", [MADE, u64(SIZE)], {"size": SIZE}, ADDRESS),
    Case("cuMemHostAlloc", [MADE, u64(SIZE), u32(3)], {"size": SIZE, "flags": 3}, ADDRESS),
    Case("cuMemFreeHost", [u64(ADDRESS)], {"address": ADDRESS}),
    Case("cuMemHostRegister_v2", [*RANGE, u32(1)], {**ADDRESSED, "flags": 1}),
    Case("cuMemHostUnregister", [u64(ADDRESS)], {"address": ADDRESS}),
    Case(
        "cuMemPoolCreate",
        [made(POOL), POOL_PROPERTIES],
        {"properties": {"location": "host", "handles": ["fd"], "max_size": SIZE}},
        POOL,
    ),
    Case("cuMemPoolDestroy", [u64(POOL)], {"pool": POOL}),
    Case(
        "cuMemPoolSetAttribute",
        [u64(POOL), i32(4), made((1 << 64) - 1)],
        {"pool": POOL, "attribute": 4, "value": (1 << 64) - 1},
    ),
    Case("cuMemPoolSetAttribute", [u64(POOL), i32(2), ("to_i32", 1)], {"pool": POOL, "attribute": 2, "value": 1}),
    Case("cuMemPoolGetAttribute", [u64(POOL), i32(7), made(SIZE)], {"pool": POOL, "attribute": 7}, SIZE),
    Case("cuMemPoolGetAttribute", [u64(POOL), i32(13), made(1 << 40)], {"pool": POOL, "attribute": 13}, 1 << 40),
    Case("cuMemPoolSetAccess", [u64(POOL), GRANTS, u64(2)], {"pool": POOL, "grants": GRANTED}),
    Case("cuMemPoolGetAccess", [("to_i32", 3), u64(POOL), at("2i", *GPU)], {"pool": POOL, "location": "gpu3"}, 3),
    Case("cuMemPoolTrimTo", [u64(POOL), u64(SIZE)], {"pool": POOL, "keep": SIZE}),
    Case(
        "cuMemPoolExportToShareableHandle",
        [("to_i32", 14), u64(POOL), i32(1), u64(0)],
        {"pool": POOL, "kind": 1, "flags": 0},
        14,
    ),
    Case(
        "cuMemPoolImportFromShareableHandle",
        [made(POOL), u64(14), i32(1), u64(0)],
        {"shared": 14, "kind": 1, "flags": 0},
        POOL,
    ),
    Case("cuMemPoolExportPointer", [MADE_SECRET, u64(ADDRESS)], {"address": ADDRESS}, DIGEST),
    Case("cuMemPoolImportPointer", [MADE, u64(POOL), MADE_SECRET], {"pool": POOL, "data": DIGEST}, ADDRESS),
    Case("cuDeviceGetDefaultMemPool", [made(POOL), i32(2)], {"device": 2}, POOL),
    Case("cuDeviceGetMemPool", [made(POOL), i32(2)], {"device": 2}, POOL),
    Case("cuDeviceSetMemPool", [i32(2), u64(POOL)], {"device": 2, "pool": POOL}),
    Case("cuMemGetDefaultMemPool", [made(POOL), at("2i", *GPU), i32(1)], {"location": "gpu3", "type": 1}, POOL),
    Case("cuMemGetMemPool", [made(POOL), at("2i", *HOST), i32(2)], {"location": "host", "type": 2}, POOL),
    Case("cuMemSetMemPool", [at("2i", *NODE), i32(1), u64(POOL)], {"location": "host:1", "type": 1, "pool": POOL}),
    Case("cuMemAdvise", [*RANGE, i32(3), i32(-1)], {**ADDRESSED, "advice": 3, "location": "host"}),
    Case("cuMemAdvise_v2", [*RANGE, i32(5), ("pair", GPU)], {**ADDRESSED, "advice": 5, "location": "gpu3"}),
    Case(
        "cuMemPrefetchAsync",
        [*RANGE, i32(2), u64(STREAM)],
        {**ADDRESSED, "location": "gpu2", "stream": STREAM},
    ),
    Case(
        "cuMemPrefetchAsync_v2",
        [*RANGE, ("pair", (4, 0)), u32(0), u64(STREAM)],
        {**ADDRESSED, "location": "host:current", "stream": STREAM},
    ),
    Case(
        "cuStreamAttachMemAsync",
        [u64(STREAM), u64(ADDRESS), u64(0), u32(4)],
        {"stream": STREAM, "address": ADDRESS, "flags": 4},
    ),
    Case("cuIpcGetMemHandle", [MADE_SECRET, u64(ADDRESS)], {"address": ADDRESS}, DIGEST),
    Case("cuIpcOpenMemHandle", [MADE, BY_VALUE, u32(1)], {"handle": DIGEST, "flags": 1}, ADDRESS),
    Case("cuIpcOpenMemHandle_v2", [MADE, BY_VALUE, u32(1)], {"handle": DIGEST, "flags": 1}, ADDRESS),
    Case("cuIpcCloseMemHandle", [u64(ADDRESS)], {"address": ADDRESS}),
    Case("cuIpcGetEventHandle", [MADE_SECRET, u64(HANDLE)], {"event": HANDLE}, DIGEST),
    Case("cuIpcOpenEventHandle", [made(HANDLE), BY_VALUE], {"handle": DIGEST}, HANDLE),
    Case("cuEventCreate", [made(HANDLE), u32(6)], {"flags": 6}, HANDLE),
    Case("cuEventDestroy", [u64(HANDLE)], {"event": HANDLE}),
    Case("cuEventDestroy_v2", [u64(HANDLE)], {"event": HANDLE}),
    Case(
        "cuImportExternalMemory",
        [made(HANDLE), EXTERNAL],
        {"fd": 7, "kind": 1, "size": SIZE, "dedicated": True},
        HANDLE,
    ),
    Case(
        "cuExternalMemoryGetMappedBuffer",
        [MADE, u64(HANDLE), PART],
        {"memory": HANDLE, "offset": 4096, "size": SIZE},
        ADDRESS,
    ),
    Case("cuDestroyExternalMemory", [u64(HANDLE)], {"memory": HANDLE}),
    Case("cuImportExternalSemaphore", [made(HANDLE), SEMAPHORE], {"fd": 8, "kind": 9}, HANDLE),
    Case("cuDestroyExternalSemaphore", [u64(HANDLE)], {"semaphore": HANDLE}),
    Case(
        "cuMulticastCreate",
        [made(HANDLE), TEAM],
        {"devices": 4, "size": SIZE, "handles": 1, "flags": 0},
        HANDLE,
    ),
    Case("cuMulticastAddDevice", [u64(HANDLE), i32(1)], {"handle": HANDLE, "device": 1}),
    Case(
        "cuMulticastBindMem",
        [u64(HANDLE), u64(0), u64(9), u64(4096), u64(SIZE), u64(0)],
        {"handle": HANDLE, "offset": 0, "chunk": 9, "chunk_offset": 4096, "size": SIZE, "flags": 0},
    ),
    Case(
        "cuMulticastBindMem_v2",
        [u64(HANDLE), i32(1), u64(0), u64(9), u64(4096), u64(SIZE), u64(0)],
        {"handle": HANDLE, "device": 1, "offset": 0, "chunk": 9, "chunk_offset": 4096, "size": SIZE, "flags": 0},
    ),
    Case(
        "cuMulticastBindAddr",
        [u64(HANDLE), u64(0), *RANGE, u64(0)],
        {"handle": HANDLE, "offset": 0, **ADDRESSED, "flags": 0},
    ),
    Case(
        "cuMulticastBindAddr_v2",
        [u64(HANDLE), i32(1), u64(0), *RANGE, u64(0)],
        {"handle": HANDLE, "device": 1, "offset": 0, **ADDRESSED, "flags": 0},
    ),
    Case(
        "cuMulticastUnbind",
        [u64(HANDLE), i32(1), u64(0), u64(SIZE)],
        {"handle": HANDLE, "device": 1, "offset": 0, "size": SIZE},
    ),
    Case("cuDevicePrimaryCtxRetain", [made(HANDLE), i32(1)], {"device": 1}, HANDLE),
    Case("cuDevicePrimaryCtxRelease", [i32(1)], {"device": 1}),
    Case("cuDevicePrimaryCtxRelease_v2", [i32(1)], {"device": 1}),
    Case("cuDevicePrimaryCtxReset", [i32(1)], {"device": 1}),
    Case("cuDevicePrimaryCtxReset_v2", [i32(1)], {"device": 1}),
    Case("cuCtxCreate", [made(HANDLE), u32(8), i32(1)], {"flags": 8, "device": 1}, HANDLE),
    Case("cuCtxCreate_v2", [made(HANDLE), u32(8), i32(1)], {"flags": 8, "device": 1}, HANDLE),
    Case("cuCtxCreate_v3", [made(HANDLE), u64(0), i32(0), u32(8), i32(1)], {"flags": 8, "device": 1}, HANDLE),
    Case("cuCtxCreate_v4", [made(HANDLE), u64(0), u32(8), i32(1)], {"flags": 8, "device": 1}, HANDLE),
    Case("cuCtxDestroy", [u64(HANDLE)], {"context": HANDLE}),
    Case("cuCtxDestroy_v2", [u64(HANDLE)], {"context": HANDLE}),
]

ASKED = {"cuMemImportFromShareableHandle": {"location"}}
"""Keys of a line that are no parameters: the driver is asked for them."""

OF_THE_NEXT_VERSION = {"cuMulticastBindMem_v2": {"device"}, "cuMulticastBindAddr_v2": {"device"}}


def table() -> dict[str, str]:
    """Methods by the names of the functions in the C source."""
    return dict(TABLE.findall((CAPTURE.source.parent / "capture/functions.h").read_text()))


def names(*more: str) -> str:
    return ",".join([*dict.fromkeys(case.name for case in CASES), *more])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[TracedCall]]:
    """The text of a record with a call of every case, and its calls."""
    file = tmp_path_factory.mktemp("capture") / "record.jsonl"
    given = json.dumps([[case.name, case.given, 0] for case in CASES])
    found = captures.run(MAKE_CALLS, file, names=names("cuLaunchKernel"), given=given)
    assert (found.done.returncode, found.done.stderr) == (0, "")
    return file.read_text(), found.calls


def test_table_in_c_is_current() -> None:
    assert make_captured_functions.HEADER.read_text() == make_captured_functions.header(), "make docs"


def test_every_function_of_the_table_has_a_case() -> None:
    assert {case.name.removesuffix("_ptsz") for case in CASES} == set(table())


@pytest.mark.parametrize("index", range(len(CASES)), ids=[case.name for case in CASES])
def test_a_call_has_a_line(index: int, recorded: tuple[str, list[TracedCall]]) -> None:
    case, call = CASES[index], recorded[1][index]
    assert (call.number, call.device, call.error) == (index + 1, 1, None)
    assert (call.arguments, call.result) == (case.arguments, case.result)
    assert call.method == table()[case.name.removesuffix("_ptsz")]
    assert call.call == re.sub(r"(_v\d)?(_ptsz)?$", "", case.name)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_names_are_those_of_the_protocol_where_it_has_the_call(case: Case) -> None:
    method = table()[case.name.removesuffix("_ptsz")]
    try:
        expected = set(parameters(method))
    except AttributeError:  # the protocol lacks it
        return
    assert set(case.arguments) - ASKED.get(case.name, set()) == expected | OF_THE_NEXT_VERSION.get(case.name, set())
    assert re.sub(r"(_v\d)?(_ptsz)?$", "", case.name) == call_name(method)


def test_bytes_of_handles_are_not_in_a_record(recorded: tuple[str, list[TracedCall]]) -> None:
    assert DIGEST in recorded[0]
    assert SECRET.hex()[:16] not in recorded[0]
    assert SECRET[32:].decode() not in recorded[0]


def test_a_refused_call_has_its_error_and_no_result(tmp_path: Path) -> None:
    given = json.dumps(
        [
            ["cuMemAllocPitch_v2", [MADE, made(1), u64(500), u64(9), u32(16)], 2],
            ["cuMemCreate", [made(1), u64(SIZE), ["u64", 0], u64(0)], 77],
            ["cuMemImportFromShareableHandle", [made(1), u64(5), i32(0)], 1],
            ["cuMemPoolImportFromShareableHandle", [made(1), u64(5), i32(8), u64(0)], 1],
            ["cuMemPoolImportPointer", [made(1), u64(POOL), u64(5)], 1],
            ["cuMemSetAccess", [*RANGE, u64(5), u64(100)], 1],
        ]
    )
    found = captures.run(MAKE_CALLS, tmp_path / "record.jsonl", names=names(), given=given)
    refused, invalid, *nowhere = found.calls
    assert (refused.error, refused.result) == ("CUDA_ERROR_OUT_OF_MEMORY", None)
    assert refused.arguments == {"width": 500, "height": 9, "element": 16}
    assert (invalid.error, invalid.arguments) == ("CUDA_ERROR_77", {"size": SIZE, "properties": None, "flags": 0})
    assert [call.arguments for call in nowhere] == [
        {"shared": 5, "kind": 0},
        {"shared": None, "kind": 8, "flags": 0},
        {"pool": POOL, "data": None},
        {**ADDRESSED, "grants": []},
    ]


@pytest.mark.parametrize(
    ("pointer", "result"), [("", 0), ("", 2), ("5", 1), ("-", 1), ("-", 0)],
    ids=["succeeded", "refused", "pointers-to-nothing", "null", "null-accepted"],
)  # fmt: skip
def test_of_no_function_more_is_read_than_the_driver_has_read(pointer: str, result: int, tmp_path: Path) -> None:
    """Under sanitizers: the parameters of each function, and what they point to, end where a page of poison begins."""
    program, record = sanitized(CAPTURE, "address,undefined", "calls"), tmp_path / "record"
    record.touch()
    given = "".join(described(case, pointer, result) for case in CASES)
    command = [str(program), str(record), captures.cupti()]
    env = captures.variables(CUPTI_NAMES=names())
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, input=given)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")
    ((*calls, mark),) = (trace.calls for trace in read_traces([record]))
    assert {call.call for call in calls} == {re.sub(r"_v\d$", "", name) for name in table()}
    assert (len(calls), mark.method) == (len(CASES), "mark")
    if result == 0 and not pointer:
        assert [(call.arguments, call.result) for call in calls] == [(case.arguments, case.result) for case in CASES]


def described(case: Case, pointer: str, result: int) -> str:
    """Line of `capture_calls.c` with a call; its pointers lead to their values, or elsewhere."""
    block, found = layout(case.given), []
    for index, (kind, given) in enumerate(case.given):
        digits, is_pointer = bytes(value(kind.removeprefix("to_"), given)).hex(), kind.startswith("to_")
        shown = pointer if is_pointer and pointer else digits
        found.append(f"{getattr(block, f'p{index}').offset} {'*' if is_pointer else '='} {shown}")
    return f"{case.name} {result} {ctypes.sizeof(block)} {len(found)} {' '.join(found)}\n"


def test_a_long_list_of_grants_ends_with_the_number_of_those_left_out(tmp_path: Path) -> None:
    many = at("300i", *[*GPU, 3] * 100)
    given = json.dumps([["cuMemSetAccess", [*RANGE, many, u64(100)], 0]])
    (call,) = captures.run(MAKE_CALLS, tmp_path / "record.jsonl", names=names(), given=given).calls
    assert call.arguments["grants"] == [GRANTED[0]] * 64 + ["36 more"]
