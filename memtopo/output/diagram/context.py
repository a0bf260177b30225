"""What a drawing is drawn with: a letter for each kind of chunk, a hue for each device, and places in the spec."""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from memtopo.diagnostics.model import Path
from memtopo.output.diagram import model
from memtopo.output.diagram.model import Diagram
from memtopo.output.diagram.palette import TURNS

Place = Callable[[Path], str | None]

_LETTERS = string.ascii_lowercase + string.ascii_uppercase
MANY = "*"
"""What marks chunks of several kinds, and those that there was no letter for."""


class Most(NamedTuple):
    """How much is drawn at most, the rest being counted, so that a document of any layout stays small.

    Ranges and rows of a process, stretches of a range's bar, and kinds of chunks of a memory.
    """

    ranges: int = 24
    rows: int = 24
    blocks: int = 96
    shares: int = 24


@dataclass(frozen=True, slots=True)
class Pen:
    """Letters by the mark of chunks, hues and names by device.

    `place` tells where a path of the spec stands, `addresses` where ranges begin, by the first label of the process's
    picture (none where there is one process) and the range's own; `prefix` keeps the ids of several drawings on one
    page apart.
    """

    letters: Mapping[str, str]
    devices: Mapping[str, int]
    names: Mapping[str, tuple[str, ...]]
    place: Place
    addresses: Mapping[tuple[str, str], int] = field(default_factory=dict)
    prefix: str = ""
    most: Most = field(default_factory=Most)

    def letter(self, mark: str) -> str:
        """What marks chunks, wherever they are seen."""
        return self.letters.get(mark, MANY)

    def hue(self, device: str) -> int:
        """The turn of a device among the hues and textures."""
        return self.devices.get(device, 0) % TURNS

    def ink(self, hue: int) -> dict[str, str]:
        """What fills the memory of a device: a colour, or a tile of its colour and texture."""
        return {"fill": f"url(#{self.prefix}t{hue})"} if hue else {"class": "d0"}

    def written(self, path: Path) -> list[str]:
        """The place in the spec of what a path leads to, if it is known."""
        place = self.place(path) if path else None
        return [place] if place else []

    def called(self, device: str) -> str:
        """A device with the names that the spec has for it: `gpu0 (prefill)`."""
        names = self.names.get(device, ())
        return f"{device} ({', '.join(names)})" if names else device


def pen(picture: Diagram, place: Place | None, addresses: Mapping[tuple[str, str], int] | None, prefix: str) -> Pen:
    """The pen for a picture: letters in the order of appearance, hues in the order of memory."""
    letters = dict(zip(dict.fromkeys(model.marks(picture)), _LETTERS, strict=False))
    devices = {device: turn for turn, device in enumerate(dict.fromkeys(model.devices(picture)))}
    names = {memory.device: memory.names for memory in picture.memory}
    return Pen(letters, devices, names, place or (lambda _: None), addresses or {}, prefix, _most(picture))


def _most(picture: Diagram) -> Most:
    """What each part may have of what all of them may have together."""
    each = [picture, *(process.picture for process in picture.processes)]
    ranges = _share(32, len(picture.processes), 2, 24)
    return Most(
        ranges=ranges,
        rows=_share(96, len(picture.processes), 6, 24),
        blocks=_share(320, sum(min(ranges, len(one.ranges)) for one in each), 8, 96),
        shares=_share(96, len(picture.memory), 6, 24),
    )


def _share(whole: int, parts: int, least: int, most: int) -> int:
    return min(most, max(least, whole // max(parts, 1)))
