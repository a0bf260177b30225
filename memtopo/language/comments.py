"""Comments of a text: YAML's reader drops them, so they are found beside its scalars."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import yaml
from yaml.tokens import ScalarToken

if TYPE_CHECKING:
    from memtopo.language.document import Document


def comments(document: Document, pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
    """Where a pattern, which begins with the sign of a comment, matches in a comment of a text that was read whole.

    A text that ended in a syntax error has none: what is a comment there nobody knows.
    """
    matches = list(pattern.finditer(document.text))
    if not matches or not len(document.places):
        return
    scalars = _scalars(document.text)
    start, end = next(scalars, (len(document.text), 0))
    for match in matches:
        while end <= match.start() and start < len(document.text):
            start, end = next(scalars, (len(document.text), 0))
        if match.start() < start:
            yield match


def _scalars(text: str) -> Iterator[tuple[int, int]]:
    """Where each key and value starts and ends: a sign in between begins a comment."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
    while loader.check_token():
        token = loader.get_token()
        if isinstance(token, ScalarToken):
            yield token.start_mark.index, token.end_mark.index
