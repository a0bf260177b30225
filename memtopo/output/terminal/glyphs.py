"""Glyphs of a drawing: a letter for each entry of chunks, a fill and a colour for each device, and lines."""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass

from memtopo.output.diagram import model
from memtopo.output.diagram.model import Diagram

_FILLS = "█▒▚░▌▓▀▄"
_PLAIN_FILLS = "#=%+o~^-"
# Okabe and Ito's palette for colour-blind readers; each colour is legible on black and on white.
_COLOURS = ("#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#0072b2", "#b8a500", "#999999")
_LETTERS = string.ascii_lowercase + string.ascii_uppercase
_MANY = "*"
_TO_ASCII = str.maketrans({"…": "...", "×": "x", "→": "->"})


@dataclass(frozen=True, slots=True)
class Glyphs:
    """Glyphs and styles for one diagram, with ASCII alone if `ascii`. No information is in the colour alone.

    `letters` is keyed by the `chunk` of a piece or a share, `devices` by name. Entries of chunks beyond the number of
    letters are all `*`.
    """

    letters: Mapping[str, str]
    devices: Mapping[str, int]
    ascii: bool = False

    def letter(self, chunk: str) -> str:
        """Letter of an entry of chunks, the same in all bars; a dot for a hole."""
        return self.letters.get(chunk, _MANY) if chunk else self.hole

    def fill(self, device: str) -> str:
        """Fill of a device's memory."""
        fills = _PLAIN_FILLS if self.ascii else _FILLS
        return fills[self.devices.get(device, 0) % len(fills)]

    def colour(self, device: str) -> str:
        """Colour of a device, in rich's notation."""
        return _COLOURS[self.devices.get(device, 0) % len(_COLOURS)]

    def letter_style(self, device: str) -> str:
        """Style of a letter at the first cell of a block on a device."""
        return f"bold black on {self.colour(device)}"

    def text(self, text: str) -> str:
        """A text, transliterated to ASCII if `ascii`."""
        return text.translate(_TO_ASCII).encode("ascii", "backslashreplace").decode() if self.ascii else text

    @property
    def hole(self) -> str:
        """Fill of addresses without memory, and of free memory."""
        return "." if self.ascii else "·"

    @property
    def taken(self) -> str:
        """Fill of memory in use by others."""
        return "/" if self.ascii else "╱"

    @property
    def horizontal(self) -> str:
        """Horizontal part of a line from a label to the bar."""
        return "-" if self.ascii else "─"

    @property
    def vertical(self) -> str:
        """Vertical part of a line."""
        return "|" if self.ascii else "│"

    @property
    def corner(self) -> str:
        """Corner where a line turns up to the bar."""
        return "'" if self.ascii else "┘"

    @property
    def junction(self) -> str:
        """Corner that joins another line to the same cell."""
        return "+" if self.ascii else "┤"


def glyphs_of(diagram: Diagram, *, ascii: bool = False) -> Glyphs:
    """Glyphs of a diagram: letters in order of appearance, ranges before memory; devices in order of memory."""
    letters = dict(zip(dict.fromkeys(model.marks(diagram)), _LETTERS, strict=False))
    devices = {device: index for index, device in enumerate(dict.fromkeys(model.devices(diagram)))}
    return Glyphs(letters, devices, ascii)
