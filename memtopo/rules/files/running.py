"""The check itself: every file is read once, and held against each machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from memtopo import language
from memtopo.diagnostics.model import Diagnostic, Span
from memtopo.language import Document
from memtopo.machine import Machine
from memtopo.rules.files.collecting import STDIN, Source
from memtopo.rules.files.results import Checked, File, Result
from memtopo.rules.files.selecting import Selection
from memtopo.rules.validation import Validated, validate

_STALE = "MT505"


def read(each: Source) -> Document:
    """The text of a file, whatever is wrong with it."""
    return language.read_stdin() if each.name == STDIN else language.read_file(each.name, patience=each.patience)


def check(
    sources: Iterable[Source],
    machines: Mapping[str, Machine],
    chosen: Selection | None = None,
    *,
    strict: bool = False,
    reader: Callable[[Source], Document] = read,
) -> Checked:
    """Hold every file against every machine. A file that cannot be read is a result like any other.

    Errors that comments in a file ignore are not told; a comment ignores in vain only where it does on all machines.
    """
    chosen = chosen or Selection()
    files = tuple(_file(reader(each), machines, chosen) for each in sources)
    return Checked(tuple(machines), files, strict)


def _file(document: Document, machines: Mapping[str, Machine], chosen: Selection) -> File:
    found = {name: validate(document, machine) for name, machine in machines.items()}
    used = frozenset[Span]().union(*(validated.used for validated in found.values()))
    results = (Result(document, name, _told(each, used, chosen), len(each.ignored)) for name, each in found.items())
    return File(document, tuple(results))


def _told(validated: Validated, used: frozenset[Span], chosen: Selection) -> tuple[Diagnostic, ...]:
    ignored = frozenset(validated.ignored)
    return tuple(
        fault
        for fault in validated.diagnostics
        if chosen.takes(fault.code) and fault not in ignored and not (fault.code == _STALE and fault.span in used)
    )
