"""Unix sockets: connections, waits, listeners in an event loop, limits of open files, credentials of peers, importers.

Holders and their importers take clocks and waits from a `System`.
"""

from __future__ import annotations

import os
import resource
import secrets
import select
import selectors
import socket
import stat
import struct
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from threading import RLock
from typing import NamedTuple, Protocol
from urllib.parse import quote, unquote
from weakref import WeakSet

from msgspec import Struct

from memtopo.common.errors import ExchangeError, on_failure
from memtopo.common.files import closing_fd
from memtopo.common.processes import is_unmapped, process_stat

_SOCKET_FILE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_SLACK = 64
"""Descriptors that are left to other users of this process, where possible."""


class Inheritable(Protocol):
    """Descriptors that a forked child inherits, and that only this process may keep open."""

    def abandon(self) -> None:
        """Close the descriptors in the child, and change nothing that it shares with this process."""


_INHERITABLE: WeakSet[Inheritable] = WeakSet()  # fork handlers are global, and cannot be unregistered


def abandon_in_children(of: Inheritable) -> None:
    """Close descriptors in every child that this process forks: a lock or a connection ends with this process.

    A child that is forked outside of Python keeps them.
    """
    _INHERITABLE.add(of)


def _abandon_all() -> None:
    _ACCEPTING.release()
    for each in tuple(_INHERITABLE):
        each.abandon()


_ACCEPTING = RLock()
"""Held by a thread from the acceptance of a connection until its listener has it, and during forks."""

os.register_at_fork(before=_ACCEPTING.acquire, after_in_parent=_ACCEPTING.release, after_in_child=_abandon_all)


class PeerProcess(NamedTuple):
    """A process at the time at which it connected or began to listen; pid 0 is a process of another container."""

    pid: int
    uid: int


def connect_at(folder: int, file: str, timeout: float) -> socket.socket:
    """Connect to the socket `file` in an open folder; the kernel waits while the queue of the listener is full.

    The socket is opened by descriptor, since a path is limited to 108 bytes and its links may change. Raises `OSError`:
    `FileNotFoundError`, `ConnectionRefusedError` if no process listens any more, `BlockingIOError` after `timeout`
    seconds, `PermissionError`.
    """
    with closing_fd(os.open(file, _SOCKET_FILE, dir_fd=folder)) as found:
        if not stat.S_ISSOCK(os.fstat(found).st_mode):
            raise OSError(0, "it is no socket")
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with on_failure(sock.close):
            # Python's own timeout makes a socket non-blocking, and then connect() does not wait in the queue.
            limit = struct.pack("ll", *divmod(max(int(timeout * 1e6), 1), 1_000_000))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            sock.connect(f"/proc/self/fd/{found}")
        return sock


def is_listening(folder: int, file: str) -> bool:
    """Return whether a process listens at a socket; a busy one does."""
    try:
        connect_at(folder, file, 0.001).close()
    except BlockingIOError:
        return True
    except OSError:
        return False
    return True


def is_bound(folder: int, file: str) -> bool:
    """Return whether a process has the socket `file` open, of any type; false only if the kernel is certain.

    The connection of a datagram socket disturbs no listener, and is refused only where no socket is bound any more.
    """
    try:
        found = os.open(file, _SOCKET_FILE, dir_fd=folder)
    except FileNotFoundError:
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.connect(f"/proc/self/fd/{found}")
    except ConnectionRefusedError:
        return False
    except OSError:
        return True
    finally:
        os.close(found)
    return True


