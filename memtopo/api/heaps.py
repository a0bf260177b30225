"""Heaps of a live layout: memory that a program allocates under addresses of the layout."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar, get_args

from msgspec.structs import replace

from memtopo.api.errors import NotMapped, OutOfMemory, Unsuitable
from memtopo.api.memory import Shape, ViewRequest, described, whole_number
from memtopo.common.arguments import path, refused, word
from memtopo.common.units import exact
from memtopo.driver.types import HandleType
from memtopo.native import NoLibrary
from memtopo.native.heaps import Refusal
from memtopo.run import heaps
from memtopo.run.heaps import HeapFailed, HeapFull, HeapRefused, Keep

if TYPE_CHECKING:
    from memtopo.api.elastic import ElasticMemory, HeapUser
    from memtopo.api.views import View
    from memtopo.kinds.heaps.steps import HeapContent

U = TypeVar("U", bound="HeapUser")


class HeapAllocation(NamedTuple):
    """Allocation in a heap: its address, and its size in bytes, a multiple of the heap's granule."""

    address: int
    size: int


class Heap:
    """Heap of a layout, by its label. Its methods may be called by several threads.

    Methods raise `Unsuitable` for what the heap cannot do at present, with everything as it was, and `NotMapped` after
    a driver error. New memory has undefined bytes.
    """

    __slots__ = ("_memory", "name")

    def __init__(self, name: str, memory: ElasticMemory) -> None:
        self.name, self._memory = name, memory

    @property
    def exists(self) -> bool:
        """False once the heap was taken down with its layout, or removed by a change."""
        return self._memory.has_heap(self.name)

    @property
    def address(self) -> int:
        """First device address of the heap."""
        return self._content.base

    @property
    def size(self) -> int:
        """Bytes of addresses."""
        return self._content.step.size

    @property
    def granule(self) -> int:
        """Bytes of which the size of each allocation is a multiple."""
        return self._content.step.granule

    @property
    def limit(self) -> int | None:
        """Largest number of bytes that may be allocated, in all heaps that share the limit; None if there is none."""
        return self._content.budget.limit

    @property
    def left(self) -> int | None:
        """Bytes that the limit leaves for further allocations; None if there is no limit."""
        budget = self._content.budget
        return None if budget.limit is None else max(budget.limit - budget.used, 0)

    @property
    def used(self) -> int:
        """Bytes that are allocated, whether they have memory at present or not."""
        return sum(each.size for each in self.allocations)

    @property
    def allocations(self) -> tuple[HeapAllocation, ...]:
        """Allocations in order of address."""
        return tuple(HeapAllocation(each.address, each.size) for each in self._content.native.allocations())

    @property
    def asleep(self) -> bool:
        """True from `sleep` to `wake`."""
        return self._content.asleep

    def allocate(self, size: int) -> int:
        """Allocate `size` bytes, rounded up to granules; return the device address. Raises `OutOfMemory`."""
        bytes = _bytes("size", size)
        with self._memory.followed(self.name), _errors():
            return heaps.allocate(self._content, bytes)

    def free(self, address: int) -> None:
        """Free an allocation, once the work of its GPU is done."""
        with self._memory.followed(self.name), _errors():
            heaps.free(self._content, whole_number("address", address))

    def keep_free(self, margin: int) -> None:
        """Refuse allocations that would leave less than `margin` bytes of the GPU free; 0 is the default."""
        self._content.native.keep_free(_bytes("margin", margin))

    def view(
        self,
        address: int,
        dtype: object = "uint8",
        shape: Shape = None,
        size: int | None = None,
        device: str | int | None = None,
    ) -> View:
        """View of an allocation, or of a part of it: from an address on, to its end by default."""
        content, address = self._content, whole_number("address", address)
        holding = (each for each in self.allocations if each.address <= address < each.address + each.size)
        if (found := next(holding, None)) is None:
            raise Unsuitable(f"heap {self.name!r}: nothing is allocated at {address:#x}")
        request = ViewRequest.of(dtype, shape, address - found.address, size, device)
        start, end = request.span(f"the allocation at {found.address:#x}", found.size)
        part = replace(request, offset=found.address - content.base + start, size=end - start)
        return self._memory.view(self.name, part)

    def export(self, address: int, via: Literal["fd", "fabric"] = "fd") -> int | bytes:
        """Return a shareable handle of an allocation, with which another process maps its memory.

        It is a file descriptor, which the caller closes once it is sent, or the 64 bytes of a fabric handle; the heap
        needs `handles` of the type. Memory stays allocated as long as a descriptor or an import of it exists (fact 29),
        whatever the heap does. After a sleep the allocation has other memory, and is to be exported again.
        """
        kinds = {"fd": HandleType.FD, "fabric": HandleType.FABRIC}
        kind = kinds[word("via", via, kinds)]
        with self._changing():
            return heaps.export(self._memory.driver, self._content, whole_number("address", address), kind)

    def sleep(self, keep: Keep | None = "page-locked", *, folder: str | os.PathLike[str] | None = None) -> None:
        """Give the memory back, for other programs, until `wake`; allocations keep their addresses.

        Their bytes are kept in host memory, page-locked or `pageable`, which is allocated when it is first needed, and
        stays; with None they are undefined afterwards. With a `folder`, without `keep`, its files keep them, and the
        memory goes once the disk has them; no other heap may use it. Work of the GPU is awaited; an access of the
        program until `wake` is to an illegal address. Nothing can be allocated or freed meanwhile.
        """
        if keep is not None:
            word("keep", keep, get_args(Keep))
        if folder is not None and keep != "page-locked":
            raise refused("keep", keep, "possible with a folder, which keeps the bytes", "omit 'keep', or 'folder'")
        with self._changing_memory():
            kept_in = None if folder is None else os.fspath(path("folder", folder))
            heaps.sleep(self._memory.driver, self._memory.layout, self.name, keep, kept_in)

    def wake(self) -> None:
        """Give all allocations memory again, at their addresses and with the bytes that were kept."""
        with self._changing_memory():
            heaps.wake(self._memory.driver, self._memory.layout, self.name)

    def drop_backup(self) -> None:
        """Free the host memory that kept the bytes of the last `sleep`; the next one allocates it anew."""
        with self._changing():
            heaps.drop_backups(self._memory.driver, self._memory.layout, self.name)

    def backup(self, address: int) -> int | None:
        """Return the host address of the byte that `sleep` has kept of a device address; None if none is kept."""
        content, address = self._content, whole_number("address", address)
        for each in content.native.allocations():
            kept = each.number in content.kept and each.number in content.backups
            if kept and each.address <= address < each.address + each.size:
                return content.backups[each.number].address + address - each.address
        return None

    @property
    def explanation(self) -> str | None:
        """Reason for the last failed allocation, by whichever function; None if none has failed."""
        content = self._content
        failed = content.native.failure
        return str(heaps.failure(content, *failed)) if failed else None

    @property
    def failures(self) -> int:
        """Number of allocations that failed, by whichever function."""
        return self._content.native.failures

    def user(self, make: Callable[[], U]) -> U:
        """Return the library that allocates in this heap, which `make` introduces when it is first needed."""
        return self._memory.user(self.name, make)

    @property
    def functions(self) -> tuple[int, int]:
        """Addresses of C functions that allocate and free in this heap: those of PyTorch's pluggable allocators.

        `void *(ssize_t size, int device, void *stream)` and `void (void *, ssize_t size, int device, void *stream)`.
        They never run Python, and return NULL where `allocate` raises an error.
        """
        with _errors():
            return self._content.native.functions()

    @property
    def _content(self) -> HeapContent:
        return self._memory.heap(self.name)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with self._memory.changing(), self._memory.followed(self.name), _errors():
            yield

    @contextmanager
    def _changing_memory(self) -> Iterator[None]:
        with self._changing():
            self._memory.prepare(self.name)
            yield
        self._memory.report_held()

    def __repr__(self) -> str:
        return described(f"heap {self.name}", self._state)

    def _state(self) -> str:
        return f"{exact(self.used)} of {exact(self.size)} in {len(self.allocations):,} allocations"


def _bytes(name: str, value: int) -> int:
    """Return a number of bytes. Raises `Unsuitable` if it is negative or no whole number."""
    if (bytes := whole_number(name, value)) < 0:
        raise Unsuitable(f"{name} is {bytes:,} bytes", hint="0 is the least")
    return bytes


@contextmanager
def _errors() -> Iterator[None]:
    """Raise the errors of the API."""
    try:
        yield
    except HeapFull as error:
        raise OutOfMemory(error.message, hint=error.hint) from None
    except (HeapRefused, NoLibrary) as error:
        raise Unsuitable(error.message, hint=error.hint) from None
    except Refusal as error:
        raise Unsuitable("64 heaps of this process have functions for other libraries already") from error
    except HeapFailed as error:
        raise NotMapped(error.message, hint=error.hint) from error
