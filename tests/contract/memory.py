"""Context managers of reservations, chunks, mappings and contexts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from memtopo.driver.protocol import Driver
from memtopo.driver.types import Access, DriverError, Grant, Location, LocationKind, Properties, gpu

INVALID_VALUE = "CUDA_ERROR_INVALID_VALUE"
INVALID_DEVICE = "CUDA_ERROR_INVALID_DEVICE"
INVALID_CONTEXT = "CUDA_ERROR_INVALID_CONTEXT"
NOT_FOUND = "CUDA_ERROR_NOT_FOUND"
NOT_SUPPORTED = "CUDA_ERROR_NOT_SUPPORTED"
OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"

HOST = Location(LocationKind.HOST)
NODE = Location(LocationKind.HOST_NUMA, 0)
PLAIN = Properties(gpu(0))


@contextmanager
def refused(name: str) -> Iterator[None]:
    """Assert that the block is refused with an error."""
    with pytest.raises(DriverError) as caught:
        yield
    assert caught.value.name == name


@contextmanager
def reserved(driver: Driver, size: int, alignment: int = 0, address: int = 0) -> Iterator[int]:
    start = driver.mem_address_reserve(size, alignment, address)
    try:
        yield start
    finally:
        driver.mem_address_free(start, size)


@contextmanager
def created(driver: Driver, size: int, properties: Properties = PLAIN) -> Iterator[int]:
    handle = driver.mem_create(size, properties)
    try:
        yield handle
    finally:
        driver.mem_release(handle)


@contextmanager
def mapped(driver: Driver, address: int, size: int, handle: int) -> Iterator[int]:
    driver.mem_map(address, size, handle)
    try:
        yield address
    finally:
        driver.mem_unmap(address, size)


@contextmanager
def laid_out(
    driver: Driver,
    sizes: tuple[int, ...],
    *,
    hole: int = 0,
    properties: Properties = PLAIN,
    access: Access = Access.NONE,
) -> Iterator[int]:
    """Chunks of the given sizes, mapped one after another, with a hole after them; the first GPU has `access`."""
    with ExitStack() as stack:
        start = at = stack.enter_context(reserved(driver, sum(sizes) + hole))
        for size in sizes:
            handle = stack.enter_context(created(driver, size, properties))
            at = stack.enter_context(mapped(driver, at, size, handle)) + size
        if access:
            driver.mem_set_access(start, sum(sizes), (Grant(gpu(0), access),))
        yield start


@contextmanager
def adjacent(driver: Driver, size: int) -> Iterator[int]:
    """Two adjacent reservations of one size; the address of the first."""
    with ExitStack() as stack:
        starts: set[int] = set()
        for _ in range(64):
            start = stack.enter_context(reserved(driver, size))
            starts.add(start)
            if start - size in starts or start + size in starts:
                yield start - size if start - size in starts else start
                return
        pytest.skip("the driver gave no adjacent reservations")


@contextmanager
def current(driver: Driver, device: int = 0) -> Iterator[int]:
    """A device's primary context, current on this thread."""
    context = driver.device_primary_ctx_retain(device)
    try:
        driver.ctx_push_current(context)
        try:
            yield context
        finally:
            driver.ctx_pop_current()
    finally:
        driver.device_primary_ctx_release(device)
