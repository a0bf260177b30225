"""Reading of specs from files, pipes, standard input and bytes.

No function raises: a file that cannot be read becomes a document with one diagnostic.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from memtopo.common import files
from memtopo.diagnostics.model import Diagnostic
from memtopo.language.document import NO_SETTINGS, Document, Lines
from memtopo.language.limits import LARGEST_FILE, PARAMETERS, ReadError, character_name
from memtopo.language.parser import Parser

_FIRST_COMMENTS = re.compile(r"(?:\s*+#.*+)*+")
"""Comments above a spec: `$schema` for editors is no parameter."""

_STDIN = 0

# A lone CR, NEL, LS and PS end a line for YAML but not for editors: every line number after them would be wrong.
_NOT_IN_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]|\r(?!\n)")
_BOM = b"\xef\xbb\xbf"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True, slots=True)
class SpecText:
    """Text of a spec, the name of its file, and the settings that it was read with: all that is needed to read it."""

    name: str
    text: str
    settings: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, document: Document) -> SpecText:
        """Text of a document that was read from one."""
        return cls(document.name, document.text, dict(document.settings))

    def read(self) -> Document:
        """Read the spec."""
        return read_text(self.text.encode(), self.name, self.settings)


def read_file(
    path: str | Path,
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


def read_stdin(settings: Mapping[str, str] = NO_SETTINGS) -> Document:
    """Read standard input: a terminal until end of file, anything else for at most 10 seconds."""

    def take() -> bytes:
        deadline = None if os.isatty(_STDIN) else time.monotonic() + files.PATIENCE
        return files.read_descriptor(_STDIN, LARGEST_FILE, deadline)

    return _read(take, "<stdin>", settings)


def _read(take: Callable[[], bytes], shown: str, settings: Mapping[str, str]) -> Document:
    try:
        with _diagnosed():
            data = take()
    except ReadError as error:
        return Document(shown, diagnostics=(error.diagnostic,))
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or "not a path").lower()
        return Document(shown, diagnostics=(Diagnostic("MT001", f"the file cannot be read: {reason}"),))
    return read_text(data, shown, settings)


def read_text(data: bytes, name: str, settings: Mapping[str, str] = NO_SETTINGS) -> Document:
    """Read the bytes of a spec; `name` is its name in messages, `settings` are values of its parameters."""
    if len(data) > LARGEST_FILE:
        return Document(name, diagnostics=(_too_large().diagnostic,))
    text, undecodable = decode(data)
    lines = Lines(text)
    if undecodable:
        return Document(name, text, diagnostics=(undecodable,), lines=lines)
    try:
        check_characters(text)
        found = _parsed(text, name, lines)
    except ReadError as error:
        return Document(name, text, diagnostics=(error.diagnostic,), lines=lines)
    uses = "$" in _FIRST_COMMENTS.sub("", text, count=1)
    return found.with_settings(settings) if settings or uses or PARAMETERS in found.root else found


def _parsed(text: str, name: str, lines: Lines) -> Document:
    parser = Parser(text, lines)
    root = parser.document()
    diagnostics = parser.diagnostics.collected()
    return Document(name, text, root, diagnostics, frozenset(parser.left_out), parser.positions, lines)


@contextmanager
def _diagnosed() -> Iterator[None]:
    """Raise what prevents reading as `ReadError`."""
    try:
        yield
    except files.TooLarge:
        raise _too_large() from None
    except files.NotAFile as error:
        raise ReadError(Diagnostic("MT001", f"{error.strerror}, and a spec is a file")) from None
    except files.NotInTime as error:
        raise ReadError(Diagnostic("MT001", str(error.strerror), help="write the spec to a file first")) from None


def _too_large() -> ReadError:
    return ReadError(Diagnostic("MT002", f"the file has more than {LARGEST_FILE >> 20} MiB"))


def decode(data: bytes) -> tuple[str, Diagnostic | None]:
    """Decode a spec, without its byte order mark.

    Returns the text and a diagnostic where the bytes are not UTF-8; the text then has replacement characters, so that
    the position can be shown.
    """
    data = data.removeprefix(_BOM)
    try:
        return data.decode(), None
    except UnicodeDecodeError as error:
        text, utf16 = data.decode(errors="replace"), data.startswith(_UTF16) or b"\x00" in data[:4]
        start = len(data[: error.start].decode())
        return text, Diagnostic(
            "MT003",
            f"byte 0x{data[error.start]:02x} is not UTF-8 here",
            span=Lines(text).span(start, start + 1),
            help="the file looks like UTF-16; save it as UTF-8" if utf16 else "save the file as UTF-8",
        )


def check_characters(text: str) -> None:
    """Raise `ReadError` at the first character that is not allowed in a spec, not even in a comment."""
    if text.replace("\n", "").isprintable() or not (match := _NOT_IN_TEXT.search(text)):
        return
    raise ReadError(
        Diagnostic(
            "MT004",
            f"{character_name(match[0])} is not allowed in a spec",
            span=Lines(text).span(match.start(), match.end()),
            help="end lines with LF or CRLF" if match[0] in "\r\x85\u2028\u2029" else None,
        )
    )
