"""Recovery from errors of YAML: the text without the entries that have them, so that the others are checked, too.

What is left out or replaced becomes blanks, so that positions stay.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from msgspec import Struct

from memtopo.diagnostics.messages import did_you_mean
from memtopo.diagnostics.model import Diagnostic, Path
from memtopo.language.arithmetic import plainly_used
from memtopo.language.document import Lines, Positions, Value
from memtopo.language.limits import ReadError
from memtopo.language.names import plain_subscripts
from memtopo.language.parser import Parser

LONGEST = 64 << 10
"""Characters of a text that is parsed again after an error, in at most a tenth of a second."""

MOST_TRIES = 8
"""Entries that are left out in turn until the rest of a text can be parsed."""

MOST_ERRORS = 5
"""Errors of YAML after which the rest of a text is not parsed."""

_KEY = r"(?:- +)*(\"[^\"]*\" *|'[^']*' *|[^\s#:{}\[\],&*!|>'\"%@`-][^:#{}\[\]]*):(?: |$)"


_SUBSCRIPTED = r"(?:\$|(?<![\w.-])[A-Za-z])[\w.-]*[{(\[][^{}()\[\],]*[})\]]"
"""Word with braces or brackets. A search begins once in each word, so that its time grows with the text alone."""

UNKNOWN = "<<"
"""Key of a left out entry whose own key is not known: that of a merge, as which any entry may be missing."""


class Parsed(Struct, frozen=True):
    """Values of a text with their positions, the diagnostics of its reading, and the paths that it left out."""

    root: dict[str, Value]
    positions: Positions
    diagnostics: tuple[Diagnostic, ...]
    left_out: frozenset[Path]


class _Entry(Struct, frozen=True):
    """Lines of an entry in blocks, counted from 0, and its path; `above_end` ends the entry that it is in."""

    first: int
    end: int
    path: Path
    above_end: int


def parse(text: str, lines: Lines) -> Parsed:
    """Parse a text. Raises `ReadError` for an error after which nothing else can be checked."""
    found: list[Diagnostic] = []
    left_out: set[Path] = set()
    while True:
        parser = Parser(text, lines)
        try:
            root = parser.document()
        except ReadError as error:
            recovered = _recovered(text, error.diagnostic, lines) if len(found) < MOST_ERRORS else None
            if recovered is None:
                raise (ReadError(found[0]) if found else error) from error
            text, diagnostic, path = recovered
            found.append(diagnostic)
            left_out |= {path} if path else set()
            continue
        diagnostics = (*found, *parser.diagnostics.collected())
        unknown = _unknown(root) if found else frozenset()
        return Parsed(root, parser.positions, diagnostics, frozenset(parser.left_out | left_out | unknown))


def _unknown(root: dict[str, Value]) -> frozenset[Path]:
    """Paths of unknown entries in all sections, since an error of YAML may have moved entries to another one."""
    processes = root.get("processes")
    if not isinstance(processes, dict):
        return frozenset({(UNKNOWN,)})
    return frozenset({(UNKNOWN,), ("processes", UNKNOWN), *(("processes", name, UNKNOWN) for name in processes)})


def _recovered(text: str, wrong: Diagnostic, lines: Lines) -> tuple[str, Diagnostic, Path | None] | None:
    """Text without an error, its diagnostic, and the path of the entry that is left out; None if there is no such."""
    if wrong.code != "MT005" or wrong.span is None or len(text) > LONGEST:
        return None
    spans = [wrong.span, *(label.span for label in wrong.labels if label.span)]
    if corrected := _corrected(text, {span.line - 1 for span in spans}):
        other, written, meant = corrected
        next_one = _error(other, lines)
        if next_one is None or (next_one.span and next_one.span > wrong.span):
            message = f"{written!r} is neither a parameter nor a reference"
            return other, wrong._replace(message=message, help=did_you_mean(meant)), None
    written_lines = text.split("\n")
    for entry in islice(_entries(written_lines, [span.line - 1 for span in spans]), MOST_TRIES):
        other = "\n".join(
            " " * len(line) if entry.first <= number < entry.end else line for number, line in enumerate(written_lines)
        )
        if _is_past(_error(other, lines), entry):
            return other, wrong, entry.path
    return None


def _corrected(text: str, numbers: set[int]) -> tuple[str, str, str] | None:
    """Text in which words in braces and brackets are written as in this language, with one of them; None without."""
    written = text.split("\n")
    first: tuple[str, str] | None = None
    for number in sorted(numbers):
        for word in re.findall(_SUBSCRIPTED, written[number]):
            meant = plain_subscripts(plainly_used(word))
            if meant != word:
                written[number] = written[number].replace(word, meant.ljust(len(word)))
                first = first or (word, meant)
    return ("\n".join(written), *first) if first else None


def _error(text: str, lines: Lines) -> Diagnostic | None:
    """Error after which a text is not parsed; None without one."""
    try:
        Parser(text, lines).document()
    except ReadError as error:
        return error.diagnostic
    return None


def _is_past(wrong: Diagnostic | None, entry: _Entry) -> bool:
    """Return true for no error, and for one that is past the entry above: one in it may have the same cause."""
    if wrong is None:
        return True
    spans = [wrong.span, *(label.span for label in wrong.labels)]
    return wrong.code == "MT005" and all(span is not None and span.line > entry.above_end for span in spans)


def _entries(written: list[str], numbers: list[int]) -> Iterator[_Entry]:
    """Entries of blocks that have some lines: those of each line from the innermost on."""
    for number in numbers:
        *above, first = _above(written, min(number, len(written) - 1))
        if above and "\t" in written[first][: _indent(written[first])]:
            first, above = above[0], []  # the columns of a tab are not known
        while True:
            keys = [_key(written[each]) for each in (*above, first)]
            end = _end(written, first)
            if not above or _has_others(written, above[-1], first, end):
                path = tuple(keys[: keys.index(UNKNOWN) + 1] if UNKNOWN in keys else keys)
                yield _Entry(first, end, path, _end(written, above[-1]) if above else end)
            if not above:
                break
            first = above.pop()


def _key(line: str) -> str:
    """Key at the start of a line; that of a merge, which has unknown entries, for a line without one."""
    match = re.match(_KEY, line.lstrip())
    return match[1].rstrip(" ").strip("'\"") if match else UNKNOWN


def _has_others(written: list[str], above: int, first: int, end: int) -> bool:
    """Return true if a block has an entry besides one: without any, it would be empty, which is an error of its own."""
    lines = [*range(above + 1, first), *range(end, _end(written, above))]
    return any(re.match(_KEY, written[number].lstrip()) or written[number].lstrip()[:1] == "-" for number in lines)


def _above(written: list[str], number: int) -> list[int]:
    """Numbers of the lines in whose blocks a line is, from the outermost to that of the line itself."""
    while number and not _has_entry(written[number]):
        number -= 1
    found = [number]
    for each in range(number - 1, -1, -1):
        if _has_entry(written[each]) and _indent(written[each]) < _indent(written[found[0]]):
            found.insert(0, each)
    return found


def _end(written: list[str], first: int) -> int:
    """Number of the line after the entry that begins in a line."""
    for number in range(first + 1, len(written)):
        if _has_entry(written[number]) and _indent(written[number]) <= _indent(written[first]):
            return number
    return len(written)


def _has_entry(line: str) -> bool:
    """Return true for a line in which an entry can begin: it is not blank, no comment, and closes no braces."""
    return line.lstrip()[:1] not in ("", "#", "}", "]")


def _indent(line: str) -> int:
    """Columns before the text of a line; a tab, which is an error, is probably four."""
    return len(line[: len(line) - len(line.lstrip())].expandtabs(4))
