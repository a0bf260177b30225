"""A descriptor that becomes readable with every signal, so that whoever waits for clients wakes up for it."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def woken() -> Iterator[socket.socket | None]:
    """A socket that a signal makes readable; None outside of the main thread, where Python lets nobody hear of one."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)  # noqa: FBT003 the signature is the library's
        theirs.setblocking(False)  # noqa: FBT003 likewise
        try:
            before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        except ValueError:
            yield None
            return
        try:
            yield ours
        finally:
            signal.set_wakeup_fd(before)


def drain(sock: socket.socket, _events: int = 0) -> None:
    """Forget the signals that came; the flag that their handler set is what counts."""
    with suppress(BlockingIOError):
        while sock.recv(4096):
            pass
