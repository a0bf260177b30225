"""Access beside a bar: a lane for each device, as long as what it may read or write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter

from memtopo.output.diagram import typeset
from memtopo.output.diagram.blocks import Block
from memtopo.output.diagram.box import rect, words
from memtopo.output.diagram.style import SMALL

MOST = 6
_FEW = 3
_WIDE, _NARROW = 34.0, 21.0
HEAD = 20.0
_LEAST = 16.0  # pixels in which a word stands


def devices(blocks: Sequence[Block]) -> list[str]:
    """The devices that may do anything in a bar."""
    return sorted(dict.fromkeys(each.device for block in blocks for each in block.access), key=_order)


def width(shown: Sequence[str], *, tight: bool) -> float:
    """What lanes need, with the space behind them."""
    return _each(shown, tight=tight) * len(shown) + 6 if shown else 0


def lanes(
    blocks: Sequence[Block], tops: Sequence[float], end: float, shown: Sequence[str], *, tight: bool
) -> Iterator[str]:
    """A lane for each of the devices, from the left edge on, under its name, or a short one where it is `tight`."""
    bounds = list(zip(tops, [*tops[1:], end], strict=True))
    granted, each = [_words(block) for block in blocks], _each(shown, tight=tight)
    for turn, device in enumerate(shown):
        middle = (turn + 0.5) * each
        yield words(middle, tops[0] - 7, device if each == _WIDE else short(device), "s w", middle=True)
        found = [(words_.get(device, ""), top, bottom) for words_, (top, bottom) in zip(granted, bounds, strict=True)]
        for word, group in groupby(found, key=itemgetter(0)):
            stretch = list(group)
            if word:
                yield from _stretch(word, middle, stretch[0][1], stretch[-1][2])


def short(device: str) -> str:
    """A device in as few characters as a lane has room for: `0`, `h`, `h0`."""
    return device.removeprefix("gpu").replace("host:", "h").replace("host", "h")


def _stretch(word: str, middle: float, top: float, bottom: float) -> Iterator[str]:
    height = bottom - top - 2
    filled = word == "rw"
    yield rect(middle - 8, top + 1, 16, height, "w" if filled else "o", min(4, height / 2))
    if height >= _LEAST:
        yield words(middle, (top + bottom) / 2 + 4, word, "s v" if filled else "s", middle=True)


def _each(shown: Sequence[str], *, tight: bool) -> float:
    few = len(shown) <= (1 if tight else _FEW) and all(typeset.width(device, SMALL) <= _WIDE for device in shown)
    return _WIDE if few else _NARROW


def _words(block: Block) -> Mapping[str, str]:
    return {each.device: each.access for each in block.access}


def _order(device: str) -> tuple[int, int, str]:
    number = device.removeprefix("gpu")
    return (0, int(number), "") if number != device and number.isdecimal() else (1, 0, device)
