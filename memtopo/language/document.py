"""A document: the values of a text, its faults, and the place of everything in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from memtopo.common.units import shorten
from memtopo.diagnostics.model import At, Diagnostic, Path, Span
from memtopo.language.characters import named, refused_character
from memtopo.language.limits import DEEPEST, LARGEST_SCALAR, MOST_ENTRIES, Faults, Refused
from memtopo.language.positions import Lines, Places


@dataclass(frozen=True, slots=True, eq=False)
class Document:
    """What was read. `root` is empty where reading ended early, and then `faults` holds the one reason.

    `left_out` has the paths of entries that were refused (a list's own path where one of its entries was), so that
    nobody misses them a second time; of a refused merge key it is the mapping's path and `<<`.
    """

    name: str
    text: str = field(default="", repr=False)
    root: dict[str, Value] = field(default_factory=dict, repr=False)
    faults: tuple[Diagnostic, ...] = ()
    left_out: frozenset[Path] = frozenset()
    places: Places = field(default_factory=Places, repr=False)
    lines: Lines = field(default_factory=lambda: Lines(""), repr=False)

    @classmethod
    def from_object(cls, given: Mapping[Any, object], name: str = "<dict>") -> Document:
        """The same from a mapping of Python's: numbers as decimal text, booleans as `true` and `false`, None as empty.

        It has no places. Values of other types are faults.
        """
        reader = Normaliser()
        try:
            root = reader.root(given)
        except Refused as refused:
            return cls(name, faults=(refused.fault,))
        return cls(name, root=root, faults=reader.faults.told(), left_out=frozenset(reader.left_out))

    def span(self, path: Path, at: At = "value") -> Span | None:
        """Where a path's key or value stands; of a path that is not there, the key of the nearest thing above it.

        None where there is no text.
        """
        if not len(self.places):
            return None
        return self.lines.span(*self.places.find(path, at, self.root))

    def place(self, path: Path) -> str | None:
        """How a path reads as `file:line:column`, by its key."""
        span = self.span(path, "key") if path else None
        return f"{self.name}:{span.line}:{span.column}" if span else None

    def line(self, number: int) -> str:
        """The text of a line, counted from 1, as it was read: whoever shows it escapes it."""
        return self.lines.line(number)


Value: TypeAlias = "str | dict[str, Value] | list[Value]"
"""What a spec holds: text, mappings of names to values, and lists; a value that is not written is an empty text."""

_LONGEST_INT = 256


class Normaliser:
    """Turns a mapping from Python into values; what cannot be turned is a fault, and is left out."""

    def __init__(self) -> None:
        self.faults = Faults()
        self.left_out: set[Path] = set()
        self._entries = 0

    def root(self, given: Mapping[Any, object]) -> dict[str, Value]:
        """The whole mapping. Raises `Refused` where it is too large or too deep."""
        return self._mapping(given, ())

    def _mapping(self, given: Mapping[Any, object], path: Path) -> dict[str, Value]:
        found: dict[str, Value] = {}
        for key, inner in given.items():
            name = self._scalar(key)
            if name is None:
                self._fault("MT103", f"a key is text, and this one is {_a(key)}", path)
            elif name in found:
                self._fault("MT009", f"key {shorten(name)!r} is given twice", (*path, name))
            elif (value := self._value(inner, (*path, name))) is not None:
                found[name] = value
            else:
                self.left_out.add((*path, name))
        return found

    def _list(self, given: list[object] | tuple[object, ...], path: Path) -> list[Value]:
        values = [self._value(inner, (*path, index)) for index, inner in enumerate(given)]
        if any(value is None for value in values):
            self.left_out.add(path)
        return [value for value in values if value is not None]

    def _value(self, given: object, path: Path) -> Value | None:
        self._entries += 1
        if len(path) > DEEPEST or self._entries > MOST_ENTRIES:
            raise Refused(Diagnostic("MT002", "the mapping is larger or deeper than a spec may be", path[:DEEPEST]))
        if isinstance(given, Mapping):
            return self._mapping(given, path)
        if isinstance(given, list | tuple):
            return self._list(given, path)
        text = self._scalar(given)
        if text is None:
            self._fault("MT103", f"expected text, a number, a mapping or a list, found {_a(given)}", path)
        elif len(text) > LARGEST_SCALAR:
            self._fault("MT002", f"a text of {len(text):,} characters; {LARGEST_SCALAR:,} may be", path)
            return None
        elif character := refused_character(text):
            self._fault("MT004", f"{named(character)} may not stand in a key or value", path)
            return None
        return text

    def _scalar(self, given: object) -> str | None:
        match given:
            case str():
                return str.__str__(given)
            case bool():
                return "true" if given else "false"
            case int() if given.bit_length() <= _LONGEST_INT:
                return int.__repr__(given)
            case None:
                return ""
            case _:
                return None

    def _fault(self, code: str, message: str, path: Path) -> None:
        if not self.faults.full():
            self.faults.add(Diagnostic(code, message, path))


def _a(given: object) -> str:
    return "an int of too many digits" if isinstance(given, int) else f"a Python {type(given).__name__}"
