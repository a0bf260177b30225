"""What can go wrong outside a spec, each with the exit status that tells it apart."""

from __future__ import annotations

from collections.abc import Sequence


class MemtopoError(Exception):
    """An error that memtopo can name, shown as `memtopo: error: …` and, where there is one, `memtopo: hint: …`.

    `details` are lines shown between the two.
    `message` is lower case, without a full stop, and names the thing at fault first.
    """

    exit_code = 70

    def __init__(self, message: str, *, hint: str | None = None, details: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = tuple(details)


class UsageError(MemtopoError):
    """The command line asks for something that does not go together."""

    exit_code = 2


class Unavailable(MemtopoError):
    """There is no GPU, no driver, no such machine, or the machine file cannot be used."""

    exit_code = 3


class InternalError(MemtopoError):
    """A promise of memtopo's own code does not hold."""

    exit_code = 70
