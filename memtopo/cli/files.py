"""Writing a document to the file that `-o` names."""

from __future__ import annotations

import os
import sys

from memtopo.common.errors import MemtopoError, UsageError
from memtopo.output import plain


class NotWritten(MemtopoError):
    """The work was done and nothing is left of it, but its record could not be written."""

    exit_code = 4


def save(output: str, document: str) -> None:
    """Write what `-o` asks for, and say so; over an older one of the same, but never over a file of another kind.

    Raises `UsageError` for `-` and for a file that memtopo did not write, `NotWritten` where it cannot be written.
    """
    if output == "-":
        raise UsageError("-o needs a file", hint="--json writes the same document to standard output")
    if not _replaceable(output):
        raise UsageError(f"{output!r} is there, and memtopo did not write it", hint="name another file, or remove it")
    write(output, document)
    plain.print_lines([f"memtopo: saved to {output}"], sys.stderr)


def _replaceable(output: str) -> bool:
    if not os.path.isfile(output):  # noqa: PTH113 to a Path, no name would be this folder
        return True
    try:
        with open(output, "rb") as file:  # noqa: PTH123 likewise
            start = file.read(64)
    except OSError:
        return True
    return not start or (start.lstrip().startswith(b"{") and b'"memtopo_' in start)


def write(output: str, document: str) -> None:
    """Write a document to a file. Raises `NotWritten` where the file cannot be written."""
    try:
        with open(output, "w", encoding="utf-8") as file:  # noqa: PTH123 to a Path, no name would be this folder
            file.write(document)
    except OSError as error:
        raise NotWritten(f"{output!r} cannot be written: {(error.strerror or 'error').lower()}") from error
