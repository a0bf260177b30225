"""Files that commands write."""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from memtopo.common.errors import NotWritten, UsageError
from memtopo.common.files import output_path, write_pipe
from memtopo.language import Document
from memtopo.output import plain

_OWN = re.compile(rb'(/\*|""") ?Program of memtopo plan:|\s*\{.{,60}"memtopo_', re.DOTALL)
"""How documents and the programs of 'plan --as' begin."""


def save(output: str, document: str) -> None:
    """Write a document to the file of `-o`, and print a message; replace only files that memtopo wrote.

    Raises `UsageError` for `-` and for a file that memtopo did not write, `NotWritten` if it cannot be written.
    """
    if output == "-":
        raise UsageError("-o needs a file", hint="--json writes the same document to standard output")
    _require_replaceable(output)
    write(output, document)
    plain.print_message(f"saved to {output}")


def save_in_folder(folder: str, documents: Mapping[str, str]) -> None:
    """Write documents to the files of these names in a folder, which is made, as `save` does.

    Raises `UsageError` before the first is written, if one of them may not be.
    """
    files = {str(Path(folder) / name): document for name, document in documents.items()}
    for file in files:
        _require_replaceable(file)
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"the folder {folder!r} cannot be made: {error.strerror}") from error
    for file, document in files.items():
        save(file, document)


def of_memtopo(document: Document) -> bool:
    """Return true for a text that is JSON of memtopo, such as a saved plan, and no spec."""
    return '"memtopo_' in document.text[:64]


def _require_replaceable(output: str) -> None:
    if not replaceable(output, _OWN):
        raise UsageError(f"{output!r} exists, and memtopo did not write it", hint="name another file, or remove it")


def replaceable(output: str, own: re.Pattern[bytes]) -> bool:
    """Return true unless there is a file that is not empty and begins with none of memtopo's `own` beginnings."""
    if not os.path.isfile(output):  # noqa: PTH113 a Path of an empty name is the current folder
        return True
    try:
        with open(output, "rb") as file:  # noqa: PTH123 likewise
            start = file.read(128)
    except OSError:
        return True
    return not start or own.match(start) is not None


def write(output: str, document: str) -> None:
    """Write a document to a file, completely or not at all. Raises `NotWritten`.

    What is no regular file, such as a pipe, is written directly, and has to be read. A link of another user is not
    followed.
    """
    try:
        target = output_path(output)
        if os.path.exists(target) and not os.path.isfile(target):  # noqa: PTH110, PTH113 likewise
            write_pipe(target, document.encode())
        else:
            _replace(target, document)
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or "not a path").lower()
        raise NotWritten(f"{output!r} cannot be written: {reason}") from error


def _replace(target: str, document: str) -> None:
    """Write a file beside the target, and give it the target's name and mode."""
    temporary = f"{target}.{secrets.token_hex(4)}.new"
    fd = os.open(temporary if target else target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with suppress(FileNotFoundError):
            os.fchmod(fd, stat.S_IMODE(os.stat(target).st_mode))  # noqa: PTH116 likewise
        _write(fd, document)
        os.replace(temporary, target)  # noqa: PTH105 likewise
    except BaseException:
        os.unlink(temporary)  # noqa: PTH108 likewise
        raise


def _write(fd: int, document: str) -> None:
    with open(fd, "w", encoding="utf-8") as file:
        file.write(document)
