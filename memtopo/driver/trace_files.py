"""Files of traces: how they begin, which of them may be replaced, and folders with one for each process."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Literal

from memtopo.common.errors import NotWritten, UsageError, system_errors
from memtopo.common.files import open_output

SUFFIX = ".jsonl"
HEAD = '{"memtopo_trace_file"'
"""Beginning of the first line of a process."""

Stacks = Literal["none", "c", "python"]
"""Stacks that a record has of each call."""


def process_file(folder: str | Path, process: str) -> Path:
    """File of a process's trace in a folder."""
    return Path(folder) / f"{process}{SUFFIX}"


def is_trace(path: str | Path) -> bool:
    """Return true for a regular file that begins as a trace, and for a link to one. Raises `OSError`."""
    # A pipe is opened too, for which nobody writes.
    with open(path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
        return stat.S_ISREG(os.fstat(file.fileno()).st_mode) and file.read(len(HEAD)) == HEAD.encode()


def is_record(path: str | Path) -> bool:
    """Return true for a trace, and for a folder that has some; false for all else, and what cannot be read."""
    with suppress(OSError, ValueError):
        return any(map(is_trace, Path(path).glob(f"*{SUFFIX}"))) if Path(path).is_dir() else is_trace(path)
    return False


def require_replaceable(path: str | Path, *, link: bool = True) -> None:
    """Raise `UsageError` unless a file is new, empty or a trace, or a `link` to such a file."""
    try:
        found = Path(path).stat(follow_symlinks=link)
    except OSError:  # there is none, or an error that is reported where it is written
        return
    try:
        replaceable = stat.S_ISREG(found.st_mode) and (not found.st_size or is_trace(path))
    except OSError:
        replaceable = False
    if not replaceable:
        raise UsageError(f"{str(path)!r} exists, and is not a trace", hint="name another file, or remove it")


def create_record(path: str | Path) -> None:
    """Create the file of a captured program's calls, or empty it.

    Raises `UsageError` for a file that is no trace, and `NotWritten`.
    """
    require_replaceable(path)
    with system_errors(NotWritten, f"the record {str(path)!r} cannot be written"):
        os.close(open_output(path, os.O_TRUNC))


def empty_folder(folder: str | Path) -> None:
    """Make a folder for the traces of several processes, and remove those of an earlier run. Raises `NotWritten`."""
    with system_errors(NotWritten, f"the folder {str(folder)!r} of traces cannot be written"):
        Path(folder).mkdir(exist_ok=True, parents=True)
        for file in Path(folder).glob(f"*{SUFFIX}"):
            if file.is_file() and not file.is_symlink() and is_trace(file):
                file.unlink()
