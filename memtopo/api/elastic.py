"""Elastic ranges and chunks of a live layout: a program maps and unmaps memory under addresses that stay."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import RLock
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self, TypeVar

from memtopo.api.errors import MemoryHeld, NotMapped, Unsuitable
from memtopo.api.memory import LayoutMemory, Shape, ViewRequest, described, unknown, whole_number
from memtopo.api.session import Session
from memtopo.api.views import View, ViewFactory
from memtopo.common.arguments import text
from memtopo.common.signals import deferred
from memtopo.common.text import plural
from memtopo.common.units import exact, rounded
from memtopo.driver.types import DriverError
from memtopo.geometry.groups import ChunkGroup, RangeGroup
from memtopo.kinds.elastic import ELASTIC_CONTENTS, ELASTIC_POOLS, ElasticChunkPool, ElasticContent
from memtopo.kinds.heaps import HeapGroup
from memtopo.kinds.heaps.steps import HeapContent, heaps
from memtopo.run import elastic
from memtopo.run.elastic import AdoptRequest, ElasticFailed, ElasticRefused, MapRequest, UnmapRequest

T = TypeVar("T")


class MappedChunk(NamedTuple):
    """Chunk that a program has mapped: offset in the range and size in bytes, and its label."""

    offset: int
    size: int
    chunk: str


class HeapUser(Protocol):
    """Library that allocates in a heap by functions of its own."""

    def before_change(self) -> None:
        """Free what is unused, before memory goes or comes back. Raises `Unsuitable` to refuse that."""

    def end(self) -> bool:
        """Allocate no more: the heap ends. Return true if memory of the heap is still in use."""


U = TypeVar("U", bound=HeapUser)


class ElasticMemory:
    """Elastic ranges and chunks of one layout. Its methods may be called by several threads."""

    def __init__(self, session: Session, memory: LayoutMemory, views: ViewFactory) -> None:
        self.lock = RLock()
        """Held during each change, so that a check or a switch does not see a half of one."""
        self._session, self._views = session, views
        self.driver, self.layout = session.driver, session.layout
        self._users: dict[str, Any] = {}
        self._in_use: list[tuple[int, int]] = []
        self.follow(memory)

    def follow(self, memory: LayoutMemory) -> None:
        """Follow a change of the layout to one with another memory."""
        geometry, self._memory = self._session.geometry, memory
        self.ranges = frozenset(
            group.label(index)
            for group in geometry.of(RangeGroup).values()
            if group.elastic and not group.elastic.sized_by_program
            for index in range(group.count)
        )
        """Labels of the elastic ranges."""
        self.heaps = tuple(geometry.of(HeapGroup))
        """Labels of the heaps."""
        for label in self._users.keys() - {*self.heaps}:
            self._users.pop(label).end()
        self.pools = tuple(name for name, group in geometry.of(ChunkGroup).items() if group.growing)
        """Names of the elastic chunks."""

    def content(self, label: str) -> ElasticContent:
        """Return what is mapped in a range. Raises `Unsuitable` after the end, and in states that drop the range."""
        return self._present(f"range {label!r}", self.layout.of(ELASTIC_CONTENTS), label, self.ranges)

    def chunks(self, name: str) -> ElasticChunks:
        """Return elastic chunks by the name of their entry. Raises `Unsuitable`."""
        if name not in self.pools:
            raise unknown("entry of elastic chunks", name, self.pools)
        self.pool(name)
        return ElasticChunks(name, self)

    def pool(self, name: str) -> ElasticChunkPool:
        """Return elastic chunks. Raises `Unsuitable` after the end, and in states that drop them."""
        return self._present(f"chunks {name!r}", self.layout.of(ELASTIC_POOLS), name, self.pools)

    def heap(self, label: str) -> HeapContent:
        """Return the content of a heap. Raises `Unsuitable` after the end, and after a change that has removed it."""
        self._require_open(f"heap {label!r}")
        if (found := heaps(self.layout).get(label)) is None:
            raise unknown("heap", label, self.heaps)
        return found

    def has_heap(self, label: str) -> bool:
        """Return False after the end, and after a change that has removed the heap."""
        return not self._views.closed and label in heaps(self.layout)

    def user(self, label: str, make: Callable[[], U]) -> U:
        """Return the library that allocates in a heap, which `make` introduces when there is none yet."""
        with self.lock:
            self.heap(label)
            if label not in self._users:
                self._users[label] = make()
            found: U = self._users[label]
            return found

    def prepare(self, only: str | None = None) -> None:
        """Tell the libraries that allocate in the heaps, or in `only` one, that memory goes or comes back."""
        for label, user in self._users.items():
            if only in (None, label):
                user.before_change()

    def report_held(self) -> None:
        """Warn of memory that heaps gave back and that others keep in use."""
        for label, content in heaps(self.layout).items():
            held, content.held = content.held, 0
            if held:
                message = (
                    f"heap {label!r} gave memory back, and {rounded(held)} of it did not become free: a library that "
                    "has registered it (NCCL, RDMA), or a process that has imported it, keeps the old memory, and does "
                    "not see the bytes of the heap after it wakes up. Let them release it before; nothing is lost if "
                    "instead another thread or program allocated as much meanwhile"
                )
                warnings.warn(message, MemoryHeld, stacklevel=4)

    def end(self) -> None:
        """Tell the libraries that allocate in the heaps that these end."""
        for label, user in self._users.items():
            content = self.heap(label)
            if user.end():
                self._in_use.append((content.base, content.step.size))

    def keep_addresses(self) -> None:
        """Reserve the addresses of heaps that are in use after the end, so that nothing else on a GPU gets them."""
        for address, size in () if self._session.simulator else self._in_use:
            with suppress(DriverError):
                got = self.driver.mem_address_reserve(size, address=address)
                if got != address:
                    self.driver.mem_address_free(got, size)

    def change(self, label: str, maps: list[MapRequest], unmaps: list[UnmapRequest], *, wait: bool) -> tuple[str, ...]:
        """Make a batch; return the labels of the chunks that it mapped."""
        with self.changing_chunks(label):
            self.content(label)
            return tuple(elastic.change_range(self.driver, self.layout, label, maps, unmaps, wait=wait))

    def view(self, label: str, request: ViewRequest) -> View:
        """View of a part of a range that is mapped throughout."""
        with self.lock:
            content = self.heap(label).content() if label in self.heaps else self.content(label)
            noun = "heap" if label in self.heaps else "range"
            return self._views.view(f"{noun} {label!r}", self._memory.elastic(content, request), request)

    @contextmanager
    def followed(self, label: str) -> Iterator[None]:
        """Bring views up to date with a change of the code inside, which signals do not interrupt.

        On a GPU, the views are by themselves, and the change runs no Python.
        """
        if not self._session.simulator:
            yield
            return
        with self.changing():
            try:
                yield
            finally:
                self._views.refresh(label)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Make one change at a time, which signals do not interrupt."""
        with deferred(), self.lock:
            yield

    @contextmanager
    def changing_chunks(self, label: str | None = None) -> Iterator[None]:
        """Make one change at a time, bring the views of a range up to date, and raise the errors of the API."""
        with self.changing():
            try:
                yield
            except ElasticRefused as error:
                raise Unsuitable(error.message, hint=error.hint) from None
            except ElasticFailed as error:
                raise NotMapped(error.message, hint=error.hint) from error
            finally:
                if label:
                    self._views.refresh(label)

    def _require_open(self, what: str) -> None:
        if self._views.closed:
            raise Unsuitable(f"{what} no longer exists: its layout was taken down")
        self._views.require_own(what)

    def _present(self, what: str, table: Mapping[str, T], name: str, names: Collection[str]) -> T:
        """Return an object of a table. Raises `Unsuitable`; `names` are those of all elastic ones, present or not."""
        self._require_open(what)
        if (found := table.get(name)) is not None:
            return found
        if name not in names:
            raise Unsuitable(f"{what}: no longer elastic, because the layout was changed")
        raise Unsuitable(f"{what}: no memory in state {self._session.state!r}", hint="switch('awake') first")


