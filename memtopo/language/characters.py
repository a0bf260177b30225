"""Decoding of a spec's bytes: strict UTF-8, without characters that editors and YAML treat differently."""

from __future__ import annotations

import re
from unicodedata import category

from memtopo.diagnostics.model import Diagnostic
from memtopo.language.limits import ReadError
from memtopo.language.positions import Lines

# A lone CR, NEL, LS and PS end a line for YAML but not for editors: every line number after them would be wrong.
_NOT_IN_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]|\r(?!\n)")
_NOT_IN_VALUES = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ufffe\uffff\ud800-\udfff]"
)
_NAMES = {
    "\x00": "NULL",
    "\x07": "BELL",
    "\x08": "BACKSPACE",
    "\x0b": "LINE TABULATION",
    "\x0c": "FORM FEED",
    "\r": "CARRIAGE RETURN",
    "\x1b": "ESCAPE",
    "\x7f": "DELETE",
    "\x85": "NEXT LINE",
    "\u2028": "LINE SEPARATOR",
    "\u2029": "PARAGRAPH SEPARATOR",
    "\u202a": "LEFT-TO-RIGHT EMBEDDING",
    "\u202b": "RIGHT-TO-LEFT EMBEDDING",
    "\u202c": "POP DIRECTIONAL FORMATTING",
    "\u202d": "LEFT-TO-RIGHT OVERRIDE",
    "\u202e": "RIGHT-TO-LEFT OVERRIDE",
    "\u2066": "LEFT-TO-RIGHT ISOLATE",
    "\u2067": "RIGHT-TO-LEFT ISOLATE",
    "\u2068": "FIRST STRONG ISOLATE",
    "\u2069": "POP DIRECTIONAL ISOLATE",
    "\ufeff": "BYTE ORDER MARK",
}
_BOM = b"\xef\xbb\xbf"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def decode(data: bytes) -> tuple[str, Diagnostic | None]:
    """Decode a spec, without its byte order mark.

    Returns the text and a diagnostic where the bytes are not UTF-8; the text then has replacement characters, so that
    the position can be shown.
    """
    data = data.removeprefix(_BOM)
    try:
        return data.decode(), None
    except UnicodeDecodeError as error:
        text = data.decode(errors="replace")
        start = len(data[: error.start].decode())
        return text, Diagnostic(
            "MT003",
            f"byte 0x{data[error.start]:02x} is not UTF-8 here",
            span=Lines(text).span(start, start + 1),
            help="the file looks like UTF-16; save it as UTF-8" if _is_utf16(data) else "save the file as UTF-8",
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


def refused_character(value: str) -> str | None:
    r"""Return the first character that is not allowed in a key or value; escapes such as "\e" can produce one."""
    match = None if value.isprintable() else _NOT_IN_VALUES.search(value)
    return match[0] if match else None


def character_name(char: str) -> str:
    """Code point and Unicode name of a character: `U+0085 NEXT LINE`."""
    unnamed = {"Cc": "CONTROL CHARACTER", "Cs": "SURROGATE"}.get(category(char), "NONCHARACTER")
    return f"U+{ord(char):04X} {_NAMES.get(char, unnamed)}"


def _is_utf16(data: bytes) -> bool:
    return data.startswith(_UTF16) or b"\x00" in data[:4]
