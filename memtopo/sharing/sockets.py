"""Connecting to a socket in an open folder: by descriptor, since a path may have 108 bytes and its links may change."""

from __future__ import annotations

import os
import resource
import socket
import stat
import struct
from collections.abc import Collection
from typing import NamedTuple

from memtopo.sharing.errors import ExchangeError

_SOCKET_FILE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def dial(folder: int, file: str, timeout: float) -> socket.socket:
    """A connection to the socket `file` in an open folder, waited for by the kernel if its queue is full.

    Raises `OSError`: `FileNotFoundError`, `ConnectionRefusedError` where nobody listens any more, `BlockingIOError`
    after `timeout` seconds, `PermissionError`.
    """
    found = os.open(file, _SOCKET_FILE, dir_fd=folder)
    try:
        if not stat.S_ISSOCK(os.fstat(found).st_mode):
            raise OSError(0, "it is no socket")
        return _connected(f"/proc/self/fd/{found}", timeout)
    finally:
        os.close(found)


def answers(folder: int, file: str) -> bool:
    """Whether somebody listens at a socket, however busy."""
    try:
        dial(folder, file, 0.001).close()
    except BlockingIOError:
        return True
    except OSError:
        return False
    return True


def _connected(path: str, timeout: float) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        # Python's own timeout makes a socket not blocking, and that does not wait in a queue.
        micro = max(int(timeout * 1e6), 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", *divmod(micro, 1_000_000)))
        sock.connect(path)
    except BaseException:
        sock.close()
        raise
    return sock


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


_SLACK = 64
"""Descriptors that are left to others, where that can be."""


def reserve_descriptors(wanted: int, least: int | None = None) -> int:
    """Make room for descriptors beside those that are open; how many there is room for, at most `wanted`.

    The soft limit is raised where it has to be. Raises `ExchangeError` where there is no room even for `least`.
    """
    least = wanted if least is None else least
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = _used(soft)
    target = used + wanted + _SLACK
    if _short(target, soft) and soft != hard:
        soft = target if hard == resource.RLIM_INFINITY else min(target, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    free = wanted if soft == resource.RLIM_INFINITY else min(soft - used, wanted)
    if free < least:
        raise ExchangeError(
            "limit",
            f"the limit of open files is {soft:,}, of which {used:,} are in use; {least:,} more are needed",
            hint=f"raise the hard limit (RLIMIT_NOFILE) to {used + least:,} or more: "
            "'ulimit -Hn', LimitNOFILE= in a systemd unit, --ulimit nofile= of a container",
        )
    return free


def _used(soft: int) -> int:
    try:
        return len(os.listdir("/proc/self/fd")) - 1  # the listing itself has one
    except OSError:  # there is none left for it
        return soft


def _short(wanted: int, limit: int) -> bool:
    return limit != resource.RLIM_INFINITY and wanted > limit
