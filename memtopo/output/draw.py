"""A layout's drawing under a line that tells what it is of."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from memtopo.output import plain, terminal
from memtopo.output.json import Drawn
from memtopo.output.map import Map
from memtopo.output.parts import headline


@dataclass(frozen=True, slots=True)
class Sheet:
    """A picture as `memtopo draw` shows it: in ASCII alone, and `width` columns wide, where that is asked for."""

    drawn: Drawn
    ascii: bool = False
    width: int | None = None

    def show(self) -> None:
        """Write it to stdout."""
        terminal.show(self._whole(), width=self.width)

    def text(self) -> str:
        """What a file without colours gets."""
        return terminal.unstyled(self._whole(), self.width or plain.DEFAULT_WIDTH)

    def _whole(self) -> RenderableType:
        head = headline("draw", self.drawn.name, self.drawn.machine)
        return Group(head, Text(), Map(self.drawn.picture, self.ascii))
