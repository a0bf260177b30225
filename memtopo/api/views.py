"""Views: memory of a layout as arrays, for whoever speaks DLPack or one of the array interfaces. Nothing is copied."""

from __future__ import annotations

import ctypes
import math
import weakref
from functools import lru_cache
from typing import Any, NoReturn, Protocol

from memtopo.api import dlpack
from memtopo.api.dlpack import Loans
from memtopo.api.dtypes import DType
from memtopo.api.errors import Unsuitable
from memtopo.api.host_mapping import Window, pieces
from memtopo.api.memory import Found, Memory, Wish
from memtopo.api.session import Session
from memtopo.common.units import exact
from memtopo.driver.types import Access, Location, LocationKind

_LEGACY_STREAM = 1
_VERSIONED = 1


class Lender(Protocol):
    """Who has the memory: it is gone once this is `closed`."""

    closed: bool

    def lend(self, name: str, block: int, *, versioned: bool) -> object:
        """A capsule with a tensor, which is counted until it is given back."""
        ...


@lru_cache(maxsize=256)
def _bytes(size: int) -> Any:
    """An array type whose instances can have attributes; made once for a size, since types are costly and stay long."""
    return type("Bytes", (ctypes.c_ubyte * size,), {})


class View:
    """Elements of `dtype` in C order from `address` on, which are `shape`d; `name` says of which memory.

    `device` is the place in memtopo's words (`gpu0`, `host`), whose access to the memory makes it `read_only` or not.
    """

    __slots__ = ("__weakref__", "_dl_device", "_lender", "address", "device", "dtype", "name", "read_only", "shape")

    def __init__(
        self,
        name: str,
        address: int,
        shape: tuple[int, ...],
        dtype: DType,
        device: str,
        *,
        dl_device: tuple[int, int],
        read_only: bool,
        lender: Lender,
    ) -> None:
        self.name, self.address, self.shape, self.dtype, self.device = name, address, shape, dtype, device
        self.read_only = read_only
        self._dl_device, self._lender = dl_device, lender

    @property
    def size(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __repr__(self) -> str:
        r = ", read-only" * self.read_only
        return f"<view of {self.name}: {self.dtype.name}{list(self.shape)} on {self.device} at {self.address:#x}{r}>"

    @property
    def memory(self) -> memoryview:
        """All bytes, flat, for the CPU; the view is in use as long as the memoryview or a slice of it is.

        Raises `BufferError` of memory that only a GPU can use.
        """
        raise BufferError(f"{self.name} is memory of {self.device}, which the CPU cannot use")

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's kind and number of the device: kDLCUDA (2) and an ordinal, or kDLCPU (1)."""
        return self._dl_device

    def __dlpack__(
        self,
        stream: object = None,
        *,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A capsule for `from_dlpack`. Nothing is waited for: a layout has no work of its own outstanding.

        Raises `BufferError` where a copy or another device is asked for, where the layout is gone, and of a read-only
        view where the consumer knows no version of DLPack that can say so (`max_version` below 1.0).
        """
        self._usable()
        if dl_device is not None and tuple(dl_device) != self._dl_device:
            raise BufferError(f"{self.name} is on device {self._dl_device}, and a view cannot move it to {dl_device}")
        if copy:
            raise BufferError(f"{self.name}: a view hands out the memory itself, and never a copy")
        self._check_stream(stream)
        versioned = max_version is not None and max_version[0] >= _VERSIONED
        if self.read_only and not versioned:
            what = "this consumer's DLPack cannot say so (it asks for no version from 1.0 on)"
            raise BufferError(f"{self.name} is read-only for {self.device}, and {what}")
        at = self.address, self.shape, self.dtype, self._dl_device
        block = dlpack.allocate(*at, versioned=versioned, read_only=self.read_only)
        return self._lender.lend(self.name, block, versioned=versioned)

    def _check_stream(self, stream: object) -> None:
        raise NotImplementedError

    def _usable(self) -> None:
        if self._lender.closed:
            raise BufferError(f"the memory of {self.name} is gone: its layout was taken down")

    def _interface(self) -> dict[str, Any]:
        self._usable()
        if self.dtype.typestr is None:
            raise AttributeError(f"{self.dtype.name} has no typestr; use DLPack, or view it as uint{self.dtype.bits}")
        return {
            "shape": self.shape,
            "typestr": self.dtype.typestr,
            "data": (self.address, self.read_only),
            "strides": None,
            "version": 3,
        }


class GpuView(View):
    """Memory as a GPU sees it, for CuPy, PyTorch, JAX, Numba and others."""

    __slots__ = ()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3 of the interface; types without a typestr (bfloat16, float8) have none."""
        return {**self._interface(), "stream": None}

    def __array__(self, *_: object, **__: object) -> NoReturn:
        raise TypeError(f"{self.name} is memory of {self.device}, which NumPy cannot read: use CuPy, PyTorch or JAX")

    def _check_stream(self, stream: object) -> None:
        if stream is not None and (not isinstance(stream, int) or stream == 0 or stream < -1):
            raise BufferError(f"stream {stream!r} is none: a CUDA stream is -1 (none), {_LEGACY_STREAM}, 2 or a handle")


class HostView(View):
    """Memory that the CPU can use: a chunk of the host, or whatever a simulator has. For NumPy and others.

    It is no buffer itself: Python 3.11 has no way to be one, and NumPy would ask that before type and shape.
    """

    __slots__ = ()

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """Version 3 of the interface; types without a typestr (bfloat16, float8) have none."""
        return self._interface()

    @property
    def memory(self) -> memoryview:
        """All bytes, flat; the view is in use as long as the memoryview or a slice of it is."""
        self._usable()
        array = _bytes(self.size).from_address(self.address)
        array.view = self
        found = memoryview(array).cast("B")
        return found.toreadonly() if self.read_only else found

    def _check_stream(self, stream: object) -> None:
        if stream is not None:
            raise BufferError(f"stream {stream!r}: memory of the host has no stream")


class Lending:
    """Makes views, and knows which are in use: the views themselves, and the tensors that others took from them.

    On a simulator each range is mapped into this process once for each device that views it.
    """

    def __init__(self, session: Session, memory: Memory) -> None:
        self.closed = False
        self._session, self._memory = session, memory
        self._views: weakref.WeakSet[View] = weakref.WeakSet()
        self._loans = Loans()
        self._windows: dict[tuple[str, Location], Window] = {}

    def view(self, name: str, found: Found, wish: Wish) -> View:
        """A view of what was found. Raises `Unsuitable` where shape or alignment do not fit."""
        shape = wish.fit(name, found.size)
        address = self._start(found) + found.offset
        if address % wish.dtype.itemsize:
            told = (
                f"{name} from {exact(found.offset)} on is not aligned to the {wish.dtype.itemsize} bytes of an element"
            )
            raise Unsuitable(told)
        on_gpu = found.place.kind is LocationKind.GPU and not self._session.machine.simulated
        view = (GpuView if on_gpu else HostView)(
            name,
            address,
            shape,
            wish.dtype,
            str(found.place),
            dl_device=(dlpack.CUDA, found.place.id) if on_gpu else (dlpack.CPU, 0),
            read_only=found.access is not Access.RW,
            lender=self,
        )
        self._views.add(view)
        return view

    def lend(self, name: str, block: int, *, versioned: bool) -> object:
        """A capsule with a tensor, which is counted until it is given back."""
        return self._loans.lend(name, block, versioned=versioned)

    def outlived(self) -> list[str]:
        """The names of the views that somebody still uses, each once."""
        return sorted({*(view.name for view in self._views), *self._loans.out()})

    def close(self, *, in_use: bool) -> None:
        """Have no view work any more; where some are `in_use`, a simulator's memory gives way to zeros."""
        self.closed = True
        for window in self._windows.values():
            if in_use:
                window.blank()
            else:
                window.close()
        self._windows.clear()

    def _start(self, found: Found) -> int:
        """Where the range, or whatever it is, begins for whoever views it."""
        simulator = self._session.simulator
        if simulator is None:
            return self._session.layout.address(found.label)
        label, shift = self._memory.behind(found.label)
        key = label, found.place
        if key not in self._windows:
            address, size = self._session.layout.place(label)
            self._windows[key] = Window(size, pieces(simulator, address, self._memory.mappings(label, found.place)))
        return self._windows[key].address + shift
