"""Documents: the values of a spec's text or mapping, their positions, and the diagnostics found while reading.

A position is a line and a column of the text; positions of all entries are offsets, which paths lead to.
"""

from __future__ import annotations

import os
import re
from array import array
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from memtopo.common.units import shorten
from memtopo.diagnostics.model import At, Diagnostic, Label, Path, TextSpan
from memtopo.language import limits
from memtopo.language.limits import DEEPEST, LARGEST_SCALAR, MOST_ENTRIES, DiagnosticList, ReadError, refused_character

if TYPE_CHECKING:
    from memtopo.language.parameters import Substituted


Value: TypeAlias = "str | dict[str, Value] | list[Value]"
"""A value of a spec: text, a mapping of names to values, or a list; a value that is not written is an empty text."""

NO_SETTINGS: Mapping[str, str] = MappingProxyType({})
"""Settings of a document whose parameters have the values in its text."""

_MOST_INT_BITS = 256
_WIDTH = 5


class Lines:
    """Lines of a text, whose starts are found on first use."""

    def __init__(self, text: str) -> None:
        self._text = text

    @cached_property
    def _starts(self) -> array[int]:
        """Offset of the start of each line."""
        return array("I", chain((0,), (end.end() for end in re.finditer("\n", self._text))))

    def span(self, start: int, end: int) -> TextSpan:
        """Span between two character offsets from 0; an offset past the end of the text means its end."""
        return TextSpan(*self._line_and_column(start), *self._line_and_column(max(start, end)))

    def line(self, number: int) -> str:
        """Text of a line, counted from 1, without its line end; empty if there is no such line."""
        if not 0 < number <= len(self._starts):
            return ""
        start = self._starts[number - 1]
        end = self._text.find("\n", start)
        return self._text[start : end if end >= 0 else len(self._text)].removesuffix("\r")

    def _line_and_column(self, index: int) -> tuple[int, int]:
        index = min(index, len(self._text))
        line = bisect_right(self._starts, index)
        return line, index - self._starts[line - 1] + 1


class Positions:
    """Character offsets of the entries of all mappings and lists: five numbers each, in the order of the text.

    The numbers are start and end of the key, start and end of the value, and the index of the next entry that is not
    nested in this one. Entries of lists have an empty key. Entry 0 is the document. Paths are resolved on request.
    """

    __slots__ = ("_children", "_numbers")

    def __init__(self) -> None:
        self._numbers = array("I")
        self._children: dict[int, dict[str | int, int]] = {}

    def __len__(self) -> int:
        return len(self._numbers) // _WIDTH

    def add(self, key: int, key_end: int, value: int, value_end: int) -> int:
        """Add the next entry, which has no nested entries so far, and return its index."""
        entry = len(self._numbers) // _WIDTH
        self._numbers.extend((key, key_end, value, value_end, entry + 1))
        return entry

    def close(self, entry: int, value_end: int) -> None:
        """End an entry whose nested entries have all been added."""
        self._numbers[entry * _WIDTH + 3] = value_end
        self._numbers[entry * _WIDTH + 4] = len(self)

    def forget(self, entry: int) -> None:
        """Remove an entry and all that follow it."""
        del self._numbers[entry * _WIDTH :]

    def find(self, path: Path, at: At, root: object) -> tuple[int, int]:
        """Start and end of a path's key or value; for a path that does not exist, of the nearest existing key."""
        entry, value = 0, root
        for step in path:
            child = self._nested(entry, value).get(step)
            if child is None:
                return self._key(entry)
            entry, value = child, value[step]  # type: ignore[index]
        return self._key(entry) if at == "key" else self._value(entry)

    def _nested(self, entry: int, value: object) -> dict[str | int, int]:
        """Indices of the entries directly inside an entry, by key or list index."""
        if (found := self._children.get(entry)) is None:
            found = self._children[entry] = {}
            steps: Iterable[str | int] = value if isinstance(value, dict) else ()
            steps = range(len(value)) if isinstance(value, list) else steps
            child = entry + 1
            for step in steps:
                found[step] = child
                child = self._numbers[child * _WIDTH + 4]
        return found

    def _key(self, entry: int) -> tuple[int, int]:
        key, end = self._numbers[entry * _WIDTH : entry * _WIDTH + 2]
        if key != end:
            return key, end
        # The document has no key: its first entry stands for it. A list entry has only a value.
        return self._key(1) if entry == 0 and len(self) > 1 else self._value(entry)

    def _value(self, entry: int) -> tuple[int, int]:
        start, end = self._numbers[entry * _WIDTH + 2 : entry * _WIDTH + 4]
        return start, end


