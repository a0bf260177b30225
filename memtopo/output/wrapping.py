"""Division of text into lines between words; an amount and its unit are one word, as a GPU and its access."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

_GLUE = "\ue000"
"""Sign in place of a blank where no line ends: in `16 × 2 MiB`, in `gpu0 rw`."""
_GLUED = re.compile(r"(?<=\d) (?=×|(?:[KMGTPE]i)?B\b|[kMGT]B/s|[mµ]?s\b|min\b|h\b|d\b)|(?<=×) | (?=rw?(?:,|\)|$))")


def words(text: Text) -> Sequence[str]:
    """Words of a text between which lines may end."""
    return _GLUED.sub(_GLUE, text.plain).split()


def wrapped(text: Text, width: int, console: Console) -> Sequence[Text]:
    """Lines of a text, at most `width` columns wide; only a word that is wider is divided."""
    if all(cell_len(line) <= width for line in text.plain.split("\n")):
        return [*text.split("\n")]
    glued = text.copy()
    glued.plain = _GLUED.sub(_GLUE, text.plain)
    lines = glued.wrap(console, width, overflow="fold")
    for line in lines:
        line.rstrip()
        line.plain = line.plain.replace(_GLUE, " ")
    return [*lines]
