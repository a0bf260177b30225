"""Processes that look alike: those of one entry that were dealt the same devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

from memtopo.geometry import Geometry
from memtopo.output.diagram.build.marks import entry


class Alike(NamedTuple):
    """Processes of one entry by their labels, each `step` further on than the one before."""

    labels: Sequence[str]
    step: int
    geometry: Geometry


def alike(members: Mapping[str, Geometry]) -> Iterator[Alike]:
    """All processes, in the order of the first of each kind."""
    for _, labels in groupby(members, key=entry):
        yield from _of_entry(list(labels), members)


def _of_entry(labels: Sequence[str], members: Mapping[str, Geometry]) -> Iterator[Alike]:
    turns: dict[int, list[int]] = {}
    for turn, label in enumerate(labels):
        turns.setdefault(id(members[label]), []).append(turn)
    steps = {key: _step(found) for key, found in turns.items()}
    if all(steps.values()):
        for key, found in turns.items():
            yield Alike([labels[turn] for turn in found], steps[key], members[labels[found[0]]])
        return
    for _, neighbours in groupby(labels, key=lambda label: id(members[label])):
        found_labels = list(neighbours)
        yield Alike(found_labels, 1, members[found_labels[0]])


def _step(turns: Sequence[int]) -> int:
    """How far apart turns are, where all are equally so; else 0."""
    steps = {after - before for before, after in pairwise(turns)}
    return 0 if len(steps) > 1 else steps.pop() if steps else 1
