"""Messages between a probe and its children: JSON, with descriptors beside it, over SOCK_SEQPACKET."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

Message = dict[str, Any]

_LARGEST = 1 << 16
_MOST_FDS = 8


def send(channel: socket.socket, message: Message, fds: Sequence[int] = ()) -> None:
    """Send one, and close the descriptors that went along; nothing happens where the other end is gone."""
    try:
        with suppress(OSError):
            socket.send_fds(channel, [json.dumps(message).encode()], list(fds), socket.MSG_NOSIGNAL)
    finally:
        close(fds)


def receive(channel: socket.socket) -> tuple[Message, list[int]] | None:
    """The next one, with descriptors that are the caller's; None where the other end is gone."""
    try:
        data, fds, _, _ = socket.recv_fds(channel, _LARGEST, _MOST_FDS, socket.MSG_CMSG_CLOEXEC)
    except OSError:
        return None
    return (json.loads(data), fds) if data else None


def close(fds: Sequence[int]) -> None:
    """Close descriptors, whatever becomes of each."""
    for fd in fds:
        with suppress(OSError):
            os.close(fd)
