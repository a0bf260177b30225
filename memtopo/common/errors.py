"""Exit statuses of commands, the outcomes of runs that have them, and base classes of errors, each with its status."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import ParamSpec, Self

from memtopo.common.text import bounded

P = ParamSpec("P")

_BUDGET = "or the layouts of a `budget` cannot all be awake"
_LOST = "by a change that could not be rolled back"
_CHANGED = "or changed, and the check found a difference"
_OTHER = "or for the layout that is held now, or a recorded machine does not match this one"


class Exit(IntEnum):
    """Exit status with its meaning, as in docs/commands.md, and the outcome of a run that ends with it."""

    meaning: str
    outcome: str | None

    def __new__(cls, status: int, meaning: str, outcome: str | None = None) -> Self:
        found = int.__new__(cls, status)
        found._value_ = status
        found.meaning, found.outcome = meaning, outcome
        return found

    OK = 0, "success", "ok"
    INVALID = 1, f"the spec is invalid or unreadable, `check`, `diff` or `replay` found a difference, {_BUDGET}"
    USAGE = 2, "wrong usage"
    UNAVAILABLE = 3, "no GPU, no driver, no such machine or layout, a bad machine file"
    FAILED = 4, "failed or refused: nothing was changed, or everything was undone", "failed"
    LEFT = 5, f"failed, and something is left, which the report names; or a held layout was lost {_LOST}", "leaked"
    DIFFERENT = 6, f"built, but the check found the memory not as declared; undone; {_CHANGED}", "different"
    STALE = 7, f"stale: the saved plan is not valid on this machine {_OTHER}"
    BUG = 70, "a bug in memtopo"


class ProgramExit(IntEnum):
    """Exit status of `simulator --strict` after a program that succeeded, but left objects, or had refused calls."""

    LEFT = 81
    REFUSED = 82
    BOTH = 83


INTERRUPTED = "interrupted"
"""Outcome of a run that a signal stopped."""


def signal_status(number: int) -> int:
    """Return the exit status after a signal, as shells have it: 130 after Ctrl-C."""
    return 128 + number


def outcome(
    leaks: Collection[object], *, signal: int | None, as_declared: bool, codes: Collection[int]
) -> tuple[str, int]:
    """Return the outcome and the exit status of a run of one process, of several, or on several nodes.

    `signal` is the number of the signal that stopped it, or None; `codes` are the statuses of what failed. A difference
    may also be the cause of a later failure; the report has both.
    """
    if leaks:
        return "leaked", int(Exit.LEFT)
    if signal is not None:
        return INTERRUPTED, signal_status(signal)
    if not as_declared:
        return "different", int(Exit.DIFFERENT)
    if codes:
        return "failed", next((code for code in codes if code in (Exit.BUG, Exit.UNAVAILABLE)), int(Exit.FAILED))
    return "ok", int(Exit.OK)


class MemtopoError(Exception):
    """Expected error, shown as `memtopo: error: …`, the lines of `details`, and `memtopo: hint: …` if there is a hint.

    `message` is lower case, without a full stop, and begins with the object at fault. The text of the error includes
    the hint, so that tracebacks show it.
    """

    exit_code: int = Exit.BUG
    path: tuple[str | int, ...] = ()
    """Path of the entry of a spec that is at fault, if one is known to be."""

    def __init__(
        self, message: str, *, hint: str | None = None, details: Sequence[str] = (), exit_code: int | None = None
    ) -> None:
        """`exit_code` is that of the class by default."""
        self.exit_code = self.exit_code if exit_code is None else exit_code
        self.message = bounded(message)
        super().__init__(self.message)
        self.hint = bounded(hint) if hint else hint
        self.details = tuple(map(bounded, details))

    def __str__(self) -> str:
        return f"{self.message} (hint: {self.hint})" if self.hint else self.message


def message_of(error: BaseException) -> str:
    """Return the text of an error without its hint, as a part of another message."""
    return error.message if isinstance(error, MemtopoError) else str(error)


@contextmanager
def at_entry(path: tuple[str | int, ...]) -> Iterator[None]:
    """Give errors of the code inside the path of the entry that is at fault, unless they have one."""
    try:
        yield
    except MemtopoError as error:
        error.path = error.path or path
        raise


class UsageError(MemtopoError):
    """Invalid command line or argument of a function, or options that exclude one another."""

    exit_code = Exit.USAGE


class Unavailable(MemtopoError):
    """No GPU, no driver, an unknown machine, or a machine file that cannot be used."""

    exit_code = Exit.UNAVAILABLE


class Failed(MemtopoError):
    """Failure after which nothing has changed, or everything was undone."""

    exit_code = Exit.FAILED


class NotWritten(Failed):
    """A file that cannot be written."""


_EXIT_CODES = {"stale": Exit.STALE, "broken": Exit.LEFT, "internal": Exit.BUG}


class ExchangeError(MemtopoError):
    """A failed exchange between two processes; `code` is one of the codes in `docs/protocol.md`."""

    def __init__(self, code: str, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint, exit_code=_EXIT_CODES.get(code, Exit.FAILED))
        self.code = code


class NoLayout(Unavailable):
    """No process holds a layout of that name, or serves at that path."""


class BadPacket(ExchangeError):
    """A packet that breaks the protocol; it ends the connection to its sender."""

    def __init__(self, message: str, code: str = "packet") -> None:
        super().__init__(code, message)


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


@contextmanager
def on_failure(undo: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> Iterator[None]:
    """Call a function if the code inside fails, whatever the error, which is raised then."""
    try:
        yield
    except BaseException:
        undo(*args, **kwargs)
        raise


def reason(error: OSError | ValueError) -> str:
    """Return the system's message of an error, as it reads within a sentence; a `ValueError` is that of a path."""
    return (error.strerror or "error").lower() if isinstance(error, OSError) else "not a path"


@contextmanager
def system_errors(kind: type[MemtopoError], what: str, hint: str | None = None) -> Iterator[None]:
    """Raise an `OSError` of the code inside as an error of a kind: `what` has failed, and the system's message."""
    try:
        yield
    except OSError as error:
        raise kind(f"{what}: {error.strerror}", hint=hint) from error


class Stopped(Exception):
    """Stop of a run on request."""
