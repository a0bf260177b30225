"""The check itself: every file is read once, and held against each machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from memtopo import language
from memtopo.common.errors import UsageError
from memtopo.common.text import nearest
from memtopo.diagnostics.codes import CODES
from memtopo.diagnostics.model import Diagnostic, Span
from memtopo.language import Document
from memtopo.language.suppressions import NEVER
from memtopo.machine import Machine
from memtopo.rules.files.paths import STDIN, Source
from memtopo.rules.files.results import Checked, File, Result
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


class Selection(NamedTuple):
    """Codes by what they begin with: those selected, all where none are, without those ignored."""

    selected: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    def takes(self, code: str) -> bool:
        """Whether a code is told. Codes of reading the text always are: what is not read is not checked."""
        if code.startswith(NEVER):
            return True
        return (not self.selected or code.startswith(self.selected)) and not code.startswith(self.ignored)


def selection(select: Iterable[str] = (), ignore: Iterable[str] = ()) -> Selection:
    """A selection from words such as `MT301`, `MT5` and `MT301,MT5`. Raises `UsageError` for what begins no code."""
    ignored = _codes(ignore)
    for code in ignored:
        if code.startswith(NEVER):
            hint = "correct the file, or leave it out of the command"
            raise UsageError(f"{code} cannot be ignored: what is not read is not checked", hint=hint)
    return Selection(_codes(select), ignored)


def _codes(words: Iterable[str]) -> tuple[str, ...]:
    parts = [part.strip() for word in words for part in word.split(",")]
    return tuple(_known(part) for part in parts if part)


def _known(word: str) -> str:
    code = word.upper()
    if code.startswith("MT") and any(known.startswith(code) for known in CODES):
        return code
    meant = nearest(code, CODES)
    hint = (
        f"did you mean {meant}? " if meant else "write a code such as MT301, or what several begin with, such as MT3; "
    )
    raise UsageError(f"there is no code {word!r}", hint=f"{hint}'memtopo explain' lists them all")
