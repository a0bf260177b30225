"""Reading of specs from files, pipes, standard input and bytes, with recovery from errors of YAML.

Text without the entries that have errors is parsed again, so that the others are checked, too. What is left out or
replaced becomes blanks, so that positions stay.

No function that reads a file or bytes raises: what cannot be read becomes a document with one diagnostic.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path as FilePath

from msgspec import Struct

from memtopo.common import files
from memtopo.common.errors import reason
from memtopo.common.text import bounded, nearest
from memtopo.diagnostics import messages
from memtopo.diagnostics.messages import did_you_mean
from memtopo.diagnostics.model import Diagnostic, Path
from memtopo.language.arithmetic import plainly_used
from memtopo.language.document import NO_SETTINGS, Document, Lines, Positions, Value
from memtopo.language.limits import LARGEST_FILE, PARAMETERS, ReadError, character_name
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
        blanks = [" " * len(line) for line in written_lines[entry.first : entry.end]]
        other = "\n".join([*written_lines[: entry.first], *blanks, *written_lines[entry.end :]])
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


_FIRST_COMMENTS = re.compile(r"(?:\s*+#.*+)*+")
"""Comments above a spec: `$schema` for editors is no parameter."""

_STDIN = 0
_COMPARED = 1000
"""Files of a folder that the name of one which does not exist is compared with."""
_TOO_LARGE = Diagnostic("MT002", f"the file has more than {LARGEST_FILE >> 20} MiB")

# A lone CR, NEL, LS and PS end a line for YAML but not for editors: every line number after them would be wrong.
_NOT_IN_TEXT = "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]|\r(?!\n)"


class SpecText(Struct, frozen=True):
    """Text of a spec, the name of its file, and the settings that it was read with: all that is needed to read it."""

    name: str
    text: str
    settings: dict[str, str] = {}

    @classmethod
    def of(cls, document: Document) -> SpecText:
        """Text of a document, as JSON if it was not read from a text."""
        # YAML has no pairs of surrogates, as which JSON would escape some characters.
        text = document.text or json.dumps(document.written(()), ensure_ascii=False)
        return cls(document.name, text, dict(document.settings))

    def read(self) -> Document:
        """Read the spec."""
        return read_text(self.text.encode(), self.name, self.settings)


def read_file(
    path: str | FilePath,
    *,
    name: str | None = None,
    patience: float = files.PATIENCE,
    settings: Mapping[str, str] = NO_SETTINGS,
) -> Document:
    """Read a file, or a pipe for at most `patience` seconds; `name` is its name in messages.

    Devices, directories and files of more than `LARGEST_FILE` bytes are refused. `settings` are values of parameters.
    """
    shown = str(path) if name is None else name
    return _read(lambda: files.read_file(path, LARGEST_FILE, patience), shown, settings)


def read_stdin(*, patience: float = files.PATIENCE) -> Document:
    """Read standard input: a terminal until end of file, anything else for at most `patience` seconds."""

    def take() -> bytes:
        deadline = None if os.isatty(_STDIN) else time.monotonic() + patience
        return files.read_descriptor(_STDIN, LARGEST_FILE, deadline)

    return _read(take, "<stdin>", NO_SETTINGS)


def _read(take: Callable[[], bytes], shown: str, settings: Mapping[str, str]) -> Document:
    try:
        data = take()
    except files.TooLarge:
        found = _TOO_LARGE
    except files.NotAFile as error:
        found = Diagnostic("MT001", f"{error.strerror}, and a spec is a file")
    except files.NotInTime as error:
        found = Diagnostic("MT001", str(error.strerror), help="write the spec to a file first")
    except (OSError, ValueError) as error:
        help = _near(shown) if isinstance(error, FileNotFoundError) else None
        found = Diagnostic("MT001", f"the file cannot be read: {reason(error)}", help=help)
    else:
        return read_text(data, shown, settings)
    return Document(bounded(shown), diagnostics=(found,))


def _near(name: str) -> str | None:
    """Help with the file that one which does not exist was probably meant to be."""
    path = FilePath(name)
    others = {each.stem: each for each in islice(path.parent.glob("*.y*ml"), _COMPARED) if each.name != path.name}
    meant = nearest(path.stem, others)
    return messages.did_you_mean(str(others[meant])) if meant else None


def read_text(data: bytes, name: str, settings: Mapping[str, str] = NO_SETTINGS) -> Document:
    """Read the bytes of a spec; `name` is its name in messages, `settings` are values of its parameters."""
    if len(data) > LARGEST_FILE:
        return Document(name, diagnostics=(_TOO_LARGE,))
    data = data.removeprefix(b"\xef\xbb\xbf")
    text = data.decode(errors="replace")  # so that the position of what is not UTF-8 can be shown
    lines = Lines(text)
    try:
        try:
            data.decode()
        except UnicodeDecodeError as error:
            start = len(data[: error.start].decode())
            utf16 = data.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\x00" in data[:4]
            help = "the file looks like UTF-16; save it as UTF-8" if utf16 else "save the file as UTF-8"
            message = f"byte 0x{data[error.start]:02x} is not UTF-8 here"
            raise ReadError(Diagnostic("MT003", message, help=help, span=lines.span(start, start + 1))) from error
        _check_characters(text, lines)
        parsed = parse(text, lines)
    except ReadError as error:
        return Document(name, text, diagnostics=(error.diagnostic,), lines=lines)
    found = Document(name, text, parsed.root, parsed.diagnostics, parsed.left_out, parsed.positions, lines)
    uses = "$" in _FIRST_COMMENTS.sub("", text, count=1)
    return found.with_settings(settings) if settings or uses or PARAMETERS in parsed.root else found


def _check_characters(text: str, lines: Lines) -> None:
    """Raise `ReadError` at the first character that is not allowed in a spec, not even in a comment."""
    if text.replace("\n", "").isprintable() or not (match := re.search(_NOT_IN_TEXT, text)):
        return
    help = "end lines with LF or CRLF" if match[0] in "\r\x85\u2028\u2029" else None
    message = f"{character_name(match[0])} is not allowed in a spec"
    raise ReadError(Diagnostic("MT004", message, help=help, span=lines.span(*match.span())))
