"""What a program gives to be served: descriptors of another API's memory and semaphores, by name."""

from __future__ import annotations

import os
import socket
import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from memtopo.common.errors import MemtopoError, UsageError
from memtopo.common.units import shorten
from memtopo.plans.report import Checks, MachineLine
from memtopo.sharing import Claim, Endpoint, Handle, Offer, Via, claim, endpoint
from memtopo.sharing.endpoints import NAME
from memtopo.sharing.holder import HolderInfo, HoldResult, hold

_UUID = 16  # bytes


@dataclass(frozen=True, slots=True)
class ExternalMemory:
    """Memory of another API by its opaque descriptor, which stays the caller's: importers get copies of it.

    `size` is the whole object's in bytes, as it was allocated; `gpu` the UUID of its GPU, 16 bytes or text, since a GPU
    goes by that in every process (fact 38); `dedicated` whether it was allocated for one resource alone.
    """

    fd: int
    size: int
    gpu: bytes | str
    dedicated: bool = False

    def offer(self, name: str) -> Offer:
        """What is offered under a name. Raises `UsageError`."""
        if not isinstance(self.size, int) or self.size <= 0:
            raise UsageError(f"external memory {name!r} has a size of {self.size!r}; it has whole bytes")
        gpu, words = _gpu(self.gpu), ("dedicated",) if self.dedicated else ()
        return Offer(name, "memory", "opaque_fd", 1, self.size, _words(gpu), gpu, words)


@dataclass(frozen=True, slots=True)
class Semaphore:
    """A semaphore of another API by its opaque descriptor, which stays the caller's: a `timeline`, or a binary one.

    A driver takes one for the other (fact 55), so that nobody else can tell. With `gpu` importers see to it that they
    have it on that GPU.
    """

    fd: int
    timeline: bool = True
    gpu: bytes | str | None = None

    def offer(self, name: str) -> Offer:
        """What is offered under a name. Raises `UsageError`."""
        gpu = None if self.gpu is None else _gpu(self.gpu)
        via: Via = "timeline_fd" if self.timeline else "opaque_fd"
        return Offer(name, "semaphore", via, 1, 0, _words(gpu) if gpu else "any GPU", gpu)


Given = ExternalMemory | Semaphore


