"""A layout: the live handles and addresses of one plan, put there by its steps and taken away by them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from memtopo.driver.protocol import Driver


class Reservation(NamedTuple):
    """A reserved range: its address and its size in bytes."""

    address: int
    size: int


@dataclass(slots=True)
class Layout:
    """What exists right now, by the labels of the spec (`kv`, `page.3`); GPUs by ordinal."""

    contexts: dict[int, int] = field(default_factory=dict)
    ranges: dict[str, Reservation] = field(default_factory=dict)
    chunks: dict[str, int] = field(default_factory=dict)
    mappings: dict[int, str] = field(default_factory=dict)
    """Addresses of mappings, each with the label of its chunk."""
    retained: dict[str, int] = field(default_factory=dict)
    """References that a check took, by the label of the chunk that it expected, until they are given back."""


@contextmanager
def current(driver: Driver, context: int) -> Iterator[None]:
    """Have a context current on this thread, and leave the thread as it was found."""
    driver.ctx_push_current(context)
    try:
        yield
    finally:
        driver.ctx_pop_current()
