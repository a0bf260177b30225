"""Packets: one JSON object each, of at most 64 KiB, with at most 253 descriptors, over a SOCK_SEQPACKET socket.

Nothing here waits: who has to, does so before. A packet that breaks the rules raises `BadPacket`, and the descriptors
that came with it are closed.
"""

from __future__ import annotations

import array
import json
import os
import re
import socket
import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fcntl import ioctl
from termios import TIOCOUTQ
from typing import Any

from memtopo.common.errors import InternalError
from memtopo.sharing.errors import BadPacket

VERSION = 1
LARGEST = 64 << 10
MOST_FDS = 253
"""As many as one message can carry (fact 34)."""

DEEPEST = 8
"""Brackets within brackets; the protocol's own packets have four."""

_FD = array.array("i").itemsize
_FLAGS = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
# The closing quote may be missing: a pattern that cannot fail takes time that is linear, whatever the bytes are.
_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_BRACKETS = re.compile(rb"[\[\]{}]")


@dataclass(slots=True)
class Packet:
    """A message as it came, with descriptors that belong to whoever takes them out."""

    message: dict[str, Any]
    fds: list[int] = field(default_factory=list)

    def close(self) -> None:
        """Close the descriptors that nobody took."""
        close_all(self.fds)
        self.fds.clear()


def close_all(fds: Iterable[int]) -> None:
    """Close descriptors, whatever becomes of each."""
    for fd in fds:
        with suppress(OSError):
            os.close(fd)


def encode(message: Mapping[str, Any]) -> bytes:
    """A message as the bytes of a packet. Raises `InternalError` where it is larger than a packet may be."""
    data = json.dumps({"memtopo": VERSION, **message}, separators=(",", ":"), allow_nan=False).encode()
    if len(data) > LARGEST:
        raise InternalError(f"a packet of {len(data):,} bytes; the most is {LARGEST:,}")
    return data


def decode(data: bytes) -> dict[str, Any]:
    """A packet's bytes as a message. Raises `BadPacket`; what it says repeats nothing of the bytes."""
    if _depth(data) > DEEPEST:
        raise BadPacket(f"more than {DEEPEST} brackets within one another")
    try:
        found = json.loads(data.decode(), object_pairs_hook=_object, parse_constant=_constant)
    except BadPacket:
        raise
    except (ValueError, RecursionError) as error:
        raise BadPacket("not JSON in UTF-8") from error
    if not isinstance(found, dict):
        raise BadPacket("not a JSON object")
    if (version := found.get("memtopo")) != VERSION or isinstance(version, bool):
        told = f"{version}" if isinstance(version, int) and 0 <= version < 1000 else "none that is known"  # noqa: PLR2004
        raise BadPacket(f"version {told} of the protocol; this end speaks version {VERSION}", "version")
    return found


def receive(sock: socket.socket) -> Packet | None:
    """The packet that has arrived; None at the end of the connection.

    Raises `BlockingIOError` where none has, `BadPacket`, and `OSError` where the connection broke.
    """
    data, control, flags, _ = sock.recvmsg(LARGEST, socket.CMSG_SPACE(MOST_FDS * _FD), _FLAGS)
    packet = Packet({}, _descriptors(control))
    if not data and not packet.fds and not flags & socket.MSG_TRUNC:
        return None
    try:
        _whole(flags)
        packet.message = decode(data)
    except BadPacket:
        packet.close()
        raise
    return packet


def send(sock: socket.socket, data: bytes, fds: Sequence[int] = ()) -> None:
    """Send a packet whole or not at all. Raises `BlockingIOError` where the other end has too much unread."""
    control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sock.sendmsg([data], control, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def unread(sock: socket.socket) -> bool:
    """Whether the other end has yet to read something that was sent to it."""
    return bool(struct.unpack("i", ioctl(sock.fileno(), TIOCOUTQ, b"\0\0\0\0"))[0])


def _whole(flags: int) -> None:
    if flags & socket.MSG_CTRUNC:
        raise BadPacket("descriptors were lost: this process may not open that many", "limit")
    if flags & socket.MSG_TRUNC:
        raise BadPacket(f"more than {LARGEST:,} bytes")


def _descriptors(control: Iterable[tuple[int, int, bytes]]) -> list[int]:
    fds = array.array("i")
    for level, kind, data in control:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % _FD])
    return fds.tolist()


def _depth(data: bytes) -> int:
    deepest = depth = 0
    for bracket in _BRACKETS.findall(_TEXT.sub(b"", data)):
        depth += 1 if bracket in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise BadPacket("a key is given twice")
    return found


def _constant(_: str) -> None:
    raise BadPacket("a number that JSON does not have")
