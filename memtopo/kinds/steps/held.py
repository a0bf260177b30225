"""What several kinds of steps hold alike: references to chunks, and buffers at addresses."""

from __future__ import annotations

from memtopo.driver.protocol import Driver
from memtopo.kinds.layout import Layout, current


def release_chunk(driver: Driver, layout: Layout, label: str) -> None:
    """Give back the reference to a chunk, and before it one that a check took and could not give back."""
    for held in (layout.retained, layout.chunks):
        if label in held:
            driver.mem_release(held[label])
            del held[label]


def free_buffer(driver: Driver, layout: Layout, label: str) -> None:
    """Free what was allocated or mapped under a label."""
    if label in layout.buffers:
        driver.mem_free(layout.buffers[label].address)
        del layout.buffers[label]


def seated(
    driver: Driver, layout: Layout, label: str, device: int, size: int
) -> tuple[tuple[str, int], tuple[str, int]]:
    """Address and size of a buffer as they are to be, and as the driver tells them in a GPU's context."""
    address = layout.buffers[label].address
    with current(driver, layout.contexts[device]):
        base, seen = driver.mem_get_address_range(address)
    return (hex(address), size), (hex(base), seen)
