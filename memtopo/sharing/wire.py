"""Packets: one JSON object each, of at most 64 KiB, with at most 253 descriptors, over a SOCK_SEQPACKET socket.

`send` and `receive` never block. A malformed packet raises `BadPacket`, and the descriptors that came with it are
closed. `read` validates an object by a struct, whose fields have the types below. The source of a layout is one
text, which its holder sends in parts: the spec and the machine.
"""

from __future__ import annotations

import array
import base64
import json
import os
import re
import socket
import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from fcntl import ioctl
from termios import TIOCOUTQ
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from msgspec import Meta, Struct
from msgspec.structs import force_setattr

from memtopo.common.decoding import Mismatch
from memtopo.common.decoding import decode as decode_value
from memtopo.common.errors import BadPacket, ExchangeError, InternalError, on_failure
from memtopo.driver.handles import Secret
from memtopo.machine import Machine, dump

if TYPE_CHECKING:
    from memtopo.language import Document

VERSION = 1
LARGEST = 64 << 10
LONGEST_SOURCE = 32 << 20
"""Characters of a source in all packets."""

MOST_FDS = 253
"""Descriptors that one message can carry (fact 34)."""

DEEPEST = 8
"""Nesting of brackets in a packet; the protocol's own packets have up to seven levels."""

LONGEST_NAME = 262
"""Characters of an export's name; in a multi-process layout that is `PROCESS.123.EXPORT`."""

MAX_ENTRIES = 4096
"""Texts of a list that are accepted in one packet."""

LIMIT = 1 << 63
"""Whole numbers of a packet are below."""

Count = Annotated[int, Meta(ge=0, le=LIMIT - 1)]
Positive = Annotated[int, Meta(ge=1, le=LIMIT - 1)]
Pid = Count | None
"""Number of a process; 0 in a packet for one of another pid namespace, which `read` makes None if it is `foreign`."""

Seconds = Annotated[float, Meta(ge=0, le=1e12)]
Text = Annotated[str, Meta(max_length=4096)]
Texts = Annotated[tuple[Text, ...], Meta(max_length=MAX_ENTRIES)]
Name = Annotated[str, Meta(max_length=LONGEST_NAME)]
LayoutName = Annotated[str, Meta(max_length=128)]

T = TypeVar("T")

_FD = array.array("i").itemsize
_FLAGS = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
# The closing quote is optional: a pattern that cannot fail takes linear time for any input.
_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_BRACKETS = re.compile(rb"[\[\]{}]")


class Packet(Struct):
    """A received message, with its descriptors, which belong to the caller that removes them from `fds`."""

    message: dict[str, Any]
    fds: list[int] = []

    def close(self) -> None:
        """Close the descriptors that are left in `fds`."""
        close_all(self.fds)
        self.fds.clear()


def close_all(fds: Iterable[int]) -> None:
    """Close descriptors; errors are ignored."""
    for fd in fds:
        with suppress(OSError):
            os.close(fd)


def encode(message: Mapping[str, Any]) -> bytes:
    """Encode a message as the bytes of a packet. Raises `InternalError` if it exceeds the size of a packet."""
    data = json.dumps({"memtopo": VERSION, **message}, separators=(",", ":"), allow_nan=False).encode()
    if len(data) > LARGEST:
        raise InternalError(f"a packet of {len(data):,} bytes; the limit is {LARGEST:,}")
    return data


def decode(data: bytes) -> dict[str, Any]:
    """Decode the bytes of a packet. Raises `BadPacket`, whose message repeats nothing of the bytes."""
    depth = 0
    for bracket in _BRACKETS.findall(_TEXT.sub(b"", data)):
        depth += 1 if bracket in b"[{" else -1
        if depth > DEEPEST:
            raise BadPacket(f"more than {DEEPEST} brackets within one another")
    try:
        message = json.loads(data.decode(), object_pairs_hook=_object, parse_constant=_constant)
    except BadPacket:
        raise
    except (ValueError, RecursionError) as error:
        raise BadPacket("not JSON in UTF-8") from error
    if not isinstance(message, dict):
        raise BadPacket("not a JSON object")
    if (version := message.get("memtopo")) != VERSION or isinstance(version, bool):
        known = isinstance(version, int) and 0 <= version < 1000  # noqa: PLR2004
        raise BadPacket(
            f"protocol version {version if known else 'unknown'}; this end uses version {VERSION}", "version"
        )
    return message


