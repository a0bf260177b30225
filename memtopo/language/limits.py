"""How much a spec may be: far more than anyone writes, little enough to be refused at once."""

from __future__ import annotations

from memtopo.diagnostics.model import Diagnostic

LARGEST_FILE = 32 << 20
"""Bytes of one text."""

LARGEST_SCALAR = 64 << 10
"""Characters of one key or value."""

MOST_ENTRIES = 1_000_000
"""Entries of all mappings and lists together; with their keys, two million nodes."""

DEEPEST = 64
"""Levels of mappings and lists inside one another."""

MOST_FAULTS = 1000
"""Faults that are told one by one."""


class Refused(Exception):
    """Reading ends here, and this is the only fault."""

    def __init__(self, fault: Diagnostic) -> None:
        super().__init__(fault.message)
        self.fault = fault


class Faults:
    """The first faults one by one, the rest as a number."""

    __slots__ = ("_list", "_more", "_most")

    def __init__(self, most: int = MOST_FAULTS) -> None:
        self._most = most
        self._list: list[Diagnostic] = []
        self._more = 0

    def full(self) -> bool:
        """Whether one more would only be counted; for callers that spare themselves its making."""
        if len(self._list) < self._most:
            return False
        self._more += 1
        return True

    def add(self, fault: Diagnostic) -> None:
        """Keep a fault. Ask `full` first."""
        self._list.append(fault)

    def told(self) -> tuple[Diagnostic, ...]:
        """All of them; the last one says how many more there are."""
        if not self._more or not self._list:
            return tuple(self._list)
        last = self._list[-1]
        return (*self._list[:-1], last._replace(notes=(*last.notes, f"and {self._more} more faults like these")))
