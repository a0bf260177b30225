"""Output as a pipe receives it."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from memtopo.output import console
from tests.helpers.answers import kept

PAGES = Path(__file__).parent.parent / "golden" / "pages"


def shown_and_golden(name: str, pages: Mapping[str, console.Shown], width: int = 120) -> tuple[list[str], list[str]]:
    """Lines of pages, each below the rule that it shows, and those of a golden file, which GOLDEN=write writes."""
    shown = "\n".join(f"# {rule}\n\n{console.unstyled(page, width)}" for rule, page in pages.items())
    return shown.splitlines(), kept(PAGES / f"{name}.txt", shown).splitlines()


def written_to_pipe(renderable: console.Shown) -> str:
    """Text of a renderable in a pipe, at the width that COLUMNS gives."""
    stream = io.StringIO()
    console.show(renderable, stream)
    return stream.getvalue()


def words(text: str) -> Counter[str]:
    """Words of a text with their numbers, without the signs that a column has where it is a line of its own."""
    return Counter(word.strip(",:") for word in text.split())


def written_at_width(renderable: console.Shown, width: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """Text of a renderable in a pipe, at a width."""
    monkeypatch.setenv("COLUMNS", str(width))
    return written_to_pipe(renderable)
