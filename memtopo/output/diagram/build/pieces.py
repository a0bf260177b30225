"""Cuts become pieces: holes between them are told, and long rows of single chunks are one piece."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from memtopo.driver.types import Grant
from memtopo.output.diagram.build.cuts import Cut
from memtopo.output.diagram.build.elsewhere import Elsewhere
from memtopo.output.diagram.build.marks import Marks, source
from memtopo.output.diagram.build.turns import repeated, turn
from memtopo.output.diagram.model import DeviceAccess, MappingSpan

HANDFUL = 6
"""Neighbouring single chunks that each stay a piece of their own; more of them are folded into one."""


class Drawn(NamedTuple):
    """What the pieces of one process depend on: its label, how often its chunks are mapped, and the layout's marks."""

    process: str
    elsewhere: Elsewhere
    marks: Marks


def pieces(found: Iterable[Cut], size: int, drawn: Drawn) -> Iterator[MappingSpan]:
    """What one range of `size` bytes has, without a byte left out; the marks learn which entries share one."""
    at = 0
    for group in _folded(found):
        offset = group[0].offset
        if offset > at:
            yield MappingSpan(at, offset - at)
        piece = _piece(group, drawn)
        yield piece
        at = offset + piece.size
    if at < size:
        yield MappingSpan(at, size - at)


def _folded(found: Iterable[Cut]) -> Iterator[list[Cut]]:
    for _, alike in groupby(enumerate(found), key=_likeness):
        group = [cut for _, cut in alike]
        if len(group) == 1 or repeated([cut.location for cut in group]):
            yield from _unless_few(group)
        else:
            for _, together in groupby(group, key=lambda cut: cut.location):
                yield from _unless_few(list(together))


def _unless_few(group: list[Cut]) -> Iterator[list[Cut]]:
    if len(group) > HANDFUL:
        yield group
    else:
        yield from ([cut] for cut in group)


def _likeness(numbered: tuple[int, Cut]) -> tuple[object, ...]:
    """Equal for single chunks that lie one behind another; nothing else has it in common with a neighbour."""
    number, cut = numbered
    if cut.length > 1:
        return (number,)
    begin = cut.offset - number * cut.chunk.size
    return cut.chunk.size, begin, cut.chunk.handles, cut.grants, cut.step, cut.chunk.origin and cut.chunk.origin.holders


def _piece(group: Sequence[Cut], drawn: Drawn) -> MappingSpan:
    head, tail = group[0], group[-1]
    places = head.locations if len(group) == 1 else [cut.location for cut in group]
    count = sum(cut.length for cut in group)
    return MappingSpan(
        offset=head.offset,
        size=count * head.chunk.size,
        chunk=drawn.marks.join(drawn.process, [cut.chunk for cut in group]),
        first=head.chunk.label(head.first),
        last=tail.chunk.label(tail.first + tail.length - 1),
        index=head.first,
        count=count,
        bytes_each=head.chunk.size,
        step=head.step,
        elsewhere=sum(drawn.elsewhere.count(cut.chunk, cut.first, cut.length) for cut in group),
        locations=turn(places),
        handles=head.chunk.handles.words,
        access=_granted(head.grants),
        path=head.path,
        origin=" … ".join(dict.fromkeys(source(cut.chunk.origin) for cut in (head, tail))),
    )


def _granted(grants: tuple[Grant, ...]) -> tuple[DeviceAccess, ...]:
    return tuple(DeviceAccess(str(grant.location), grant.access.word) for grant in grants)
