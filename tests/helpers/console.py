"""Output as a pipe receives it."""

from __future__ import annotations

import io
from collections import Counter

import pytest

from memtopo.output import console


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
