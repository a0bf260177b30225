"""`memtopo.driver.kernels.Kernels` in PTX, which drivers for CUDA 11 and later compile for their GPU."""

from __future__ import annotations

import ctypes
import struct
from array import array
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from cuda.bindings import driver as cuda
from msgspec import Struct

from memtopo.common.errors import on_failure
from memtopo.driver.kernels import ALIGNED, MOST_AREAS, WORD, Area, Verified, word
from memtopo.driver.types import DriverError
from memtopo.drivers.cuda.bindings import call

_PTX = Path(__file__).with_name("kernels.ptx")
_RESULT = struct.Struct("=QQQQ")
_NOTHING = 2**64 - 1
_LOW = (1 << 48) - 1
_WORD = (1 << 64) - 1
_FIRST, _AREAS = 128, 2048
"""Areas of the first launch, and at most of one: a table of up to 64 KiB is copied without waiting for the GPU."""

_THREADS = 256
_TILE = 16 << 10
"""Bytes that a block processes at a time."""

_BLOCKS = 8192
"""Blocks of a launch over all its areas: many times what a GPU runs at once, so that all of it ends together."""

_STORED, _LOADED = 1, 64
"""Tiles of the largest area for one block, so that it does not run on after all small areas are done.

Stores are faster the closer to one another they are at a time, up to 4 %; loads are not, and the end of a block that
loads costs more.
"""

_MOST_BLOCKS = 1 << 18


class LoadedKernels(Struct, frozen=True):
    """Kernels loaded in one context, with the addresses of their result, their table of areas and its fingerprints."""

    module: int
    functions: dict[str, int]
    found: int
    areas: int
    sums: int


class CudaKernels:
    """Runs kernels in whichever context is current."""

    def __init__(self) -> None:
        self._loaded: dict[int, LoadedKernels] = {}

    def module_load_data(self) -> int:
        context = _context()
        module = int(call(cuda.cuModuleLoadData, _PTX.read_bytes() + b"\0")[1])
        with on_failure(call, cuda.cuModuleUnload, module):
            functions = {
                name: int(call(cuda.cuModuleGetFunction, module, name.encode())[1])
                for name in ("fill", "verify", "fingerprint", "store", "load")
            }
            names = b"found", b"areas", b"sums"
            found, table, sums = (int(call(cuda.cuModuleGetGlobal, module, name)[1]) for name in names)
        self._loaded[context] = LoadedKernels(module, functions, found, table, sums)
        return module

    def module_unload(self, module: int) -> None:
        call(cuda.cuModuleUnload, module)
        self._loaded = {context: each for context, each in self._loaded.items() if each.module != module}

    def fill(self, areas: Sequence[Area]) -> None:
        loaded = self._current()
        for packed, shape, _ in _launches(areas, _STORED):
            call(cuda.cuMemcpyHtoDAsync, loaded.areas, packed, len(packed), 0)
            _launch(loaded.functions["fill"], shape, _THREADS)

    def verify(self, areas: Sequence[Area]) -> Verified:
        loaded = self._current()
        call(cuda.cuMemcpyHtoD, loaded.found, _RESULT.pack(0, _NOTHING, _NOTHING, 0), _RESULT.size)
        for packed, shape, before in _launches(areas, _LOADED):
            call(cuda.cuMemcpyHtoDAsync, loaded.areas, packed, len(packed), 0)
            _launch(loaded.functions["verify"], shape, _THREADS, ctypes.c_uint32(before))
        mismatches, lowest, first, first_actual = _RESULT.unpack(_read(loaded.found, _RESULT.size))
        if not mismatches:
            return Verified(0)
        # The lowest mismatch is read again, since it may have been transient.
        offset = lowest & _LOW
        actual = self.load(areas[lowest >> 48].address + offset - offset % 8) >> offset % 8 * 8
        again = _result(mismatches, areas, lowest, actual)
        return again if again.expected != again.actual else _result(mismatches, areas, first, first_actual)

    def fingerprint(self, parts: Sequence[tuple[int, int]]) -> tuple[int, ...]:
        loaded = self._current()
        if not parts:
            return ()
        size = 8 * min(len(parts), MOST_AREAS)
        call(cuda.cuMemsetD8Async, loaded.sums, 0, size, 0)
        for packed, shape, before in _launches(parts, _LOADED):
            call(cuda.cuMemcpyHtoDAsync, loaded.areas, packed, len(packed), 0)
            _launch(loaded.functions["fingerprint"], shape, _THREADS, ctypes.c_uint32(before))
        return tuple(array("Q", _read(loaded.sums, size)))

    def store(self, address: int, value: int) -> None:
        _launch(self._current().functions["store"], (1, 1, 1), 1, ctypes.c_uint64(address), ctypes.c_uint64(value))

    def load(self, address: int) -> int:
        loaded = self._current()
        _launch(loaded.functions["load"], (1, 1, 1), 1, ctypes.c_uint64(address))
        return _RESULT.unpack(_read(loaded.found, _RESULT.size))[3]  # type: ignore[no-any-return]

    def _current(self) -> LoadedKernels:
        loaded = self._loaded.get(_context())
        if loaded is None:
            raise DriverError("cuLaunchKernel", "CUDA_ERROR_INVALID_HANDLE", "no kernels are loaded in this context")
        return loaded


def _context() -> int:
    context = int(call(cuda.cuCtxGetCurrent)[1])
    if not context:
        raise DriverError("cuCtxGetCurrent", "CUDA_ERROR_INVALID_CONTEXT", "no context is current")
    return context


