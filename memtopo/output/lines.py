"""Lines of a map: put together from parts, folded where they are too long, and never cut."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console
from rich.text import Text

from memtopo.output.inks import Inks

INDENT = 2
GAP = 2
KEY = 2


def line(*parts: Text | str | tuple[str, str], style: str = "") -> Text:
    """Parts in one line."""
    told = Text.assemble(*parts, no_wrap=True, overflow="crop")
    told.stylize(style)
    return told


def joined(parts: Sequence[Text]) -> Text:
    """Parts a gap apart."""
    return Text(" " * GAP).join(parts)


def padded(told: Text, width: int, char: str = " ") -> Text:
    """A line made as long as that, if it is not yet."""
    told.append(char * (width - told.cell_len), "dim" if char != " " else "")
    return told


def key(chunk: str, device: str, inks: Inks, none: str | None = None) -> Text:
    """What marks a kind of chunk, as the bars have it; the mark of a hole, or `none`, where there is none."""
    if not chunk:
        return Text(f"{inks.hole if none is None else none} ", "dim")
    return Text.assemble((inks.letter(chunk), inks.swatch(device) if device else "bold"), " ")


def packed(
    parts: Iterable[Text], width: int, indent: int, console: Console, *, glue: str = " " * GAP, deep: int = INDENT + KEY
) -> Iterator[Text]:
    """As many parts to a line as fit; lines after the first stand as `deep` in as details do."""
    told: Text | None = None
    for part in parts:
        if told is None:
            told = part
        elif told.cell_len + len(glue) + part.cell_len <= width - indent:
            told = Text.assemble(told, (glue, part.style), part)
        else:
            yield from _folded(Text.assemble(told, (glue.rstrip(), part.style)), width, indent, console)
            told, indent = part, deep
    if told is not None:
        yield from _folded(told, width, indent, console)


def _folded(text: Text, width: int, indent: int, console: Console) -> Iterator[Text]:
    for told in text.wrap(console, max(width - indent, 1), overflow="fold"):
        told.rstrip()
        yield line(" " * indent, told)
