"""The two processes of a program: the second one gets calls in text, and descriptors as a program would send them."""

from __future__ import annotations

import array
import json
import socket
import struct
import sys
from collections.abc import Iterable
from typing import Any

from tests.helpers.python_process import PythonProcess
from tests.programs.process import Process

THERE = "there "
FINISH = "finish"
_PATIENCE = 15.0
_LARGEST = 1 << 16
_LENGTH = struct.Struct("=I")


class Pair:
    """The first process, which is this one, and the second one, which is started by the first call in it."""

    def __init__(self) -> None:
        self.first = Process()
        self._channel: socket.socket | None = None

    def make(self, line: str) -> str:
        """Make a call in its process; return its answer."""
        return self._there(line.removeprefix(THERE)) if line.startswith(THERE) else self.first.make(line)

    def finish(self) -> str:
        """Restore the state before a program, first in the process that has imported; returns `ok` or what failed."""
        refused = [
            each for each in (self._there(FINISH) if self._channel else "ok", self.first.finish()) if each != "ok"
        ]
        return ", ".join(refused) or "ok"

    def _there(self, line: str) -> str:
        if self._channel is None:
            self._channel = _started()
        first, words = self.first, line.split()
        handed = {name: blob.hex() for name, blob in first.blobs.items() if name in words}
        names = [name for name in first.fds if name in words]
        _send(self._channel, {"line": line, "blobs": handed, "fds": names}, [first.fds[name] for name in names])
        answer, fds = _receive(self._channel)
        first.blobs.update({name: bytes.fromhex(data) for name, data in answer["blobs"].items()})
        first.fds.update(zip(answer["fds"], fds, strict=True))
        return str(answer["answer"])


def _started() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(_PATIENCE)
    with theirs:
        number = theirs.fileno()
        PythonProcess([sys.executable, "-m", "tests.programs.pair", str(number)], pass_fds=[number])
    return ours


def _send(channel: socket.socket, message: dict[str, Any], fds: Iterable[int]) -> None:
    data = json.dumps(message).encode()
    numbers = array.array("i", fds)
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers.tobytes())] if numbers else []
    channel.sendmsg([_LENGTH.pack(len(data)), data], ancillary)


def _receive(channel: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return a message and its descriptors. Raises `EOFError` at the end."""
    data, fds, _, _ = socket.recv_fds(channel, _LARGEST, 4)
    if not data:
        raise EOFError
    return json.loads(data[_LENGTH.size :]), fds


def serve(fd: int) -> None:
    """Make calls for the first process until it ends."""
    channel, process = socket.socket(fileno=fd), Process()
    process.begin()
    while True:
        try:
            order, fds = _receive(channel)
        except (EOFError, OSError):
            return
        process.fds = dict(zip(order["fds"], fds, strict=True))
        process.blobs = {name: bytes.fromhex(data) for name, data in order["blobs"].items()}
        answer = process.finish() if order["line"] == FINISH else process.make(order["line"])
        made = {name: blob.hex() for name, blob in process.blobs.items() if name not in order["blobs"]}
        given = [name for name in process.fds if name not in order["fds"]]
        _send(channel, {"answer": answer, "blobs": made, "fds": given}, [process.fds[name] for name in given])
        process.close()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
