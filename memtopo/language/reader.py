"""Reading of specs from files, pipes, standard input and bytes.

No function raises: a file that cannot be read becomes a document with one diagnostic.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path

from msgspec import Struct

from memtopo.common import files
from memtopo.common.errors import reason
from memtopo.common.text import bounded, nearest
from memtopo.diagnostics import messages
from memtopo.diagnostics.model import Diagnostic
from memtopo.language.document import NO_SETTINGS, Document, Lines
from memtopo.language.limits import LARGEST_FILE, PARAMETERS, ReadError, character_name
from memtopo.language.recovery import parse

_FIRST_COMMENTS = re.compile(r"(?:\s*+#.*+)*+")
"""Comments above a spec: `$schema` for editors is no parameter."""

_STDIN = 0
_COMPARED = 1000
"""Files of a folder that the name of one which does not exist is compared with."""
_TOO_LARGE = Diagnostic("MT002", f"the file has more than {LARGEST_FILE >> 20} MiB")

# A lone CR, NEL, LS and PS end a line for YAML but not for editors: every line number after them would be wrong.
_NOT_IN_TEXT = "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]|\r(?!\n)"
_BOM = b"\xef\xbb\xbf"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


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
    path = Path(name)
    others = {each.stem: each for each in islice(path.parent.glob("*.y*ml"), _COMPARED) if each.name != path.name}
    meant = nearest(path.stem, others)
    return messages.did_you_mean(str(others[meant])) if meant else None


def read_text(data: bytes, name: str, settings: Mapping[str, str] = NO_SETTINGS) -> Document:
    """Read the bytes of a spec; `name` is its name in messages, `settings` are values of its parameters."""
    if len(data) > LARGEST_FILE:
        return Document(name, diagnostics=(_TOO_LARGE,))
    data = data.removeprefix(_BOM)
    text = data.decode(errors="replace")  # so that the position of what is not UTF-8 can be shown
    lines = Lines(text)
    try:
        _check_encoding(data, lines)
        _check_characters(text, lines)
        parsed = parse(text, lines)
    except ReadError as error:
        return Document(name, text, diagnostics=(error.diagnostic,), lines=lines)
    found = Document(name, text, parsed.root, parsed.diagnostics, parsed.left_out, parsed.positions, lines)
    uses = "$" in _FIRST_COMMENTS.sub("", text, count=1)
    return found.with_settings(settings) if settings or uses or PARAMETERS in parsed.root else found


def _check_encoding(data: bytes, lines: Lines) -> None:
    """Raise `ReadError` at the first byte that is not UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        start = len(data[: error.start].decode())
        utf16 = data.startswith(_UTF16) or b"\x00" in data[:4]
        help = "the file looks like UTF-16; save it as UTF-8" if utf16 else "save the file as UTF-8"
        message = f"byte 0x{data[error.start]:02x} is not UTF-8 here"
        raise ReadError(Diagnostic("MT003", message, help=help, span=lines.span(start, start + 1))) from error


def _check_characters(text: str, lines: Lines) -> None:
    """Raise `ReadError` at the first character that is not allowed in a spec, not even in a comment."""
    if text.replace("\n", "").isprintable() or not (match := re.search(_NOT_IN_TEXT, text)):
        return
    help = "end lines with LF or CRLF" if match[0] in "\r\x85\u2028\u2029" else None
    message = f"{character_name(match[0])} is not allowed in a spec"
    raise ReadError(Diagnostic("MT004", message, help=help, span=lines.span(*match.span())))
