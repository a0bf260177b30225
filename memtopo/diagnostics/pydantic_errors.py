"""Diagnostics made from pydantic's validation errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from memtopo.common.text import nearest
from memtopo.common.units import shorten
from memtopo.diagnostics.messages import COMPARED, first, unknown, without_space
from memtopo.diagnostics.model import Diagnostic, Edit, InvalidValue, Path

if TYPE_CHECKING:
    from pydantic import ValidationError

Keys = Callable[[tuple[str | int, ...]], Sequence[str]]
"""Function that returns the keys that are allowed at a location in a section."""

_SHAPES = {
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "list_type": "a list",
    "string_type": "text",
    "access": "devices with their access, or a list of parts",
}


def diagnose(error: ValidationError, within: Path, known: Keys, form: str = "") -> list[Diagnostic]:
    """Return the first diagnostics of a section.

    `known` returns the keys that are allowed at a location in it; `form` is an entry of it as a spec writes it.
    """
    found = _without_misspelled(error.errors(include_url=False), known)
    return first(_diagnostic(each, _path(within, each), known, form) for each in found)


def _path(within: Path, error: Any) -> Path:
    """Path of an error, without pydantic's own marks for a rejected key and for the form of an access entry."""
    loc: tuple[str | int, ...] = error["loc"]
    if loc[-1] == "[key]" and error["type"] == "value_error":
        loc = loc[:-1]
    if within[-1] == "access" and len(loc) > 1:
        loc = (loc[0], *loc[2:])
    return (*within, *loc)


def _without_misspelled(found: Sequence[Any], known: Keys) -> Iterator[Any]:
    """Drop the errors of missing keys that are present under a misspelled name, which is an error of its own."""
    misspelled = set(_intended(found, known))
    return (error for error in found if error["type"] != "missing" or error["loc"] not in misspelled)


def _intended(found: Sequence[Any], known: Keys) -> Iterator[tuple[object, ...]]:
    """Locations of the keys that unknown keys were probably meant to be; at most `COMPARED` words are compared."""
    near: dict[tuple[str, ...], str | None] = {}
    for error in found:
        if error["type"] == "extra_forbidden":
            *entry, key = error["loc"]
            keys = known(error["loc"])
            if (case := (key, *keys)) not in near and len(near) < COMPARED:
                near[case] = nearest(str(key), keys)
            yield (*entry, near.get(case))


def _diagnostic(error: Any, path: Path, known: Keys, form: str) -> Diagnostic:
    kind = error["type"]
    if kind == "extra_forbidden":
        return unknown(path, known(error["loc"]))
    if kind == "missing":
        return Diagnostic("MT102", f"{_entry(path[1:-1])} needs {path[-1]!r}", path, help=f"add '{path[-1]}: …'")
    cause = error.get("ctx", {}).get("error")
    if isinstance(cause, InvalidValue):
        written = error["input"]
        edit = Edit(path, cause.at, written, cause.meant) if cause.meant and isinstance(written, str) else None
        help = without_space(path[-1]) if written == "" and not cause.help else cause.help
        return Diagnostic(cause.code, cause.message, path, cause.at, help=help, edit=edit)
    if kind in _SHAPES:
        help = f"write '{path[-1]}: {form.partition(': ')[2]}'" if form and len(error["loc"]) == 1 else None
        if help is None and kind == "dict_type" and _named(error["input"]):
            help = f"write '{path[-1]}: {{{error['input'][0]}: …}}'"
        return Diagnostic("MT103", f"expected {_SHAPES[kind]}, found {_found(error['input'])}", path, help=help)
    return Diagnostic("MT103", str(error["msg"]).lower(), path)


def _entry(path: Path) -> str:
    """Description of an entry: its name, or its number in a list, counted from 1 since `kv.0` is a range."""
    *above, last = path
    return f"entry {last + 1} of {'.'.join(map(str, above))!r}" if isinstance(last, int) else repr(str(last))


def _named(value: object) -> bool:
    """Return true for a list that begins with text, which may have been meant as a key."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], str)


def _found(value: object) -> str:
    if isinstance(value, str):
        return f"{shorten(value)!r}" if value else "nothing"
    return "a list" if isinstance(value, list) else "a mapping"
