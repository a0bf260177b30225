"""Views: memory of a layout as arrays, for consumers of DLPack or of the array interfaces. Nothing is copied.

Memory of a simulator is mapped into this process, for views by the CPU.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from memtopo.api import dlpack
from memtopo.api.dlpack import DType, ExportedTensors
from memtopo.api.errors import NotElastic, ReadOnlyIgnored, Unsuitable
from memtopo.api.memory import LayoutMemory, MemoryPart, ViewRequest
from memtopo.api.ranges import access_at
from memtopo.api.session import Session
from memtopo.common.mapped_files import READ, READ_WRITE, FileSegment, HostMapping
from memtopo.common.units import exact
from memtopo.driver.types import Access, Location, LocationKind
from memtopo.kinds.elastic import content_of
from memtopo.kinds.layout import Reservation
from memtopo.language.names import AWAKE

if TYPE_CHECKING:
    from memtopo.drivers.sim import SimDriver


_LEGACY_STREAM = 1
_VERSIONED = 1


class ViewOwner(Protocol):
    """Owner of the memory of views; once it is `closed`, the memory is being released."""

    closed: bool

    def require_present(self, view: View) -> None:
        """Raise `BufferError` if the memory of a view is gone at present."""

    def export(self, name: str, block: int, *, versioned: bool) -> object:
        """Return a capsule with a tensor, which counts as in use until it is released."""

    def warn_read_only(self, view: View) -> None:
        """Warn, once for all views of the owner, that the consumer of a read-only view may write to it."""


@lru_cache(maxsize=256)
def _bytes(size: int) -> Any:
    """Return an array type whose instances can have attributes; cached, since types are expensive to create."""
    return type("Bytes", (ctypes.c_ubyte * size,), {})


class View:
    """Elements of `dtype` in C order at `address`, with a `shape`; `name` is the name of the memory.

    `device` is the name of the location (`gpu0`, `host`), whose access determines whether the view is `read_only`.
    """

    __slots__ = ("__weakref__", "_dl_device", "_owner", "address", "device", "dtype", "name", "read_only", "shape")

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
        owner: ViewOwner,
    ) -> None:
        self.name, self.address, self.shape, self.dtype, self.device = name, address, shape, dtype, device
        self.read_only = read_only
        self._dl_device, self._owner = dl_device, owner

    @property
    def unmap(self) -> NoReturn:
        """Method of elastic ranges, which a view has not."""
        raise NotElastic(f"{self.name} is not elastic, and is viewed", hint="write 'elastic' for it in the spec")

    map = batch = seal = adopt = mappings = unmap

    @property
    def size(self) -> int:
        """Size of all elements in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __repr__(self) -> str:
        r = ", read-only" * self.read_only
        return f"<view of {self.name}: {self.dtype.name}{list(self.shape)} on {self.device} at {self.address:#x}{r}>"

    @property
    def memory(self) -> memoryview:
        """All bytes as a flat memoryview for the CPU; while it or a slice of it exists, the view is in use.

        Raises `BufferError` for memory that only a GPU can access.
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
        """Return a capsule for `from_dlpack`, without synchronisation: a layout has no outstanding work of its own.

        Raises `BufferError` if a copy or another device is requested, after the layout was taken down, and for a
        read-only view if the consumer's version of DLPack has no read-only flag (`max_version` below 1.0).
        """
        self._require_open()
        if dl_device is not None and tuple(dl_device) != self._dl_device:
            raise BufferError(f"{self.name} is on device {self._dl_device}, and a view cannot move it to {dl_device}")
        if copy:
            raise BufferError(f"{self.name}: a view exports the memory itself, never a copy")
        self._check_stream(stream)
        versioned = max_version is not None and max_version[0] >= _VERSIONED
        if self.read_only and not versioned:
            what = "this consumer's DLPack has no read-only flag (it does not request version 1.0 or later)"
            raise BufferError(f"{self.name} is read-only for {self.device}, and {what}")
        if self.read_only and self._consumer_ignores_flag():
            self._owner.warn_read_only(self)
        block = dlpack.allocate(
            self.address, self.shape, self.dtype, self._dl_device, versioned=versioned, read_only=self.read_only
        )
        return self._owner.export(self.name, block, versioned=versioned)

    def _check_stream(self, stream: object) -> None:
        raise NotImplementedError

    def _consumer_ignores_flag(self) -> bool:
        """Return whether the library that called `__dlpack__` may write to read-only memory."""
        raise NotImplementedError

    def _require_open(self) -> None:
        if self._owner.closed:
            raise BufferError(f"the memory of {self.name} was released: its layout was taken down")
        self._owner.require_present(self)

    def _interface(self) -> dict[str, Any]:
        self._require_open()
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
    """View of memory for a GPU, for CuPy, PyTorch, JAX, Numba and others."""

    __slots__ = ()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3 of the interface. Raises `AttributeError` for types without a typestr (bfloat16, float8)."""
        found = {**self._interface(), "stream": None}
        if self.read_only:
            self._owner.warn_read_only(self)
        return found

    def __array__(self, *_: object, **__: object) -> NoReturn:
        raise TypeError(f"{self.name} is memory of {self.device}, which NumPy cannot read: use CuPy, PyTorch or JAX")

    def _check_stream(self, stream: object) -> None:
        if stream is not None and (not isinstance(stream, int) or stream == 0 or stream < -1):
            raise BufferError(f"stream {stream!r} is invalid: use -1 (none), {_LEGACY_STREAM}, 2 or a handle")

    def _consumer_ignores_flag(self) -> bool:
        return True  # no library for GPUs stops the stores of kernels


