"""Diagnostics of the errors that pydantic finds in the entries of a spec."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from memtopo.common.text import nearest
from memtopo.common.units import shorten
from memtopo.diagnostics.messages import COMPARED, first, unknown
from memtopo.diagnostics.model import Diagnostic, InvalidValue, Path

if TYPE_CHECKING:
    from pydantic import ValidationError

Keys = Callable[[tuple[str | int, ...]], Sequence[str]]
"""Which keys may stand at a place in a section."""

_SHAPES = {
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "list_type": "a list",
    "string_type": "text",
    "access": "devices with their access, or a list of parts",
}


def diagnose(error: ValidationError, within: Path, known: Keys) -> list[Diagnostic]:
    """What pydantic found wrong in a section; `known` says which keys may stand at a place in it. The first of many."""
    found = _without_misspelled(error.errors(include_url=False), known)
    return first(_explain(fault, _path(within, fault), known) for fault in found)


def _path(within: Path, fault: Any) -> Path:
    """Where a fault is, without pydantic's own marks: of a key that is refused, and of the shape that access has."""
    loc: tuple[str | int, ...] = fault["loc"]
    if loc[-1] == "[key]" and fault["type"] == "value_error":
        loc = loc[:-1]
    if within[-1] == "access" and len(loc) > 1:
        loc = (loc[0], *loc[2:])
    return (*within, *loc)


def _without_misspelled(found: Sequence[Any], known: Keys) -> Iterator[Any]:
    """A key that is missing since it is misspelled is told once, where it stands."""
    misspelled = set(_meant(found, known))
    return (fault for fault in found if fault["type"] != "missing" or fault["loc"] not in misspelled)


def _meant(found: Sequence[Any], known: Keys) -> Iterator[tuple[object, ...]]:
    """Where the keys would stand that unknown ones were probably meant to be; of many words, the first ones."""
    near: dict[tuple[str, ...], str | None] = {}
    for fault in found:
        if fault["type"] == "extra_forbidden":
            *entry, key = fault["loc"]
            keys = known(fault["loc"])
            if (case := (key, *keys)) not in near and len(near) < COMPARED:
                near[case] = nearest(str(key), keys)
            yield (*entry, near.get(case))


def _explain(fault: Any, path: Path, known: Keys) -> Diagnostic:
    kind = fault["type"]
    if kind == "extra_forbidden":
        return unknown(path, known(fault["loc"]))
    if kind == "missing":
        return Diagnostic("MT102", f"{_entry(path[1:-1])} needs {path[-1]!r}", path, help=f"add '{path[-1]}: …'")
    cause = fault.get("ctx", {}).get("error")
    if isinstance(cause, InvalidValue):
        return Diagnostic(cause.code, cause.message, path, cause.at, help=cause.help)
    if kind in _SHAPES:
        return Diagnostic("MT103", f"expected {_SHAPES[kind]}, found {_found(fault['input'])}", path)
    return Diagnostic("MT103", str(fault["msg"]).lower(), path)


def _entry(path: Path) -> str:
    """An entry in words: a name, or which of a list it is, counted from 1 since `kv.0` is a range."""
    *above, last = path
    return f"entry {last + 1} of {'.'.join(map(str, above))!r}" if isinstance(last, int) else repr(str(last))


def _found(value: object) -> str:
    if isinstance(value, str):
        return f"{shorten(value)!r}" if value else "nothing"
    return "a list" if isinstance(value, list) else "a mapping"
