"""Statistics of a held layout: its memory by location, its changes, its last check, and what it has served."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from memtopo.sharing.wire import Count, Seconds, Text

MOST_LOCATIONS = 256
"""Locations in one answer; a machine has fewer."""


@dataclass(frozen=True, slots=True)
class LocationMemory:
    """Physical memory that a layout has at a location now: bytes, and in how many allocations.

    `gpu` is the UUID of the GPU, None if it is unknown, or for memory of the host.
    """

    location: Annotated[str, Field(max_length=64)]
    gpu: Text | None
    bytes: Count
    allocations: Count


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Time of a check in seconds of the epoch, and the number of differences that it found."""

    time: Seconds
    different: Count


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics of one held layout since it is served.

    `changes` and `rolled_back` count changes and switches that were made, and those that failed and were rolled back.
    `clients` are those that received handles, `handles` what they received. `last_check` is None before the first.
    """

    memory: Annotated[tuple[LocationMemory, ...], Field(max_length=MOST_LOCATIONS)]
    changes: Count
    rolled_back: Count
    last_check: CheckResult | None
    clients: Count
    handles: Count