class ElasticRange:
    """Elastic range of a layout, by its label: `kv`, or `kv.3` of a counted one.

    Its chunks are created by this process, or lent by the holder of a layout that it is attached to. Methods raise
    `Unsuitable` for what the range or its chunks cannot have, with everything as it was, and `NotMapped` after a driver
    error, with everything brought back. A holder that does not lend as many as are requested, or at all, is an
    `ExchangeError` with everything as it was: `full`, `absent` or `gone`. Work that uses what is unmapped is awaited;
    with `wait=False` it is the program's to await (fact 18). New memory has undefined bytes.
    """

    __slots__ = ("_memory", "name")

    def __init__(self, name: str, memory: ElasticMemory) -> None:
        self.name, self._memory = name, memory

    @property
    def address(self) -> int:
        """Device address of the range."""
        return self._memory.content(self.name).base

    @property
    def size(self) -> int:
        """Bytes of the range."""
        return self._memory.content(self.name).size

    @property
    def mappings(self) -> tuple[MappedChunk, ...]:
        """Mappings that the program has made, in order of offset, without zero pages."""
        with self._memory.lock:
            content = self._memory.content(self.name)
            zero = content.zero
            return tuple(MappedChunk(at, each.size, each.label) for at, each in content.present() if each is not zero)

    def map(self, offset: int, chunk: str, count: int = 1, *, wait: bool = True) -> tuple[str, ...]:
        """Map `count` elastic chunks one after another from `offset` on, and return their labels.

        Chunks that exist and are not mapped are taken first, then new ones are created, up to the `max` of the spec.
        """
        return self._memory.change(self.name, [_mapping(offset, chunk, count)], [], wait=wait)

    def unmap(self, offset: int, size: int, *, release: bool = False, wait: bool = True) -> None:
        """Unmap all chunks in `size` bytes from `offset` on, which have to be mapped throughout.

        The chunks stay for the next `map`; with `release`, their memory is free at once, or given back to its holder.
        """
        self._memory.change(self.name, [], [_unmapping(offset, size, release=release)], wait=wait)

    def seal(self, offset: int, size: int, *, key: str | None) -> int:
        """Have the holder keep the chunks of a part for a successor, under a key, once this process has ended.

        They are those of one export that lends; with `key=None`, they are not kept any more. This process does not
        write them meanwhile. More chunks may be sealed under a key of this process, and follow the others. Returns the
        latest epoch of their bytes. Raises `ExchangeError`: `stale` if a lease has ended, `sealed` if another process
        has the key.
        """
        part = _unmapping(offset, size, release=False)
        checked_key = None if key is None else text("key", key)
        with self._memory.changing_chunks():
            self._memory.content(self.name)
            return elastic.seal(self._memory.layout, self.name, part, checked_key)

    def adopt(self, offset: int, key: str, chunk: str | None = None, *, epoch: int | None = None) -> tuple[str, ...]:
        """Map what a process that has ended has sealed under a key from `offset` on, with its bytes.

        Returns the labels of the chunks, in the order in which they were sealed. They stay sealed, for a successor of
        this process. `chunk` is needed if chunks of several entries can be mapped here. Raises `ExchangeError`:
        `unknown` if there is no such key, `sealed` if the process has not ended, `stale` for another `epoch`.
        """
        pools = self._memory.content(self.name).pools
        if chunk is None and len(pools) != 1:
            raise Unsuitable(f"range {self.name!r} is of chunks {', '.join(pools)}", hint="name them: chunk=…")
        chosen = pools[0] if chunk is None else text("chunk", chunk)
        latest = None if epoch is None else whole_number("epoch", epoch)
        request = AdoptRequest(whole_number("offset", offset), chosen, text("key", key), latest)
        with self._memory.changing_chunks(self.name):
            self._memory.content(self.name)
            return tuple(elastic.adopt(self._memory.driver, self._memory.layout, self.name, request))

    def batch(self, *, wait: bool = True) -> Batch:
        """Return a batch: what its `with` collects is made at its end, all or nothing."""
        return Batch(lambda maps, unmaps: self._memory.change(self.name, maps, unmaps, wait=wait))

    def view(
        self,
        offset: int = 0,
        size: int | None = None,
        dtype: object = "uint8",
        shape: Shape = None,
        device: str | int | None = None,
    ) -> View:
        """View of a part that is mapped throughout. It stays a valid object when the part is unmapped."""
        return self._memory.view(self.name, ViewRequest.of(dtype, shape, offset, size, device))

    def __repr__(self) -> str:
        def state() -> str:
            mapped = self.mappings
            size = sum(each.size for each in mapped)
            return f"{plural(len(mapped), 'chunk')} mapped, {exact(size)} of {exact(self.size)}"

        return described(f"elastic range {self.name}", state)


