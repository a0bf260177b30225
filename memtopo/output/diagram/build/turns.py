"""Places in turn, told as short as they can be."""

from __future__ import annotations

from collections.abc import Sequence

from memtopo.driver.types import Location

LONGEST_TURN = 16
"""Things after which the order of places may begin again, at most, for it to be told as one in turn."""


def repeated(places: Sequence[Location]) -> tuple[Location, ...]:
    """The shortest order that the places repeat; nothing where they follow none."""
    for length in range(1, min(LONGEST_TURN, len(places)) + 1):
        if all(place == places[index % length] for index, place in enumerate(places)):
            return tuple(places[:length])
    return ()


def turn(places: Sequence[Location]) -> tuple[str, ...]:
    """The places in the order that they repeat; where they follow none, each of them once."""
    return tuple(map(str, repeated(places) or dict.fromkeys(places)))
