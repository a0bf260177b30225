"""State that all parts of a drawing share: letters of memory, colours of devices, positions in the spec, and limits."""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from memtopo.diagnostics.model import Path
from memtopo.geometry import diagram as picture
from memtopo.geometry.diagram import Diagram
from memtopo.output.diagram.palette import HUES

Locate = Callable[[Path], str | None]
"""Position in the spec of a path (`kv.yaml:14:3`), or None if it is unknown."""
Addresses = Mapping[tuple[str, str], int]
"""Addresses of ranges by process and range: the first label of a process diagram (empty if there is one process), and
the label of the range."""

SEVERAL = "*"
"""The letter of chunks of several marks, and of marks beyond the alphabet."""
_LETTERS = string.ascii_lowercase + string.ascii_uppercase


class Limits(NamedTuple):
    """Numbers of elements that are drawn at most, so that the document of any layout stays small; the rest is counted.

    Ranges and rows of a process, blocks of a range's bar, and shares of a memory.
    """

    ranges: int = 24
    rows: int = 24
    blocks: int = 96
    shares: int = 24


@dataclass(frozen=True, slots=True)
class DrawingContext:
    """Letters by mark, hues and names by device, positions, addresses, and limits of one drawing.

    `prefix` distinguishes the ids of several drawings on one page.
    """

    letters: Mapping[str, str]
    devices: Mapping[str, int]
    names: Mapping[str, tuple[str, ...]]
    locate: Locate
    addresses: Addresses = field(default_factory=dict)
    prefix: str = ""
    limits: Limits = field(default_factory=Limits)

    def letter(self, mark: str) -> str:
        """The letter of a mark, the same in the whole drawing."""
        return self.letters.get(mark, SEVERAL)

    def hue(self, device: str) -> int:
        """Index of a device's hue and texture."""
        return self.devices.get(device, 0) % HUES

    def fill(self, hue: int) -> dict[str, str]:
        """Attributes that fill a shape with a hue and its texture."""
        return {"fill": f"url(#{self.prefix}t{hue})"} if hue else {"class": "d0"}

    def position(self, path: Path) -> list[str]:
        """Position of a path in the spec as a list of one, or of none if it is unknown."""
        position = self.locate(path) if path else None
        return [position] if position else []

    def device_name(self, device: str) -> str:
        """A device with the names that the spec has for it: `gpu0 (prefill)`."""
        names = self.names.get(device, ())
        return f"{device} ({', '.join(names)})" if names else device


def drawing_context(diagram: Diagram, locate: Locate | None, addresses: Addresses | None) -> DrawingContext:
    """The context of a diagram: letters in the order of appearance, hues in the order of memory."""
    letters = dict(zip(dict.fromkeys(picture.marks(diagram)), _LETTERS, strict=False))
    devices = {device: index for index, device in enumerate(dict.fromkeys(picture.devices(diagram)))}
    names = {memory.device: memory.shown_names for memory in diagram.memory}
    return DrawingContext(letters, devices, names, locate or (lambda _: None), addresses or {}, limits=_limits(diagram))


def _limits(diagram: Diagram) -> Limits:
    """Limits of each part, from limits of the whole drawing."""
    parts = [diagram, *(process.picture for process in diagram.processes)]
    ranges = _portion(32, len(diagram.processes), 2, 24)
    return Limits(
        ranges=ranges,
        rows=_portion(96, len(diagram.processes), 6, 24),
        blocks=_portion(320, sum(min(ranges, len(part.ranges)) for part in parts), 8, 96),
        shares=_portion(96, len(diagram.memory), 6, 24),
    )


def _portion(whole: int, parts: int, least: int, most: int) -> int:
    return min(most, max(least, whole // max(parts, 1)))
