"""Children that memtopo spawns, and typed messages between a process and its children.

A message is a record. Its packet has the name of the class, the fields as JSON text, and the handles sent beside it,
with their descriptors; fields too long for a packet are in a memory file, the last of the descriptors. Both ends are
the same memtopo, so these messages are not part of `docs/protocol.md`.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Generic, TypeVar

from msgspec import Meta, Struct

from memtopo.common.decoding import decode, encode
from memtopo.common.errors import BadPacket, MemtopoError
from memtopo.common.processes import (
    LONGEST_STEP,
    Broken,
    RunningClock,
    Stream,
    inherited_socket,
    memory_file,
    signal_on_parent_death,
    spawn_connected,
)
from memtopo.common.signals import TERMINAL
from memtopo.common.text import printable
from memtopo.driver.handles import Handle, close_handles
from memtopo.language.limits import LARGEST_FILE
from memtopo.sharing import wire
from memtopo.sharing.messages import HandleEntry, decode_handles, encode_handles
from memtopo.sharing.sockets import SYSTEM, PeerProcess, System, peer
from memtopo.sharing.wire import MOST_FDS

LARGEST = 2 * LARGEST_FILE + (32 << 20)
"""Bytes that the fields of one message may have: a spec, whose quotes and ends of line take two each, and a machine."""

_INLINE = 16 << 10
"""Bytes of fields within a packet; each takes up to three when it is encoded once more."""

_TRANSIENT = (errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM)
"""Errors of a send that succeeds later: too many of this user's descriptors unread in sockets, or no memory."""

_PAUSE = 0.01

M = TypeVar("M")


class Received(Struct, Generic[M]):
    """Message with the handles sent beside it, which belong to the receiver."""

    message: M
    handles: Sequence[Handle] = ()

    def close(self) -> None:
        """Close the handles."""
        close_handles(self.handles)


class Envelope(Struct, frozen=True):
    """Packet of a message: the name of its class, its fields as JSON, and the handles sent beside it."""

    message: str
    handles: Annotated[tuple[HandleEntry, ...], Meta(max_length=MOST_FDS)]
    fields: str | None = None