def read(kind: type[T], value: object, what: str) -> T:
    """Read a struct from an object of a packet, whose other keys are ignored if it does not forbid them.

    Raises `BadPacket`, which names the object by `what` and the first wrong field, and repeats no value. Surrogates in
    texts are replaced: UTF-8 has none, and the name of a file may have some.
    """
    data = json.dumps(value, ensure_ascii=False).encode(errors="replace")
    try:
        found = decode_value(data, kind, _secret)
    except Mismatch as error:
        if error.unknown:
            known = ", ".join(getattr(kind, "__struct_fields__", ()))
            raise BadPacket(f"{what} has a key besides {known}", "request") from None
        raise BadPacket(f"{what} needs {error.where!r}: {error.needed}") from None
    _forget_foreign(found)
    return found


def _secret(_: type, text: object) -> Secret:
    try:
        return Secret(base64.b64decode(str(text), validate=True))
    except ValueError:
        raise ValueError("64 bytes in base64") from None


def _forget_foreign(found: object) -> None:
    """Make the numbers of processes None that are 0."""
    if isinstance(found, tuple):
        for each in found:
            _forget_foreign(each)
    elif isinstance(found, Struct):
        for name in found.__struct_fields__:
            _forget_foreign(getattr(found, name))
        foreign: str | None = getattr(found, "foreign", None)
        if foreign and not getattr(found, foreign):
            force_setattr(found, foreign, None)


def receive(sock: socket.socket) -> Packet | None:
    """Receive a packet; None at the end of the connection.

    Raises `BlockingIOError` if nothing has arrived, `BadPacket`, and `OSError` if the connection broke.
    """
    data, control, flags, _ = sock.recvmsg(LARGEST, socket.CMSG_SPACE(MOST_FDS * _FD), _FLAGS)
    fds = array.array("i")
    for level, kind, rights in control:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(rights[: len(rights) - len(rights) % _FD])
    packet = Packet({}, fds.tolist())
    if not data and not packet.fds and not flags & socket.MSG_TRUNC:
        return None
    with on_failure(packet.close):
        if flags & socket.MSG_CTRUNC:
            raise BadPacket("descriptors were lost: the limit of open files of this process is reached", "limit")
        if flags & socket.MSG_TRUNC:
            raise BadPacket(f"more than {LARGEST:,} bytes")
        packet.message = decode(data)
    return packet


def send(sock: socket.socket, data: bytes, fds: Sequence[int] = ()) -> None:
    """Send a whole packet, or nothing. Raises `BlockingIOError` if the queue of the other end is full.

    The descriptors stay the caller's.
    """
    control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sock.sendmsg([data], control, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def unread(sock: socket.socket) -> bool:
    """Return whether the other end has packets in its queue (SIOCOUTQ)."""
    return bool(struct.unpack("i", ioctl(sock.fileno(), TIOCOUTQ, b"\0\0\0\0"))[0])


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise BadPacket("duplicate key")
    return fields


def _constant(_: str) -> None:
    raise BadPacket("a number that is not JSON")


ORIGIN = "the holder"
"""Name of a spec or of a machine that a holder has sent."""


class LayoutSource(Struct, frozen=True):
    """Spec of a layout with the name of its file, the text of its machine, empty if it is not known, and settings."""

    spec: str
    name: str = ORIGIN
    machine: str = ""
    settings: dict[str, str] = {}

    @property
    def document(self) -> Document:
        """The spec."""
        from memtopo.language import read_text  # noqa: PLC0415 most clients read no spec

        return read_text(self.spec.encode(), self.name, self.settings)


def layout_source(document: Document, machine: Machine) -> str:
    """Encode a spec and its machine as one text; empty if it is longer than `LONGEST_SOURCE`."""
    source = {"spec": document.text, "name": document.name, "machine": dump(machine)}
    text = json.dumps(source | ({"settings": dict(document.settings)} if document.settings else {}))
    return text if len(text) <= LONGEST_SOURCE else ""


def parsed_source(text: str) -> LayoutSource:
    """Read the text of a source. Raises `ExchangeError`."""
    with suppress(ValueError, RecursionError, BadPacket):
        return read(LayoutSource, json.loads(text), "the source")
    raise ExchangeError("invalid", "the source is not a JSON object with a spec")
