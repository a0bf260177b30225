"""The system as holders and their importers use it: clocks, waits for sockets, and the processes behind them."""

from __future__ import annotations

import select
import selectors
import socket
import time
from collections.abc import Callable, Collection
from typing import Protocol

from msgspec import Struct

from memtopo.sharing.sockets import PeerProcess, peer

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