class Channel(Generic[M]):
    """One end of a SOCK_SEQPACKET socket that receives messages of type `M`: one of `types`.

    Messages that do not fit into the socket's buffer are queued. If the other end is closed, `send` discards the
    message and `receive` returns None.
    """

    def __init__(self, sock: socket.socket, types: Iterable[type[Any]], system: System = SYSTEM) -> None:
        self._sock, self._system = sock, system
        self._types = {each.__name__: each for each in types}
        self._queue: deque[tuple[bytes, list[int]]] = deque()

    @property
    def peer(self) -> PeerProcess:
        """Process at the other end."""
        return peer(self._sock)

    def expecting(self, types: Iterable[type[Any]]) -> Channel[Any]:
        """Return the channel for messages of other types, in place of this one."""
        found: Channel[Any] = Channel(self._sock, types, self._system)
        found._queue = self._queue
        return found

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def pending(self) -> bool:
        """True if messages are queued."""
        return bool(self._queue)

    def send(self, message: object, handles: Sequence[Handle] = ()) -> None:
        """Send or queue a message with handles of one transport, which are closed once it is sent."""
        encoded, fds = encode_handles(handles)
        packet = {"message": type(message).__name__, "handles": encoded}
        fields = encode(message)
        is_long = len(fields) > _INLINE
        data = wire.encode(packet if is_long else {**packet, "fields": fields.decode()})
        self._queue.append((data, [*fds, memory_file(fields)] if is_long else fds))
        self.flush()

    def flush(self) -> None:
        """Send queued messages as far as possible without blocking."""
        while self._queue:
            data, fds = self._queue[0]
            try:
                wire.send(self._sock, data, fds)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _TRANSIENT:
                    self._system.pause(_PAUSE)
                else:
                    self._discard()
                return
            self._queue.popleft()
            wire.close_all(fds)

    def receive(self) -> Received[M] | None:
        """Return the next message, or None if the other end is closed.

        Raises `BlockingIOError` if no message has arrived, `BadPacket` if it is none of this channel's types.
        """
        try:
            packet = wire.receive(self._sock)
        except ConnectionResetError:
            return self.receive()  # reported once, before the last messages of an end that closed with unread ones
        except BlockingIOError:
            raise
        except OSError:
            return None
        if packet is None:
            return None
        try:
            envelope = wire.read(Envelope, packet.message, "a message")
            kind = self._types[envelope.message]
            text = _read(packet.fds.pop()) if envelope.fields is None else envelope.fields
            secrets = any(each.secret for each in envelope.handles)
            carried = {"descriptors": bool(packet.fds) or not secrets, "secrets": secrets}
            handles = decode_handles(envelope.handles, packet.fds, **carried, of=envelope.message)
            return Received(decode(text, kind), handles)
        except (LookupError, OSError, ValueError, BadPacket) as error:
            packet.close()
            raise BadPacket("not a message of this protocol") from error

    def __iter__(self) -> Iterator[Received[M]]:
        """Wait for one message after another, until the other end is closed. Raises `BadPacket`."""
        while True:
            while not self.wait():
                pass  # only sent a queued message
            received = self.receive()
            if received is None:
                return
            yield received

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until `receive` does not block, and send queued messages meanwhile; false after that many seconds."""
        readable = self._system.wait((self,), seconds, (self,) if self._queue else ())
        self.flush()
        return readable

    def drain(self, seconds: float) -> None:
        """Send all queued messages, for at most that many seconds."""
        clock = RunningClock(self._system.now)
        while self._queue and (left := seconds - clock.time()) > 0:
            self._system.wait((), min(left, LONGEST_STEP), (self,))
            self.flush()

    def close(self) -> None:
        """Discard queued messages and close the socket."""
        self._discard()
        self._sock.close()

    def _discard(self) -> None:
        for _, fds in self._queue:
            wire.close_all(fds)
        self._queue.clear()


def _read(fd: int) -> bytes:
    """Content of a memory file, which is closed."""
    with os.fdopen(fd, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > LARGEST:
            raise ValueError(f"a message of {size:,} bytes")
        return os.pread(file.fileno(), size, 0)


_EXIT = 5.0
"""Seconds that a process has to end once it is killed; one that hangs in the kernel does not end."""

_FAREWELL = 5.0
"""Seconds for the last messages of a child to be sent."""


class Child(Generic[M]):
    """A process at the other end of a channel, which is killed when this one dies."""

    def __init__(
        self,
        command: Sequence[str],
        types: Iterable[type[Any]],
        first: object = None,
        *,
        stderr: Stream = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Spawn it, and send it a `first` message, if there is one. Raises `OSError` if it cannot be started."""
        self.process, sock = spawn_connected(command, stderr=stderr, environment=environment)
        self.channel: Channel[M] = Channel(sock, types)
        if first is not None:
            self.channel.send(first)

    def end(self, seconds: float = 0.0) -> int:
        """Close the channel, and kill the process unless it ends within so many seconds.

        Return its exit status: the negative number of the signal that ended it, as that of a process killed here.
        """
        self.channel.close()
        for limit in (seconds, _EXIT):
            with suppress(subprocess.TimeoutExpired):
                return self.process.wait(limit)
            self.process.kill()
        return -signal.SIGKILL

    @property
    def stuck(self) -> int | None:
        """Process id of a child that was killed and has not ended."""
        return None if self.process.poll() is not None else self.process.pid


def work_for_parent(descriptor: str, types: Iterable[type[Any]], work: Callable[[Channel[Any]], object]) -> None:
    """Do the work of a spawned `Child` at its end of the channel; an exception is sent as `Broken`."""
    for number in TERMINAL:  # handled by the parent
        signal.signal(number, signal.SIG_IGN)
    signal_on_parent_death(signal.SIGKILL)
    channel: Channel[Any] = Channel(inherited_socket(descriptor), types)
    try:
        work(channel)
    except MemtopoError as error:
        channel.send(Broken(error.message, error.hint, error.exit_code))
    except Exception as error:  # noqa: BLE001 reported by the parent; a traceback here would be lost
        channel.send(Broken(printable(f"{type(error).__name__}: {error}")))
    channel.drain(_FAREWELL)
