"""Heaps of the C library: the table of allocations in a reserved range, and the driver calls that make them."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import finalize

from memtopo.common.errors import InternalError
from memtopo.common.mapped_files import ANONYMOUS
from memtopo.driver.protocol import Driver
from memtopo.driver.types import DriverError, Grant, Properties
from memtopo.driver.values import ACCESS, PROPERTIES, packed_access, packed_properties
from memtopo.driver.wrappers import innermost
from memtopo.native import HEAPS, loaded
from memtopo.native.tables import Allocation, AllocationTable, TableHead

_MOST_GRANTS = 64
_CLOSED, _NO_ADDRESSES, _OVER_LIMIT, _NOT_ALLOCATED, _NO_MARGIN = -1, -2, -3, -4, -5

NO_LIMIT = (1 << 64) - 1

_U64, _SIZE, _POINTER, _INT = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int


def _function(*parameters: Any) -> Any:
    return ctypes.CFUNCTYPE(_INT, *parameters)


_CALLS: Mapping[str, tuple[str, Any]] = {
    "create": ("cuMemCreate", _function(ctypes.POINTER(_U64), _SIZE, _POINTER, _U64)),
    "release": ("cuMemRelease", _function(_U64)),
    "map": ("cuMemMap", _function(_U64, _SIZE, _SIZE, _U64, _U64)),
    "unmap": ("cuMemUnmap", _function(_U64, _SIZE)),
    "set_access": ("cuMemSetAccess", _function(_U64, _SIZE, _POINTER, _SIZE)),
    "push": ("cuCtxPushCurrent_v2", _function(_POINTER)),
    "pop": ("cuCtxPopCurrent_v2", _function(_POINTER)),
    "synchronize": ("cuCtxSynchronize", _function()),
    "info": ("cuMemGetInfo_v2", _function(ctypes.POINTER(_SIZE), ctypes.POINTER(_SIZE))),
}
"""Members of the table of driver functions in the C source, in order, with the symbols of libcuda and their types."""

_Properties, _Access = ctypes.c_ubyte * PROPERTIES.size, ctypes.c_ubyte * (ACCESS.size * _MOST_GRANTS)


class _Functions(ctypes.Structure):
    _fields_ = [(name, _POINTER) for name in _CALLS]


class _Budget(ctypes.Structure):
    _fields_ = [("limit", _U64), ("used", _U64), ("peak", _U64)]


_GRANULE_BYTES = 20
"""Bytes that the C library keeps for each granule of a heap."""


class _Heap(ctypes.Structure):
    _fields_ = [
        *((name, _U64) for name in ("base", "size", "granule")),
        ("properties", _Properties),
        ("access", _Access),
        ("grants", _U64),
        ("context", _POINTER),
        ("budget", ctypes.POINTER(_Budget)),
        ("driver", _Functions),
        ("margin", _U64),
        ("table", ctypes.POINTER(TableHead)),
        ("process", ctypes.c_int64),
        ("granules", _POINTER),
        ("holes", _U64),
        *((name, _U64) for name in ("next_number", "freed_late")),
        ("failed", ctypes.c_int32),
        ("failed_call", ctypes.c_uint32),
        ("failed_size", _U64),
        ("failures", _U64),
    ]


class Refusal(Exception):
    """Request that a heap cannot fulfil: it is closed, has no addresses, or is at its limit; or an unknown address."""

    def __init__(self, code: int) -> None:
        super().__init__(_REFUSALS.get(code, f"result {code}"))
        self.closed, self.full = code == _CLOSED, code == _NO_ADDRESSES
        self.over_limit, self.no_margin = code == _OVER_LIMIT, code == _NO_MARGIN


_REFUSALS = {
    _CLOSED: "it currently has no memory",
    _NO_ADDRESSES: "no hole among its addresses is large enough",
    _OVER_LIMIT: "its limit is reached",
    _NOT_ALLOCATED: "nothing is allocated there",
    _NO_MARGIN: "the GPU would have less free memory than its margin",
}


class Budget:
    """Largest number of bytes that the heaps of one limit, which has a `name`, may have allocated together."""

    def __init__(self, name: str, limit: int | None) -> None:
        self.name, self.record = name, _Budget()
        self.set_limit(limit)

    def set_limit(self, limit: int | None) -> None:
        """Change the limit in bytes; None is none. What is allocated stays."""
        self.record.limit = NO_LIMIT if limit is None else limit

    @property
    def limit(self) -> int | None:
        """Limit in bytes; None if there is none."""
        return None if self.record.limit == NO_LIMIT else int(self.record.limit)

    @property
    def used(self) -> int:
        """Bytes that are allocated now, also while the heaps have no memory."""
        return int(self.record.used)

    @property
    def peak(self) -> int:
        """Most bytes that were allocated at once."""
        return int(self.record.peak)


class NativeHeap:
    """One heap. Functions of the C library read and change it under a lock of their own, from any thread.

    `DriverError` is raised as of the calls of the driver. With a driver of CUDA, no call runs Python.
    """

    def __init__(
        self,
        driver: Driver,
        table: AllocationTable,
        reserved: tuple[int, int],
        granule: int,
        properties: Properties,
        grants: Sequence[Grant],
        context: int,
        budget: Budget,
    ) -> None:
        """A heap whose allocations are in a table, which it takes over.

        The library is loaded when memory is first allocated, so that a layout is built without it, too.
        """
        self._loaded: ctypes.CDLL | None = None
        self._calls = _Calls(driver, properties, grants)
        own = self._calls.own
        described = packed_properties(properties._replace(location=own(properties.location)))
        access = packed_access(Grant(own(location), access) for location, access in grants)
        self._record = _Heap(*reserved, granule, _Properties(*described), _Access(*access), len(grants), context)
        self._record.budget, self._record.driver = ctypes.pointer(budget.record), self._calls.functions
        self._budget = budget  # the record points to it
        self.table = table
        """Table of the allocations, whose file other processes may map."""
        assert self.table.head
        self._head = self.table.head
        self._record.table, self._record.process = ctypes.pointer(self._head), os.getpid()
        room = (reserved[1] // granule + 1) * _GRANULE_BYTES
        self._granules = (ctypes.c_char * room).from_buffer(mmap.mmap(-1, room, flags=ANONYMOUS))
        self._record.granules = ctypes.addressof(self._granules)
        self._at = ctypes.byref(self._record)
        self.open()

    def _load(self) -> ctypes.CDLL:
        """Return the library. Raises `NoLibrary`."""
        if self._loaded is None:
            found = loaded(HEAPS)
            if found.memtopo_heap_size() != ctypes.sizeof(_Heap):
                raise InternalError("the C library has another heap than this version of memtopo")
            for name in ("largest_hole", "end"):
                getattr(found, f"memtopo_heap_{name}").restype = _U64
            self._loaded = found
            self._forget = finalize(self, found.memtopo_heap_forget, self._at)
        return self._loaded

    @property
    def is_open(self) -> bool:
        """True while memory can be allocated."""
        return bool(self._head.open)

    def keep_free(self, margin: int) -> None:
        """Refuse allocations that would leave less than so many bytes of the GPU free."""
        self._record.margin = margin

    @property
    def mapped(self) -> int:
        """Bytes of the chunks that exist."""
        return int(self._head.mapped)

    def note_backed(self, size: int) -> None:
        """Note for other processes how many bytes of host memory keep those of allocations."""
        self._head.backed = size

    @property
    def largest_hole(self) -> int:
        """Bytes of the largest hole among the addresses."""
        return int(self._load().memtopo_heap_largest_hole(self._at))

    @property
    def failures(self) -> int:
        """Number of allocations that failed, through whichever function."""
        return int(self._record.failures)

    @property
    def failure(self) -> tuple[Exception, int] | None:
        """Error of the last allocation that failed, through whichever function, and its bytes; None without any."""
        if not self._record.failed:
            return None
        return self._error(self._record.failed, self._record.failed_call), int(self._record.failed_size)

    def allocate(self, size: int) -> int:
        """Allocate `size` bytes, rounded up to granules; return the address.

        Raises `Refusal` and `DriverError`, and `NoLibrary`.
        """
        address = _U64()
        number = _unsigned(size, _NO_ADDRESSES)
        if code := self._load().memtopo_heap_allocate(self._at, number, ctypes.byref(address)):
            raise self._error(code, self._record.failed_call)
        return int(address.value)

    def free(self, address: int) -> None:
        """Free an allocation, after the work of its GPU. Raises `Refusal`, and `DriverError` if it is freed later."""
        if code := self._load().memtopo_heap_free(self._at, _unsigned(address, _NOT_ALLOCATED)):
            raise self._error(code, list(_CALLS).index("unmap"))

    def open(self) -> None:
        """Admit allocations, and release the memory of allocations that were freed meanwhile."""
        if self._loaded:
            self._loaded.memtopo_heap_open(self._at)
        else:
            self._head.open = 1

    def close(self) -> None:
        """Refuse allocations; the memory of freed ones is released by `unmap` or `open`."""
        if self._loaded:
            self._loaded.memtopo_heap_close(self._at)
        else:
            self._head.open = 0

    def allocations(self) -> list[Allocation]:
        """Return the allocations in order of address, without freed ones."""
        return self.table.allocations()

    def unmap(self) -> int:
        """Unmap and release all memory of a closed heap, which keeps the addresses of its allocations.

        Returns the number of released bytes that the GPU has not free: others have handles or imports of them.
        Raises `DriverError` with everything mapped as before, and `Unmapped` if that failed, too.
        """
        if self._loaded is None:
            return 0
        call, broken, held = ctypes.c_uint32(), _U64(), _U64()
        results = (ctypes.byref(each) for each in (call, broken, held))
        if code := self._loaded.memtopo_heap_unmap(self._at, *results):
            error = self._calls.error(code, _name(call.value))
            raise Unmapped(error, broken.value) if broken.value else error
        return held.value

    def map(self) -> None:
        """Create memory for all allocations and map it. Raises `DriverError` with nothing created."""
        call = ctypes.c_uint32()
        if self._loaded and (code := self._loaded.memtopo_heap_map(self._at, ctypes.byref(call))):
            raise self._error(code, call.value)

    def unmap_one(self, address: int) -> None:
        """Unmap one allocation of a closed heap, whose chunk stays. Raises `DriverError` with it mapped."""
        if code := self._load().memtopo_heap_unmap_one(self._at, _U64(address)):
            raise self._calls.error(code, "cuMemUnmap")

    def map_one(self, address: int) -> bool:
        """Create memory for one allocation and map it; return false if it is freed. Raises `DriverError`."""
        call = ctypes.c_uint32()
        code = self._load().memtopo_heap_map_one(self._at, _U64(address), ctypes.byref(call))
        if code > 0:
            raise self._error(code, call.value)
        return not code

    def end(self) -> DriverError | None:
        """Free all allocations; return the error of a call that was repeated. Raises `Unmapped` if some are left."""
        self.table.close()
        if self._loaded is None:
            return None
        code = _INT()
        left = int(self._loaded.memtopo_heap_end(self._at, ctypes.byref(code)))
        self._forget()
        error = self._calls.error(code.value, "cuMemUnmap") if code.value else None
        if left:
            assert error
            raise Unmapped(error, left)
        return error

    def functions(self) -> tuple[int, int]:
        """Addresses of functions that allocate and free in this heap, with the signatures of PyTorch's allocators.

        They do nothing after the end of the heap, and of the interpreter. Raises `Refusal` if 64 heaps have some, and
        `NoLibrary`.
        """
        allocate, free = _POINTER(), _POINTER()
        if code := self._load().memtopo_heap_functions(self._at, ctypes.byref(allocate), ctypes.byref(free)):
            raise Refusal(code)
        return allocate.value or 0, free.value or 0

    def _error(self, code: int, call: int) -> Exception:
        return Refusal(code) if code < 0 else self._calls.error(code, _name(call))


def _unsigned(number: int, otherwise: int) -> ctypes.c_uint64:
    """Return a number as one of C, which takes 64 bits of it. Raises `Refusal` if there are more, or a sign."""
    if number >> 64:
        raise Refusal(otherwise)
    return _U64(number)


def _name(call: int) -> str:
    return [*_CALLS.values()][call][0].removesuffix("_v2")


class Unmapped(DriverError):
    """Error after which a `number` of allocations is not as it was to be: without memory, or still with it."""

    def __init__(self, error: DriverError, number: int) -> None:
        super().__init__(error.call, error.name, error.reason)
        self.number = number


class _Calls:
    """Driver functions of one heap: those of libcuda, or calls of a driver in Python, whose errors are kept."""

    def __init__(self, driver: Driver, properties: Properties, grants: Sequence[Grant]) -> None:
        inner: Any
        inner, self.own = innermost(driver)
        self._cuda = inner if hasattr(inner, "function_addresses") else None
        self._raised: list[DriverError] = []
        if self._cuda:
            self.functions = _Functions(*self._cuda.function_addresses(symbol for symbol, _ in _CALLS.values()))
            return

        def create(handle: Any, size: int, *_: object) -> None:
            handle[0] = driver.mem_create(size, properties)

        def info(free: Any, total: Any) -> None:
            free[0], total[0] = driver.mem_get_info()

        calls: dict[str, Callable[..., object]] = {
            "info": info,
            "create": create,
            "release": driver.mem_release,
            "map": lambda address, size, _offset, handle, _flags: driver.mem_map(address, size, handle),
            "unmap": driver.mem_unmap,
            "set_access": lambda address, size, *_: driver.mem_set_access(address, size, tuple(grants)),
            "push": driver.ctx_push_current,
            "pop": lambda _context: driver.ctx_pop_current(),
            "synchronize": driver.ctx_synchronize,
        }
        self._callbacks = [kind(self._caught(calls[name])) for name, (_, kind) in _CALLS.items()]
        self.functions = _Functions(*(ctypes.cast(each, _POINTER).value for each in self._callbacks))

    def error(self, code: int, call: str) -> DriverError:
        """Return the error that a call has returned or raised."""
        return DriverError(call, self._cuda.error_name(code)) if self._cuda else self._raised[code - 1]

    def _caught(self, function: Callable[..., object]) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            try:
                function(*arguments)
            except DriverError as error:
                self._raised.append(error)
                return len(self._raised)
            return 0

        return call
