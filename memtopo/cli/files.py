"""Files that commands write."""

from __future__ import annotations

import os

from memtopo.common.errors import MemtopoError, UsageError
from memtopo.output import plain


class NotWritten(MemtopoError):
    """A document could not be written; the work itself was done."""

    exit_code = 4


def save(output: str, document: str) -> None:
    """Write a document to the file of `-o`, and print a message; replace only files that memtopo wrote.

    Raises `UsageError` for `-` and for a file that memtopo did not write, `NotWritten` if it cannot be written.
    """
    if output == "-":
        raise UsageError("-o needs a file", hint="--json writes the same document to standard output")
    if not _replaceable(output):
        raise UsageError(f"{output!r} exists, and memtopo did not write it", hint="name another file, or remove it")
    write(output, document)
    plain.print_message(f"saved to {output}")


def _replaceable(output: str) -> bool:
    if not os.path.isfile(output):  # noqa: PTH113 a Path of an empty name is the current folder
        return True
    try:
        with open(output, "rb") as file:  # noqa: PTH123 likewise
            start = file.read(64)
    except OSError:
        return True
    return not start or (start.lstrip().startswith(b"{") and b'"memtopo_' in start)


def write(output: str, document: str) -> None:
    """Write a document to a file. Raises `NotWritten`."""
    try:
        with open(output, "w", encoding="utf-8") as file:  # noqa: PTH123 a Path of an empty name is the current folder
            file.write(document)
    except OSError as error:
        raise NotWritten(f"{output!r} cannot be written: {(error.strerror or 'error').lower()}") from error
