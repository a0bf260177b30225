"""What a map is drawn with: a letter for each kind of chunk, a fill and a colour for each device."""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass

from memtopo.output.diagram import model
from memtopo.output.diagram.model import Diagram

_FILLS = "█▒▚░▌▓▀▄"
_PLAIN_FILLS = "#=%+o~^-"
# Okabe and Ito's colours, which people who see fewer colours tell apart; each reads on black and on white.
_COLOURS = ("#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#0072b2", "#b8a500", "#999999")
_LETTERS = string.ascii_lowercase + string.ascii_uppercase
_MANY = "*"
_TO_ASCII = str.maketrans({"…": "...", "×": "x", "→": "->"})


@dataclass(frozen=True, slots=True)
class Inks:
    """Glyphs and styles for one picture. Nothing is told by colour alone; `ascii` keeps to what every stream can show.

    `letters` goes by a piece's or a share's `chunk`, `devices` by name. Where there are more kinds of chunks than
    letters, the rest are all `*`.
    """

    letters: Mapping[str, str]
    devices: Mapping[str, int]
    ascii: bool = False

    def letter(self, chunk: str) -> str:
        """The mark of a kind of chunk: the same wherever it is seen; a hole's is a dot."""
        return self.letters.get(chunk, _MANY) if chunk else self.hole

    def fill(self, device: str) -> str:
        """What the memory of a device is drawn as."""
        fills = _PLAIN_FILLS if self.ascii else _FILLS
        return fills[self.devices.get(device, 0) % len(fills)]

    def colour(self, device: str) -> str:
        """The colour of a device, as rich names it."""
        return _COLOURS[self.devices.get(device, 0) % len(_COLOURS)]

    def swatch(self, device: str) -> str:
        """How a letter looks where chunks of a device begin."""
        return f"bold black on {self.colour(device)}"

    def told(self, text: str) -> str:
        """A text as it may be shown, in ASCII where that is asked for."""
        return text.translate(_TO_ASCII).encode("ascii", "backslashreplace").decode() if self.ascii else text

    @property
    def hole(self) -> str:
        """Addresses without memory, and memory without a chunk."""
        return "." if self.ascii else "·"

    @property
    def taken(self) -> str:
        """Memory that others have."""
        return "/" if self.ascii else "╱"

    @property
    def along(self) -> str:
        """A line from a label to its place."""
        return "-" if self.ascii else "─"

    @property
    def up(self) -> str:
        """A line that passes by."""
        return "|" if self.ascii else "│"

    @property
    def corner(self) -> str:
        """Where a line turns up to the bar."""
        return "'" if self.ascii else "┘"

    @property
    def joint(self) -> str:
        """Where a line meets another one that goes to the same place."""
        return "+" if self.ascii else "┤"


def inks(picture: Diagram, *, ascii: bool = False) -> Inks:
    """Letters in the order of appearance, ranges before memory; devices in the order of memory."""
    letters = dict(zip(dict.fromkeys(model.marks(picture)), _LETTERS, strict=False))
    devices = {device: turn for turn, device in enumerate(dict.fromkeys(model.devices(picture)))}
    return Inks(letters, devices, ascii)
