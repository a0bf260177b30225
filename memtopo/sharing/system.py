"""The system as holders and their importers use it: clocks, waits for sockets, and the processes behind them."""

from __future__ import annotations

import select
import selectors
import socket
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from memtopo.sharing.sockets import PeerProcess, peer


class Descriptor(Protocol):
    """An object with a descriptor that can be waited for."""

    def fileno(self) -> int: ...


def wait_readable(any_of: Collection[Descriptor], seconds: float) -> bool:
    """Wait until one of some descriptors can be read or its other end has closed. Return whether that is so in time."""
    poll = select.poll()  # select() does not support descriptors above 1,023
    for each in any_of:
        poll.register(each.fileno(), select.POLLIN)
    return bool(poll.poll(seconds * 1000))


@dataclass(frozen=True, slots=True)
class System:
    """Functions of the system; a simulation of many processes in one has others.

    `now` returns seconds of the monotonic clock, `epoch` those of the epoch. `pause` waits for some seconds, `wait` for
    a descriptor, and a `selector` for those that it has. `peer` returns the process at the other end of a socket.
    """

    now: Callable[[], float] = time.monotonic
    epoch: Callable[[], float] = time.time
    pause: Callable[[float], None] = time.sleep
    wait: Callable[[Collection[Descriptor], float], bool] = wait_readable
    selector: Callable[[], selectors.BaseSelector] = selectors.DefaultSelector
    peer: Callable[[socket.socket], PeerProcess] = peer


SYSTEM = System()
