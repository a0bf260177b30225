"""Colours and textures of devices, and the colours of everything else, in a light and a dark scheme.

The hues are Okabe and Ito's, which colour-blind people can distinguish. A text has a contrast of at least 4.5 with its
background, an edge one of at least 3, in both schemes; a test computes them. Textures distinguish devices without
colour.
"""

from __future__ import annotations

from typing import NamedTuple


class Hue(NamedTuple):
    """Colour of a device in one scheme: the fill of its memory, and the edge and texture on it."""

    fill: str
    edge: str


class Scheme(NamedTuple):
    """Colours of a drawing in one scheme, light or dark."""

    paper: str
    card: str
    line: str
    edge: str
    ink: str
    muted: str
    hole: str
    hues: tuple[Hue, ...]


LIGHT = Scheme(
    paper="#ffffff",
    card="#f7f8fa",
    line="#d5dae1",
    edge="#7d8795",
    ink="#1c2128",
    muted="#565f6b",
    hole="#ffffff",
    hues=(
        Hue("#86c7ee", "#10608f"),
        Hue("#f5bd4f", "#7f5200"),
        Hue("#5ec4a1", "#00573f"),
        Hue("#e3aac8", "#8b3a68"),
        Hue("#f3976a", "#8c3800"),
        Hue("#7aa7dc", "#003f73"),
        Hue("#e6dc6c", "#615a00"),
        Hue("#bcc2ca", "#4a515b"),
    ),
)
DARK = Scheme(
    paper="#0e1116",
    card="#161b22",
    line="#2d343d",
    edge="#75808d",
    ink="#e8edf3",
    muted="#a3adb9",
    hole="#0e1116",
    hues=(
        Hue("#1d5f8a", "#8fd0f7"),
        Hue("#7c5405", "#ffcc66"),
        Hue("#0d6049", "#6fdab6"),
        Hue("#7c3d60", "#f0b8d6"),
        Hue("#85401a", "#ffab7f"),
        Hue("#1f4c80", "#9cc3f0"),
        Hue("#5c5600", "#f0e778"),
        Hue("#4b535e", "#d0d6dd"),
    ),
)
HUES = len(LIGHT.hues)

# Strokes on a tile of 8 by 8 pixels, one for each hue; the first hue has none.
TEXTURES = (
    "",
    "M-2 2L2 -2M0 8L8 0M6 10L10 6",
    "M1 2h2M5 6h2",
    "M0 4H8",
    "M4 0V8",
    "M-2 6L2 10M0 0L8 8M6 -2L10 2",
    "M0 4H8M4 0V8",
    "M0 2h4M4 6h4",
)


class Tint(NamedTuple):
    """Fill and border of a node in a graph; its text is black."""

    fill: str
    line: str


TINTS = (
    Tint("#c3e3f6", "#2f7fae"),
    Tint("#f9dfa9", "#a86e00"),
    Tint("#a9dfcc", "#00704f"),
    Tint("#efd3e2", "#9c4a77"),
    Tint("#f5c6a5", "#a84300"),
    Tint("#a9cde6", "#004d80"),
    Tint("#f1e9a0", "#756900"),
    Tint("#d9d9d9", "#595959"),
)
PLAIN = Tint("#ffffff", "#57606a")
"""Tint of nodes that are not memory."""
