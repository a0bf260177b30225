"""The processes that have come to be those of a layout, each of which waits for all others."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

from msgspec import Struct

from memtopo import machine as machines
from memtopo import spec as specs
from memtopo.common import __version__
from memtopo.common.errors import ExchangeError, Exit, Failed, MemtopoError
from memtopo.common.processes import RunningClock
from memtopo.common.text import enumerated
from memtopo.drivers import target
from memtopo.drivers.target import Target
from memtopo.language import Document, SpecText
from memtopo.plans.report import Check
from memtopo.session.composition import Composition, InvalidOnMachine
from memtopo.session.machines import with_needed_trials
from memtopo.session.saved import spec_digest
from memtopo.sharing.channel import Channel
from memtopo.sharing.sockets import peer, wait_readable

_INTERVAL = 0.1
_ALONE = 5.0
"""Seconds after which a coordinator ends to which no process is connected: that which started it has another one."""


class Join(Struct, frozen=True):
    """First message of a process of a user, which is to be a process of a layout.

    `gpus` are the UUIDs of the GPUs that it sees as hex text, in the order of its ordinals; `record` is the machine
    that it simulates in their place. `world` is the number of processes that its launcher started as one program, if
    that is known.
    """

    version: str
    process: str
    spec: SpecText
    machine: str
    record: str | None
    gpus: tuple[str, ...]
    check: Check
    timeout: float
    world: int | None = None


class NotJoined(Struct, frozen=True):
    """Answer to `Join`: the layout is not built."""

    error: str
    hint: str | None
    exit_code: int


def of_another_user(uid: int) -> NotJoined:
    """Return the answer to a process of another user than the layout's."""
    return NotJoined(f"the layout belongs to uid {uid}, and only processes of that user join it", None, Exit.FAILED)


class NotComplete(Failed):
    """Processes that do not make the layout of a spec."""


def require_place(process: str, name: str, world: int | None, labels: Sequence[str]) -> None:
    """Raise `NotComplete` for a process that has none of some labels, or one of another `world` than theirs."""
    beside = [each for each in labels if each.partition(".")[0] == process.partition(".")[0]]
    if beside and world not in {None, len(beside)}:
        raise NotComplete(f"{name} is one of {world} processes of its launcher, but the spec has {len(beside)}")
    if process not in labels:
        raise NotComplete(f"{name} is not a process of the layout", hint=f"its processes are {enumerated(labels)}")


class Joining(Struct, frozen=True):
    """A process that has come."""

    pid: int
    channel: Channel[Any]
    request: Join
    document: Document

    @property
    def name(self) -> str:
        return f"{self.request.process} (process {self.pid})"

    @property
    def digest(self) -> str:
        return spec_digest(self.document)


