"""From pydantic's errors to diagnostics in memtopo's words, and the words that several floors share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from memtopo.common.text import nearest
from memtopo.common.units import shorten
from memtopo.diagnostics.model import At, Diagnostic, InvalidValue, Path

if TYPE_CHECKING:
    from pydantic import ValidationError

LISTED = 12
"""Known names that a message lists."""

MOST = 1000
"""Faults of one kind that are told one by one."""

COMPARED = 1000
"""Known names that an unknown one is compared with; each comparison takes some microseconds."""

SUGGESTED = 10
"""Faults, the first ones, that are worth looking for what was meant."""

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


class Bounded(list[Diagnostic]):
    """A list of faults that takes one more than will be told; `first` then says that there are more."""

    def append(self, fault: Diagnostic, /) -> None:
        if len(self) <= MOST:
            super().append(fault)

    def extend(self, faults: Iterable[Diagnostic], /) -> None:
        super().extend(islice(faults, MOST + 1 - len(self)))


def first(faults: Iterable[Diagnostic]) -> list[Diagnostic]:
    """The first faults of a kind; the last of them says so where there are more."""
    told = list(islice(faults, MOST + 1))
    if len(told) > MOST:
        del told[MOST:]
        told[-1] = told[-1]._replace(notes=(*told[-1].notes, f"there are more; only the first {MOST:,} are told"))
    return told


def choose(word: str, known: Sequence[str]) -> str:
    """Help for a word that is none of a few: the nearest one, or all of them."""
    if meant := nearest(word, known):
        return f"did you mean {meant!r}?"
    return f"write {known[0]}" if len(known) == 1 else f"write one of {', '.join(known)}"


def undeclared(
    faults: list[Diagnostic], what: str, name: str, path: Path, known: Collection[str], at: At = "value"
) -> None:
    """Add that a name is used and nowhere declared, and which one was probably meant."""
    some = list(islice(known, COMPARED)) if len(faults) < SUGGESTED else list(islice(known, LISTED + 1))
    meant = nearest(name, some) if len(faults) < SUGGESTED else None
    help = f"did you mean {meant!r}?" if meant else (listed(some) if some else f"no {what} is declared")
    faults.append(Diagnostic("MT201", f"{what} {shorten(name)!r} is not declared", path, at, help=help))


def listed(known: Sequence[str]) -> str:
    """Help that names what is known, the first of it."""
    return f"known are {', '.join(known[:LISTED])}{' …' * (len(known) > LISTED)}"


def unknown(path: Path, known: Sequence[str]) -> Diagnostic:
    """A key that the language does not have here."""
    key = str(path[-1])
    meant = nearest(key, known)
    help = f"did you mean {meant!r}?" if meant else listed(known)
    return Diagnostic("MT101", f"unknown key {shorten(key)!r}", path, "key", help=help)


def bad_name(name: object, path: Path, at: At = "key") -> Diagnostic:
    """A name outside of the language's alphabet."""
    told = f"{shorten(name)!r} is not a name" if isinstance(name, str) else "expected a name"
    return Diagnostic(
        "MT104", told, path, at, help="a name begins with a letter and goes on with letters, digits, _ and -"
    )


def explain(error: ValidationError, within: Path, known: Keys) -> list[Diagnostic]:
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