class HostView(View):
    """View of memory for the CPU, for NumPy and others: a host chunk, or any memory of a simulator.

    It does not implement the buffer protocol: Python 3.11 classes cannot, and NumPy would prefer it to the interface,
    which has the type and shape.
    """

    __slots__ = ()

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """Version 3 of the interface. Raises `AttributeError` for types without a typestr (bfloat16, float8)."""
        return self._interface()

    @property
    def memory(self) -> memoryview:
        """All bytes as a flat memoryview; while it or a slice of it exists, the view is in use."""
        self._require_open()
        array = _bytes(self.size).from_address(self.address)
        array.view = self
        found = memoryview(array).cast("B")
        return found.toreadonly() if self.read_only else found

    def _check_stream(self, stream: object) -> None:
        if stream is not None:
            raise BufferError(f"stream {stream!r}: host memory has no stream")

    def _consumer_ignores_flag(self) -> bool:
        consumer = sys._getframe(2)  # noqa: SLF001 DLPack does not say who asks
        return str(consumer.f_globals.get("__name__")).startswith("torch.")


class ViewFactory:
    """Views of one layout, and which of them are in use: the views themselves, and tensors exported from them.

    On a simulator, each range is mapped into this process once for each device with a view of it.
    """

    def __init__(self, session: Session, memory: LayoutMemory) -> None:
        self.closed = False
        self._process = os.getpid()
        self.read_only = False
        """True if all views are read-only, whatever the access of their device."""
        self._warned = False
        self._lock = threading.RLock()
        """Taken to make a view, also in the handler of a signal meanwhile, and to refuse others."""
        self._session, self._memory = session, memory
        self._views: weakref.WeakKeyDictionary[View, MemoryPart] = weakref.WeakKeyDictionary()
        self._tensors = ExportedTensors()
        self._mappings: dict[tuple[str, Location], HostMapping] = {}
        self._replaced: list[HostMapping] = []
        """Mappings of objects that a change has taken away or moved: they read zeros for the views that exist."""
        self._gone: weakref.WeakSet[View] = weakref.WeakSet()

    def view(self, name: str, part: MemoryPart, request: ViewRequest) -> View:
        """Make a view. Raises `Unsuitable` if shape or alignment do not fit, and once the layout is taken down."""
        with self._lock:
            if self.closed:
                raise Unsuitable(f"{name} no longer exists: its layout was taken down")
            if why := self._absent(name, part):
                raise why
            shape = request.fit(name, part.size)
            address = self._address(part) + part.offset
            itemsize = request.dtype.itemsize
            if address % itemsize:
                raise Unsuitable(f"{name} at {exact(part.offset)} is not aligned to the {itemsize} bytes of an element")
            on_gpu = part.location.kind is LocationKind.GPU and not self._session.machine.simulated
            view = (GpuView if on_gpu else HostView)(
                name,
                address,
                shape,
                request.dtype,
                str(part.location),
                dl_device=(dlpack.CUDA, part.location.id) if on_gpu else (dlpack.CPU, 0),
                read_only=self.read_only or part.access is not Access.RW,
                owner=self,
            )
            self._views[view] = part
            return view

    def require_own(self, what: str) -> None:
        """Raise `Unsuitable` in a process that was forked from the one that has the layout."""
        if os.getpid() != self._process:
            message = f"{what} belongs to process {self._process}, from which this one was forked"
            raise Unsuitable(message, hint="start processes by 'spawn' instead, and join or attach to the layout there")

    def require_present(self, view: View) -> None:
        """Raise `BufferError` if the memory of a view is gone: in a state, or since its holder has taken it back."""
        if view in self._gone:
            raise BufferError(f"the memory of {view.name} was released: its layout was changed")
        if why := self._absent(view.name, self._views[view]):
            raise BufferError(str(why))

    def export(self, name: str, block: int, *, versioned: bool) -> object:
        """Return a capsule with a tensor, which counts as in use until it is released."""
        return self._tensors.export(name, block, versioned=versioned)

    def warn_read_only(self, view: View) -> None:
        """Warn, once for a layout, that the consumer of a read-only view may write to it."""
        if not self._warned:
            self._warned = True
            result = "a store from a kernel ends the process (fact 24)"
            if isinstance(view, HostView):
                result = "a store ends the process with SIGSEGV"
            message = f"{view.name} is read-only for {view.device}; the library that imports it may not keep that flag"
            warnings.warn(f"{message}, and {result}", ReadOnlyIgnored, stacklevel=3)

    def in_use(self) -> list[str]:
        """Return the names of the views that are in use, without duplicates."""
        return sorted({*(view.name for view in self._views), *self._tensors.in_use()})

    def reservations(self) -> Mapping[str, Reservation]:
        """Address and size of each object that is viewed, by the labels of the spec."""
        layout = self._session.layout
        labels = {part.label for part in self._views.values()}
        labels |= {label for label, _ in self._mappings}
        return {label: layout.reservation(label) for label in labels if self._exists(label)}

    def follow(self, memory: LayoutMemory, before: Mapping[str, Reservation]) -> None:
        """Follow a change of the layout; `before` has the reservations from before it.

        `memory` is another one after a change to another spec. Views of memory that only a state takes away stay valid.
        """
        layout = self._session.layout
        same, self._memory = memory is self._memory, memory
        stays = {label for label, each in before.items() if self._exists(label) and layout.reservation(label) == each}
        for view, part in self._views.items():
            if part.label not in stays or not (same or memory.covers(part, content_of(layout, part.label))):
                self._gone.add(view)
        for key in [key for key in self._mappings if key[0] not in stays]:
            mapping = self._mappings.pop(key)
            with _mapping_errors():
                mapping.blank()
            self._replaced.append(mapping)
        self.refresh()

    def refresh(self, only: str | None = None) -> None:
        """Map the memory that ranges, or `only` one, have now on a simulator, under the addresses of their views."""
        if self._mappings and (simulator := self._session.simulator):
            for (label, location), mapping in self._mappings.items():
                if only not in (None, label):
                    continue
                if not self._exists(label):
                    with _mapping_errors():
                        mapping.blank()
                    continue
                address = self._session.layout.address(label)
                with _mapping_errors():
                    mapping.replace(segments(simulator, address, self._present(label, location)))

    def _present(self, label: str, location: Location) -> Iterator[tuple[int, int, Access]]:
        """Offset, size and access of the mappings of a range that exist now, or of another object as a whole."""
        layout = self._session.layout
        base = layout.ranges[label].address if label in layout.ranges else None
        for offset, size, access in self._memory.mappings(label, location):
            if base is None or base + offset in layout.mappings:
                yield offset, size, access
        if content := content_of(layout, label):
            for offset, chunk in content.present():
                piece = next(content.access(offset, offset + chunk.size))
                grants = piece.zero_grants if chunk is content.zero else piece.grants
                yield offset, chunk.size, access_at(grants, location)

    def _absent(self, name: str, part: MemoryPart) -> Unsuitable | None:
        """Return the error for bytes without memory at present; None if all of them have some."""
        state, absent = self._session.run.variant
        if (state == AWAKE and not absent) or self._has_memory(part):
            return None
        if state != AWAKE:
            return Unsuitable(f"{name} has no memory in state {state!r}", hint="switch('awake') first")
        message = f"{name} currently has no memory: the exporting layout has released it"
        return Unsuitable(message, hint="poll() imports it again once that layout has the memory")

    def _has_memory(self, part: MemoryPart) -> bool:
        layout, end = self._session.layout, part.offset + part.size
        if part.label not in layout.ranges:
            return self._exists(part.label)
        base = layout.ranges[part.label].address
        return all(
            base + offset in layout.mappings
            for offset, size, _ in self._memory.mappings(part.label, part.location)
            if offset < end and offset + size > part.offset
        )

    def _exists(self, label: str) -> bool:
        return label in self._session.layout.addressed

    def close(self) -> None:
        """Refuse new views and new uses of the views that exist, before the layout is taken down."""
        with self._lock:
            self.closed = True

    def release(self) -> Sequence[str]:
        """Return the names of the views in use after the teardown; a simulator's memory is then replaced by zeros."""
        outlived = self.in_use()
        for mapping in (*self._mappings.values(), *self._replaced):
            if outlived:
                with _mapping_errors():
                    mapping.blank()
            else:
                mapping.close()
        self._mappings.clear()
        self._replaced.clear()
        return outlived

    def _address(self, part: MemoryPart) -> int:
        """Return the address of the object with the part, as it is used by the view."""
        simulator = self._session.simulator
        if simulator is None or self._memory.is_of_process(part.label):
            return self._session.layout.address(part.label)
        label, offset = self._memory.containing(part.label)
        key = label, part.location
        if key not in self._mappings:
            address, size = self._session.layout.reservation(label)
            found = segments(simulator, address, self._present(label, part.location))
            with _mapping_errors():
                self._mappings[key] = HostMapping(size, found)
        return self._mappings[key].address + offset


_PROTECTION = {Access.R: READ, Access.RW: READ_WRITE}


def segments(driver: SimDriver, address: int, mappings: Iterable[tuple[int, int, Access]]) -> Iterator[FileSegment]:
    """Yield the segments of a simulator's memory at an address, for the offset, size and access of each mapping.

    The files remain owned by the simulator.
    """
    for offset, size, access in mappings:
        if access:
            fd, at = driver.lend(address + offset, writable=access is Access.RW)
            yield FileSegment(offset, size, fd, at, _PROTECTION[access])


@contextmanager
def _mapping_errors() -> Iterator[None]:
    """Raise an `OSError` that says what the code inside maps."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"the simulator's memory cannot be mapped: {error.strerror}") from error
