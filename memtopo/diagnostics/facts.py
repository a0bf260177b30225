"""Driver facts: the entries of docs/driver-facts.md, by number.

The page is the only copy of the facts. A wheel has it beside this module; in a checkout it is in `docs/`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

PAGE = "driver-facts.md"
_CHECKOUT = Path(__file__).parent.parent.parent / "docs" / PAGE
_ANCHOR = r'<a id="fact-(?P<number>[0-9]+)"></a>\*\*(?P=number)\.\*\* '
_ENTRY = re.compile(rf"^{_ANCHOR}(?P<text>.*?)(?=^(?:<a id=|## |<!-- ))", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Fact:
    """Measured behaviour of the driver. `topic` is the heading that it stands under, `text` is Markdown."""

    number: int
    topic: str
    text: str


@cache
def facts() -> Mapping[int, Fact]:
    """Return all facts by number, in order."""
    return read(_page())


def read(page: str) -> Mapping[int, Fact]:
    """Return the facts of a page by number."""
    # A heading at the end closes the last entry.
    headings = [(match.start(), match[1]) for match in _HEADING.finditer(page)]
    found = (
        Fact(int(match["number"]), _topic(headings, match.start()), match["text"].strip())
        for match in _ENTRY.finditer(page + "\n## ")
    )
    return {each.number: each for each in found}


def _topic(headings: list[tuple[int, str]], position: int) -> str:
    return [title for start, title in headings if start < position][-1]


def _page() -> str:
    packed = resources.files("memtopo.diagnostics").joinpath(PAGE)
    return packed.read_text(encoding="utf-8") if packed.is_file() else _CHECKOUT.read_text(encoding="utf-8")
