from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from msgspec import Struct
from msgspec.structs import asdict, replace

from memtopo.common.text import printable
from memtopo.output.blocks import Drawing
from memtopo.output.diagram import page
from memtopo.output.diagram.svg import svg
from tests.helpers.diagrams import PARTS_AND_HOLES, spec_diagram
from tests.helpers.specs import ROOT

EVIL = [
    '"><script>alert(1)</script>',
    "'onload='alert(1)",
    "</title><script>alert(1)</script>",
    "</style><img/src=x/onerror=alert(1)>",
    "]]><script>alert(1)</script>",
    "<!--",
    "--><a/href=javascript:alert(1)>",
    "&lt;&#60;&quot;&amp",
    "<![CDATA[",
    "<?xml?>",
    "\x00\x1b[31m\x7f\x85",
    "\u202e\ufeff\ufffe\U000e0001",
    "\ud800",
    "%3Cscript%3E{{7*7}}${7*7}",
]
SPECS = [PARTS_AND_HOLES, *(ROOT / "specs" / f"{name}.yaml" for name in ("hand-over", "hold", "vulkan-frame"))]
CASES = [
    pytest.param(
        path, evil, marks=() if path is PARTS_AND_HOLES or evil in EVIL[:3] else pytest.mark.exhaustive(seconds=0.1)
    )
    for path in SPECS
    for evil in EVIL
]
"""Every text in the drawing that has most, and some of them in the others."""


def worded(value: Any, word: str) -> Any:
    """A picture with another word in place of each of its own, as far as it is one of the spec."""
    if isinstance(value, tuple):
        return tuple(worded(each, word) for each in value)
    if isinstance(value, Struct):
        return replace(value, **{name: worded(each, word) for name, each in asdict(value).items()})
    return word if isinstance(value, str) and value else value


class Counting(HTMLParser):
    """Counts elements, attributes and comments."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts.update([tag, *(f"@{name}" for name, _ in attrs)])

    def handle_comment(self, data: str) -> None:
        self.counts.update([f"comment {data}"])


def shape(text: str, *, html: bool) -> Counter[str]:
    """Number of each element and attribute; raises if the text is not well-formed."""
    if html:
        parser = Counting()
        parser.feed(text)
        return parser.counts
    elements = list(ET.fromstring(text).iter())
    return Counter(name for each in elements for name in (str(each.tag), *(f"@{key}" for key in each.attrib)))


@pytest.mark.parametrize(("path", "evil"), CASES)
@pytest.mark.parametrize(("draw", "html"), [(svg, False), (page, True)], ids=["svg", "html"])
def test_no_text_becomes_markup(draw: Callable[..., str], html: bool, evil: str, path: Any) -> None:
    shown, _ = spec_diagram(path)

    def drawn(word: str) -> str:
        return draw(Drawing(worded(shown, word), word, note=word, locate=lambda _: word))

    text = drawn(evil)
    text.encode("utf-8")
    assert shape(text, html=html) == shape(drawn("x" * len(printable(evil))), html=html)
    assert not any(char in text for char in "\x00\x1b\u202e\ufeff")


def test_a_name_is_shown_as_written_with_control_characters_escaped() -> None:
    shown, _ = spec_diagram(SPECS[2])
    titles = [
        element.text
        for element in ET.fromstring(svg(Drawing(shown, "<b>&\x1b"))).iter("{http://www.w3.org/2000/svg}title")
    ]
    assert titles[0] == "<b>&\\x1b"
