"""JSON that programs write, decoded by the types of its values: structs, and what they contain."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import cache
from threading import Lock
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec

T = TypeVar("T")

Hook = Callable[[type, Any], Any]
"""Function that makes a value of a type that JSON does not have."""

_SEARCHED = 16 << 20
"""Bytes of a text in which the key of a wrong value is looked for: without a type, a text takes 25 times its size."""

_UNIONS = (Union, UnionType)
_EXPECTED = r"Expected `(?P<types>[^`]+)`(?: of length)?(?: (?P<bound>[<>]=?) (?P<limit>[^ ,]+))?(?:, got .*)?"
_FIELD = r"(?s)Object (?P<fault>missing required|contains unknown) field `(?P<name>.*)`"
_PART = r"\.([^.\[\]]+)|\[([^\]]*)\]"
_NEEDED = {
    "int": "a valid integer", "float": "a valid number", "str": "a valid string", "bool": "a valid boolean",
    "array": "a valid array", "object": "an object",
}  # fmt: skip
_BOUNDS = {">": "greater than", ">=": "greater than or equal to", "<": "less than", "<=": "less than or equal to"}
_SIZED = {"str": ("string", "characters"), "array": ("array", "items"), "object": ("object", "entries")}


class Mismatch(ValueError):
    """JSON that is not of a type: what is needed at the path `where`, which is empty for the whole.

    The text repeats no value. `unknown` is true for a field that the type does not have.
    """

    def __init__(self, where: str, needed: str, *, unknown: bool = False) -> None:
        super().__init__(f"{where}: {needed}" if where else needed)
        self.where, self.needed, self.unknown = where, needed, unknown


def decode(data: bytes | str, kind: type[T], hook: Hook | None = None) -> T:
    """Decode JSON as a type. Raises `Mismatch`."""
    try:
        try:
            found: T = decoder(cast("Any", kind), hook).decode(data)
        except msgspec.ValidationError as error:
            value = msgspec.json.decode(data) if len(data) <= _SEARCHED else {}
            raise _mismatch(str(error), kind, value, hook) from None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise Mismatch("", "input should be valid JSON") from None
    return found


def convert(value: object, kind: type[T], hook: Hook | None = None) -> T:
    """Convert the value of a decoded JSON text to a type. Raises `Mismatch`."""
    decoder(cast("Any", kind), hook)
    try:
        return msgspec.convert(value, kind, dec_hook=hook)
    except msgspec.ValidationError as error:
        raise _mismatch(str(error), kind, value, hook) from None


def encode(value: object) -> bytes:
    """Encode a value as JSON. Raises `ValueError` for a text with surrogates."""
    return msgspec.json.encode(value)


@cache
def decoder(kind: Any, hook: Hook | None = None) -> msgspec.json.Decoder[Any]:
    """Return the decoder of a type, which is made once.

    Two threads that make decoders with a struct in common at once crash: each sees the unfinished fields of the other.
    """
    with _MAKING:
        return msgspec.json.Decoder(kind, dec_hook=hook)


_MAKING = Lock()
os.register_at_fork(before=_MAKING.acquire, after_in_parent=_MAKING.release, after_in_child=_MAKING.release)


def _mismatch(text: str, kind: Any, value: Any, hook: Hook | None) -> Mismatch:
    found, _, way = text.partition(" - at `$")
    where: list[str] = []
    for name, index in re.findall(_PART, way.rstrip("`")):
        kind = _type_below(kind, name)
        part = _wrong_key(value, kind, hook) if index == "..." else name or index
        try:
            value = value[int(part)] if isinstance(value, list) else value[part]
        except (LookupError, TypeError):  # the key is there once more, with another value
            value = {}
        where.append(part)
    if field := re.fullmatch(_FIELD, found):
        unknown = field["fault"] != "missing required"
        return Mismatch(".".join([*where, field["name"]]), "field required", unknown=unknown)
    if expected := re.fullmatch(_EXPECTED, found):
        found = _needed(expected)
    elif found.startswith("Invalid enum value"):
        *others, last = map(repr, get_args(kind))
        found = f"input should be {', '.join(others)}{' or ' * bool(others)}{last}"
    return Mismatch(".".join(where), found)


def _type_below(kind: Any, name: str) -> Any:
    """Type of a field of a struct or, without a name, of the values of a list or a dictionary; not null."""
    if name:
        hints = get_type_hints(kind)
        kind = hints[kind.__struct_fields__[kind.__struct_encode_fields__.index(name)]]
    else:
        kind = [each for each in get_args(kind) if each is not Ellipsis][-1]
    return next((each for each in get_args(kind) if get_origin(kind) in _UNIONS and each is not NoneType), kind)


def _wrong_key(values: dict[str, Any], kind: Any, hook: Hook | None) -> str:
    """Key of the first value that is not of a type."""
    for key, value in values.items():
        try:
            msgspec.convert(value, kind, dec_hook=hook)
        except msgspec.ValidationError:
            return key
    return "…"


def _needed(expected: re.Match[str]) -> str:
    """Needed type or bound; null is never named, since a key with it can be left out."""
    kind = next((each for each in expected["types"].split(" | ") if each != "null"), "null")
    bound, limit = expected["bound"], expected["limit"]
    if bound is None:
        return f"input should be {_NEEDED.get(kind, kind)}"
    if kind in _SIZED:
        what, parts = _SIZED[kind]
        return f"{what} should have at {'most' if bound[0] == '<' else 'least'} {limit} {parts}"
    return f"input should be {_BOUNDS[bound]} {limit}"
