"""Calls for page-locked host memory and dma-bufs, in text as in `calls`.

`w0 = file 64K` makes a file in memory, `u0 = mapfile w0` maps it into a process, and `n0 = register u0+4K 100 3`
registers bytes of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from memtopo.driver.types import DmaBufFlags, HostFlags, RegisterFlags
from tests.differential.calls import OK, at_address, at_place
from tests.differential.external_calls import ResourceAction
from tests.differential.notation import place_of, size_of, size_text
from tests.differential.resources import ResourceSession


def _alloc(symbol: str, size: str, flags: str) -> ResourceAction:
    count, given = size_of(size), HostFlags(int(flags))

    def action(session: ResourceSession) -> str:
        address = session.driver.mem_host_alloc(count, given)
        session.addresses[symbol] = address
        if address:
            session.pinned.add(address)
        return OK if address else "null"

    return action


def _free(at: str) -> ResourceAction:
    def free(session: ResourceSession, address: int) -> None:
        session.driver.mem_free_host(address)
        session.pinned.discard(address)

    return at_address(at, free)


def _flags(at: str) -> ResourceAction:
    place = place_of(at)
    return lambda session: str(session.driver.mem_host_get_flags(at_place(session, place)))


def _device_pointer(at: str) -> ResourceAction:
    """Distance of the device's address from that of the CPU."""
    place = place_of(at)

    def action(session: ResourceSession) -> str:
        address = at_place(session, place)
        return size_text(session.driver.mem_host_get_device_pointer(address) - address)

    return action


def _file(symbol: str, size: str) -> ResourceAction:
    count = size_of(size)

    def action(session: ResourceSession) -> str:
        fd = session.fds[symbol] = os.memfd_create("memtopo-differential", os.MFD_CLOEXEC)
        os.ftruncate(fd, count)
        return OK

    return action


def _map_file(symbol: str, file: str) -> ResourceAction:
    def action(session: ResourceSession) -> str:
        address = session.addresses[symbol] = session.map_file(session.fds[file])
        session.files[address] = os.fstat(session.fds[file]).st_size
        return OK

    return action


def _unmap_file(at: str) -> ResourceAction:
    return at_address(at, ResourceSession.unmap_file)


def _register(symbol: str, at: str, size: str, flags: str) -> ResourceAction:
    count, given = size_of(size), RegisterFlags(int(flags))

    def register(session: ResourceSession, address: int) -> None:
        session.driver.mem_host_register(address, count, given)
        session.addresses[symbol] = address
        session.registered.add(address)

    return at_address(at, register)


def _unregister(at: str) -> ResourceAction:
    def unregister(session: ResourceSession, address: int) -> None:
        session.driver.mem_host_unregister(address)
        session.registered.discard(address)

    return at_address(at, unregister)


def _dma_buf(symbol: str, at: str, size: str, flags: str) -> ResourceAction:
    count, given = size_of(size), DmaBufFlags(int(flags))

    def export(session: ResourceSession, address: int) -> None:
        session.fds[symbol] = session.driver.mem_get_handle_for_address_range(address, count, given)

    return at_address(at, export)


def _dma_buf_size(fd: str) -> ResourceAction:
    return lambda session: size_text(os.lseek(session.fds[fd], 0, os.SEEK_END))


HOST_CALLS: dict[str, Callable[..., ResourceAction]] = {
    "hostalloc": _alloc, "hostfree": _free, "hostflags": _flags, "hostpointer": _device_pointer, "file": _file,
    "mapfile": _map_file, "unmapfile": _unmap_file, "register": _register, "unregister": _unregister,
    "dmabuf": _dma_buf, "dmabufsize": _dma_buf_size,
}  # fmt: skip
