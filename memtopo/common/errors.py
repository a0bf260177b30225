"""Base classes of memtopo's errors, each with its exit status."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from memtopo.common.outcomes import Exit


class MemtopoError(Exception):
    """Expected error, shown as `memtopo: error: …`, the lines of `details`, and `memtopo: hint: …` if there is a hint.

    `message` is lower case, without a full stop, and begins with the object at fault.
    """

    exit_code: int = Exit.BUG

    def __init__(self, message: str, *, hint: str | None = None, details: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = tuple(details)


class UsageError(MemtopoError):
    """Invalid command line, or options that exclude one another."""

    exit_code = Exit.USAGE


class Unavailable(MemtopoError):
    """No GPU, no driver, an unknown machine, or a machine file that cannot be used."""

    exit_code = Exit.UNAVAILABLE


class NotWritten(MemtopoError):
    """A file that cannot be written."""

    exit_code = Exit.FAILED


class InternalError(MemtopoError):
    """Violation of an invariant of memtopo's own code."""

    exit_code = Exit.BUG


@contextmanager
def internal_errors() -> Iterator[None]:
    """Raise an exception of the code inside that no caller expects as `InternalError`."""
    try:
        yield
    except MemtopoError:
        raise
    except Exception as error:
        raise InternalError(f"internal error: {type(error).__name__}: {error}") from error


class Stopped(Exception):
    """Stop of a run on request."""
