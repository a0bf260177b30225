"""Patterns of paths with `**`. Unlike the standard library's, they end on folders that link to one another."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterator

_State = tuple[str, tuple[str, ...]]
_ANY = "**"
_MAGIC = re.compile(r"[*?[]")


def matching(pattern: str) -> Iterator[str]:
    """The files, and the links whatever they lead to, whose path a pattern matches, in no order.

    `*`, `?` and `[…]` match within one name, `**` any number of folders, none of them hidden or a link. Names that
    begin with a dot are matched only by a dot. A folder that cannot be read is given as if it were a file, so that
    somebody finds out.
    """
    steps = tuple(step for step in pattern.split("/") if step not in ("", "."))
    states: list[_State] = [("/" if pattern.startswith("/") else "", steps)]
    seen: set[_State] = set()
    while states:
        state = states.pop()
        if state in seen:
            continue
        seen.add(state)
        for path, rest in _next(*state):
            if rest:
                states.append((path, rest))
            else:
                yield path


def is_pattern(text: str) -> bool:
    """Whether a path, or a step of one, holds a sign that stands for others."""
    return bool(_MAGIC.search(text))


def _next(folder: str, steps: tuple[str, ...]) -> Iterator[_State]:
    """What one step leads to: folders with the steps that are left, and files with none."""
    step, rest = steps[0], steps[1:]
    if not is_pattern(step):
        yield from _fitting(folder, [step] if os.path.lexists(os.path.join(folder, step)) else [], rest)
        return
    try:
        names = os.listdir(folder or ".")
    except OSError:
        yield folder, ()
        return
    if step == _ANY:
        yield from _any(folder, names, rest)
    else:
        yield from _fitting(folder, _matched(step, names), rest)


def _matched(step: str, names: list[str]) -> list[str]:
    fits = re.compile(fnmatch.translate(step)).match
    return [name for name in names if fits(name) and (step.startswith(".") or not name.startswith("."))]


def _fitting(folder: str, names: list[str], rest: tuple[str, ...]) -> Iterator[_State]:
    """Those names that are folders where steps are left, and files where none are."""
    for name in names:
        path = os.path.join(folder, name)
        if os.path.isdir(path) == bool(rest):
            yield path, rest


def _any(folder: str, names: list[str], rest: tuple[str, ...]) -> Iterator[_State]:
    shown = [name for name in names if not name.startswith(".")]
    if rest:
        yield folder, rest
    else:
        yield from _fitting(folder, shown, rest)
    for path in (os.path.join(folder, name) for name in shown):
        if os.path.isdir(path) and not os.path.islink(path):
            yield path, (_ANY, *rest)
