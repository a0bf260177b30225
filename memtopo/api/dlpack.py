"""DLPack's structs in memory that Python does not own, since whoever has a tensor may outlive all of Python's objects.

A tensor is one block: the struct, then shape and strides. Its deleter is the C library's `sigemptyset`, which clears
the first word of what it is given, and nothing else that anybody reads: so a block tells by itself that it was given
back. A deleter written in Python would have to run in whatever thread, with whatever exception pending (which ctypes
loses), and after the interpreter's end; this one may.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterable, Sequence
from ctypes import (
    POINTER,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
    py_object,
)
from dataclasses import dataclass

from memtopo.api.dtypes import DType

CPU, CUDA = 1, 2
"""Kinds of devices (`DLDeviceType`)."""

VERSION = (1, 1)
READ_ONLY = 1
_CLEARED = 128
"""Bytes that `sigemptyset` may clear at most: the size of a `sigset_t`."""


class _Device(ctypes.Structure):
    _fields_ = (("kind", c_int32), ("id", c_int32))


class _Type(ctypes.Structure):
    _fields_ = (("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", c_void_p),
        ("device", _Device),
        ("ndim", c_int32),
        ("dtype", _Type),
        ("shape", c_void_p),
        ("strides", c_void_p),
        ("byte_offset", c_uint64),
    )


class Managed(ctypes.Structure):
    """`DLManagedTensor`, whose first word is the address of the data, never 0 until it is given back."""

    _fields_ = (("tensor", _Tensor), ("manager", c_void_p), ("deleter", c_void_p))


class Versioned(ctypes.Structure):
    """`DLManagedTensorVersioned`, whose first word is the version, never 0 until it is given back."""

    _fields_ = (
        ("major", c_uint32),
        ("minor", c_uint32),
        ("manager", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", _Tensor),
    )


_libc = ctypes.CDLL(None)
_libc.malloc.restype, _libc.malloc.argtypes = c_void_p, [c_size_t]
_libc.free.restype, _libc.free.argtypes = None, [c_void_p]
_DELETER = ctypes.cast(_libc.sigemptyset, c_void_p).value


def allocate(
    address: int, shape: Sequence[int], dtype: DType, device: tuple[int, int], *, versioned: bool, read_only: bool
) -> int:
    """The address of a new managed tensor over memory that is somebody else's; to be freed once it is given back.

    `device` is DLPack's kind and number. Only a versioned one can say that it is read-only.
    """
    kind = Versioned if versioned else Managed
    numbers = (*shape, *strides(shape))
    start = max(ctypes.sizeof(kind), _CLEARED)
    block = _libc.malloc(start + 8 * max(len(numbers), 1))
    if not block:
        raise MemoryError
    (c_int64 * len(numbers)).from_address(block + start)[:] = list(numbers)
    managed = kind.from_address(block)
    ctypes.memset(block, 0, ctypes.sizeof(kind))
    managed.deleter = _DELETER
    if isinstance(managed, Versioned):
        managed.major, managed.minor = VERSION
        managed.flags = READ_ONLY * read_only
    tensor = managed.tensor
    tensor.data, tensor.ndim = address, len(shape)
    tensor.device = _Device(*device)
    tensor.dtype = _Type(dtype.code, dtype.bits, 1)
    tensor.shape, tensor.strides = block + start, block + start + 8 * len(shape)
    return int(block)


def given_back(block: int) -> bool:
    """Whether the deleter of a tensor was called."""
    return not ctypes.cast(block, POINTER(c_uint64)).contents.value


def free(block: int) -> None:
    """Free a tensor that was given back."""
    _libc.free(block)


def strides(shape: Sequence[int]) -> tuple[int, ...]:
    """How many elements apart neighbours are, in each dimension, where the last one's are adjacent."""
    found: list[int] = []
    step = 1
    for extent in reversed(shape):
        found.append(step)
        step *= extent
    return tuple(reversed(found))


_api = ctypes.pythonapi
_new = _api.PyCapsule_New
_new.restype, _new.argtypes = py_object, [c_void_p, c_void_p, c_void_p]
_valid = _api.PyCapsule_IsValid
_valid.restype, _valid.argtypes = c_int, [py_object, c_char_p]

_PLAIN, _VERSIONED = b"dltensor", b"dltensor_versioned"
_strdup = ctypes.CDLL(None).strdup
_strdup.restype, _strdup.argtypes = c_void_p, [c_char_p]
# A capsule keeps the address of its name alone, and may live longer than this module.
_NAMES = {name: _strdup(name) for name in (_PLAIN, _VERSIONED)}

_OURS = 2
"""References to a capsule that nobody else has: the loan's, and the one that counting takes."""

_FEW = 64


@dataclass(slots=True)
class Loan:
    """A tensor by its address, of the view called `name`; the capsule is kept until somebody takes the tensor out."""

    name: str
    block: int
    label: bytes
    capsule: object | None


class Loans:
    """All tensors of one layout.

    A capsule of ours has no destructor, since one written in Python loses the exception that may be pending; a tensor
    that nobody took out of its capsule is found when the loans are gone through. That is done now and then, so that
    their number stays in proportion to those that are out.
    """

    def __init__(self) -> None:
        self._out: list[Loan] = []
        self._look_at = _FEW
        self._lock = threading.Lock()

    def lend(self, name: str, block: int, *, versioned: bool) -> object:
        """A capsule with a tensor."""
        label = _VERSIONED if versioned else _PLAIN
        capsule = _new(block, _NAMES[label], None)
        with self._lock:
            self._out.append(Loan(name, block, label, capsule))
            if len(self._out) >= self._look_at:
                self._go_through()
                self._look_at = max(_FEW, 2 * len(self._out))
        return capsule

    def out(self) -> Iterable[str]:
        """The names of views of which somebody has a tensor."""
        with self._lock:
            self._go_through()
            return [loan.name for loan in self._out]

    def _go_through(self) -> None:
        self._out = [loan for loan in self._out if not _settled(loan)]


def _settled(loan: Loan) -> bool:
    """Whether nobody has a tensor any more, which is then freed."""
    if loan.capsule is not None:
        if not _valid(loan.capsule, loan.label):
            loan.capsule = None  # its new owner renamed it, and calls the deleter
        elif sys.getrefcount(loan.capsule) <= _OURS:
            loan.capsule = None
            free(loan.block)
            return True
        else:
            return False
    if given_back(loan.block):
        free(loan.block)
        return True
    return False
