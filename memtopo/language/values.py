"""Values of a text alone, without positions: most specs have nothing to report, so that none is ever needed.

Half of the time of `Parser` is positions and checks entry by entry. This reader takes a text only if the parser would
report nothing of it; any other text it leaves to the parser.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import yaml
from yaml.events import (
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from memtopo.language.document import Value
from memtopo.language.limits import DEEPEST, LARGEST_SCALAR, MOST_ENTRIES

_SIGNS = ("&", "*", "!", "<<")
"""Signs of anchors, aliases, tags and merge keys; a text that has one anywhere is left to the parser."""


class _Unusual(Exception):
    """Something that the parser reports, or has to look at."""


class Values(NamedTuple):
    """Values of a document, and the index of its end in the text; `explicit` is true if '...' ends it."""

    root: dict[str, Value]
    end: int
    explicit: bool


def values(text: str) -> Values | None:
    """Return the values of a text, or None for a text that the parser has to read."""
    if any(sign in text for sign in _SIGNS):
        return None
    # PyYAML's loader on top of libyaml or, in a build without libyaml, the one in pure Python.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        words: dict[str, str] = {}
        reader = _Reader(loader(text).get_event, iter(range(MOST_ENTRIES)).__next__, words.setdefault)
        found = _document(reader)
        return found if _usual(words) else None
    except (_Unusual, StopIteration, yaml.YAMLError, ValueError):
        return None


class _Reader(NamedTuple):
    """Function that returns the next event, and one that counts an entry and raises `StopIteration` for too many."""

    following: Callable[[], Event]
    counting: Callable[[], int]
    word: Callable[[str, str], str]
    """Returns the first text that equals one: most keys and values are repeated, and each is checked once."""


def _usual(words: Collection[str]) -> bool:
    """Return true if all texts are short, and none has a character that the parser has to look at."""
    return all(map(str.isprintable, words)) and max(map(len, words), default=0) <= LARGEST_SCALAR


def _document(reader: _Reader) -> Values | None:
    following = reader.following
    following()
    following()
    if following().__class__ is not MappingStartEvent:
        return None
    root = _mapping(reader, 0)
    end: Any = following()
    following()
    return Values(root, end.end_mark.index, end.explicit)


def _mapping(reader: _Reader, depth: int) -> dict[str, Value]:
    following, counting, word = reader
    found: dict[str, Value] = {}
    while (event := following()).__class__ is ScalarEvent:
        key = event.value
        if key in found:
            raise _Unusual
        key = word(key, key)
        counting()
        event = following()
        if event.__class__ is ScalarEvent:
            value = event.value
            found[key] = word(value, value)
        else:
            found[key] = _collection(event, reader, depth + 1)
    if event.__class__ is not MappingEndEvent or "" in found:
        raise _Unusual
    return found


def _list(reader: _Reader, depth: int) -> list[Value]:
    following, counting, word = reader
    found: list[Value] = []
    while (event := following()).__class__ is not SequenceEndEvent:
        counting()
        if event.__class__ is ScalarEvent:
            value = event.value
            found.append(word(value, value))
        else:
            found.append(_collection(event, reader, depth + 1))
    return found


def _collection(event: Event, reader: _Reader, depth: int) -> Value:
    if depth >= DEEPEST:
        raise _Unusual
    if event.__class__ is MappingStartEvent:
        return _mapping(reader, depth)
    if event.__class__ is SequenceStartEvent:
        return _list(reader, depth)
    raise _Unusual
