"""One end of the conversation between the coordinator and a worker."""

from __future__ import annotations

import errno
import select
import socket
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from memtopo.sharing import wire
from memtopo.sharing.wire import Packet

_LATER = (errno.ETOOMANYREFS, errno.ENOBUFS, errno.ENOMEM)
"""What will go another time: descriptors of this user that lie unread in sockets, and memory of the system's."""

_PAUSE = 0.01


class Link:
    """Sends packets, and keeps those that the other end has no room for; gives what has arrived.

    A link whose other end is gone takes everything and gives None.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._waiting: deque[tuple[bytes, list[int]]] = deque()

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def waiting(self) -> bool:
        """Whether something is still to be sent."""
        return bool(self._waiting)

    def send(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Send a message, or keep it to be sent; the descriptors are this link's from now on."""
        self._waiting.append((wire.encode(message), list(fds)))
        self.flush()

    def flush(self) -> None:
        """Send what can be sent without waiting."""
        while self._waiting:
            data, fds = self._waiting[0]
            try:
                wire.send(self._sock, data, fds)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _LATER:
                    time.sleep(_PAUSE)
                else:
                    self._drop()
                return
            self._waiting.popleft()
            wire.close_all(fds)

    def receive(self) -> Packet | None:
        """What has arrived; None where the other end is gone. Raises `BlockingIOError` where nothing has."""
        try:
            return wire.receive(self._sock)
        except ConnectionResetError:
            return self.receive()  # it ended without reading all; told once, before the last that it had sent
        except BlockingIOError:
            raise
        except OSError:
            return None

    def ready(self, seconds: float) -> bool:
        """Wait until something has arrived or the other end is gone; false when the time is over first."""
        poll = select.poll()  # select itself knows no descriptor above 1,023
        poll.register(self._sock, select.POLLIN | (select.POLLOUT if self._waiting else 0))
        found = poll.poll(seconds * 1000)
        self.flush()
        return any(event & ~select.POLLOUT for _, event in found)

    def close(self) -> None:
        """End the conversation."""
        self._drop()
        self._sock.close()

    def _drop(self) -> None:
        for _, fds in self._waiting:
            wire.close_all(fds)
        self._waiting.clear()
