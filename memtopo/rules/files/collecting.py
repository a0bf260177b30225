"""From what a command line names to the files that are meant: paths, folders, patterns, and `-`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from memtopo.common.errors import Unavailable, UsageError
from memtopo.rules.files import patterns

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
    if patterns.is_pattern(argument) and not os.path.lexists(argument):
        hint = "a pattern is matched from the current folder; ** stands for any number of folders"
        return _sorted(patterns.matching(argument)) or _nothing(f"pattern {argument!r} matches no file", hint)
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
