"""Diagnostics that several rooms make, and the suggestions in them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import islice

from memtopo.common.text import nearest
from memtopo.common.units import shorten
from memtopo.diagnostics.model import At, Diagnostic, Path

LISTED = 12
"""Known names that a message lists."""

MOST = 1000
"""Faults of one kind that are told one by one."""

COMPARED = 1000
"""Known names that an unknown one is compared with; each comparison takes some microseconds."""

SUGGESTED = 10
"""Faults, the first ones, that are worth looking for what was meant."""


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
