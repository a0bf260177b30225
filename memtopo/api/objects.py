"""Events and semaphores of a layout, for the streams of a program, and dma-bufs, for other devices.

The dma-bufs that a held layout exports are those of `memtopo.dma_bufs`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from operator import index
from types import MappingProxyType
from typing import ClassVar, Self, SupportsIndex, SupportsInt

from memtopo.api.errors import Unsuitable
from memtopo.api.imports import AttachTerms
from memtopo.api.memory import unknown
from memtopo.common.arguments import checked
from memtopo.common.errors import ExchangeError, on_failure
from memtopo.common.signals import deferred
from memtopo.driver.handles import Handle, close_handles
from memtopo.driver.protocol import Driver
from memtopo.kinds.dmabuf import DMABUF
from memtopo.kinds.external.steps import SEMAPHORE_HANDLES
from memtopo.kinds.ipc.steps import EVENT_HANDLES
from memtopo.kinds.layout import Layout, current
from memtopo.sharing.client import Client
from memtopo.sharing.endpoints import Endpoint
from memtopo.sharing.offers import Offer
from memtopo.sharing.status import Notice


class _Synchronizing:
    """Object of a GPU (`device`) that streams of the program wait for."""

    noun: ClassVar[str]

    def __init__(self, name: str, device: int, driver: Driver, layout: Layout) -> None:
        self.name, self.device = name, device
        self._driver, self._layout = driver, layout

    def __repr__(self) -> str:
        return f"<{self.noun} {self.name} of gpu{self.device}>"

    @contextmanager
    def _on_device(self, handles: Mapping[str, int]) -> Iterator[int]:
        """Return the handle of the object, whose context is current in the code inside."""
        handle = self._handle(handles)
        with current(self._driver, self._layout.contexts[self.device]):
            yield handle

    def _handle(self, handles: Mapping[str, int]) -> int:
        if self.name not in handles:
            raise Unsuitable(f"{self.noun} {self.name!r} no longer exists: its layout was taken down")
        return handles[self.name]


class Event(_Synchronizing):
    """Event in the context of its GPU (`device`).

    A stream is a handle as a number (0 is the default stream), or an object of cuda.core, PyTorch or CuPy. Methods
    raise `DriverError`, and `Unsuitable` after the layout was taken down.
    """

    noun = "event"

    def record(self, stream: object = 0) -> None:
        """Record the event in a stream, after the work that is currently in it."""
        with self._on_device(self._layout.of(EVENT_HANDLES)) as event:
            self._driver.event_record(event, stream_handle(stream))

    def wait(self, stream: object = 0) -> None:
        """Make later work of a stream wait for the last recording, in any process; return immediately.

        The stream must be of the event's GPU: with another GPU's, the driver ends the process (fact 76).
        """
        with self._on_device(self._layout.of(EVENT_HANDLES)) as event:
            self._driver.stream_wait_event(stream_handle(stream), event)

    def query(self) -> bool:
        """Return true if the last recording is complete, or if there was none (fact 47)."""
        return self._driver.event_query(self._handle(self._layout.of(EVENT_HANDLES)))

    def synchronize(self) -> None:
        """Wait until the last recording is complete."""
        with self._on_device(self._layout.of(EVENT_HANDLES)) as event:
            self._driver.event_synchronize(event)


def stream_handle(stream: object) -> int:
    """Return the handle of a stream, which is a number or an object with a handle. Raises `Unsuitable`."""
    if (
        isinstance(stream, SupportsInt)
        and not isinstance(stream, float | type)
        and not hasattr(stream, "__cuda_stream__")
    ):
        return int(stream)
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    for name in ("cuda_stream", "ptr"):
        if isinstance(handle := getattr(stream, name, None), int):
            return handle
    raise Unsuitable(f"a {type(stream).__name__} is not a stream: pass a handle, or an object with __cuda_stream__")


class ExternalSemaphore(_Synchronizing):
    """External semaphore, for the streams of its GPU (`device`).

    A stream is a handle as a number (0 is the default stream), or an object of cuda.core, PyTorch or CuPy. Values are
    those of a timeline; a binary semaphore ignores them. Methods raise `DriverError`, and `Unsuitable` after the layout
    was taken down. A wait without a signal never ends: taking the layout down then blocks, and so does freeing any
    memory of the GPU (fact 58).
    """

    noun = "semaphore"

    def wait(self, value: SupportsIndex = 0, stream: object = 0) -> None:
        """Make later work of a stream wait until a timeline is at `value` or above; return immediately."""
        with self._on_device(self._layout.of(SEMAPHORE_HANDLES)) as semaphore:
            self._driver.wait_external_semaphore(semaphore, _whole(value), stream_handle(stream))

    def signal(self, value: SupportsIndex = 0, stream: object = 0) -> None:
        """Signal the semaphore after the work that is currently in a stream; a timeline is set to `value` (fact 56)."""
        with self._on_device(self._layout.of(SEMAPHORE_HANDLES)) as semaphore:
            self._driver.signal_external_semaphore(semaphore, _whole(value), stream_handle(stream))


def _whole(value: SupportsIndex) -> int:
    try:
        return index(value)
    except TypeError:
        raise Unsuitable(f"{value!r} is not a value of a semaphore: pass a whole number") from None


class DmaBuf:
    """Descriptor of a dma-buf of `size` bytes, which `ibv_reg_dmabuf_mr` takes: `offset` 0 is its first byte.

    The memory stays allocated until it is closed, and until all that was registered with it is gone (fact 84).
    """

    def __init__(self, name: str, size: int, fd: int) -> None:
        self.name, self.size, self._fd = name, size, fd

    @property
    def fd(self) -> int:
        """The open descriptor. Raises `Unsuitable` once it is closed."""
        if self._fd < 0:
            raise Unsuitable(f"dma-buf {self.name!r} is closed")
        return self._fd

    def fileno(self) -> int:
        """Return the open descriptor."""
        return self.fd

    def close(self) -> None:
        """Close the descriptor. A second call has no effect."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<dma-buf {self.name} of {self.size:,} bytes: {'open' if self._fd >= 0 else 'closed'}>"


