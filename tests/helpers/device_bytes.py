"""Bytes of a layout on a real GPU, read and written by the driver, and a spec to try that with."""

from __future__ import annotations

from typing import Any

from memtopo.api import Live
from memtopo.kinds.layout import current

SPEC: dict[str, Any] = {
    "memtopo": 1,
    "name": "views",
    "ranges": {"kv": {"size": "8MiB"}, "read": {"size": "8MiB"}},
    "chunks": {"page": {"location": "gpu0", "size": "2MiB", "count": 4}},
    "map": {"kv": ["page"], "read": ["page"]},
    "access": {"kv": {"gpu0": "rw"}, "read": {"gpu0": "r"}},
    "buffers": {"b": {"location": "gpu0", "size": "6KiB"}},
    "events": {"e": {"device": "gpu0"}},
}


def peek(layout: Live, address: int, count: int) -> bytes:
    """Bytes of the GPU's memory, read by the driver."""
    session = layout._session
    with current(session.driver, session.layout.contexts[0]):
        return session.driver.memcpy_dtoh(address, count)


def poke(layout: Live, address: int, data: bytes) -> None:
    """Bytes into the GPU's memory, by the driver."""
    session = layout._session
    with current(session.driver, session.layout.contexts[0]):
        session.driver.memcpy_htod(address, data)