class Document(Struct, frozen=True, eq=False):
    """A spec as it was read. If reading ended early, `root` is empty and `diagnostics` has the one reason.

    `left_out` has the paths of rejected entries, so that they are not reported as missing too: a list's own path for
    an entry of a list, and the mapping's path with `<<` for a merge key.

    `plan` is the file of the saved plan that has the text, if there is one.
    Parameters are replaced in `root`. `settings` are the values that were given for them in place of those in the text.
    """

    name: str
    text: str = ""
    root: dict[str, Value] = {}
    diagnostics: tuple[Diagnostic, ...] = ()
    left_out: frozenset[Path] = frozenset()
    positions: Positions = field(default_factory=Positions)
    lines: Lines = field(default_factory=lambda: Lines(""))
    settings: Mapping[str, str] = {}
    plan: str = ""
    _written: Document | None = None
    _substituted: Substituted | None = None

    @classmethod
    def from_object(
        cls, given: Mapping[Any, object], name: str = "<dict>", settings: Mapping[str, str] = NO_SETTINGS
    ) -> Document:
        """Make a document of a Python mapping: numbers become decimal text, booleans `true` or `false`, None empty.

        The document has no positions. Values of other types are reported as diagnostics.
        """
        reader = ObjectReader()
        try:
            root = reader.mapping(given, ())
        except ReadError as error:
            return cls(name, diagnostics=(error.diagnostic,))
        found = cls(name, root=root, diagnostics=reader.diagnostics.collected(), left_out=frozenset(reader.left_out))
        uses = settings or reader.has_parameters or limits.PARAMETERS in root
        return found.with_settings(settings) if uses else found

    def with_settings(self, settings: Mapping[str, str]) -> Document:
        """Return the document with its parameters replaced: by `settings`, and otherwise as the text has them."""
        from memtopo.language.parameters import substitute  # noqa: PLC0415 most specs have no parameters

        written = self._written or self
        if not written.root:
            return replace(written, settings=settings, plan=self.plan)
        found = substitute(written.root, settings, written.left_out)
        diagnostics, left_out = (*written.diagnostics, *found.diagnostics), written.left_out | found.left_out
        replaced = replace(written, root=found.root, diagnostics=diagnostics, left_out=left_out, settings=settings)
        return replace(replaced, plan=self.plan, _written=written, _substituted=found)

    @property
    def file(self) -> str:
        """File that was read: a saved plan, or the spec itself, by whose name positions are."""
        return self.plan or self.name

    @property
    def values(self) -> dict[str, str]:
        """Values of the parameters that are in effect, in the order of the text."""
        return {**self._substituted.parameters.values} if self._substituted else {}

    @property
    def declared(self) -> Collection[str]:
        """Names of the parameters that the text declares."""
        return self._substituted.parameters.declared if self._substituted else ()

    def noted(self, found: Iterable[Diagnostic]) -> list[Diagnostic]:
        """Return diagnostics with notes on the parameters of the values that they are about."""
        return self._substituted.noted(found) if self._substituted else list(found)

    def span(self, path: Path, at: At = "value") -> TextSpan | None:
        """Span of a path's key or value; for a path that does not exist, of the nearest existing key above it.

        A path of the first item of a list that is written as its only item is that of the item. None if there is no
        text.
        """
        if not len(self.positions):
            return None
        if path and path[-1] == 0 and isinstance(self.written(path[:-1]), str):
            path, at = path[:-1], "value"
        return self.lines.span(*self.positions.find(path, at, (self._written or self).root))

    def span_of(self, subject: Diagnostic | Label) -> TextSpan | None:
        """Span of what a diagnostic or a label is about; None if it is not in the text."""
        return subject.span or (self.span(subject.path, subject.at) if subject.path else None)

    def offsets(self, path: Path, at: At) -> tuple[int, int] | None:
        """Offsets in the text of the start and the end of a path's key or value; None if it is not in the text.

        A path that leads into a scalar is that of the scalar, as `{chunk: hot}` may be written `hot`.
        """
        scalar = next((path[:end] for end in range(len(path)) if isinstance(self.written(path[:end]), str)), path)
        if not len(self.positions) or self.written(scalar) is None:
            return None
        return self.positions.find(scalar, at if scalar == path else "value", (self._written or self).root)

    def written(self, path: Path) -> Value | None:
        """Value of a path as it is in the text, with parameters; None if the path does not exist."""
        value: Value = (self._written or self).root
        for step in path:
            try:
                value = value[step]  # type: ignore[index]
            except (KeyError, IndexError, TypeError):
                return None
        return value

    def position(self, path: Path) -> str | None:
        """Position of a path's key as `file:line:column`; None if there is no text."""
        span = self.span(path, "key") if path else None
        return f"{self.name}:{span.line}:{span.column}" if span else None

    def line(self, number: int) -> str:
        """Text of a line, counted from 1, as it was read; callers escape it for display."""
        return self.lines.line(number)


