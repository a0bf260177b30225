"""A document: the values of a text, its faults, and the place of everything in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from memtopo.diagnostics.model import At, Diagnostic, Path, Span
from memtopo.language.objects import Normaliser, Value
from memtopo.language.positions import Lines, Places
from memtopo.language.problems import Refused


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
