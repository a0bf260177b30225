"""Cuts become pieces: holes between them are told, and long rows of single chunks are one piece."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from memtopo.driver.types import Grant, Location
from memtopo.picture import Granted, Piece
from memtopo.picturing.cuts import Cut
from memtopo.picturing.elsewhere import Elsewhere

HANDFUL = 6
"""Neighbouring single chunks that each stay a piece of their own; more of them are folded into one."""

LONGEST_TURN = 16
"""Chunks after which the order of locations may begin again, at most, for it to be told as one in turn."""


def pieces(found: Iterable[Cut], size: int, elsewhere: Elsewhere, marks: dict[str, str]) -> Iterator[Piece]:
    """What one range of `size` bytes has, without a byte left out; `marks` learns which entries share a mark."""
    at = 0
    for group in _folded(found):
        offset = group[0].offset
        if offset > at:
            yield Piece(at, offset - at)
        piece = _piece(group, elsewhere, marks)
        yield piece
        at = offset + piece.size
    if at < size:
        yield Piece(at, size - at)


def _folded(found: Iterable[Cut]) -> Iterator[list[Cut]]:
    for _, alike in groupby(enumerate(found), key=_likeness):
        group = [cut for _, cut in alike]
        if len(group) == 1 or _turn([cut.location for cut in group]):
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
    return cut.chunk.size, cut.offset - number * cut.chunk.size, cut.chunk.handles, cut.grants, cut.step


def _turn(places: Sequence[Location]) -> tuple[Location, ...]:
    """The shortest order that the places repeat; nothing where they follow none."""
    for length in range(1, min(LONGEST_TURN, len(places)) + 1):
        if all(place == places[index % length] for index, place in enumerate(places)):
            return tuple(places[:length])
    return ()


def _piece(group: Sequence[Cut], elsewhere: Elsewhere, marks: dict[str, str]) -> Piece:
    head, tail = group[0], group[-1]
    mark = marks.setdefault(head.chunk.name, head.chunk.name)
    for cut in group:
        marks.setdefault(cut.chunk.name, mark)
    places = head.locations if len(group) == 1 else _turn([cut.location for cut in group])
    count = sum(cut.length for cut in group)
    return Piece(
        offset=head.offset,
        size=count * head.chunk.size,
        chunk=mark,
        first=head.chunk.label(head.first),
        last=tail.chunk.label(tail.first + tail.length - 1),
        index=head.first,
        count=count,
        bytes_each=head.chunk.size,
        step=head.step,
        elsewhere=sum(elsewhere.count(cut.chunk, cut.first, cut.length) for cut in group),
        locations=tuple(map(str, places)),
        handles=head.chunk.handles.words,
        access=_granted(head.grants),
        path=head.path,
    )


def _granted(grants: tuple[Grant, ...]) -> tuple[Granted, ...]:
    return tuple(Granted(str(grant.location), grant.access.word) for grant in grants)
