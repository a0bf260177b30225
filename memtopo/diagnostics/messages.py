"""Diagnostics that several rooms make, and the suggestions in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import islice

from memtopo.common.text import nearest, only_near
from memtopo.common.units import shorten
from memtopo.diagnostics.model import At, Diagnostic, Edit, Path

LISTED = 12
"""Known names that a message lists."""

MOST = 1000
"""Diagnostics of one kind that are reported one by one."""

COMPARED = 1000
"""Known names that an unknown name is compared with; each comparison takes some microseconds."""

_GPU = re.compile(r"\b(?:[A-Za-z][\w-]*/)?gpu\d+\b")

SUGGESTED = 10
"""Diagnostics of one kind, the first ones, that get a suggestion."""


def first(found: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Return the first diagnostics of one kind; if there are more, a note in the last one states it."""
    reported = list(islice(found, MOST + 1))
    if len(reported) > MOST:
        del reported[MOST:]
        last = reported[-1]
        note = f"there are more; only the first {MOST:,} are reported"
        reported[-1] = last._replace(notes=(*last.notes, note))
    return reported


def likewise(found: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Return diagnostics with those that differ by nothing but their GPU as one, which names all of the GPUs."""
    alike: dict[object, dict[str, Diagnostic]] = {}
    for each in found:
        gpus = {*_GPU.findall("\n".join((each.message, *each.notes)))}
        gpu = gpus.pop() if len(gpus) == 1 else ""
        same = each._replace(message=_GPU.sub("", each.message), notes=tuple(_GPU.sub("", note) for note in each.notes))
        alike.setdefault(same if gpu else each, {}).setdefault(gpu, each)
    return [_of_gpus([*each], *each.values()) for each in alike.values()]


def _of_gpus(gpus: Sequence[str], first: Diagnostic, *others: Diagnostic) -> Diagnostic:
    if not others:
        return first
    if gpus[0] in first.message:
        return first._replace(notes=(*first.notes, f"likewise on {', '.join(gpus[1:])}"))
    return first._replace(notes=tuple(_GPU.sub(", ".join(gpus), note) for note in first.notes))


def did_you_mean(word: str) -> str:
    """Help that suggests a word."""
    return f"did you mean {word!r}?"


def choose(word: str, known: Sequence[str]) -> str:
    """Help for a word that is not one of a few: the nearest one, or all of them."""
    if meant := nearest(word, known):
        return did_you_mean(meant)
    return f"write {known[0]}" if len(known) == 1 else f"write one of {', '.join(known)}"


def unknown_state(layout: str, state: str, states: Sequence[str]) -> tuple[str, str | None]:
    """Message and hint for a state that a layout does not have; `states` are those that it has, `awake` among them."""
    if len(states) == 1:
        return f"layout {layout!r} has no states", None
    return f"there is no state {shorten(state)!r}", choose(state, states[:LISTED])


def not_awake(layout: str, state: str) -> tuple[str, str]:
    """Message and hint for a change of a held layout that is in a state without some of its memory."""
    return f"layout {layout!r} is in state {state!r}", f"'memtopo switch {layout} awake' first"


def undeclared_name(what: str, name: str, path: Path, known: Iterable[str], at: At, *, suggest: bool) -> Diagnostic:
    """Diagnostic of a name that is used but not declared, with help: the nearest of the `known` names, or some of them.

    The search for the nearest name takes milliseconds; callers `suggest` it for the first `SUGGESTED` diagnostics.
    """
    some = list(islice(known, COMPARED if suggest else LISTED + 1))
    meant = nearest(name, some) if suggest else None
    help = did_you_mean(meant) if meant else (listed(some) if some else f"no {what} is declared")
    only = only_near(name, some) if meant else None
    edit = Edit(path, at, name, only) if only else None
    return Diagnostic("MT201", f"{what} {shorten(name)!r} is not declared", path, at, help=help, edit=edit)


def listed(known: Sequence[str]) -> str:
    """Help that lists the first of the known names."""
    return f"known are {', '.join(known[:LISTED])}{' …' * (len(known) > LISTED)}"


def unknown(path: Path, known: Sequence[str]) -> Diagnostic:
    """Diagnostic of a key that is not one of the `known` keys."""
    key = str(path[-1])
    meant = intended(key, known)
    help = did_you_mean(meant) if meant else f"known are {', '.join(known)}"
    if key.partition(":")[0] in known:
        help = without_space(key) or help
    only = only_near(key, known) if meant else None
    edit = Edit(path, "key", key, only) if only else None
    return Diagnostic("MT101", f"unknown key {shorten(key)!r}", path, "key", help=help, edit=edit)


def without_space(key: object) -> str | None:
    """Help for a key that has its value, too, since there is no space after the colon: `gpu0:rw`; None for others."""
    name, colon, value = str(key).rpartition(":")
    if not (name and colon and value) or (name == "host" and value.isdecimal()):  # host:0 is a device
        return None
    return f"write {shorten(f'{name}: {value}')!r}, with a space after the colon"


def intended(key: str, known: Sequence[str]) -> str | None:
    """Return the one of the `known` keys that an unknown key was probably meant to be, or None."""
    meant = nearest(key, known)
    if meant and meant[0] not in key[:2].lower() and key[0].lower() not in meant[:2]:
        return None  # another word of similar letters: 'round' for 'count'
    return meant


def bad_name(name: object, path: Path, at: At = "key") -> Diagnostic:
    """Diagnostic of a name with characters that names must not have."""
    message = f"{shorten(name)!r} is not a name" if isinstance(name, str) else "expected a name"
    help = "a name begins with a letter and continues with letters, digits, _ and -"
    return Diagnostic("MT104", message, path, at, help=help)
