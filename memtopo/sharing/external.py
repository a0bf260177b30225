"""Server of external memory, semaphores and files: a program offers its descriptors to layouts of memtopo."""

from __future__ import annotations

import os
import socket
import stat
import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from msgspec import Struct

from memtopo.common.arguments import checked, mapping
from memtopo.common.errors import MemtopoError, UsageError
from memtopo.common.units import shorten
from memtopo.driver.handles import Handle, Via
from memtopo.machine import MachineLine
from memtopo.plans.report import Checks
from memtopo.sharing.claims import Claim, claim
from memtopo.sharing.endpoints import NAME, Endpoint, endpoint
from memtopo.sharing.holder import Background, hold
from memtopo.sharing.holder.state import HolderInfo, HoldSummary
from memtopo.sharing.offers import Offer
from memtopo.sharing.wire import LIMIT

_UUID_BYTES = 16
_LONGEST_NAME = 128
"""Characters of a layout's name."""


class ExternalMemory(Struct, frozen=True):
    """Memory of another API by its opaque descriptor, which stays the caller's: importers get copies of it.

    `size` is the allocation size of the whole object in bytes; `gpu` the UUID of its GPU, 16 bytes or text, which is
    the same in every process (fact 38); `dedicated` whether it was allocated for a single resource.
    """

    fd: int
    size: int
    gpu: bytes | str
    dedicated: bool = False

    def offer(self, name: str) -> Offer:
        """Return the offer under a name. Raises `UsageError`."""
        if not isinstance(self.size, int) or isinstance(self.size, bool) or not 0 < self.size < LIMIT:
            message = f"external memory {name!r} has a size of {self.size!r}; it must be a number of bytes below 2**63"
            raise UsageError(message)
        gpu, words = _uuid(self.gpu), ("dedicated",) if self.dedicated else ()
        return Offer(name, "memory", "opaque_fd", 1, self.size, _gpu_name(gpu), gpu, words)


class Semaphore(Struct, frozen=True):
    """A semaphore of another API by its opaque descriptor, which stays the caller's: a `timeline`, or a binary one.

    A driver accepts either type for the other (fact 55), so only the offer distinguishes them. With `gpu`, importers
    check that they import it on that GPU.
    """

    fd: int
    timeline: bool = True
    gpu: bytes | str | None = None

    def offer(self, name: str) -> Offer:
        """Return the offer under a name. Raises `UsageError`."""
        gpu = None if self.gpu is None else _uuid(self.gpu)
        via: Via = "timeline_fd" if self.timeline else "opaque_fd"
        return Offer(name, "semaphore", via, 1, 0, _gpu_name(gpu) if gpu else "any GPU", gpu)


class HostMemory(Struct, frozen=True):
    """Memory of the host in a file, such as a memfd, by its descriptor, which stays the caller's.

    Importers map the first `size` bytes and register them for their GPUs. Seal the file with F_SEAL_SHRINK: a process
    that loads behind the end of a shortened file is ended by SIGBUS.
    """

    fd: int
    size: int

    def offer(self, name: str) -> Offer:
        """Return the offer under a name. Raises `UsageError` for a size that the file does not have."""
        try:
            found = os.fstat(self.fd)
        except (OSError, OverflowError, TypeError) as error:
            raise UsageError(f"the descriptor of {name!r}, {self.fd!r}, is not open") from error
        if not stat.S_ISREG(found.st_mode):
            raise UsageError(f"the descriptor of {name!r}, {self.fd}, is not a file", hint="share a memfd")
        if not isinstance(self.size, int) or isinstance(self.size, bool) or not 0 < self.size <= found.st_size:
            message = f"host memory {name!r} has a size of {self.size!r}; its file has {found.st_size:,} bytes"
            raise UsageError(message, hint="give it a size with os.ftruncate() first")
        return Offer(name, "shm", "memfd", 1, self.size, "host")


External = ExternalMemory | Semaphore | HostMemory