class Batch:
    """Maps and unmaps of one range, made together at the end of a `with`, and not at all if that raises.

    Everything is unmapped before anything is mapped. `labels` are those of the mapped chunks, in the order of calls.
    Requests after the end of the `with` raise `Unsuitable`.
    """

    def __init__(self, make: Callable[[list[MapRequest], list[UnmapRequest]], tuple[str, ...]]) -> None:
        self._make = make
        self._maps: list[MapRequest] = []
        self._unmaps: list[UnmapRequest] = []
        self._ended = False
        self.labels: tuple[str, ...] = ()

    def map(self, offset: int, chunk: str, count: int = 1) -> None:
        """Map chunks, as `ElasticRange.map` does."""
        self._require_open()
        self._maps.append(_mapping(offset, chunk, count))

    def unmap(self, offset: int, size: int, *, release: bool = False) -> None:
        """Unmap chunks, as `ElasticRange.unmap` does."""
        self._require_open()
        self._unmaps.append(_unmapping(offset, size, release=release))

    def _require_open(self) -> None:
        if self._ended:
            raise Unsuitable("the batch has ended: its 'with' is over", hint="begin a new one with batch()")

    def __enter__(self) -> Self:
        self._require_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = True
        if kind is None and (self._maps or self._unmaps):
            self.labels = self._make(self._maps, self._unmaps)