class DmaBufs:
    """Dma-bufs of a held layout, open for the duration of a `with`. The connection is the lease of this process."""

    def __init__(
        self, where: Endpoint, exports: Collection[str] | None, seconds: float, allow_uids: Collection[int]
    ) -> None:
        self._where, self._requested = where, exports
        self._seconds, self._allowed = seconds, allow_uids
        self._resources = ExitStack()
        self._client: Client | None = None
        self._open: dict[str, tuple[DmaBuf, ...]] = {}
        self.exports: Mapping[str, Offer] = {}
        """The exports via dmabuf by name, as described by the holder."""

    def __enter__(self) -> Self:
        if self._client is not None:
            raise Unsuitable("dma-bufs can be entered only once; call the function again to open others")
        with ExitStack() as stack:
            terms = AttachTerms.within(self._seconds, self._requested)
            self._client = client = stack.enter_context(terms.connect(self._where, self._allowed))
            stack.callback(self._close)
            self.exports = MappingProxyType(_chosen(client.offers(), self._requested, self._where.path))
            for name in self.exports:
                try:
                    self.take(name)
                except ExchangeError as error:
                    if error.code != "absent":  # the holder sends a notice when it has memory again
                        raise
            self._resources = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    @checked()
    def __getitem__(self, name: str) -> tuple[DmaBuf, ...]:
        """Dma-bufs of an export in order: one, or one of each object of a counted one.

        There are none after `let_go`, and while the export has no memory in the state of the layout.
        """
        if name not in self.exports:
            raise unknown("export via dmabuf", name, self.exports)
        return self._open.get(name, ())

    @checked()
    def take(self, name: str) -> tuple[DmaBuf, ...]:
        """Open the dma-bufs of an export anew, after `let_go`; open ones are closed.

        Raises `ExchangeError`, with the code `absent` if it has no memory in the present state of the layout.
        """
        with deferred():
            self._drop(name)
            offer, received = self.exports[name], list[Handle]()
            with on_failure(close_handles, received):
                received += self._connection.handles(name)
            self._open[name] = tuple(
                DmaBuf(f"{name}.{index}" if offer.count > 1 else name, offer.size, handle.fd)
                for index, handle in enumerate(received)
                if handle.fd is not None
            )
            return self._open[name]

    @checked()
    def notice(self, timeout: float = 0.0) -> Notice | None:
        """Return the next notice of the holder, if one arrives within `timeout` seconds.

        After `changing`, deregister the memory of its exports and call `let_go`, which the holder waits for; after
        `changed`, `take` them again. Raises `ExchangeError` if the holder is gone: what is open remains valid.
        """
        return self._connection.notice(timeout)

    @checked()
    def let_go(self, names: Collection[str]) -> None:
        """Close the dma-bufs of exports, and report that to the holder. Raises `Unsuitable`, and closes none."""
        with deferred():
            for name in [name for name in names if self[name]]:
                self._drop(name)
            self._connection.let_go(list(names))

    @property
    def _connection(self) -> Client:
        if self._client is None:
            raise Unsuitable("dma-bufs are open inside of a 'with'")
        return self._client

    def _drop(self, name: str) -> None:
        for each in self[name]:
            each.close()
        self._open.pop(name, None)

    def _close(self) -> None:
        for each in (each for opened in self._open.values() for each in opened):
            each.close()


def importable(offers: Mapping[str, Offer], requested: Collection[str] | None) -> Mapping[str, Offer]:
    """Offers that a process can import. Raises `Unsuitable` if a dma-buf is `requested`, or if there are only these."""
    found = {name: offer for name, offer in offers.items() if offer.via != DMABUF}
    if len(found) < len(offers) and (requested is not None or not found):
        name = next(name for name in offers if name not in found)
        message = f"export {name!r} is a dma-buf, which other devices map, and no process imports"
        raise Unsuitable(message, hint="memtopo.dma_bufs() opens it")
    return found


def _chosen(offers: Mapping[str, Offer], requested: Collection[str] | None, path: str) -> dict[str, Offer]:
    """Offers of dma-bufs, all or the requested ones. Raises `Unsuitable`."""
    found = {name: offer for name, offer in offers.items() if offer.via == DMABUF}
    for name in requested or ():
        if name in offers and name not in found:
            raise Unsuitable(f"export {name!r} is via {offers[name].via}", hint="memtopo.attach() imports it")
        if name not in found:
            raise unknown("export via dmabuf", name, found)
    if not found:
        raise Unsuitable(f"nothing is exported via dmabuf at {path!r}")
    return found if requested is None else {name: found[name] for name in requested}