def _launches(
    areas: Sequence[Area] | Sequence[tuple[int, int]], share: int
) -> Iterator[tuple[bytes, tuple[int, int, int], int]]:
    """Yield for each launch its table of areas, its grid, and the number of areas before. Areas may have no pattern.

    `share` is the number of tiles for one block. The first launches are small, so that the GPU works while the next
    tables are made.
    """
    if len(areas) > MOST_AREAS:
        raise DriverError("cuLaunchKernel", "CUDA_ERROR_INVALID_VALUE", "there are too many areas")
    before, count = 0, _FIRST
    while some := areas[before : before + count]:
        table, largest = _table(some)
        yield table, _shape(len(some), largest, share), before
        before, count = before + count, min(count + count // 2, _AREAS)


def _table(areas: Sequence[Area] | Sequence[tuple[int, int]]) -> tuple[bytes, int]:
    """Return the table of some areas, and the size of the largest. Raises `DriverError` for an invalid area."""
    width = len(areas[0])
    try:
        table = _packed(areas, width)
    except struct.error as error:
        raise _invalid_area() from error
    # The driver checks none of this, and a misaligned access ends the process like an illegal one.
    if int.from_bytes(table, "little") & _misaligned(width, len(areas)):
        raise _invalid_area()
    return table, max(memoryview(table).cast("Q")[1::width])


def _invalid_area() -> DriverError:
    return DriverError("cuLaunchKernel", "CUDA_ERROR_INVALID_VALUE", "an area is not aligned, or no area")


def _packed(areas: Sequence[Area] | Sequence[tuple[int, int]], width: int) -> bytes:
    # All numbers by one call: for each area, Python would need more time than the GPU needs for its pages.
    form = f"={width * len(areas)}Q"
    try:
        return struct.pack(form, *chain.from_iterable(areas))
    except struct.error:  # a seed may have any size
        rows = ((address, size, *(each & _WORD for each in pattern)) for address, size, *pattern in areas)
        return struct.pack(form, *chain.from_iterable(rows))


@cache
def _misaligned(width: int, count: int) -> int:
    """Bits of a table of `count` areas that have to be 0, as one number: of addresses, and of offsets if it has any."""
    row = struct.pack(f"={width}Q", *(ALIGNED - 1, 0, 0, 7)[:width])
    return int.from_bytes(row * count, "little")


def _shape(count: int, largest: int, share: int) -> tuple[int, int, int]:
    """Grid for `count` areas."""
    tiles = max(1, -(-largest // _TILE))
    wanted = max(-(-_BLOCKS // count), min(-(-tiles // share), -(-_MOST_BLOCKS // count)))
    return min(tiles, wanted), count, 1


def _launch(function: int, shape: tuple[int, int, int], threads: int, *parameters: ctypes._CData) -> None:
    """Launch a kernel; the driver copies the parameters."""
    addresses = (ctypes.c_void_p * max(1, len(parameters)))(*(ctypes.addressof(each) for each in parameters))
    call(cuda.cuLaunchKernel, function, *shape, threads, 1, 1, 0, 0, ctypes.addressof(addresses), 0)


def _read(address: int, size: int) -> bytes:
    data = bytearray(size)
    call(cuda.cuMemcpyDtoH, data, address, size)
    return bytes(data)


def _result(mismatches: int, areas: Sequence[Area], key: int, actual: int) -> Verified:
    """Result for a mismatch at a key: a word or, in the last bytes of an area, a byte."""
    number, offset = key >> 48, key & _LOW
    area = areas[number]
    expected = word(area.seed, area.first + offset)
    if offset >= area.size - area.size % 16:
        expected, actual = expected >> offset % 8 * 8 & 0xFF, actual & 0xFF
    return Verified(mismatches, number, offset, expected, actual)


_TRIALS_PTX = Path(__file__).with_name("trials.ptx")
_TRIAL_KERNELS = ("store", "meet", "copy", "chase")


class ContextKernels:
    """Kernels of trials and measurements, loaded into a context when one is first launched there; they end with it."""

    def __init__(self) -> None:
        self._loaded: dict[int, dict[str, Any]] = {}

    def launch(self, name: str, *arguments: int, blocks: int = 1, threads: int = 1, stream: object = 0) -> None:
        """Launch a kernel in the current context, with arguments of 64 bits each; does not wait for it."""
        context = int(call(cuda.cuCtxGetCurrent)[1])
        if context not in self._loaded:
            module = call(cuda.cuModuleLoadData, _TRIALS_PTX.read_bytes() + b"\0")[1]
            self._loaded[context] = {
                each: call(cuda.cuModuleGetFunction, module, each.encode())[1] for each in _TRIAL_KERNELS
            }
        types = (ctypes.c_uint64,) * len(arguments)
        grid = (blocks, 1, 1, threads, 1, 1)
        call(cuda.cuLaunchKernel, self._loaded[context][name], *grid, 0, stream, (arguments, types), 0)


_FOUND = (1).to_bytes(WORD, "little")


class CudaTrialCalls:
    """Trial calls of the CUDA driver."""

    def __init__(self) -> None:
        self._kernels = ContextKernels()

    def store(self, address: int, value: int) -> None:
        self._kernels.launch("store", address, value)
        call(cuda.cuCtxSynchronize)

    def meet(self, address: int, value: int) -> bool:
        ctypes.memset(address, 0, 2 * WORD)
        self._kernels.launch("meet", address, value)
        ctypes.memmove(address, _FOUND, WORD)
        call(cuda.cuCtxSynchronize)
        return ctypes.string_at(address + WORD, WORD) == value.to_bytes(WORD, "little")
