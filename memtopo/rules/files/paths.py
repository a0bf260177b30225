"""From what a command line names to the files that are meant: paths, folders, patterns, and `-`."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from memtopo.common.errors import Unavailable, UsageError

STDIN = "-"
SUFFIXES = (".yaml", ".yml")
_PATIENCE = 10.0


class Source(NamedTuple):
    """A file by the name it is told under, and how many seconds it may take where it is a pipe; `-` is stdin.

    A pipe that somebody named is waited for, one that lay in a folder is not.
    """

    name: str
    patience: float = _PATIENCE


def collect(arguments: Iterable[str]) -> list[Source]:
    """The files in the arguments' order, those of a folder or pattern sorted, each once under its first name.

    A folder stands for every `*.yaml` and `*.yml` in it and below; a pattern knows `*`, `?`, `[…]` and, for any number
    of folders, `**`. Neither goes into hidden folders or, on its own, through links to folders. A file that is not
    there is kept, for reading to tell. Raises `Unavailable` where a folder or a pattern has nothing to give.
    """
    found: dict[str, Source] = {}
    for argument in arguments:
        for source in _meant(argument):
            found.setdefault(STDIN if source.name == STDIN else os.path.abspath(source.name), source)
    return list(found.values())


def _meant(argument: str) -> list[Source]:
    if not argument:
        raise UsageError("SPEC is empty", hint="name a file, a folder, a pattern, or - for standard input")
    if argument == STDIN:
        return [Source(argument)]
    if os.path.isdir(argument):
        files, hint = _folder(argument), "a folder stands for the *.yaml and *.yml files in it and below"
        return _sorted(files) or _nothing(f"folder {argument!r} holds no spec", hint)
    if is_pattern(argument) and not os.path.lexists(argument):
        hint = "a pattern is matched from the current folder; ** stands for any number of folders"
        return _sorted(matching(argument)) or _nothing(f"pattern {argument!r} matches no file", hint)
    return [Source(argument)]


def _nothing(message: str, hint: str) -> list[Source]:
    raise Unavailable(message, hint=hint)


def _sorted(files: Iterable[str]) -> list[Source]:
    return [Source(file, patience=0.0) for file in sorted(set(files), key=lambda file: file.split("/"))]


def _folder(top: str) -> Iterator[str]:
    unreadable: list[str] = []
    for folder, below, files in os.walk(top, onerror=lambda error: unreadable.append(error.filename)):
        below[:] = [name for name in below if not name.startswith(".")]
        for name in files:
            if name.endswith(SUFFIXES) and not name.startswith("."):
                yield os.path.join(folder, name).removeprefix("./")
    yield from (name.removeprefix("./") for name in unreadable)


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
