"""Connecting to a socket in an open folder: by descriptor, since a path may have 108 bytes and its links may change."""

from __future__ import annotations

import os
import socket
import stat
import struct

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
