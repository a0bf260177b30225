"""Source positions: lines and columns of a text, and the location of every entry in it."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from memtopo.diagnostics.model import At, Path, Span

_BLOCK = 16 << 10
_WIDTH = 5


class Lines:
    """Line numbers of a text, computed on first use; only one line number per block of the text is stored."""

    __slots__ = ("_blocks", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._blocks: list[tuple[int, int]] = []

    def span(self, start: int, end: int) -> Span:
        """Span between two character offsets from 0; an offset past the end of the text means its end."""
        return Span(*self._line_and_column(start), *self._line_and_column(max(start, end)))

    def line(self, number: int) -> str:
        """Text of a line, counted from 1, without its line end; empty if there is no such line."""
        start = self._offset_of(number)
        if start < 0:
            return ""
        end = self._text.find("\n", start)
        return self._text[start : end if end >= 0 else len(self._text)].removesuffix("\r")

    def _line_and_column(self, index: int) -> tuple[int, int]:
        index = min(index, len(self._text))
        before, start = self._line_table()[index // _BLOCK]
        block = index - index % _BLOCK
        last = self._text.rfind("\n", block, index)
        return before + self._text.count("\n", block, index) + 1, index - (start if last < 0 else last + 1) + 1

    def _offset_of(self, number: int) -> int:
        if number <= 1:
            return number - 1
        block = max(i for i, (before, _) in enumerate(self._line_table()) if before < number - 1)
        found = block * _BLOCK - 1
        for _ in range(number - 1 - self._blocks[block][0]):
            found = self._text.find("\n", found + 1)
            if found < 0:
                return -1
        return found + 1

    def _line_table(self) -> list[tuple[int, int]]:
        """For each block's first character: the number of line ends before it, and the offset of its line."""
        if not self._blocks:
            before = start = 0
            for block in range(0, len(self._text) + 1, _BLOCK):
                self._blocks.append((before, start))
                before += self._text.count("\n", block, block + _BLOCK)
                start = max(start, self._text.rfind("\n", block, block + _BLOCK) + 1)
        return self._blocks


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

    def add(self, key: int, key_end: int, value: int, value_end: int) -> None:
        """Add the next entry, which has no nested entries so far."""
        self._numbers.extend((key, key_end, value, value_end, len(self._numbers) // _WIDTH + 1))

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
