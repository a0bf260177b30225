"""Calls for external memory and timelines, and for their producer, in text as in `calls`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Self

from memtopo.driver.types import MemoryHandleType, SemaphoreHandleType
from tests.differential.calls import OK
from tests.differential.notation import size_of
from tests.differential.resources import ResourceSession

ResourceAction = Callable[[ResourceSession], str]


def after(call: Callable[..., None], *arguments: object) -> str:
    """Make a call without a result, and return its answer."""
    call(*arguments)
    return OK


def _make(symbol: str, size: str, dedicated: str = "") -> ResourceAction:
    count = size_of(size)

    def action(session: ResourceSession) -> str:
        assert session.maker
        session.made[symbol] = session.maker.allocate(count, dedicated=bool(dedicated))
        return OK

    return action


def _made_write(symbol: str, offset: str, data: str) -> ResourceAction:
    return lambda session: after(session.made[symbol].write, size_of(offset), bytes.fromhex(data))


def _made_read(symbol: str, offset: str, size: str) -> ResourceAction:
    return lambda session: session.made[symbol].read(size_of(offset), size_of(size)).hex()


def _import_memory(symbol: str, made: str, size: str, dedicated: str = "") -> ResourceAction:
    count = size_of(size)

    def action(session: ResourceSession) -> str:
        with _Spare(session.made[made].fd()) as spare:
            session.external[symbol] = session.driver.import_external_memory(
                spare.copy, MemoryHandleType.OPAQUE_FD, count, dedicated=bool(dedicated)
            )
        return OK

    return action


def _map_buffer(symbol: str, memory: str, offset: str, size: str) -> ResourceAction:
    begin, count = size_of(offset), size_of(size)

    def action(session: ResourceSession) -> str:
        address = session.driver.external_memory_get_mapped_buffer(session.external[memory], begin, count)
        session.addresses[symbol] = address
        session.allocations[address] = count, symbol
        return OK

    return action


def _end_memory(symbol: str) -> ResourceAction:
    def action(session: ResourceSession) -> str:
        session.driver.destroy_external_memory(session.external[symbol])
        del session.external[symbol]
        return OK

    return action


def _timeline(symbol: str, value: str = "0") -> ResourceAction:
    def action(session: ResourceSession) -> str:
        assert session.maker
        session.signals[symbol] = session.maker.timeline(int(value))
        return OK

    return action


def _made_signal(symbol: str, value: str) -> ResourceAction:
    return lambda session: after(session.signals[symbol].signal, int(value))


def _counter(symbol: str) -> ResourceAction:
    return lambda session: str(session.signals[symbol].counter)


def _import_semaphore(symbol: str, made: str) -> ResourceAction:
    def action(session: ResourceSession) -> str:
        with _Spare(session.signals[made].fd()) as spare:
            kind = SemaphoreHandleType.TIMELINE_FD
            session.semaphores[symbol] = session.driver.import_external_semaphore(spare.copy, kind)
        return OK

    return action


def _end_semaphore(symbol: str) -> ResourceAction:
    def action(session: ResourceSession) -> str:
        session.driver.destroy_external_semaphore(session.semaphores[symbol])
        del session.semaphores[symbol]
        return OK

    return action


def _signal(symbol: str, value: str, stream: str) -> ResourceAction:
    def action(session: ResourceSession) -> str:
        number = session.streams[stream]
        session.driver.signal_external_semaphore(session.semaphores[symbol], int(value), number)
        return OK

    return action


def _wait(symbol: str, value: str, stream: str) -> ResourceAction:
    def action(session: ResourceSession) -> str:
        number = session.streams[stream]
        session.driver.wait_external_semaphore(session.semaphores[symbol], int(value), number)
        return OK

    return action


class _Spare:
    """Descriptor and a copy for the driver, which may close it also where it refuses it (fact 54)."""

    def __init__(self, fd: int) -> None:
        self._fd, self.copy = fd, os.dup(fd)
        self._inode = os.fstat(fd).st_ino

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        os.close(self._fd)
        if failed and self._is_open():
            os.close(self.copy)

    def _is_open(self) -> bool:
        try:
            return os.fstat(self.copy).st_ino == self._inode
        except OSError:
            return False


EXTERNAL_CALLS: dict[str, Callable[..., ResourceAction]] = {
    "make": _make, "madewrite": _made_write, "maderead": _made_read, "importmemory": _import_memory,
    "mapbuffer": _map_buffer, "endmemory": _end_memory, "timeline": _timeline, "madesignal": _made_signal,
    "counter": _counter, "importsemaphore": _import_semaphore, "endsemaphore": _end_semaphore, "signal": _signal,
    "wait": _wait,
}  # fmt: skip
