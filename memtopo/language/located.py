"""Diagnostics at their places in a text, and their edits of it, which leave comments and layout as they are."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from msgspec import Struct

from memtopo.common.text import printable
from memtopo.diagnostics.model import Diagnostic, Edit, Label, TextSpan
from memtopo.language.document import Document


class Located(Struct, frozen=True):
    """A diagnostic with its file's name, its span, and the span of each label; None for what is not in the text."""

    diagnostic: Diagnostic
    file: str
    span: TextSpan | None
    label_spans: tuple[TextSpan | None, ...]

    @property
    def location(self) -> str:
        """`file:line:column`, or the file's name alone."""
        return f"{self.file}:{self.span.line}:{self.span.column}" if self.span else self.file

    @property
    def labels(self) -> Iterable[tuple[Label, TextSpan | None]]:
        """Each label with its span."""
        return zip(self.diagnostic.labels, self.label_spans, strict=True)

    def headline(self, paint: Callable[[str, str], str] = lambda text, _style: text) -> str:
        """`file:line:column: error[MT301]: …`; `paint` gives a text a style."""
        code = paint(f"{self.diagnostic.severity}[{self.diagnostic.code}]", self.diagnostic.severity)
        return f"{paint(printable(self.location), 'strong')}: {code}: {printable(self.diagnostic.message)}"


def located(diagnostics: Iterable[Diagnostic], document: Document) -> list[Located]:
    """Locate the diagnostics of one document, sorted by position; those without one come first."""
    found = [
        Located(each, document.name, document.span_of(each), tuple(map(document.span_of, each.labels)))
        for each in diagnostics
    ]
    nowhere = TextSpan(0, 0, 0, 0)
    return sorted(found, key=lambda each: (each.span or nowhere, each.diagnostic.code, each.diagnostic.message))


_WORD = "[A-Za-z0-9_-]"


class Replacement(NamedTuple):
    """Characters from `start` to `end` of a text, counted from 0, and what takes their place."""

    start: int
    end: int
    text: str


def replacements(document: Document, edits: Collection[Edit]) -> dict[Edit, Replacement]:
    """Return what each edit replaces, without edits that are not possible or contradict one another."""
    made = {edit: found for edit in edits if (found := _replacement(document, edit))}
    return {edit: each for edit, each in made.items() if not any(_contradicts(each, other) for other in made.values())}


def edited(text: str, made: Collection[Replacement]) -> str:
    """Return a text with replacements made; equal ones are one."""
    for each in sorted(set(made), reverse=True):
        text = text[: each.start] + each.text + text[each.end :]
    return text


def _contradicts(one: Replacement, other: Replacement) -> bool:
    if one == other:
        return False
    return one.start == other.start or max(one.start, other.start) < min(one.end, other.end)


def _replacement(document: Document, edit: Edit) -> Replacement | None:
    """Return the place of an edit in the text; None if the text there is another one, or if there are several."""
    if not edit.old:
        return _addition(document, edit)
    found = document.offsets(edit.path, edit.at)
    if found is None:
        return None
    pattern = f"(?<!{_WORD}){re.escape(edit.old)}(?!{_WORD})"
    places = [*re.compile(pattern).finditer(document.text, *found)]
    return Replacement(places[0].start(), places[0].end(), edit.new) if len(places) == 1 else None


def _addition(document: Document, edit: Edit) -> Replacement | None:
    """Return the place after the last entry of a mapping that has a value on one line; None if the key is there."""
    mapping, found = document.written(edit.path), document.offsets(edit.path, "value")
    if not isinstance(mapping, Mapping) or found is None or edit.new.partition(":")[0] in mapping:
        return None
    scalars = [key for key, value in mapping.items() if isinstance(value, str) and value]
    if not scalars:
        return None
    _, end = document.offsets((*edit.path, scalars[-1]), "value") or found
    text = document.text
    if text[found[0]] == "{":
        return Replacement(end, end, f", {edit.new}")
    key, _ = document.offsets((*edit.path, scalars[-1]), "key") or found
    line = text.rfind("\n", 0, key) + 1
    margin = text[line:key] if not text[line:key].strip() else None
    if margin is None or "\n" in text[key:end]:
        return None
    stop = text.find("\n", end)
    newline = line - 1 if stop < 0 else stop  # the last line may have none
    ending = "\r\n" if text[newline - 1] == "\r" else "\n"
    if stop < 0:
        return Replacement(len(text), len(text), f"{ending}{margin}{edit.new}")
    return Replacement(stop + 1, stop + 1, f"{margin}{edit.new}{ending}")
