"""The probe's side of a child: its process and its channel."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import Self, get_args

from memtopo.common.spawn import python_command, spawn_connected
from memtopo.common.text import signal_name
from memtopo.machine.probe.messages import FromChild, Start
from memtopo.sharing.channel import Channel

_COMMAND = python_command("memtopo.machine.probe.child:main")
_EXIT = 5.0
"""Seconds that a process has to end once it is killed; one that hangs in the kernel does not end."""


class ChildProcess:
    """A spawned child."""

    def __init__(self, process: subprocess.Popen[bytes], channel: Channel[FromChild]) -> None:
        self._process, self.channel = process, channel

    @classmethod
    def launch(cls, start: Start, command: Sequence[str] = ()) -> Self:
        """Spawn a child; `command` replaces memtopo's own. Raises `OSError` if no process can be started."""
        process, sock = spawn_connected(command or _COMMAND, stderr=subprocess.DEVNULL)
        channel: Channel[FromChild] = Channel(sock, get_args(FromChild))
        channel.send(start)
        return cls(process, channel)

    def end(self, *, wait: bool = False) -> str | None:
        """Kill the child, if it has not ended; with `wait` it has some seconds to end by itself.

        Return how it ended by itself, such as `SIGSEGV` or `EXIT 0`, or None if it was killed here.
        """
        self.channel.close()
        if wait:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_EXIT)
        status = self._process.poll()
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT)
        if status is None:
            return None
        return signal_name(-status) if status < 0 else f"EXIT {status}"

    @property
    def stuck(self) -> int | None:
        """Process id of a child that was killed and has not ended."""
        return None if self._process.poll() is not None else self._process.pid
