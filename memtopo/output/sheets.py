"""A page of lines and tables that is not yet drawn, so that a terminal and Markdown show the same."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from memtopo.driver.types import Location

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Grid:
    """A table by its headings and rows. Cells of a `close` one stand one blank apart, and numbers to the right.

    `heat` is how much there is in each cell of each row but its first, from 0 to 1, where that is to be seen.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    close: bool = False
    heat: Sequence[Sequence[float | None]] = ()


@dataclass(frozen=True, slots=True)
class Sheet:
    """A titled part of a page: lines and tables in their order."""

    title: str
    body: Sequence[str | Grid] = field(default=())


def folded(places: Mapping[Location, T], key: Callable[[T], Hashable]) -> list[tuple[str, T]]:
    """Places of equal key as one name, with what the first of them holds."""
    groups: dict[Hashable, list[Location]] = {}
    for place, thing in places.items():
        groups.setdefault(key(thing), []).append(place)
    return [(names(members), places[members[0]]) for members in groups.values()]


def names(places: Iterable[Location]) -> str:
    """`gpu0 to gpu3, host, host:0`."""
    runs: list[list[Location]] = []
    for place in places:
        if runs and place == runs[-1][-1]._replace(id=runs[-1][-1].id + 1):
            runs[-1].append(place)
        else:
            runs.append([place])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)  # noqa: PLR2004


def word(answer: bool | None, unknown: str = "not known") -> str:  # noqa: FBT001
    """`yes`, `no`, or that nobody knows."""
    return unknown if answer is None else "yes" if answer else "no"
