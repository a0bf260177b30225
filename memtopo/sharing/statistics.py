"""Statistics of a held layout: its memory by location, its changes, its last check, and what it has served."""

from __future__ import annotations

from dataclasses import dataclass

from memtopo.sharing.messages import MAX_ENTRIES, Fields

MOST_LOCATIONS = 256
"""Locations in one answer; a machine has fewer."""


@dataclass(frozen=True, slots=True)
class LocationMemory:
    """Physical memory that a layout has at a location now: bytes, and in how many allocations.

    `gpu` is the UUID of the GPU, None if it is unknown, or for memory of the host.
    """

    location: str
    gpu: str | None
    bytes: int
    allocations: int


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Time of a check in seconds of the epoch, and the number of differences that it found."""

    time: float
    different: int


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics of one held layout since it is served.

    `changes` and `rolled_back` count changes and switches that were made, and those that failed and were rolled back.
    `clients` are those that received handles, `handles` what they received. `last_check` is None before the first.
    """

    memory: tuple[LocationMemory, ...]
    changes: int
    rolled_back: int
    last_check: CheckResult | None
    clients: int
    handles: int


def decode_statistics(fields: Fields) -> Statistics:
    """Decode the answer of a holder. Raises `BadPacket`."""
    check = fields.object("last_check") if fields.has("last_check") else None
    return Statistics(
        tuple(_decode_memory(each) for each in fields.objects("memory", min(MOST_LOCATIONS, MAX_ENTRIES))),
        fields.number("changes"),
        fields.number("rolled_back"),
        CheckResult(check.seconds("time"), check.number("different")) if check else None,
        fields.number("clients"),
        fields.number("handles"),
    )


def _decode_memory(fields: Fields) -> LocationMemory:
    return LocationMemory(
        fields.text("location", 64), fields.text_or_none("gpu"), fields.number("bytes"), fields.number("allocations")
    )
