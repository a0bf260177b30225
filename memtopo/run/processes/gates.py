"""A barrier that deaths cannot break: a pipe that everyone holds open, and whose end all see when the last lets go.

The system closes the descriptors of whoever dies, so nobody waits for the dead; whoever is stopped is waited for until
a deadline.
"""

from __future__ import annotations

import os
import select


class Gate:
    """One process's ends of a pipe that it shares with the others."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = read, write

    @staticmethod
    def pipe() -> tuple[int, int]:
        """The two ends, to be handed to all who take part, and closed by whoever made them."""
        return os.pipe2(os.O_CLOEXEC)

    def leave(self) -> None:
        """Say that this process is through; a second time does nothing."""
        # Closed by putting something else in its place, so that the count of descriptors tells of leaks alone.
        os.dup2(self._read, self._write, inheritable=False)

    def wait(self, seconds: float) -> bool:
        """Leave, and wait until all others did; false where somebody is still there after so many seconds."""
        self.leave()
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def close(self) -> None:
        """Close both ends."""
        os.close(self._write)
        os.close(self._read)
