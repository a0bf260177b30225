"""`memtopo.driver.kernels.Kernels` by a little PTX, which drivers of CUDA 11 and later compile for their GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

from cuda.bindings import driver as cuda

from memtopo.driver.cuda.calling import call
from memtopo.driver.kernels import ALIGNED, MOST_AREAS, Area, Verified
from memtopo.driver.pattern import base, word
from memtopo.driver.types import DriverError

_PTX = Path(__file__).with_name("kernels.ptx")
_AREA = Struct("=QQQ")
_FOUND = Struct("=QQQQ")
_NOTHING = 2**64 - 1
_LOW = (1 << 48) - 1
_AREAS = 168
"""Areas of one launch: more do not fit into the 4 KiB of parameters that any driver takes."""

_THREADS = 256
_TILE = 16 << 10
"""Bytes that one block takes at a time."""

_BLOCKS = 2048
"""Blocks of a launch, over all its areas: somewhat more than a GPU runs at a time."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The kernels in one context, and where they leave what they found."""

    module: int
    functions: dict[str, int]
    found: int


class CudaKernels:
    """Runs kernels in whichever context is current."""

    def __init__(self) -> None:
        self._loaded: dict[int, Loaded] = {}

    def module_load_data(self) -> int:
        context = _context()
        module = int(call(cuda.cuModuleLoadData, _PTX.read_bytes() + b"\0")[1])
        try:
            functions = {
                name: int(call(cuda.cuModuleGetFunction, module, name.encode())[1])
                for name in ("fill", "verify", "store", "load")
            }
            found = int(call(cuda.cuModuleGetGlobal, module, b"found")[1])
        except BaseException:
            call(cuda.cuModuleUnload, module)
            raise
        self._loaded[context] = Loaded(module, functions, found)
        return module

    def module_unload(self, module: int) -> None:
        call(cuda.cuModuleUnload, module)
        self._loaded = {context: each for context, each in self._loaded.items() if each.module != module}

    def fill(self, areas: Sequence[Area]) -> None:
        _check(areas)
        function = self._here().functions["fill"]
        for packed, shape, _ in _launches(areas):
            _launch(function, shape, packed)

    def verify(self, areas: Sequence[Area]) -> Verified:
        _check(areas)
        here = self._here()
        call(cuda.cuMemcpyHtoD, here.found, _FOUND.pack(0, _NOTHING, _NOTHING, 0), _FOUND.size)
        for packed, shape, before in _launches(areas):
            _launch(here.functions["verify"], shape, packed, ctypes.c_uint32(before))
        mismatches, lowest, first, saw = _FOUND.unpack(_read(here.found, _FOUND.size))
        if not mismatches:
            return Verified(0)
        # The lowest is read again, which another mismatch than one that comes and goes survives.
        offset = lowest & _LOW
        seen = self.load(areas[lowest >> 48].address + offset - offset % 8) >> offset % 8 * 8
        again = _judged(mismatches, areas, lowest, seen)
        return again if again.wanted != again.seen else _judged(mismatches, areas, first, saw)

    def store(self, address: int, value: int) -> None:
        _launch(self._here().functions["store"], (1, 1, 1), ctypes.c_uint64(address), ctypes.c_uint64(value))

    def load(self, address: int) -> int:
        here = self._here()
        _launch(here.functions["load"], (1, 1, 1), ctypes.c_uint64(address))
        return _FOUND.unpack(_read(here.found, _FOUND.size))[3]  # type: ignore[no-any-return]

    def _here(self) -> Loaded:
        loaded = self._loaded.get(_context())
        if loaded is None:
            raise DriverError("cuLaunchKernel", "CUDA_ERROR_INVALID_HANDLE", "no kernels are loaded in this context")
        return loaded


def _context() -> int:
    context = int(call(cuda.cuCtxGetCurrent)[1])
    if not context:
        raise DriverError("cuCtxGetCurrent", "CUDA_ERROR_INVALID_CONTEXT", "no context is current")
    return context


def _check(areas: Sequence[Area]) -> None:
    # Nothing of this would be refused by the driver, and a misaligned access ends the process as a forbidden one does.
    if len(areas) > MOST_AREAS or any(area.address % ALIGNED or area.size < 0 or area.first % 8 for area in areas):
        raise DriverError("cuLaunchKernel", "CUDA_ERROR_INVALID_VALUE", "an area is not aligned, or there are too many")


def _launches(areas: Sequence[Area]) -> Iterator[tuple[ctypes.Array[ctypes.c_char], tuple[int, int, int], int]]:
    """For each launch its areas, its shape, and how many areas came before."""
    for before in range(0, len(areas), _AREAS):
        some = areas[before : before + _AREAS]
        packed = b"".join(_AREA.pack(area.address, area.size, base(area.seed, area.first)) for area in some)
        tiles = -(-max(area.size for area in some) // _TILE)
        yield (
            ctypes.create_string_buffer(packed, _AREAS * _AREA.size),
            (max(1, min(tiles, -(-_BLOCKS // len(some)))), len(some), 1),
            before,
        )


def _launch(function: int, shape: tuple[int, int, int], *parameters: ctypes._CData) -> None:
    """Have the driver copy the parameters and launch; a single word's kernel wants one thread."""
    addresses = (ctypes.c_void_p * len(parameters))(*(ctypes.addressof(each) for each in parameters))
    threads = _THREADS if isinstance(parameters[0], ctypes.Array) else 1
    call(cuda.cuLaunchKernel, function, *shape, threads, 1, 1, 0, 0, ctypes.addressof(addresses), 0)


def _read(address: int, size: int) -> bytes:
    data = bytearray(size)
    call(cuda.cuMemcpyDtoH, data, address, size)
    return bytes(data)


def _judged(mismatches: int, areas: Sequence[Area], key: int, seen: int) -> Verified:
    """What was wanted where a key says, and seen there: a word or, of the last bytes of an area, a byte."""
    number, offset = key >> 48, key & _LOW
    area = areas[number]
    wanted = word(area.seed, area.first + offset)
    if offset >= area.size - area.size % 16:
        wanted, seen = wanted >> offset % 8 * 8 & 0xFF, seen & 0xFF
    return Verified(mismatches, number, offset, wanted, seen)
