"""Entries of two specs: those that only one of them has, and those whose values differ."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from memtopo.language import Document
from memtopo.language.limits import PARAMETERS


@dataclass(frozen=True, slots=True)
class EntryChanges:
    """Entries that are added, removed and changed, by section and name: `chunks.page`, `server.chunks.page`."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    @classmethod
    def of(cls, before: Document, after: Document) -> EntryChanges:
        """Compare the values of two documents, in which parameters are replaced."""
        old, new = dict(_entries(before.root)), dict(_entries(after.root))
        return cls(
            added=tuple(name for name in new if name not in old),
            removed=tuple(name for name in old if name not in new),
            changed=tuple(name for name, value in new.items() if old.get(name, value) != value),
        )


def _entries(root: object, process: str = "") -> Iterator[tuple[str, object]]:
    """Yield the entries of all sections; the keys of a process that are no section are one, with its name."""
    sections = root if isinstance(root, dict) else {}
    if process:
        yield process, {key: value for key, value in sections.items() if not isinstance(value, dict)}
    for section, entries in sections.items():
        if isinstance(entries, dict) and section != PARAMETERS:
            for name, value in entries.items():
                if section == "processes":
                    yield from _entries(value, name)
                else:
                    yield ".".join(filter(None, (process, section, name))), value