def scalar_text(given: object) -> str | None:
    """Text of a Python value as it would be written in a spec; None for a value of another type."""
    match given:
        case str():
            return str.__str__(given)
        case bool():
            return "true" if given else "false"
        case int() if given.bit_length() <= _MOST_INT_BITS:
            return int.__repr__(given)
        case None:
            return ""
        case _:
            return None


class ObjectReader:
    """Conversion of a Python mapping to values; what cannot be converted is reported and left out."""

    def __init__(self) -> None:
        self.diagnostics = DiagnosticList()
        self.left_out: set[Path] = set()
        self.has_parameters = False
        self._entries = 0

    def mapping(self, given: Mapping[Any, object], path: Path) -> dict[str, Value]:
        """Convert a mapping, the whole one or one in it. Raises `ReadError` if that is too large or too deep."""
        found: dict[str, Value] = {}
        for key, inner in given.items():
            name = scalar_text(key)
            if name is None:
                self._report("MT103", f"keys are text, and this one is {_type_name(key)}", path)
            elif name in found:
                self._report("MT009", f"key {shorten(name)!r} is given twice", (*path, name))
            elif (value := self._value(inner, (*path, name))) is not None:
                found[name] = value
            else:
                self.left_out.add((*path, name))
        return found

    def _value(self, given: object, path: Path) -> Value | None:
        self._entries += 1
        if len(path) > DEEPEST or self._entries > MOST_ENTRIES:
            raise ReadError(Diagnostic("MT002", "the mapping exceeds the limits of a spec", path[:DEEPEST]))
        if isinstance(given, Mapping):
            return self.mapping(given, path)
        if isinstance(given, list | tuple):
            values = [self._value(inner, (*path, index)) for index, inner in enumerate(given)]
            if any(value is None for value in values):
                self.left_out.add(path)
            return [value for value in values if value is not None]
        text = scalar_text(given)
        if text is None:
            message = f"expected text, a number, a mapping or a list, found {_type_name(given)}"
            help = "pass its text: str(path)" if isinstance(given, os.PathLike) else None
            self.diagnostics.add(Diagnostic("MT103", message, path, help=help))
        elif len(text) > LARGEST_SCALAR:
            self._report("MT002", f"a text of {len(text):,} characters; at most {LARGEST_SCALAR:,} are allowed", path)
            return None
        elif character := refused_character(text):
            self._report("MT004", f"{character} is not allowed in a key or value", path)
            return None
        elif "$" in text:
            self.has_parameters = True
        return text

    def _report(self, code: str, message: str, path: Path) -> None:
        self.diagnostics.add(Diagnostic(code, message, path))


def _type_name(given: object) -> str:
    return "an int with too many digits" if isinstance(given, int) else f"a Python {type(given).__name__}"
