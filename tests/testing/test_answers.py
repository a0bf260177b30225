"""Words of a call and what its pointers point to, as functions in C get them, with the memory of this process."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Iterator

import pytest

from memtopo import machine
from memtopo.driver.types import LocationKind
from memtopo.testing.abi import error_numbers, exported
from memtopo.testing.program import SharedMachine, SimulatedProgram
from memtopo.testing.server import RemoteProgram

SIZE = 2 << 20
PAGE = 4096
GARBAGE = 0xABCD_EF01 << 32
NAMES = {number: name for name, number in error_numbers().items()}

CallFunction = Callable[..., str]


@pytest.fixture
def shared() -> SharedMachine:
    return SharedMachine(machine.load("h200x2"))


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