def _mapping(offset: int, chunk: str, count: int) -> MapRequest:
    return MapRequest(whole_number("offset", offset), text("chunk", chunk), whole_number("count", count))


def _unmapping(offset: int, size: int, *, release: bool) -> UnmapRequest:
    return UnmapRequest(whole_number("offset", offset), whole_number("size", size), release)


class ElasticChunks:
    """Existing elastic chunks of a layout, mapped or not, by the name of their entry."""

    __slots__ = ("_memory", "name")

    def __init__(self, name: str, memory: ElasticMemory) -> None:
        self.name, self._memory = name, memory

    @property
    def size(self) -> int:
        """Bytes of each chunk."""
        return self._memory.pool(self.name).size

    @property
    def limit(self) -> int:
        """Largest number of chunks that may exist, the `max` of the spec."""
        return self._memory.pool(self.name).limit

    @property
    def created(self) -> int:
        """Number of chunks that exist."""
        return len(self._memory.pool(self.name).created)

    @property
    def free(self) -> int:
        """Number of chunks that exist and are not mapped."""
        return len(self._memory.pool(self.name).free)

    def create(self, count: int) -> None:
        """Create chunks without mapping them, so that the next `map` need not. Raises as `ElasticRange.map` does."""
        checked_count = whole_number("count", count)
        with self._memory.changing_chunks():
            self._memory.pool(self.name)
            elastic.create(self._memory.driver, self._memory.layout, self.name, checked_count)

    def trim(self, keep: int = 0) -> int:
        """Release chunks that are not mapped, and return how many; `keep` of them, and those of `min`, stay."""
        kept = max(whole_number("keep", keep), 0)
        with self._memory.changing_chunks():
            chosen = self._memory.pool(self.name).releasable[kept:]
            return elastic.release(self._memory.driver, self._memory.layout, self.name, chosen)

    def __repr__(self) -> str:
        def state() -> str:
            pool = self._memory.pool(self.name)
            return f"{len(pool.created):,} of {pool.limit:,} exist, {len(pool.free):,} not mapped"

        return described(f"chunks {self.name}", state)
