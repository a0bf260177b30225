"""What a name of a spec is bound to: the socket of somebody who is there, or a command that is started."""

from __future__ import annotations

import os
import shlex
import shutil
import stat
from collections.abc import Iterable, Iterator

from memtopo.common.errors import Unavailable, UsageError
from memtopo.common.text import nearest
from memtopo.common.units import shorten
from memtopo.diagnostics.messages import COMPARED, listed
from memtopo.geometry import Geometry

Bound = str | tuple[str, ...]
"""The path of a socket, or the words of a command."""


def resolve(name: str, text: str) -> Bound:
    """What `--with NAME=TEXT` means: a socket that is there, else a command, split as a shell does and run without one.

    Raises `Unavailable` where there is neither, `UsageError` where the text cannot be split.
    """
    if _is_socket(text):
        return text
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        told = f"--with {name}: {text!r} cannot be split into words: {str(error).lower()}"
        raise UsageError(told) from error
    if not words or shutil.which(words[0]) is None:
        told = f"--with {name}: there is neither a socket {text!r} nor a program {words[0] if words else ''!r}"
        raise Unavailable(told, hint="a producer that is not running yet is started by its command")
    return words


def holders(geometry: Geometry) -> set[str]:
    """All outside of a spec that it takes something from."""
    return {holder for member in geometry.members.values() for holder in _holders(member)}


def unused(given: Iterable[str], geometry: Geometry) -> tuple[str, str] | None:
    """The first of the names that a spec takes nothing from, as an error and its hint; None where it uses them all."""
    known = sorted(holders(geometry))
    for name in given:
        if name not in known:
            meant = nearest(name, known[:COMPARED])
            help = f"did you mean {meant!r}?" if meant else listed(known) if known else "it takes nothing from outside"
            return f"the spec takes nothing from {shorten(name)!r}", help
    return None


def _holders(geometry: Geometry) -> Iterator[str]:
    origins = [run.origin for run in geometry.runs if run.origin and not run.origin.siblings]
    for origin in [*origins, *(run.origin for run in geometry.foreign)]:
        yield from origin.holders


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)  # noqa: PTH116 the text may be no path at all
    except (OSError, ValueError):
        return False
