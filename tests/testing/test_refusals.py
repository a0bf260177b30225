"""A refused call has changed nothing: random calls of all functions, each refusal compared with the state before."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import pytest

from memtopo import machine
from memtopo.driver.types import DriverError, HandleType, PoolProperties, gpu
from memtopo.testing.abi import Function, error_numbers, exported
from memtopo.testing.program import FUNCTIONS, SharedMachine, SimulatedProgram
from memtopo.testing.server import RemoteProgram
from tests.helpers.simulator_state import difference, state_of

SIZE = 2 << 20
SIZES = (2 * SIZE, 4096, 1, 0, 1 << 38, 1 << 41, 1 << 62, (1 << 64) - 1)
SIZE_WORDS = {"size", "count", "width"}
NOWHERE = (0, 5, 1 << 62)
PARTIAL = {"cuMemSetAccess"}
"""Functions that have changed something when they are refused, as on hardware (fact 62)."""

MADE_BY = {
    "mem_create": "handle", "mem_retain_allocation_handle": "handle", "stream_create": "stream",
    "stream_create_with_priority": "stream", "event_create": "event", "mem_pool_create": "pool",
    "device_get_default_mem_pool": "pool", "device_primary_ctx_retain": "context", "ctx_create": "context",
}  # fmt: skip
"""Parameters that the results of calls are passed as; the other ones are addresses."""

ALIKE = {
    "destination": "address", "source": "address", "start": "event", "end": "event", "chunk": "handle",
    "memory": "handle", "semaphore": "handle",
}  # fmt: skip

DESCRIBED = {
    "CUmemAllocationProp*": [struct.pack("=iiiiQ8x", 1, 0, 1, 0, 0), struct.pack("=iiiiQ8x", 1, 1, 1, 1, 0), bytes(32)],
    "CUmemPoolProps*": [struct.pack("=iiiiQQ56x", 1, 0, 1, 0, 0, 0), struct.pack("=iiiiQQ56x", 1, 1, 1, 0, 0, SIZE)],
    "CUmemLocation*": [struct.pack("=ii", 1, 0), struct.pack("=ii", 2, 0), struct.pack("=ii", 1, 9)],
    "CUmemAccessDesc*": [struct.pack("=6i", 1, 0, 3, 1, 1, 1), struct.pack("=6i", 1, 0, 3, 2, 0, 3), bytes(24)],
    **{key: [bytes(64)] for key in ("CUipcMemHandle", "CUipcEventHandle", "CUmemPoolPtrExportData*")},
    "CUmulticastObjectProp*": [struct.pack("=I4xQQQ", 2, SIZE, 1, 0)],
    "CUDA_EXTERNAL_MEMORY_BUFFER_DESC*": [struct.pack("=QQ", 0, SIZE)],
    **{key: [struct.pack("=8Q", *([1] * 8)), bytes(256)] for key in ("pointer", "attribute", "shared")},
    **{key: [bytes(256)] for key in ("CUDA_EXTERNAL_MEMORY_HANDLE_DESC*", "CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC*")},
}
"""What pointers lead to, by the type of the parameter."""

SETUP = [
    "cuInit", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuStreamCreate", "cuEventCreate", "cuMemAddressReserve",
    "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemAlloc_v2", "cuMemAllocManaged", "cuMemHostAlloc",
    "cuMemPoolCreate", "cuMemAllocFromPoolAsync", "cuMemAllocAsync",
]  # fmt: skip


class Caller:
    """A program that makes random calls, most of them with objects that it has."""

    def __init__(self, program: SimulatedProgram, choices: Random, port: RemoteProgram) -> None:
        self.program, self.choices, self.port = program, choices, port
        self._room = ctypes.create_string_buffer(1 << 16)
        self._kept = [ctypes.create_string_buffer(data, 256) for every in DESCRIBED.values() for data in every]
        kept = iter(self._kept)
        self._described = {kind: [ctypes.addressof(next(kept)) for _ in every] for kind, every in DESCRIBED.items()}
        self._known: defaultdict[str, list[int]] = defaultdict(list)

    def call(self, name: str, wrong: int | None = None, value: int | None = None) -> int:
        """Call a function with likely words, but for the one at `wrong`: `value`, or random; return the status."""
        function, words = FUNCTIONS[name], [0] * 8
        for each in function.reads:
            careful = each.position != wrong
            words[each.position] = self._word(each.name, each.type, careful=careful)
            if each.type == "CUmemAccessDesc*":
                words[each.position + 1] = 1 if careful else self.choices.choice([2, 1, 0])
        for index, each in enumerate(function.results):
            words[each.position] = ctypes.addressof(self._room) + 512 * index
        if wrong is not None and value is not None:
            words[wrong] = value
        status = self.program.answer(exported().index(name), words)
        if not status:
            self._keep(function)
        return status

    def set_up(self) -> None:
        """Make what calls need, again if random calls have ended it."""
        for name in SETUP:
            self.call(name)

    def choice(self, every: tuple[int, ...] | list[int]) -> int:
        return self.choices.choice(every)

    def _keep(self, function: Function) -> None:
        if function.results and function.results[0].type == "u64":
            made = int.from_bytes(self._room.raw[:8], "little")
            known = self._known[MADE_BY.get(function.method, "address")]
            known.append(made)
            del known[:-6]

    def _word(self, name: str, kind: str, *, careful: bool) -> int:
        if kind in self._described:
            is_wrong = not careful and self.choices.random() < 1 / 8
            return self.choice(NOWHERE) if is_wrong else self._described[kind][0 if careful else -1]
        name = ALIKE.get(name, name)
        if name in SIZE_WORDS:
            return SIZE if careful else self.choice(SIZES)
        if known := self._known[name]:
            return known[-1] if careful else self.choice([*known, *known, known[-1] + SIZE // 2, *NOWHERE])
        likely = 1 if name == "flags" and kind == "CUmemAttach_flags" else 0
        return likely if careful else self.choice([0, 0, 1, 2, 3, 4, 99, (1 << 32) - 1])


@contextmanager
def caller(seed: int) -> Iterator[Caller]:
    port = RemoteProgram(os.getpid())
    program = SimulatedProgram(SharedMachine(machine.load("h200x2")), port)
    yield Caller(program, Random(seed), port)
    port.ended()
    program.close()


def wrong_words() -> list[tuple[str, int | None, int | None]]:
    """Calls with one wrong word each: every size, results that cannot be written, and random other words."""
    found: list[tuple[str, int | None, int | None]] = []
    for name, function in FUNCTIONS.items():
        for each in function.reads:
            is_size = each.name in SIZE_WORDS
            found += [(name, each.position, size) for size in SIZES] if is_size else [(name, each.position, None)] * 2
        found += [(name, each.position, where) for each in function.results for where in NOWHERE]
    return found


@pytest.mark.parametrize("seed", range(3))
def test_a_refused_call_has_changed_nothing(seed: int) -> None:
    """But for the access of memory before the first grant that is refused."""
    with caller(seed) as made:
        calls, refused = wrong_words()[seed::3], set()
        made.choices.shuffle(calls)
        for index, (name, wrong, value) in enumerate(calls):
            if index % 48 == 0:
                made.set_up()
                before = state_of(made.program)
            is_refused = made.call(name, wrong, value) != 0
            after = state_of(made.program)
            if is_refused and name not in PARTIAL:
                refused.add(name)
                assert difference(before, after) == {}, str(made.program.shared.calls[-1])
            before = after
        assert len(refused) > len(FUNCTIONS) // 2


@pytest.mark.parametrize(("handles", "most", "size"), [(HandleType.NONE, 1, 64 << 20), (HandleType.FD, 0, 64 << 30)])
def test_a_pool_without_room_takes_neither_addresses_nor_pages(handles: HandleType, most: int, size: int) -> None:
    with caller(0) as made:
        made.set_up()
        driver = made.program.ledger
        pool = driver.mem_pool_create(PoolProperties(gpu(0), handles, most))
        driver.mem_alloc_from_pool_async(SIZE, pool)
        driver.mem_alloc(100 << 30)
        before = state_of(made.program)
        with pytest.raises(DriverError, match="OUT_OF_MEMORY"):
            driver.mem_alloc_from_pool_async(size, pool)
        assert difference(before, state_of(made.program)) == {}


@pytest.mark.parametrize("name", ["cuMemAllocManaged", "cuMemHostAlloc", "cuMemAllocHost_v2"])
def test_memory_that_the_program_cannot_map_is_not_allocated(name: str) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, caller(0) as made:
        made.set_up()
        before, free = made.program.leaks(), made.program.sim.mem_get_info()
        made.port.serve(ours)
        theirs.send(errno.ENOMEM.to_bytes(4, sys.byteorder))
        assert made.call(name) == error_numbers()["CUDA_ERROR_OPERATING_SYSTEM"]
        assert (made.program.leaks(), made.program.sim.mem_get_info()) == (before, free)
