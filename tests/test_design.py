"""DESIGN.md and CONTRIBUTING.md name modules, tests and definitions that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = {name: (ROOT / name).read_text() for name in ("DESIGN.md", "CONTRIBUTING.md")}
QUOTED = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"[a-z_]+(?:/[a-z_]+)*(?:\.py|\.md)|(?:[a-z_]+/)+[a-z_]+")
DEFINITION = re.compile(r"`([a-z_/]+\.py)`\s+`(?:\w+\.)*(\w+)`")
ROOTS = (ROOT, ROOT / "memtopo")


def existing(path: str) -> bool:
    """Return true for a file or folder below the repository or the package, a module without its suffix too."""
    return any((root / path).exists() or (root / f"{path}.py").exists() for root in ROOTS)


@pytest.mark.parametrize("page", PAGES)
def test_every_path_on_the_page_exists(page: str) -> None:
    paths = [text for text in QUOTED.findall(PAGES[page]) if PATH.fullmatch(text)]
    assert paths
    assert [path for path in paths if not existing(path)] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_name_beside_its_module_is_defined_there(page: str) -> None:
    for path, name in DEFINITION.findall(PAGES[page]):
        text = (ROOT / "memtopo" / path).read_text()
        assert re.search(rf"^ *(?:class|def) {name}\b", text, re.MULTILINE), (path, name)


def test_the_trips_name_definitions() -> None:
    assert len(DEFINITION.findall(PAGES["DESIGN.md"])) > 6
