"""Context managers of exported and imported chunks, allocations and events."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from memtopo.driver.protocol import Driver
from memtopo.driver.types import Access, EventFlags, Grant, HandleType, Properties, gpu
from tests.contract.memory import mapped, reserved

FD, FABRIC = HandleType.FD, HandleType.FABRIC
SHARED = Properties(gpu(0), FD)
SHARED_EVENT = EventFlags.DISABLE_TIMING | EventFlags.INTERPROCESS
JUNK = 0x1000
INVALID_HANDLE = "CUDA_ERROR_INVALID_HANDLE"


@contextmanager
def exported(driver: Driver, handle: int) -> Iterator[int]:
    """A file descriptor of a chunk."""
    fd = driver.mem_export_to_shareable_handle(handle, FD)
    assert isinstance(fd, int)
    with closing(fd):
        yield fd


@contextmanager
def closing(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def imported(driver: Driver, shared: int | bytes, kind: HandleType = FD) -> Iterator[int]:
    handle = driver.mem_import_from_shareable_handle(shared, kind)
    try:
        yield handle
    finally:
        driver.mem_release(handle)


@contextmanager
def usable(driver: Driver, size: int, handle: int, device: int = 0) -> Iterator[int]:
    """A chunk mapped with access rw for one device."""
    with reserved(driver, size) as address, mapped(driver, address, size, handle):
        driver.mem_set_access(address, size, (Grant(gpu(device), Access.RW),))
        yield address


@contextmanager
def allocated(driver: Driver, size: int) -> Iterator[int]:
    address = driver.mem_alloc(size)
    try:
        yield address
    finally:
        driver.mem_free(address)


@contextmanager
def opened(driver: Driver, handle: bytes) -> Iterator[int]:
    """The address of another process's allocation."""
    address = driver.ipc_open_mem_handle(handle)
    try:
        yield address
    finally:
        driver.ipc_close_mem_handle(address)


@contextmanager
def event(driver: Driver, flags: EventFlags = SHARED_EVENT) -> Iterator[int]:
    made = driver.event_create(flags)
    try:
        yield made
    finally:
        driver.event_destroy(made)


@contextmanager
def opened_event(driver: Driver, handle: bytes) -> Iterator[int]:
    """Another process's event."""
    made = driver.ipc_open_event_handle(handle)
    try:
        yield made
    finally:
        driver.event_destroy(made)
