"""Writing a document to the file that `-o` names."""

from __future__ import annotations

from memtopo.errors import MemtopoError, UsageError


class NotWritten(MemtopoError):
    """The work was done and nothing is left of it, but its record could not be written."""

    exit_code = 4


def write(output: str, document: str) -> None:
    """Write a document to a file. Raises `UsageError` for `-`, `NotWritten` where the file cannot be written."""
    if output == "-":
        raise UsageError("-o needs a file", hint="--json writes the same document to standard output")
    try:
        with open(output, "w", encoding="utf-8") as file:  # noqa: PTH123 to a Path, no name would be this folder
            file.write(document)
    except OSError as error:
        raise NotWritten(f"{output!r} cannot be written: {(error.strerror or 'error').lower()}") from error
