"""Who is at the other end of a socket: what the kernel says, not what is told."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Collection
from typing import NamedTuple

from memtopo.sharing.faults import ExchangeError


class Peer(NamedTuple):
    """A process as it was when it connected or began to listen; pid 0 is one of another container."""

    pid: int
    uid: int


def peer(sock: socket.socket) -> Peer:
    """The process at the other end (SO_PEERCRED)."""
    pid, uid, _ = struct.unpack("iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return Peer(pid, uid)


def vet(who: Peer, what: str, also: Collection[int]) -> None:
    """Let our own user pass, and those who are allowed by number. Raises `ExchangeError` for others."""
    ours = os.geteuid()
    if who.uid != ours and who.uid not in also:
        raise ExchangeError(
            "forbidden",
            f"{what} belongs to uid {who.uid}, and this process to uid {ours}",
            hint=f"--allow-uid {who.uid}, where that user is to be trusted",
        )
