"""Alternatives: values of which a machine takes the first one that it supports, such as `fabric else fd`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from memtopo.diagnostics.model import InvalidValue
from memtopo.language.scalars import text_like

T = TypeVar("T")

_ELSE = re.compile(r"[ \t]+else[ \t]+")
_MISPLACED = re.compile(r"(^|[ \t])else([ \t]|$)")


class Alternatives(NamedTuple, Generic[T]):
    """Values in the order of preference, and the words that a spec writes for them."""

    options: tuple[T, ...]
    words: tuple[str, ...]

    def __str__(self) -> str:
        return " else ".join(self.words)


def or_else(read: Callable[[object], T], example: str) -> Callable[[object], T | Alternatives[T]]:
    """Return a function that reads one value, or alternatives of it; `read` reads one of them."""

    def alternatives(value: object) -> T | Alternatives[T]:
        if not (isinstance(value, str) and _MISPLACED.search(value)):
            return read(value)
        words = tuple(_ELSE.split(value))
        if any(_MISPLACED.search(word) for word in words):
            raise InvalidValue("MT107", "'else' stands between two alternatives", help=f"write {example}")
        options = tuple(map(read, words))
        if twice := next((word for index, word in enumerate(words) if word in words[:index]), None):
            raise InvalidValue("MT107", f"{twice!r} is twice among the alternatives", help="leave one of them out")
        return Alternatives(options, words)

    return alternatives


def support_or_not(read: Callable[[object], bool]) -> Callable[[object], bool | Alternatives[bool]]:
    """Return a function that reads a boolean, or `true else false`: the property if the machine supports it."""
    alternatives = or_else(read, "true else false")

    def boolean(value: object) -> bool | Alternatives[bool]:
        found = alternatives(value)
        if isinstance(found, Alternatives) and found.options != (True, False):
            message = "'true' is never taken, since 'false' needs no support"
            raise InvalidValue("MT107", message, help="write 'true else false'")
        return found

    return boolean


def or_else_schema(schema: dict[str, Any], words: str) -> dict[str, Any]:
    """JSON Schema of one value or alternatives of it; `words` is the pattern of one alternative."""
    message = "Alternatives, of which the first one that works is taken: fabric else fd."
    return {"anyOf": [schema, text_like(f"({words})( else ({words}))+", message)]}
