"""Listening socket in an event loop, which pauses while no descriptor is free for another connection."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable

PAUSE = 1.0
"""Seconds without new connections after the descriptors are exhausted."""


class Listener:
    """Passes connections of a socket to `admit`, at most `most` in one turn of the loop."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        sock: socket.socket,
        admit: Callable[[socket.socket], None],
        *,
        most: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._selector, self._sock, self._admit, self._most, self._clock = selector, sock, admit, most, clock
        self._again_at: float | None = None
        sock.setblocking(False)  # noqa: FBT003 the signature is the library's
        self._watch()

    @property
    def pause(self) -> float | None:
        """Seconds within which `advance` is to be called; None while the socket is watched."""
        return None if self._again_at is None else PAUSE

    def advance(self) -> None:
        """Accept connections again after a pause."""
        if self._again_at is not None and self._clock() >= self._again_at:
            self._again_at = None
            self._watch()

    def close(self) -> None:
        """Close the socket, and watch it no longer."""
        if self._again_at is None:
            self._selector.unregister(self._sock)
        self.abandon()

    def abandon(self) -> None:
        """Close the socket without a change of the selector, which a forked child shares with its parent."""
        self._sock.close()

    def _watch(self) -> None:
        self._selector.register(self._sock, selectors.EVENT_READ, lambda _: self._accept())

    def _accept(self) -> None:
        for _ in range(self._most):
            try:
                sock, _ = self._sock.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError:  # no descriptor is free: new connections wait in the queue of the socket
                self._selector.unregister(self._sock)
                self._again_at = self._clock() + PAUSE
                return
            self._admit(sock)
