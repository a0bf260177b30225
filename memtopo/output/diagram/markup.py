"""SVG and HTML markup: escaped text and elements, basic shapes, and boxes.

Every text is escaped here, and nowhere else, so that no name can become an element.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import accumulate
from typing import Literal

from msgspec import Struct

from memtopo.common.text import display_width, printable
from memtopo.output.diagram.notation import shortened

Value = str | float
Anchor = Literal["", "end", "middle"]
Point = tuple[float, float]
Port = tuple[str, ...]
"""An `export` or an `import`, its process, and its name."""


def text(content: str) -> str:
    """A text escaped for an element or an attribute; characters that XML does not allow are shown escaped."""
    return escape(printable(content)).replace("##", "#&#35;")  # ##[name] is a command to CI runners


def element(name: str, attributes: Mapping[str, Value], *content: str) -> str:
    """An element of escaped attributes; `content` is markup."""
    values = {key: text(value) if isinstance(value, str) else number(value) for key, value in attributes.items()}
    head = name + "".join(f' {key}="{value}"' for key, value in values.items())
    return f"<{head}>{''.join(content)}</{name}>" if content else f"<{head}/>"


def number(amount: float) -> str:
    """A length in a drawing, to a tenth of a pixel."""
    return f"{round(amount, 1) + 0:.1f}".removesuffix(".0")  # adding 0 makes -0 one


def text_at(x: float, y: float, content: str, kind: str = "", anchor: Anchor = "") -> str:
    """A text whose base line begins at a point, or has its end or its middle there."""
    named = {name: value for name, value in (("class", kind), ("text-anchor", anchor)) if value}
    return element("text", {"x": x, "y": y, **named}, text(content))


def rect(x: float, y: float, width: float, height: float, kind: str, radius: float = 0) -> str:
    """A rectangle, with round corners if `radius` is not 0."""
    corners = {"rx": radius} if radius else {}
    return element("rect", {"x": x, "y": y, "width": width, "height": height, **corners, "class": kind})


def path(parts: Iterable[str], kind: str, **more: str) -> str:
    """Lines or shapes as one path."""
    return element("path", {"d": "".join(parts), "class": kind, **more})


def dot(x: float, y: float, kind: str, radius: float) -> str:
    """A dot around a point."""
    return element("circle", {"class": kind, "cx": x, "cy": y, "r": radius})


def curve(start: Point, end: Point, through: float, kind: str) -> str:
    """A line between two points that is horizontal at both ends and bends at the x coordinate `through`."""
    (x, y), (to_x, to_y), bend = start, end, number(through)
    line = f"M{number(x)} {number(y)}C{bend} {number(y)} {bend} {number(to_y)} {number(to_x)} {number(to_y)}"
    return path([line], kind)


def hovered(tooltip: str, content: Iterable[str]) -> str:
    """Content with a tooltip."""
    lines = "&#10;".join(text(line) for line in tooltip.splitlines())
    return f'<g class="g"><title>{lines}</title>{"".join(content)}</g>'


class Box(Struct, frozen=True):
    """Markup of `width` by `height` pixels from its upper left corner.

    `ports` are the heights at which connecting lines may reach its edges, by the object that they lead to.
    """

    width: float
    height: float
    markup: str
    ports: Mapping[Port, float] = {}


def placed(box: Box, x: float, y: float) -> str:
    """The markup of a box whose corner is at a point."""
    return f'<g transform="translate({number(x)} {number(y)})">{box.markup}</g>' if x or y else box.markup


def stacked(boxes: Sequence[Box], gap: float) -> Box:
    """Boxes below one another."""
    parts: list[str] = []
    ports: dict[Port, float] = {}
    y = 0.0
    for box in boxes:
        parts.append(placed(box, 0, y))
        ports |= {port: y + height for port, height in box.ports.items()}
        y += box.height + gap
    return Box(max((box.width for box in boxes), default=0), max(0, y - gap), "".join(parts), ports)


def beside(boxes: Sequence[Box], gap: float) -> Box:
    """Boxes side by side."""
    *starts, end = accumulate((box.width + gap for box in boxes), initial=0.0)
    parts = (placed(box, x, 0) for box, x in zip(boxes, starts, strict=True))
    return Box(end - gap, max(box.height for box in boxes), "".join(parts))


MONO_FONTS = 'ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace'
SANS_FONTS = 'system-ui,-apple-system,"Segoe UI","Helvetica Neue",Arial,"DejaVu Sans",sans-serif'

NAME, BODY, SMALL, TITLE = 13.5, 12.0, 11.0, 22.0
"""Sizes of type in pixels: names, text below them, captions, and the title."""

MONO = 0.61
"""Width of a column relative to the size of type, in the widest of the usual monospaced fonts."""
SANS = 0.66
"""Width of an average letter in a bold sans-serif font, relative to the size of type."""
CAPITALS = 0.87
"""Width of a spaced capital, relative to the size of type."""

_BREAKS = re.compile(r"(?<![\d×])(?<!\bat) (?!×)")  # not within `16 × 2 MiB` or `at 64 MiB`


def width(text: str, size: float, per: float = MONO) -> float:
    """Pixels that a text takes in a size of type; rather too many than too few."""
    return display_width(printable(text)) * size * per


def fitting(text: str, room: float, size: float, per: float = MONO) -> str:
    """A text shortened to a width in the middle: the ends of names differ most."""
    if width(text, size, per) <= room:
        return printable(text)
    return shortened(text, max(3, int(room / (size * per))))


def packed(parts: Sequence[str], room: float, size: float, glue: str = " · ") -> list[str]:
    """Parts in as few lines as possible; a part that is longer than a line is broken at its spaces."""
    lines: list[str] = []
    for part in parts:
        if lines and width(lines[-1] + glue + part, size) <= room:
            lines[-1] += glue + part
        elif width(part, size) <= room or len(words := [*filter(None, _BREAKS.split(part))]) == 1:
            lines.append(fitting(part, room, size))
        else:
            lines += packed(words, room, size, " ")
    return lines
