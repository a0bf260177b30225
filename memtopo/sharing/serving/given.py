"""What a program gives to be served: descriptors of another API's memory and semaphores, by name."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from memtopo.common.errors import MemtopoError, UsageError
from memtopo.common.units import shorten
from memtopo.plans.report import Checks
from memtopo.sharing import Handle, Offer, Via
from memtopo.sharing.places import NAME

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
class GivenShelf:
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
