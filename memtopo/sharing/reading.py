"""The fields of a message, each asked for by its type and bounds. What is said of a fault repeats no value."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, TypeVar

from memtopo.sharing.faults import BadPacket

LONGEST = 4096
"""Characters of a text that has no bound of its own."""

WIDEST = 1 << 63

W = TypeVar("W", bound=str)


class Fields:
    """One JSON object of a message. Every method raises `BadPacket` where the field is not what it should be."""

    def __init__(self, value: object, what: str) -> None:
        if not isinstance(value, dict):
            raise BadPacket(f"{what} is no object")
        self._fields: dict[str, Any] = value
        self._what = what

    def text(self, key: str, longest: int = LONGEST) -> str:
        value = self._fields.get(key)
        if isinstance(value, str) and len(value) <= longest:
            return value
        raise self._wrong(key, f"a text of at most {longest} characters")

    def text_or_none(self, key: str) -> str | None:
        return None if self._fields.get(key) is None else self.text(key)

    def word(self, key: str, *words: W) -> W:
        value = self._fields.get(key)
        for word in words:
            if word == value:
                return word
        raise self._wrong(key, f"one of {', '.join(words)}")

    def number(self, key: str, low: int = 0, high: int = WIDEST) -> int:
        value = self._fields.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and low <= value < high:
            return value
        raise self._wrong(key, f"a whole number from {low} on" if high == WIDEST else f"one of {low} to {high - 1}")

    def seconds(self, key: str, most: float = 1e12) -> float:
        value = self._fields.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most:
            return float(value) if math.isfinite(value) else most
        raise self._wrong(key, f"seconds, at most {most:g}")

    def seconds_or_none(self, key: str) -> float | None:
        return None if self._fields.get(key) is None else self.seconds(key)

    def flag(self, key: str) -> bool:
        value = self._fields.get(key)
        if isinstance(value, bool):
            return value
        raise self._wrong(key, "true or false")

    def items(self, key: str, most: int) -> list[Any]:
        value = self._fields.get(key)
        if isinstance(value, list) and len(value) <= most:
            return value
        raise self._wrong(key, f"a list of at most {most}")

    def objects(self, key: str, most: int) -> Iterator[Fields]:
        for value in self.items(key, most):
            yield Fields(value, f"an entry of {self._what}'s {key!r}")

    def texts(self, key: str, most: int) -> tuple[str, ...]:
        found = self.items(key, most)
        if all(isinstance(value, str) and len(value) <= LONGEST for value in found):
            return tuple(found)
        raise self._wrong(key, "a list of texts")

    def object(self, key: str) -> Fields:
        return Fields(self._fields.get(key), f"{self._what}'s {key!r}")

    def has(self, key: str) -> bool:
        return key in self._fields

    def only(self, *known: str) -> None:
        """Refuse keys that are not known: what asks for something says nothing that is not understood."""
        if len(self._fields.keys() - {"memtopo", *known}) > 0:
            raise BadPacket(f"{self._what} has a key besides {', '.join(known)}", "request")

    def _wrong(self, key: str, wanted: str) -> BadPacket:
        return BadPacket(f"{self._what} needs {key!r}: {wanted}")
