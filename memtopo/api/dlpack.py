"""DLPack tensors and their element types.

Tensors are in memory that Python does not own, since a consumer of a tensor may outlive all Python objects.

A tensor is one block: the struct, then shape and strides. Its deleter is the C library's `sigemptyset`, which clears
the first word of its argument, so that the block itself shows that it was released. A deleter written in Python would
have to run in any thread, with an exception pending (which ctypes loses), and after the interpreter has ended.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec import Struct

from memtopo.api.errors import Unsuitable
from memtopo.common.units import shorten
from memtopo.diagnostics.messages import choose

CPU, CUDA = 1, 2
"""Device types (`DLDeviceType`)."""

VERSION = (1, 1)
READ_ONLY = 1
_CLEARED = 128
"""Bytes that `sigemptyset` may clear at most: the size of `sigset_t`."""


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("id", ctypes.c_int32))


class _Type(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _Type),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


class ManagedTensor(ctypes.Structure):
    """`DLManagedTensor`; its first word is the address of the data, which is not 0 until the tensor is released."""

    _fields_ = (("tensor", _Tensor), ("manager", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class VersionedTensor(ctypes.Structure):
    """`DLManagedTensorVersioned`; its first word is the version, which is not 0 until the tensor is released."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_libc = ctypes.CDLL(None)
_libc.malloc.restype, _libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
_libc.free.restype, _libc.free.argtypes = None, [ctypes.c_void_p]
_DELETER = ctypes.cast(_libc.sigemptyset, ctypes.c_void_p).value


def allocate(
    address: int, shape: Sequence[int], dtype: DType, device: tuple[int, int], *, versioned: bool, read_only: bool
) -> int:
    """Allocate a managed tensor over existing memory, and return its address; it is freed after its release.

    `device` is DLPack's type and number. Only a versioned tensor has a read-only flag.
    """
    kind = VersionedTensor if versioned else ManagedTensor
    numbers = (*shape, *strides(shape))
    start = max(ctypes.sizeof(kind), _CLEARED)
    block = _libc.malloc(start + 8 * max(len(numbers), 1))
    if not block:
        raise MemoryError
    (ctypes.c_int64 * len(numbers)).from_address(block + start)[:] = list(numbers)
    managed = kind.from_address(block)
    ctypes.memset(block, 0, ctypes.sizeof(kind))
    managed.deleter = _DELETER
    if isinstance(managed, VersionedTensor):
        managed.major, managed.minor = VERSION
        managed.flags = READ_ONLY * read_only
    tensor = managed.tensor
    tensor.data, tensor.ndim = address, len(shape)
    tensor.device = _Device(*device)
    tensor.dtype = _Type(dtype.code, dtype.bits, 1)
    tensor.shape, tensor.strides = block + start, block + start + 8 * len(shape)
    return int(block)


def free(block: int) -> None:
    """Free a tensor that was released."""
    _libc.free(block)


def strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a shape in elements, in C order."""
    found: list[int] = []
    step = 1
    for extent in reversed(shape):
        found.append(step)
        step *= extent
    return tuple(reversed(found))


# Not `ctypes.pythonapi`, on which other packages declare types of their own: the last one counts for all.
_api = ctypes.PyDLL(None)
_new = _api.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
_valid = _api.PyCapsule_IsValid
_valid.restype, _valid.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]

_PLAIN, _VERSIONED = b"dltensor", b"dltensor_versioned"
_strdup = _libc.strdup
_strdup.restype, _strdup.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
# A capsule keeps only the address of its name, and may exist longer than this module.
_NAMES = {name: _strdup(name) for name in (_PLAIN, _VERSIONED)}

_OWN_REFERENCES = 2
"""References to a capsule without consumers: that of `ExportedTensor`, and the argument of `getrefcount`."""

_FIRST_SWEEP = 64


class ExportedTensor(Struct):
    """Tensor at the address `block`, of the view `name`; the capsule is kept until a consumer takes the tensor."""

    name: str
    block: int
    label: bytes
    capsule: object | None


class ExportedTensors:
    """All exported tensors of one layout.

    The capsules have no destructor, since one written in Python would lose a pending exception. Tensors that are no
    longer in use are freed by sweeps, whenever the number of tensors has doubled.
    """

    def __init__(self) -> None:
        self._tensors: list[ExportedTensor] = []
        self._next_sweep = _FIRST_SWEEP
        self._lock = threading.Lock()

    def export(self, name: str, block: int, *, versioned: bool) -> object:
        """Return a capsule with a tensor."""
        label = _VERSIONED if versioned else _PLAIN
        capsule = _new(block, _NAMES[label], None)
        with self._lock:
            self._tensors.append(ExportedTensor(name, block, label, capsule))
            if len(self._tensors) >= self._next_sweep:
                self._sweep()
                self._next_sweep = max(_FIRST_SWEEP, 2 * len(self._tensors))
        return capsule

    def in_use(self) -> Iterable[str]:
        """Return the names of the views whose tensors are in use."""
        with self._lock:
            self._sweep()
            return [tensor.name for tensor in self._tensors]

    def _sweep(self) -> None:
        self._tensors = [tensor for tensor in self._tensors if not _freed(tensor)]


def _freed(tensor: ExportedTensor) -> bool:
    """Free a tensor that is no longer in use; return true if it was freed."""
    if tensor.capsule is not None:
        if not _valid(tensor.capsule, tensor.label):
            tensor.capsule = None  # the consumer renamed the capsule, and will call the deleter
        elif sys.getrefcount(tensor.capsule) <= _OWN_REFERENCES:
            tensor.capsule = None
            free(tensor.block)
            return True
        else:
            return False
    if not ctypes.c_uint64.from_address(tensor.block).value:  # its deleter was called
        free(tensor.block)
        return True
    return False


_INT, _UINT, _FLOAT, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 4, 5, 6
_E4M3FN, _E5M2 = 10, 12


class DType(NamedTuple):
    """Element type: name, code and bits in DLPack, and the `typestr` of the array interfaces, if there is one."""

    name: str
    code: int
    bits: int
    typestr: str | None

    @property
    def itemsize(self) -> int:
        """Size of one element in bytes."""
        return self.bits // 8


def _known() -> dict[str, DType]:
    kinds: list[tuple[str, int, str, tuple[int, ...]]] = [
        ("int", _INT, "i", (8, 16, 32, 64)),
        ("uint", _UINT, "u", (8, 16, 32, 64)),
    ]
    kinds += [("float", _FLOAT, "f", (16, 32, 64)), ("complex", _COMPLEX, "c", (64, 128))]
    found = [
        DType(f"{name}{bits}", code, bits, f"{'|' if bits == 8 else '<'}{letter}{bits // 8}")  # noqa: PLR2004 a byte
        for name, code, letter, widths in kinds
        for bits in widths
    ]
    found.append(DType("bool", _BOOL, 8, "|b1"))
    found.append(DType("bfloat16", _BFLOAT, 16, None))
    found += [DType(f"float8_{name}", code, 8, None) for name, code in (("e4m3fn", _E4M3FN), ("e5m2", _E5M2))]
    return {each.name: each for each in found}


DTYPES = _known()
"""All types by name."""


_MEANT = {
    "float": "float32, as PyTorch's float, or float64, as NumPy's",
    "int": "int32, as PyTorch's int, or int64, as NumPy's",
    "half": "float16", "double": "float64", "long": "int64", "short": "int16", "char": "int8", "byte": "uint8",
    "fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64",
    "fp8": "float8_e4m3fn or float8_e5m2",
}  # fmt: skip
"""Types that are probably meant by other names of PyTorch, NumPy and engines."""


def dtype(given: object) -> DType:
    """Return the type for a name, or for the object of NumPy or PyTorch. Raises `Unsuitable`."""
    name = given if isinstance(given, str) else getattr(given, "name", None) or getattr(given, "__name__", None)
    text = str(name or given).removeprefix("torch.")
    if text not in DTYPES:
        hint = f"write {_MEANT[text]}" if text in _MEANT else choose(text, list(DTYPES))
        raise Unsuitable(f"dtype {shorten(text)!r} is not known", hint=hint)
    return DTYPES[text]
