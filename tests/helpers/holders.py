"""Holders as real processes, for tests to talk to, to stop and to kill."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from memtopo.sharing import wire
from memtopo.sharing.claims import claim
from memtopo.sharing.client import Client
from memtopo.sharing.endpoints import endpoint
from memtopo.sharing.holder import hold
from memtopo.sharing.holder.state import HolderInfo
from memtopo.sharing.offers import ChangeableLayout
from tests.helpers.child_process import PATIENCE, ChildProcess
from tests.helpers.memfd_exports import MACHINE


class Process(ChildProcess):
    """A program of tests/sharing/children in a process of its own."""

    def __init__(self, script: str, argument: Any, runtime: Path | None = None, **variables: str) -> None:
        super().__init__(f"tests.sharing.children.{script}", argument, runtime, **variables)


class Holder(Process):
    """A process that holds a layout; it serves once this is made."""

    def __init__(self, runtime: Path | None = None, argument: dict[str, Any] | None = None, **variables: str) -> None:
        super().__init__("holder", argument or {}, runtime, **variables)
        self.begun = self.read_line()
        self.idle = self.open_descriptors() if "error" not in self.begun else 0

    def end(self, number: signal.Signals | None = signal.SIGTERM) -> Any:
        """Send a signal, if one is to end it; return its last line."""
        if number:
            self.send(number)
        last = self.read_line()
        assert self.ended() == 0, last
        return last


@contextmanager
def holding(layout: ChangeableLayout, **terms: Any) -> Iterator[Callable[[], None]]:
    """Hold the layout kv in a thread of this process; yield a function that ends it, as the end of the block does."""
    ours, theirs = socket.socketpair()
    serving, ended = threading.Event(), threading.Event()

    def serve() -> None:
        with claim(endpoint("kv")) as claimed:
            about = HolderInfo("kv", None, MACHINE)
            hold(layout, claimed, about, changeable=layout, stop=ended.is_set, ready=serving.set, wake=theirs, **terms)

    def end() -> None:
        ended.set()
        ours.send(b"x")

    thread = threading.Thread(target=serve)
    with ours, theirs:
        theirs.setblocking(False)
        thread.start()
        assert serving.wait(PATIENCE)
        try:
            yield end
        finally:
            end()
            thread.join(PATIENCE)
    assert not thread.is_alive()


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
    return next_message(sock)


def next_message(sock: socket.socket) -> Any:
    """The next message, without its descriptors."""
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
    """Return true if all threads of a process have ended, so that its parent can read its status."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], 0)[0])
    finally:
        os.close(fd)


@contextmanager
def scripted(*packets: tuple[Any, Sequence[int]]) -> Iterator[Client]:
    """Client of a holder that has already sent all its packets."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        for message, descriptors in packets:
            wire.send(theirs, message if isinstance(message, bytes) else wire.encode(message), descriptors)
        theirs.shutdown(socket.SHUT_WR)
        with Client(ours, "/scripted.sock", timeout=PATIENCE) as client:
            yield client