def peer(sock: socket.socket) -> PeerProcess:
    """Return the process at the other end, as the kernel reports it (SO_PEERCRED)."""
    pid, uid, _ = struct.unpack("iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return PeerProcess(pid, uid)


def has_ended(sock: socket.socket) -> bool:
    """Return at once whether the other end has closed; what it sent before can still be read."""
    poll = select.poll()
    poll.register(sock, select.POLLRDHUP)
    return bool(poll.poll(0))


def check_user(of: PeerProcess, what: str, allow_uids: Collection[int], own: str = "this process") -> None:
    """Accept the user of this process and those of `allow_uids`. Raises `ExchangeError` for others.

    `own` is this process in messages, such as `the holder` in those that its clients get.
    """
    ours = os.geteuid()
    if of.uid != ours and of.uid not in allow_uids:
        message = f"{what} belongs to uid {of.uid}, and {own} to uid {ours}"
        trusted = ", if that user is to be trusted"
        if is_unmapped(of.uid):
            trusted = ", which trusts every user without a number in this user namespace"
        at = "" if own == "this process" else f"restart {own} with "
        raise ExchangeError("forbidden", message, hint=f"{at}--allow-uid {of.uid}{trusted}")


def reserve_descriptors(wanted: int, least: int | None = None) -> int:
    """Return how many more descriptors can be opened, at most `wanted`; the soft limit is raised where necessary.

    Raises `ExchangeError` if there are fewer than `least`, which is `wanted` by default.
    """
    least = wanted if least is None else least
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        used = len(os.listdir("/proc/self/fd")) - 1  # os.listdir opens one itself
    except OSError:  # no descriptor is left to list them
        used = soft
    target = used + wanted + _SLACK
    if soft not in (resource.RLIM_INFINITY, hard) and target > soft:
        soft = target if hard == resource.RLIM_INFINITY else min(target, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    free = wanted if soft == resource.RLIM_INFINITY else min(soft - used, wanted)
    if free < least:
        raise ExchangeError(
            "limit",
            f"the limit of open files is {soft:,}, and {used:,} are in use; {least:,} more are needed",
            hint=f"raise the hard limit (RLIMIT_NOFILE) to {used + least:,} or more: "
            "'ulimit -Hn', LimitNOFILE= in a systemd unit, --ulimit nofile= of a container",
        )
    return free


_MARKER = "memtopo-import"
_LONGEST_LAYOUT = 40
_ENTRY_COLUMNS = 8
"""Columns of a line of `/proc/net/unix` whose socket has a name; the last is the name, with @ for its first byte."""


class LeaseName(Struct, frozen=True):
    """Layout of a lease (its name, or the file of its socket), when it began, and its holder by pid and start.

    `since` is in seconds of the epoch, `start` in ticks since boot. A holder of another pid namespace has pid 0.
    """

    layout: str
    holder: int
    start: int
    since: int

    @property
    def address(self) -> str:
        """Address of a socket with this name, different for each call."""
        unique = secrets.token_hex(6)
        layout = quote(self.layout, safe="")[:_LONGEST_LAYOUT]
        return f"\0{_MARKER}/{unique}/{self.holder}/{self.start}/{self.since}/{layout}"


def name_lease(sock: socket.socket, path: str, holder: int) -> None:
    """Name the socket of an importer. Without effect if it has a name, or if the system refuses one."""
    found = process_stat(holder) if holder else None
    layout = Path(path).name.removesuffix(".sock")
    with suppress(OSError):
        sock.bind(LeaseName(layout, holder, found.start if found else 0, int(time.time())).address)


def lease_names(file: Path) -> dict[int, LeaseName]:
    """Return the leases in a file such as `/proc/net/unix`, by the inodes of their sockets."""
    try:
        lines = os.fsdecode(file.read_bytes()).split("\n")
    except OSError:
        return {}
    found: dict[int, LeaseName] = {}
    for line in (each for each in lines if _MARKER in each):
        with suppress(ValueError):  # a socket of another program
            *_, inode, name = line.split(maxsplit=_ENTRY_COLUMNS - 1)
            marker, _, holder, start, since, layout = name.strip().split("/")
            if marker == f"@{_MARKER}":
                found[int(inode)] = LeaseName(unquote(layout), int(holder), int(start), int(since))
    return found


LISTENER_PAUSE = 1.0
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
        self._accepted: socket.socket | None = None
        """The last connection, which may not be admitted yet."""
        sock.setblocking(False)  # noqa: FBT003 the signature is the library's
        self._watch()

    @property
    def pause(self) -> float | None:
        """Seconds within which `advance` is to be called; None while the socket is watched."""
        return None if self._again_at is None else LISTENER_PAUSE

    def advance(self) -> None:
        """Accept connections again after a pause."""
        if self._again_at is not None and self._clock() >= self._again_at:
            self._again_at = None
            self._watch()

    def close(self) -> None:
        """Close the socket, and watch it no longer."""
        if self._again_at is None:
            self._selector.unregister(self._sock)
        self._sock.close()

    def abandon(self) -> None:
        """Close the sockets without a change of the selector, which a forked child shares with its parent."""
        self._sock.close()
        if self._accepted:
            self._accepted.close()

    def _watch(self) -> None:
        self._selector.register(self._sock, selectors.EVENT_READ, lambda _: self._accept())

    def _accept(self) -> None:
        for _ in range(self._most):
            try:
                with _ACCEPTING:
                    self._accepted = sock = self._sock.accept()[0]
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError:  # no descriptor is free: new connections wait in the queue of the socket
                self._selector.unregister(self._sock)
                self._again_at = self._clock() + LISTENER_PAUSE
                return
            self._admit(sock)


_LONGEST = 2_000_000.0
"""Seconds of the longest wait that has a limit: `poll` counts milliseconds in 31 bits."""


class Descriptor(Protocol):
    """An object with a descriptor that can be waited for."""

    def fileno(self) -> int: ...


def wait_readable(any_of: Collection[Descriptor], seconds: float | None, writable: Collection[Descriptor] = ()) -> bool:
    """Wait until one of some descriptors can be read or its other end has closed. Return whether that is so in time.

    The wait also ends when one of the `writable` descriptors can be written, and after `_LONGEST` seconds at the latest
    unless `seconds` is None.
    """
    poll = select.poll()  # select() does not support descriptors above 1,023
    events = {each.fileno(): select.POLLIN for each in any_of}
    for each in writable:
        events[each.fileno()] = events.get(each.fileno(), 0) | select.POLLOUT
    for fd, mask in events.items():
        poll.register(fd, mask)
    limit = None if seconds is None else min(seconds, _LONGEST) * 1000
    return any(event & ~select.POLLOUT for _, event in poll.poll(limit))


class Wait(Protocol):
    """Wait as `wait_readable`."""

    def __call__(
        self, any_of: Collection[Descriptor], seconds: float | None, writable: Collection[Descriptor] = ()
    ) -> bool: ...


class System(Struct, frozen=True):
    """Functions of the system; a simulation of many processes in one has others.

    `now` returns seconds of the monotonic clock, `epoch` those of the epoch. `pause` waits for some seconds, `wait` for
    a descriptor, and a `selector` for those that it has. `peer` returns the process at the other end of a socket.
    """

    now: Callable[[], float] = time.monotonic
    epoch: Callable[[], float] = time.time
    pause: Callable[[float], None] = time.sleep
    wait: Wait = wait_readable
    selector: Callable[[], selectors.BaseSelector] = selectors.DefaultSelector
    peer: Callable[[socket.socket], PeerProcess] = peer


SYSTEM = System()
