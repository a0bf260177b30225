"""Writes docs/gallery.md and the pictures in docs/gallery/: every spec in specs/, drawn on a shipped machine."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from memtopo import language, machine
from memtopo.output.blocks import Drawing
from memtopo.output.diagram.build import build_diagram
from memtopo.output.diagram.svg import svg
from memtopo.output.diagram.tables import description
from memtopo.plans.folding import picture
from memtopo.session.composition import Composition
from memtopo.session.machines import own_targets

ROOT = Path(__file__).parent.parent
HEAD = """\
# Gallery

Every spec in [specs/](../specs), drawn by `memtopo draw SPEC --machine h200x2 -o map.svg`. A picture loads nothing, and
follows the light or dark scheme of the browser; opened in a tab of its own, it has tooltips. `-o map.html` writes a
page with the same drawing, and its content as tables. `make docs` writes this page.
"""


class Drawn(NamedTuple):
    """Picture of one spec: its name, the machine, the first sentence of its comment, and a description as text."""

    name: str
    machine: str
    sentence: str
    words: str
    picture: str


def main() -> None:
    """Write every file, and remove pictures of specs that are gone."""
    made = files()
    for old in (ROOT / "docs" / "gallery").glob("*.svg"):
        if f"docs/gallery/{old.name}" not in made:
            old.unlink()
    for name, text in made.items():
        (ROOT / name).parent.mkdir(exist_ok=True)
        (ROOT / name).write_text(text, encoding="utf-8")


def files() -> Mapping[str, str]:
    """Content of every file of the gallery, by its path in the repository."""
    every = [drawn(path) for path in sorted((ROOT / "specs").glob("*.yaml"), key=_order)]
    page = "\n".join([HEAD, *(_section(each) for each in every)])
    return {"docs/gallery.md": page} | {f"docs/gallery/{each.name}.svg": each.picture for each in every}


def drawn(path: Path) -> Drawn:
    """Draw a spec on the first machine that it names. Raises `InvalidOnMachine`."""
    document = language.read_text(path.read_bytes(), f"specs/{path.name}")
    name, target = next(iter(own_targets(document)[0].items()))
    shown = picture(build_diagram(Composition.of(document, target).geometry, target.machine))
    note = f"on {name}: {_gpus(target.machine)}"
    drawing = svg(Drawing(shown, path.stem, note=note, locate=document.position))
    return Drawn(path.stem, name, sentence(document.text), description(shown), drawing)


def sentence(text: str) -> str:
    """Return the first sentence of the comment at the start of a spec."""
    lines = (line.removeprefix("#").strip() for line in _comment(text))
    return re.split(r"(?<=\.) (?=[A-Z])", " ".join(lines), maxsplit=1)[0]


def _comment(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if not line.startswith("# "):
            return
        yield line


def _section(each: Drawn) -> str:
    spec = f"[specs/{each.name}.yaml](../specs/{each.name}.yaml) on `{each.machine}`"
    return f"## {each.name}\n\n{each.sentence}\n\n![{each.words}](gallery/{each.name}.svg)\n\n{spec}\n"


def _gpus(facts: machine.Machine) -> str:
    return f"{len(facts.devices)} × {facts.devices[0].name}"


def _order(path: Path) -> tuple[bool, str]:
    """Sort key that puts the quickstart first."""
    return path.stem != "quickstart", path.stem


if __name__ == "__main__":
    main()
