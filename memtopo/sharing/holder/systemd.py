"""Protocols of systemd for services: notifications, the watchdog, and sockets that it passes.

They are described in sd_notify(3), sd_watchdog_enabled(3) and sd_listen_fds(3).
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress

from memtopo.common.errors import UsageError, on_failure, reason
from memtopo.sharing.claims import BACKLOG, Claim
from memtopo.sharing.endpoints import Endpoint, endpoint

NAME = "memtopo"
"""FileDescriptorName= of the socket to serve at, if several are passed."""

FIRST_DESCRIPTOR = 3
_HINT = "write ListenSequentialPacket=/path/to/socket and Accept=no in the .socket unit"


def notify(*lines: str) -> str | None:
    """Send lines such as `READY=1` to the socket in NOTIFY_SOCKET, if it is set. Return why that failed, if it did."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return None
    if address[0] not in "/@":
        return f"NOTIFY_SOCKET has a type that memtopo does not support: {address!r}"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            path = f"\0{address[1:]}" if address[0] == "@" else address
            sock.sendmsg(["\n".join(lines).encode()], [], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL, path)
    except OSError as error:
        return f"systemd was not notified of {lines[0]}: {reason(error)}"
    return None


class Notifier:
    """Notifies systemd of the state of a holder, and keeps the failures as `failures`.

    `interval` is the number of seconds within which `advance` is to be called again; None without a watchdog.
    """

    def __init__(self) -> None:
        self.failures: list[str] = []
        limit, process = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", str(os.getpid()))
        is_watched = limit.isdecimal() and int(limit) > 0 and process == str(os.getpid())
        self.interval = int(limit) / 4e6 if is_watched else None
        self._next = 0.0

    def ready(self, status: str) -> None:
        """Notify it that the layout is served, also after a reload."""
        self._notify("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """Notify it that a reload has begun."""
        self._notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """Notify it that the layout is being released."""
        self._notify("STOPPING=1")

    def advance(self, now: float) -> None:
        """Notify the watchdog if it is time to."""
        if self.interval is not None and now >= self._next:
            self._next = now + self.interval
            notify("WATCHDOG=1")

    def _notify(self, *lines: str) -> None:
        if failure := notify(*lines):
            self.failures.append(failure)


class PassedClaim(Claim):
    """Endpoint of a socket that systemd made and keeps: no lock belongs to it, and its file stays."""

    def __init__(self, at: Endpoint, sock: socket.socket) -> None:
        super().__init__(at, -1, -1)
        self._passed = sock

    def listen(self, *, mode: int = 0o600, kind: socket.SocketKind = socket.SOCK_SEQPACKET) -> socket.socket:
        """Return the passed socket, whose mode its unit sets. Clients see this process as its owner from now on."""
        del mode, kind
        self._passed.listen(BACKLOG)  # the kernel takes the credentials for SO_PEERCRED anew
        return self._passed.dup()

    def unlink_socket(self) -> None:
        """Leave the file to systemd."""

    def close(self) -> None:
        self.abandon()

    def abandon(self) -> None:
        self._passed.close()
        for each in self._kept_open:
            each.close()


def passed_claim(environment: Mapping[str, str] = os.environ, first: int = FIRST_DESCRIPTOR) -> PassedClaim | None:
    """Claim the socket that systemd passed to this process; None if it passed none.

    `first` is the number of the first descriptor that it passed. Raises `UsageError` for a socket that a layout cannot
    be served at, and if it is unclear which one is meant.
    """
    count = environment.get("LISTEN_FDS", "")
    if environment.get("LISTEN_PID") != str(os.getpid()) or not count.isdecimal() or not int(count):
        return None
    numbers, names = range(first, first + int(count)), environment.get("LISTEN_FDNAMES", "").split(":")
    for each in numbers:  # none is inherited any further
        with suppress(OSError):
            os.set_inheritable(each, False)  # noqa: FBT003 the signature is the library's
    named = [number for number, name in zip(numbers, names, strict=False) if name == NAME]
    found = named if len(numbers) > 1 else numbers
    if len(found) != 1:
        message = f"systemd passed {len(numbers)} sockets, but {len(named)} of them are named {NAME!r}"
        raise UsageError(message, hint=f"write FileDescriptorName={NAME} in the unit of the layout's socket")
    number = found[0]
    try:
        sock = socket.socket(fileno=os.dup(number))
    except OSError as error:
        raise UsageError(f"descriptor {number}, which systemd passed, is not a socket", hint=_HINT) from error
    with on_failure(sock.close):
        if why := _objection(sock):
            raise UsageError(f"the socket that systemd passed {why}", hint=_HINT)
        return PassedClaim(endpoint(socket=sock.getsockname()), sock)


def _objection(sock: socket.socket) -> str | None:
    """Return why a layout cannot be served at a socket."""
    kinds = [("stream", socket.SOCK_STREAM), ("datagram", socket.SOCK_DGRAM)]
    kind = sock.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE)
    if sock.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN) != socket.AF_UNIX:
        return "is no Unix socket"
    if kind != socket.SOCK_SEQPACKET:
        return f"is a {next((name for name, number in kinds if number == kind), 'raw')} socket"
    if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return "is a connection, and does not listen"
    path = sock.getsockname()
    return None if isinstance(path, str) and path.startswith("/") else "has no path in the file system"
