"""Spec files of a command line: paths, folders, patterns with `**`, and `-`."""

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


class SpecPath(NamedTuple):
    """File by the name that is reported, and the seconds to wait for it if it is a pipe; `-` is standard input.

    A pipe that was named explicitly is waited for; a pipe found in a folder is not. A file that was found must lie
    below `folder`, whose real path is `root`: a link to elsewhere may be another's, and diagnostics quote what they
    read. `beside` is true if the file's own folder is below it.
    """

    name: str
    patience: float = _PATIENCE
    folder: str | None = None
    root: str = ""
    beside: bool = False

    @property
    def outside(self) -> bool:
        """True if the name leads out of the folder in which it was found."""
        if self.folder is None or (self.beside and not os.path.islink(self.name)):
            return False
        return not _below(self.root or os.path.realpath(self.folder), self.name)


def collect(arguments: Iterable[str]) -> list[SpecPath]:
    """Return the files in the order of the arguments, those of a folder or pattern sorted, without duplicates.

    A folder stands for every `*.yaml` and `*.yml` file in it and below; a pattern may have `*`, `?`, `[…]` and, for any
    number of folders, `**`. Hidden folders and links to folders are not entered. A file that does not exist is kept,
    so that reading reports it. Raises `Unavailable` for a folder or a pattern without files.
    """
    found: dict[str, SpecPath] = {}
    for argument in arguments:
        for source in _files(argument):
            found.setdefault(STDIN if source.name == STDIN else os.path.abspath(source.name), source)
    return list(found.values())


def _files(argument: str) -> list[SpecPath]:
    if not argument:
        raise UsageError("SPEC is empty", hint="name a file, a folder, a pattern, or - for standard input")
    if argument == STDIN:
        return [SpecPath(argument)]
    if os.path.isdir(argument):
        files, hint = _folder(argument), "a folder stands for the *.yaml and *.yml files in it and below"
        return _sorted(files, argument) or _no_files(f"folder {argument!r} has no spec", hint)
    if is_pattern(argument) and not os.path.lexists(argument):
        hint = "a pattern is matched from the current folder; ** stands for any number of folders"
        return _sorted(matching(argument), _literal(argument)) or _no_files(
            f"pattern {argument!r} matches no file", hint
        )
    return [SpecPath(argument)]


def _no_files(message: str, hint: str) -> list[SpecPath]:
    raise Unavailable(message, hint=hint)


def _literal(pattern: str) -> str:
    """Return the folder in which the search for a pattern begins."""
    match = _MAGIC.search(pattern)
    return os.path.dirname(pattern[: match.start()] if match else pattern) or "."


def _sorted(files: Iterable[str], folder: str) -> list[SpecPath]:
    root = os.path.realpath(folder)
    ordered = sorted(set(files), key=lambda file: file.split("/"))
    within = {each: _below(root, each) for each in {os.path.dirname(file) for file in ordered}}
    return [SpecPath(file, 0.0, folder, root, within[os.path.dirname(file)]) for file in ordered]


def _below(root: str, path: str) -> bool:
    """Return true if the real path of a file or folder is below a folder's, or the same."""
    return os.path.commonpath((root, os.path.realpath(path))) == root


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
    """Yield the files and links whose path a pattern matches, in no particular order.

    `*`, `?` and `[…]` match within one name, `**` any number of folders, none of them hidden or a link. A leading dot
    is matched only by a dot. A folder that cannot be read is yielded like a file, so that the error is reported.
    Unlike with the standard library's glob, the search ends if folders link to one another.
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
    """Return true if a path, or one name of it, has a wildcard."""
    return bool(_MAGIC.search(text))


def _next(folder: str, steps: tuple[str, ...]) -> Iterator[_State]:
    """Match the first step in a folder: yield folders with the remaining steps, and files with none."""
    step, rest = steps[0], steps[1:]
    if not is_pattern(step):
        yield from _entries(folder, [step] if os.path.lexists(os.path.join(folder, step)) else [], rest)
        return
    try:
        names = os.listdir(folder or ".")
    except OSError:
        yield folder, ()
        return
    if step == _ANY:
        yield from _any_depth(folder, names, rest)
    else:
        yield from _entries(folder, _matched(step, names), rest)


def _matched(step: str, names: list[str]) -> list[str]:
    fits = re.compile(fnmatch.translate(step)).match
    return [name for name in names if fits(name) and (step.startswith(".") or not name.startswith("."))]


def _entries(folder: str, names: list[str], rest: tuple[str, ...]) -> Iterator[_State]:
    """Yield the names that are folders, if steps remain, or files, if none do."""
    for name in names:
        path = os.path.join(folder, name)
        if os.path.isdir(path) == bool(rest):
            yield path, rest


def _any_depth(folder: str, names: list[str], rest: tuple[str, ...]) -> Iterator[_State]:
    shown = [name for name in names if not name.startswith(".")]
    if rest:
        yield folder, rest
    else:
        yield from _entries(folder, shown, rest)
    for path in (os.path.join(folder, name) for name in shown):
        if os.path.isdir(path) and not os.path.islink(path):
            yield path, (_ANY, *rest)
