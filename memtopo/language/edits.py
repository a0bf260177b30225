"""Edits of a spec's text at positions; everything else, comments and layout among it, stays as it is."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

from memtopo.diagnostics.model import Edit
from memtopo.language.document import Document

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
    if stop < 0:
        return Replacement(len(text), len(text), f"\n{margin}{edit.new}")
    ending = "\r\n" if text[stop - 1] == "\r" else "\n"
    return Replacement(stop + 1, stop + 1, f"{margin}{edit.new}{ending}")
