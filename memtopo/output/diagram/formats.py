"""The documents that a picture can be, by name and by suffix. Each is imported where it is wanted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from memtopo.diagnostics.model import Path
from memtopo.output.diagram.model import Diagram


@dataclass(frozen=True, slots=True)
class Shown:
    """What is drawn: a picture, its title, a `note` below that, and where a path of the spec stands.

    `addresses` are those of ranges in a layout that stood, by process and range as in a map.
    """

    picture: Diagram
    title: str
    note: str = ""
    place: Callable[[Path], str | None] = lambda _path: None
    addresses: Mapping[tuple[str, str], int] = field(default_factory=dict)


def _dot(shown: Shown) -> str:
    from memtopo.output.diagram.dot import dot  # noqa: PLC0415 another form does not wait for it

    return dot(shown.picture, shown.title)


def _mermaid(shown: Shown) -> str:
    from memtopo.output.diagram.mermaid import mermaid  # noqa: PLC0415 likewise

    return mermaid(shown.picture, shown.title)


def _svg(shown: Shown) -> str:
    from memtopo.output.diagram.svg import svg  # noqa: PLC0415 likewise

    return svg(shown.picture, shown.title, note=shown.note, place=shown.place, addresses=shown.addresses)


def _html(shown: Shown) -> str:
    from memtopo.output.diagram.html import page  # noqa: PLC0415 likewise

    return page(shown.picture, shown.title, note=shown.note, place=shown.place, addresses=shown.addresses)


FORMS: Mapping[str, Callable[[Shown], str]] = {"svg": _svg, "html": _html, "dot": _dot, "mermaid": _mermaid}
SUFFIXES: Mapping[str, str] = {".svg": "svg", ".html": "html", ".dot": "dot", ".gv": "dot", ".mmd": "mermaid"}