@dataclass(slots=True)
class ExternalExports:
    """Export provider of external objects by name. `taken` has an event for each, set once its handle is requested.

    While it is `open`, it serves copies of their descriptors, since the number of a closed one may be reused.
    """

    objects: Mapping[str, External]
    taken: Mapping[str, threading.Event] = field(init=False)
    _offers: Sequence[Offer] = field(init=False)
    _copies: dict[str, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.objects:
            if not NAME.fullmatch(name):
                hint = "a name begins with a letter and continues with letters, digits, _ and -"
                raise UsageError(f"{shorten(name)!r} is not an export's name", hint=hint)
        self._offers = [each.offer(name) for name, each in self.objects.items()]
        self.taken = {name: threading.Event() for name in self.objects}

    @contextmanager
    def open(self) -> Iterator[None]:
        """Copy all descriptors until the end of a `with`. Raises `UsageError` if one cannot be copied."""
        try:
            for name, each in self.objects.items():
                try:
                    self._copies[name] = os.dup(each.fd)
                except (OSError, OverflowError, TypeError) as error:
                    message = (getattr(error, "strerror", None) or str(error)).lower()
                    raise UsageError(f"the descriptor of {name!r}, {each.fd!r}, cannot be copied: {message}") from error
            yield
        finally:
            while self._copies:
                os.close(self._copies.popitem()[1])

    def offers(self) -> Sequence[Offer]:
        return self._offers

    def handle(self, export: str, index: int) -> Handle:
        del index  # every export has one object
        handle = Handle(fd=os.dup(self._copies[export]))
        self.taken[export].set()
        return handle

    def check(self) -> Checks:
        raise MemtopoError("external objects were not laid out by memtopo, and cannot be checked")


class Serving:
    """Exports that a thread serves during a `with`, while the program's own loop goes on."""

    def __init__(
        self, where: Endpoint, exports: ExternalExports, machine: MachineLine, allow_uids: Collection[int] = ()
    ) -> None:
        self._endpoint, self._exports, self._machine, self._allow_uids = where, exports, machine, allow_uids
        self._stack = ExitStack()
        self._background = Background("memtopo-serve")
        self._result: HoldSummary | None = None
        self._entered = False

    @property
    def path(self) -> str:
        """The socket's path."""
        return self._endpoint.path

    @property
    def released(self) -> bool:
        """True once a client has requested the release (`memtopo release`): nothing is served any more."""
        return self._result is not None and self._result.why == "release"

    @checked()
    def taken(self, name: str, timeout: float | None = None) -> bool:
        """Wait until a client requests an export, for at most `timeout` seconds. Return whether one did.

        Raises `UsageError` if nothing is served under this name.
        """
        if name not in self._exports.taken:
            raise UsageError(f"no object is served as {name!r}")
        return self._exports.taken[name].wait(timeout)

    def __enter__(self) -> Self:
        """Start the thread, once. Raises `ExchangeError` if the endpoint is taken or has no socket, `UsageError`."""
        if self._entered:
            raise UsageError("a service can be entered only once; call serve() again for another one")
        self._entered = True
        with ExitStack() as stack:
            stack.enter_context(self._exports.open())
            claimed = stack.enter_context(claim(self._endpoint))
            thread = self._background

            def serve() -> None:
                self._result = self._hold(claimed, lambda: int(thread.stopping), thread.report_ready, thread.wake)

            stack.enter_context(thread.running(serve))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stack.close()
        if self._background.error and kind is None:
            raise self._background.error

    def run(self, stop: Callable[[], int], *, ready: Callable[[], None] = lambda: None) -> HoldSummary:
        """Serve in this thread until `stop()` returns a signal's number, or a release. Not to be used within a `with`.

        `stop` is called five times a second; in the main thread, at once after any signal.
        """
        with self._exports.open(), claim(self._endpoint) as claimed:
            return self._hold(claimed, stop, ready)

    def _hold(
        self, claimed: Claim, stop: Callable[[], int], ready: Callable[[], None], wake: socket.socket | None = None
    ) -> HoldSummary:
        name = self._endpoint.name or Path(self._endpoint.file).stem[:_LONGEST_NAME]
        info = HolderInfo(name, None, self._machine)
        return hold(self._exports, claimed, info, stop=stop, allow_uids=self._allow_uids, ready=ready, wake=wake)


@checked()
def serve(
    where: str | os.PathLike[str], exports: Mapping[str, External], *, allow_uids: Collection[int] = ()
) -> Serving:
    """Offer external memory, semaphores and memory of the host to layouts of memtopo during a `with`.

    `where` is the path of a socket, or a name as a layout has one; a program that `--with` starts finds its path in
    MEMTOPO_SOCKET. Importers get new descriptors; the given ones are copied on entering, and stay the caller's to
    close. `allow_uids` are other users that may import. Raises `UsageError` for invalid exports, and on entering
    `ExchangeError` if the endpoint is taken.
    """
    text = os.fspath(where)
    mapping("exports", exports)
    if invalid := [name for name, each in exports.items() if not isinstance(each, External)]:
        raise UsageError(f"{invalid[0]!r} is neither ExternalMemory nor a Semaphore nor HostMemory")
    provider = ExternalExports(dict(exports))
    gpus = dict.fromkeys(offer.location for offer in provider.offers() if offer.gpu)
    line = MachineLine("local", simulated=False, devices=tuple(gpus), driver="another API's")
    return Serving(endpoint(socket=text) if "/" in text else endpoint(text), provider, line, allow_uids)


def _uuid(given: bytes | str) -> str:
    """Return a GPU's UUID as in offers: 32 hexadecimal digits. Raises `UsageError`."""
    try:
        raw = given if isinstance(given, bytes) else bytes.fromhex(str(given).removeprefix("GPU-").replace("-", ""))
    except ValueError:
        raw = b""
    if len(raw) != _UUID_BYTES:
        hint = f"it must be {_UUID_BYTES} bytes, or text as printed by nvidia-smi -L"
        raise UsageError(f"{given!r} is not a GPU's UUID", hint=hint)
    return raw.hex()


def _gpu_name(gpu: str) -> str:
    return f"GPU-{uuid.UUID(hex=gpu)}"