@dataclass(slots=True)
class ExternalExports:
    """Given descriptors as a shelf. `taken` has for each name whether a handle of it was asked for.

    While it is `open`, it has copies of them: a number whose file was closed may soon be another's.
    """

    given: Mapping[str, Given]
    taken: Mapping[str, threading.Event] = field(init=False)
    _offers: Sequence[Offer] = field(init=False)
    _copies: dict[str, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.given:
            if not NAME.fullmatch(name):
                told = "a name begins with a letter and goes on with letters, digits, _ and -"
                raise UsageError(f"{shorten(name)!r} is not an export's name", hint=told)
        self._offers = [each.offer(name) for name, each in self.given.items()]
        self.taken = {name: threading.Event() for name in self.given}

    @contextmanager
    def open(self) -> Iterator[None]:
        """Have copies of all descriptors. Raises `UsageError` where one cannot be copied."""
        try:
            for name, each in self.given.items():
                self._copies[name] = _copy(name, each.fd)
            yield
        finally:
            while self._copies:
                os.close(self._copies.popitem()[1])

    def offers(self) -> Sequence[Offer]:
        return self._offers

    def handle(self, export: str, index: int) -> Handle:
        del index  # there is one of each
        found = Handle(fd=os.dup(self._copies[export]))
        self.taken[export].set()
        return found

    def check(self) -> Checks:
        raise MemtopoError("what is served here was not laid out by memtopo, which has nothing to check it against")


def _copy(name: str, fd: int) -> int:
    try:
        return os.dup(fd)
    except (OSError, OverflowError) as error:
        told = (getattr(error, "strerror", None) or str(error)).lower()
        raise UsageError(f"the descriptor of {name!r}, {fd}, cannot be copied: {told}") from error


def _gpu(given: bytes | str) -> str:
    """A GPU's UUID as offers have it: 32 hexadecimal digits. Raises `UsageError`."""
    try:
        raw = given if isinstance(given, bytes) else bytes.fromhex(given.removeprefix("GPU-").replace("-", ""))
    except ValueError:
        raw = b""
    if len(raw) != _UUID:
        raise UsageError(
            f"{given!r} is no GPU's UUID", hint=f"it is {_UUID} bytes, or their text as nvidia-smi -L has it"
        )
    return raw.hex()


def _words(gpu: str) -> str:
    return f"GPU-{uuid.UUID(hex=gpu)}"


class Serving:
    """Exports that are served while a `with` lasts, by a thread, so that the program's own loop goes on."""

    def __init__(
        self, where: Endpoint, shelf: ExternalExports, machine: MachineLine, allow_uids: Collection[int] = ()
    ) -> None:
        self._place, self._shelf, self._machine, self._allowed = where, shelf, machine, allow_uids
        self._stack = ExitStack()
        self._over = threading.Event()
        self._ready = threading.Event()
        self._fault: BaseException | None = None
        self._held: HoldResult | None = None

    @property
    def path(self) -> str:
        """The socket's path."""
        return self._place.path

    @property
    def released(self) -> bool:
        """Whether somebody asked for its end (`memtopo release`): nothing is served any more."""
        return self._held is not None and self._held.why == "release"

    def taken(self, name: str, timeout: float | None = None) -> bool:
        """Wait until somebody asks for an export, for at most `timeout` seconds; whether somebody did.

        Raises `UsageError` where there is none of this name.
        """
        if name not in self._shelf.taken:
            raise UsageError(f"nothing is served as {name!r}")
        return self._shelf.taken[name].wait(timeout)

    def __enter__(self) -> Self:
        """Begin. Raises `ExchangeError` where the place is taken or there can be no socket, `UsageError`."""
        with ExitStack() as stack:
            stack.enter_context(self._shelf.open())
            claimed = stack.enter_context(claim(self._place))
            ours, theirs = socket.socketpair()
            stack.enter_context(theirs)
            stack.enter_context(ours)
            theirs.setblocking(False)  # noqa: FBT003 the signature is the library's
            thread = threading.Thread(target=self._run, args=(claimed, theirs), name="memtopo-serve", daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(self._end, ours)
            self._ready.wait()
            if self._fault:
                raise self._fault
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stack.close()
        if self._fault and kind is None:
            raise self._fault

    def run(self, stop: Callable[[], int], *, ready: Callable[[], None] = lambda: None) -> HoldResult:
        """Serve in this thread instead, until `stop()` answers a signal's number, or a release. Not within a `with`.

        In the main thread any signal has `stop` asked at once, else it is asked five times a second.
        """
        with self._shelf.open(), claim(self._place) as claimed:
            return self._hold(claimed, stop, ready)

    def _run(self, claimed: Claim, wake: socket.socket) -> None:
        try:
            self._held = self._hold(claimed, lambda: int(self._over.is_set()), self._ready.set, wake)
        except BaseException as error:  # noqa: BLE001 it is raised where it can be heard
            self._fault = error
        finally:
            self._ready.set()

    def _hold(
        self,
        claimed: Claim,
        stop: Callable[[], int],
        ready: Callable[[], None],
        wake: socket.socket | None = None,
    ) -> HoldResult:
        about = HolderInfo(self._place.name or Path(self._place.file).stem, None, self._machine)
        terms = {"stop": stop, "ready": ready, "wake": wake}
        return hold(self._shelf, claimed, about, allow_uids=self._allowed, **terms)  # type: ignore[arg-type]

    def _end(self, ours: socket.socket) -> None:
        self._over.set()
        ours.send(b"\0")


def serve(
    where: str | os.PathLike[str],
    exports: Mapping[str, Given],
    *,
    allow_uids: Collection[int] = (),
) -> Serving:
    """Offer memory and semaphores of another API to memtopo's layouts, for as long as a `with` lasts.

    `where` is the path of a socket, or a name, as a layout has one; a program that `--with` starts finds its path in
    MEMTOPO_SOCKET. Whoever imports an export gets a new descriptor of it; those that are given here are copied on
    entering, and stay the caller's to close. `allow_uids` are other users that may import. Raises `UsageError` where
    something is not what it should be; on entering, `ExchangeError` where the place is taken.
    """
    text = os.fspath(where)
    if strange := [name for name, each in exports.items() if not isinstance(each, ExternalMemory | Semaphore)]:
        raise UsageError(f"{strange[0]!r} is neither ExternalMemory nor a Semaphore")
    shelf = ExternalExports(dict(exports))
    gpus = dict.fromkeys(offer.location for offer in shelf.offers() if offer.gpu)
    line = MachineLine("local", simulated=False, devices=tuple(gpus), driver="another API's")
    return Serving(endpoint(socket=text) if "/" in text else endpoint(text), shelf, line, allow_uids)
