"""A layout as one SVG: it needs no network, no script and no font of its own, and reads in light and in dark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from memtopo.output.diagram import frames, legend, zones
from memtopo.output.diagram.box import Box, stacked, words
from memtopo.output.diagram.markup import number, text
from memtopo.output.diagram.model import Diagram
from memtopo.output.diagram.palette import TEXTURES
from memtopo.output.diagram.pen import Pen, Place, pen
from memtopo.output.diagram.style import TITLE, style
from memtopo.output.diagram.told import told
from memtopo.output.diagram.typeset import SANS, fitting

WIDE = 960.0
_MARGIN, _GAP = 24.0, 16.0


def svg(
    picture: Diagram,
    title: str,
    *,
    note: str = "",
    place: Place | None = None,
    addresses: Mapping[tuple[str, str], int] | None = None,
) -> str:
    """A picture as an SVG document, 960 pixels wide.

    `note` is said below the title. `place` tells where a path of the spec stands (`kv.yaml:14:3`), `addresses` where
    a range begins, by its name: both are shown where a pointer rests.
    """
    return drawing(picture, title, pen(picture, place, addresses, ""), WIDE, note=note, sheet=style(), head=True)


def drawing(picture: Diagram, title: str, pen: Pen, wide: float, *, note: str, sheet: str, head: bool) -> str:
    """An SVG element of a width; without `head` neither its title nor a ground is drawn, since a page has them."""
    margin = _MARGIN if head else 1.0
    room = wide - 2 * margin
    parts = [_title(title, note, room)] if head else []
    parts.append(frames.frames(picture, room, pen) if picture.processes else zones.alone(picture, room, pen))
    parts.append(legend.legend(picture, room, pen))
    content = stacked([part for part in parts if part.height], _GAP + 4)
    height = content.height + 2 * margin
    size = f"{number(wide)} {number(height)}"
    scale = f' width="{number(wide)}" height="{number(height)}"' if head else ""
    ground = (
        f'<rect class="b" x=".5" y=".5" width="{number(wide - 1)}" height="{number(height - 1)}" rx="10"/>'
        if head
        else ""
    )
    names = f"{pen.prefix}title", f"{pen.prefix}desc"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="m" viewBox="0 0 {size}"{scale} role="img"'
        f' aria-labelledby="{names[0]} {names[1]}">'
        f'<title id="{names[0]}">{text(title)}</title><desc id="{names[1]}">{text(told(picture))}</desc>'
        f"{f'<style>{sheet}</style>' if sheet else ''}<defs>{''.join(_textures(pen))}</defs>{ground}"
        f'<g transform="translate({number(margin)} {number(margin)})">{content.markup}</g></svg>\n'
    )


def _title(title: str, note: str, room: float) -> Box:
    parts = [words(0, 22, fitting(title, room, TITLE, SANS), "h")]
    if note:
        parts.append(words(0, 44, fitting(note, room, 13, SANS), "p w"))
    return Box(room, 50 if note else 28, "".join(parts))


def _textures(pen: Pen) -> Iterator[str]:
    used: Sequence[int] = sorted({pen.hue(device) for device in pen.devices} - {0})
    for hue in used:
        yield (
            f'<pattern id="{pen.prefix}t{hue}" width="8" height="8" patternUnits="userSpaceOnUse">'
            f'<path class="d{hue}" d="M0 0h8v8H0z"/><path class="e{hue}" d="{TEXTURES[hue]}"/></pattern>'
        )