class Gathering:
    """Gathers the processes of one layout until it is complete."""

    def __init__(self, timeout: float, stopped: Callable[[], int]) -> None:
        self._timeout, self._stopped = timeout, stopped
        self._connected: dict[int, tuple[Channel[Join], int]] = {}
        self.joined: dict[str, Joining] = {}
        self._labels: Sequence[str] = ()

    def wait(self, listener: socket.socket) -> Composition:
        """Wait for all processes, and return the layout that they are to build. Raises `NotComplete`."""
        clock = RunningClock()
        listener.setblocking(False)  # noqa: FBT003 the signature is the library's
        while not self._labels or len(self.joined) < len(self._labels):
            poll = select.poll()
            for fd in (listener.fileno(), *self._connected):
                poll.register(fd, select.POLLIN)
            for fd, _ in poll.poll(_INTERVAL * 1000):
                self._accept(listener) if fd == listener.fileno() else self._receive(fd)
            if self._stopped():
                raise NotComplete("the coordinator of the layout was stopped")
            if clock.time() > (self._timeout if self.joined or self._connected else min(self._timeout, _ALONE)):
                raise NotComplete(self._missing())
        return self._composed()

    def refuse(self, error: MemtopoError, listener: socket.socket | None = None) -> None:
        """Have all processes that have come raise an error, and processes whose connection waits at a listener."""
        while listener and wait_readable([listener], 0.0):
            self._accept(listener)
        answer = NotJoined(error.message, error.hint, error.exit_code)
        for channel, _ in self._connected.values():
            channel.send(answer)
            channel.drain(1.0)
            channel.close()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(BlockingIOError):
            sock, _ = listener.accept()
            sock.setblocking(False)  # noqa: FBT003 as above
            channel: Channel[Join] = Channel(sock, (Join,))
            if peer(sock).uid == os.geteuid():
                self._connected[sock.fileno()] = channel, peer(sock).pid
            else:
                channel.send(of_another_user(os.geteuid()))
                channel.close()

    def _receive(self, fd: int) -> None:
        channel, pid = self._connected[fd]
        try:
            received = channel.receive()
        except BlockingIOError:
            return
        except ExchangeError:
            received = None
        if received is None:
            # Another one may take its place.
            del self._connected[fd]
            channel.close()
            self.joined = {label: each for label, each in self.joined.items() if each.channel is not channel}
        else:
            received.close()
            self._join(Joining(pid, channel, received.message, received.message.spec.read()))

    def _join(self, new: Joining) -> None:
        request, first = new.request, next(iter(self.joined.values()), new)
        if request.version != __version__:
            raise NotComplete(f"{new.name} has memtopo {request.version}, and the coordinator {__version__}")
        if not self.joined:  # those of another spec have ended
            self._labels = specs.read(new.document.root, new.document.left_out)[0].labels
        require_place(request.process, new.name, request.world, self._labels)
        if found := self.joined.get(request.process):
            raise NotComplete(f"{request.process} has joined twice, by processes {found.pid} and {new.pid}")
        if new.digest != first.digest:
            raise NotComplete(f"{new.name} has another spec, {new.digest}, than {first.name}, {first.digest}")
        if (request.machine, request.record) != (first.request.machine, first.request.record):
            raise NotComplete(f"{new.name} is for another machine, {request.machine}, than {first.name}")
        self.joined[request.process] = new

    def _missing(self) -> str:
        missing = [label for label in self._labels if label not in self.joined] or ["any process"]
        came = f"; {', '.join(each.name for each in self.joined.values())} did" if self.joined else ""
        return f"{enumerated(missing)} did not join within {self._timeout:g} s{came}"

    def _composed(self) -> Composition:
        first = next(iter(self.joined.values()))
        composition = Composition.of(first.document, with_needed_trials(self._target(first.request), first.document))
        try:
            composition.require_tried()
        except InvalidOnMachine as error:
            raise NotComplete(error.message, hint=error.hint) from error
        return composition

    def _target(self, request: Join) -> Target:
        """The machine with the GPUs that all processes see, in their order, or with all GPUs if these differ."""
        if request.record is not None:
            return target.recorded(request.machine, machines.parse(request.record.encode(), request.machine))
        seen = {each.request.gpus for each in self.joined.values()}
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        if len(seen) == 1:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(f"GPU-{UUID(uuid)}" for uuid in next(iter(seen)))
        return target.resolve(request.machine)

    def visible(self, composition: Composition) -> Mapping[str, tuple[int, ...]]:
        """Ordinals of the GPUs that each process sees, empty for all in order. Raises `NotComplete`."""
        every = target.uuids(composition.target.machine)
        gpus = {label: every if each.request.record else each.request.gpus for label, each in self.joined.items()}
        found = {label: target.ordinals(own, every) for label, own in gpus.items()}
        for label, geometry in composition.geometry.processes.items():
            if lacking := [gpu for gpu in geometry.gpus if found[label] and gpu not in found[label]]:
                seeing = [self.joined[other].name for other, seen in found.items() if lacking[0] in seen]
                others = f"; {enumerated(seeing)} has it" if seeing else ""
                raise NotComplete(f"{self.joined[label].name} uses gpu{lacking[0]}, which it does not see{others}")
        return found
