"""Markup from values: every text is escaped here, and nowhere else, so no name can become an element."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from memtopo.common.text import printable

Value = str | float


def text(told: str) -> str:
    """A text as it may stand in an element or an attribute. What XML has no place for is shown escaped."""
    return escape(printable(told))


def element(name: str, attributes: Mapping[str, Value], *content: str) -> str:
    """An element of escaped attributes; `content` is markup."""
    head = name + "".join(f' {key}="{_value(value)}"' for key, value in attributes.items())
    return f"<{head}>{''.join(content)}</{name}>" if content else f"<{head}/>"


def number(amount: float) -> str:
    """A length in a drawing, to a tenth of a pixel."""
    return f"{round(amount, 1) + 0:.1f}".removesuffix(".0")  # adding 0 makes -0 one


def _value(value: Value) -> str:
    return text(value) if isinstance(value, str) else number(value)


Point = tuple[float, float]
Port = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Box:
    """Markup that takes `width` by `height` pixels from its upper left corner.

    `ports` are the heights at which lines from elsewhere may arrive at its edges, by what they lead to.
    """

    width: float
    height: float
    markup: str
    ports: Mapping[Port, float] = field(default_factory=dict)


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
    return Box(
        sum(box.width for box in boxes) + gap * (len(boxes) - 1),
        max(box.height for box in boxes),
        "".join(_along(boxes, gap)),
    )


def words(x: float, y: float, told: str, kind: str = "", *, end: bool = False, middle: bool = False) -> str:
    """A text whose base line begins at a point, or ends there, or has it in its middle."""
    anchor = {"text-anchor": "end"} if end else {"text-anchor": "middle"} if middle else {}
    return element("text", {"x": x, "y": y, **({"class": kind} if kind else {}), **anchor}, text(told))


def rect(x: float, y: float, width: float, height: float, kind: str, radius: float = 0) -> str:
    """A rectangle, with round corners where they have a radius."""
    round_ = {"rx": radius} if radius else {}
    return element("rect", {"x": x, "y": y, "width": width, "height": height, **round_, "class": kind})


def path(parts: Iterable[str], kind: str, **more: str) -> str:
    """Lines or shapes as one path."""
    return element("path", {"d": "".join(parts), "class": kind, **more})


def dot(x: float, y: float, kind: str, radius: float) -> str:
    """A dot around a point."""
    return element("circle", {"class": kind, "cx": x, "cy": y, "r": radius})


def curve(start: Point, end: Point, through: float, kind: str) -> str:
    """A line from a point to a point that leaves and arrives level, bent at `through` from left to right."""
    (x, y), (to_x, to_y), bend = start, end, number(through)
    way = f"M{number(x)} {number(y)}C{bend} {number(y)} {bend} {number(to_y)} {number(to_x)} {number(to_y)}"
    return path([way], kind)


def hovered(told: str, content: Iterable[str]) -> str:
    """Parts that tell something in full when a pointer rests on them."""
    return f'<g class="g"><title>{"&#10;".join(text(line) for line in told.splitlines())}</title>{"".join(content)}</g>'


def _along(boxes: Sequence[Box], gap: float) -> Iterator[str]:
    x = 0.0
    for box in boxes:
        yield placed(box, x, 0)
        x += box.width + gap
