"""Children of a probe, each spawned with what it is to do."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from memtopo.common.text import signal_name
from memtopo.machine.probe.messages import Message, receive, send
from memtopo.machine.probe.trial_table import Ask

# The package is found where this process found it; the working directory is not searched for one.
_ROOT = str(Path(__file__).parents[3])
_MAIN = "from memtopo.machine.probe.child import main; main(int(sys.argv[1]))"
_START = f"import sys; sys.path.insert(0, {_ROOT!r}); {_MAIN}"
_COMMAND = (sys.executable, "-P", "-c", _START)
_ENDING = 5.0
"""Seconds that a process has to end once it is killed; one that hangs in the kernel does not."""


class Child:
    """One child: what came from it, and how it ended."""

    def __init__(self, process: subprocess.Popen[bytes], channel: socket.socket) -> None:
        self._process, self.channel = process, channel

    @classmethod
    def start(cls, asks: Sequence[tuple[int, Ask]] | None, record: bytes | None, command: Sequence[str] = ()) -> Self:
        """Spawn one that makes these trials, or without any opens what others hand over.

        `record` is the machine to simulate, `command` what is started instead of memtopo's own. Raises `OSError`
        where the system has no room for another process.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                process = subprocess.Popen(  # noqa: S603 the interpreter that runs this, and no shell
                    [*(command or _COMMAND), str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
        except BaseException:
            ours.close()
            raise
        listed = None if asks is None else [(n, int(a.place.kind), a.place.id, a.name, a.by) for n, a in asks]
        send(ours, {"asks": listed}, [_file(record)] if record is not None else [])
        return cls(process, ours)

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Tell it something; the descriptors are its own from now on."""
        send(self.channel, message, fds)

    def receive(self) -> tuple[Message, list[int]] | None:
        """What it said; None where it is gone."""
        return receive(self.channel)

    def end(self, *, kindly: bool = False) -> str | None:
        """See to its end: by itself where it is done, otherwise kill it.

        Gives how it died if it did so by itself, such as `SIGSEGV`; None where it had to be killed.
        """
        self.channel.close()
        if kindly:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_ENDING)
        status = self._process.poll()
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_ENDING)
        if status is None:
            return None
        return signal_name(-status) if status < 0 else f"EXIT {status}"

    @property
    def stuck(self) -> int | None:
        """Its process id, where it did not end although it was killed."""
        return None if self._process.poll() is not None else self._process.pid


def _file(record: bytes) -> int:
    fd = os.memfd_create("memtopo-probe", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(record)
    return fd


def now() -> float:
    """Seconds, of a clock that nobody sets."""
    return time.monotonic()
