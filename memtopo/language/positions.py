"""From characters to lines and columns, and from paths to characters."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from memtopo.diagnostics.model import At, Path, Span

_BLOCK = 16 << 10
_WIDTH = 5


class Lines:
    """The lines of a text, which are counted when first asked for; a table of every line would outgrow the text."""

    __slots__ = ("_blocks", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._blocks: list[tuple[int, int]] = []

    def span(self, start: int, end: int) -> Span:
        """The stretch between two characters, counted from 0; past the end of the text is its end."""
        return Span(*self._place(start), *self._place(max(start, end)))

    def line(self, number: int) -> str:
        """The text of a line, counted from 1, without its end; empty where there is no such line."""
        start = self._start(number)
        if start < 0:
            return ""
        end = self._text.find("\n", start)
        return self._text[start : end if end >= 0 else len(self._text)].removesuffix("\r")

    def _place(self, index: int) -> tuple[int, int]:
        index = min(index, len(self._text))
        before, start = self._table()[index // _BLOCK]
        block = index - index % _BLOCK
        last = self._text.rfind("\n", block, index)
        return before + self._text.count("\n", block, index) + 1, index - (start if last < 0 else last + 1) + 1

    def _start(self, number: int) -> int:
        if number <= 1:
            return number - 1
        block = max(i for i, (before, _) in enumerate(self._table()) if before < number - 1)
        found = block * _BLOCK - 1
        for _ in range(number - 1 - self._blocks[block][0]):
            found = self._text.find("\n", found + 1)
            if found < 0:
                return -1
        return found + 1

    def _table(self) -> list[tuple[int, int]]:
        """For the beginning of each block: how many lines ended before it, and where its own line started."""
        if not self._blocks:
            before = start = 0
            for block in range(0, len(self._text) + 1, _BLOCK):
                self._blocks.append((before, start))
                before += self._text.count("\n", block, block + _BLOCK)
                start = max(start, self._text.rfind("\n", block, block + _BLOCK) + 1)
        return self._blocks


class Places:
    """Where the entries of all mappings and lists stand in the text: five numbers each, in the text's order.

    They are where key and value start and end, and the number of the entry after this one and all that is in it. A
    list's entries have an empty key. Entry 0 is the document. Small beside the values, and made without a thought for
    paths; what a path means is looked up only when someone asks.
    """

    __slots__ = ("_children", "_numbers")

    def __init__(self) -> None:
        self._numbers = array("I")
        self._children: dict[int, dict[str | int, int]] = {}

    def __len__(self) -> int:
        return len(self._numbers) // _WIDTH

    def add(self, key: int, key_end: int, value: int, value_end: int) -> None:
        """Note the next entry, one without entries of its own."""
        self._numbers.extend((key, key_end, value, value_end, len(self._numbers) // _WIDTH + 1))

    def close(self, entry: int, value_end: int) -> None:
        """All entries that are in this one have been noted."""
        self._numbers[entry * _WIDTH + 3] = value_end
        self._numbers[entry * _WIDTH + 4] = len(self)

    def forget(self, entry: int) -> None:
        """Drop this entry and all after it."""
        del self._numbers[entry * _WIDTH :]

    def find(self, path: Path, at: At, root: object) -> tuple[int, int]:
        """Where a path's key or value stands; of a path that is not there, the key of what it would be in."""
        entry, value = 0, root
        for step in path:
            child = self._of(entry, value).get(step)
            if child is None:
                return self._key(entry)
            entry, value = child, value[step]  # type: ignore[index]
        return self._key(entry) if at == "key" else self._value(entry)

    def _of(self, entry: int, value: object) -> dict[str | int, int]:
        """The numbers of the entries that are in this one."""
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
        # The document has no key, so its first entry speaks for it; an entry of a list is its value.
        return self._key(1) if entry == 0 and len(self) > 1 else self._value(entry)

    def _value(self, entry: int) -> tuple[int, int]:
        start, end = self._numbers[entry * _WIDTH + 2 : entry * _WIDTH + 4]
        return start, end
