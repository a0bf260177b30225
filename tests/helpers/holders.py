"""Holders as real processes, for tests to talk to, to stop and to kill."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from memtopo.sharing import wire
from memtopo.sharing.connection import HolderConnection
from tests.helpers.command_line import ROOT, environment

PATIENCE = 60.0
"""Seconds after which a test gives up; none waits for them."""


class Process:
    """A program of tests/sharing/children in a process of its own, which says a line of JSON at a time."""

    def __init__(self, script: str, wish: Any, runtime: Path | None = None, **variables: str) -> None:
        known = {"XDG_RUNTIME_DIR": str(runtime)} if runtime else {}
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"tests.sharing.children.{script}", json.dumps(wish)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=environment(**known, **variables),
        )
        self.pid = self.process.pid

    def said(self) -> Any:
        """Its next line; None where it says no more."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        return json.loads(line) if line else None

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def go_on(self) -> None:
        """Let it read the end of its standard input."""
        assert self.process.stdin
        self.process.stdin.close()

    def ended(self) -> int:
        """Its exit status, once it ends."""
        return self.process.wait(PATIENCE)

    def fds(self) -> int:
        """How many descriptors it has open."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream
            with suppress(OSError):
                stream.close()


class Holder(Process):
    """A process that holds a shelf; it serves once this is made."""

    def __init__(self, runtime: Path | None = None, wish: dict[str, Any] | None = None, **variables: str) -> None:
        super().__init__("holder", wish or {}, runtime, **variables)
        self.begun = self.said()
        self.idle = self.fds() if "error" not in self.begun else 0

    def end(self, number: signal.Signals | None = signal.SIGTERM) -> Any:
        """What it says at its end, which a signal brings about, unless something else does."""
        if number:
            self.send(number)
        told = self.said()
        assert self.ended() == 0, told
        return told


@contextmanager
def raw(path: str | Path) -> Iterator[socket.socket]:
    """A connection that keeps to no protocol."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect(str(path))
        yield sock


def heard(sock: socket.socket) -> wire.Packet | None:
    """The next packet; None at the end, also where the other end did not read everything."""
    while True:
        assert select.select([sock], [], [], PATIENCE)[0]
        with suppress(ConnectionResetError):
            return wire.receive(sock)


def asked(sock: socket.socket, request: str, **fields: Any) -> Any:
    """The answer to a request, without its descriptors."""
    wire.send(sock, wire.encode({"request": request, **fields}))
    packet = heard(sock)
    assert packet
    packet.close()
    return packet.message


def until(happened: Callable[[], Any]) -> None:
    """Look again and again until something has happened."""
    giving_up = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < giving_up
        select.select([], [], [], 0.01)


def gone(pid: int) -> bool:
    """Whether a process has ended, all of its threads: whoever started it can be told how."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], 0)[0])
    finally:
        os.close(fd)


@contextmanager
def scripted(*packets: tuple[Any, Sequence[int]]) -> Iterator[HolderConnection]:
    """A connection to a holder that has said all that it will ever say, whatever it is asked."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        for message, descriptors in packets:
            wire.send(theirs, message if isinstance(message, bytes) else wire.encode(message), descriptors)
        theirs.shutdown(socket.SHUT_WR)
        talk = HolderConnection(ours, "/scripted.sock", timeout=PATIENCE)
        try:
            yield talk
        finally:
            talk.close()
