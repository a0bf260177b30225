"""Colours of devices in graphs: Okabe and Ito's, light under dark words, with the strong ones around them."""

from __future__ import annotations

from typing import NamedTuple


class Tint(NamedTuple):
    """The ground of a node and its border; words on it are black."""

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
"""Of what is not memory."""
