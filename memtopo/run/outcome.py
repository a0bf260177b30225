"""Outcome of a run for its report: a word, an exit code, and the failure."""

from __future__ import annotations

from collections.abc import Sequence

from memtopo.common.errors import InternalError, MemtopoError, Unavailable
from memtopo.driver.types import DriverError
from memtopo.executor import StepFailed
from memtopo.plans.report import Failure, Leak
from memtopo.run.hints import error_hint
from memtopo.run.request import RunRequest


def outcome(leaks: Sequence[Leak], *, signal: int | None, as_declared: bool, codes: Sequence[int]) -> tuple[str, int]:
    """Word and exit code of a run of one process, of several, or on several nodes.

    `signal` is the number of the signal that stopped it, or None; `codes` are the exit codes of what failed.
    """
    if leaks:
        return "leaked", 5
    if signal is not None:
        return "interrupted", 128 + signal
    if not as_declared:
        # The difference may also be the cause of a later failure; the report has both.
        return "different", 6
    if codes:
        return "failed", next((code for code in codes if code in {70, 3}), 4)
    return "ok", 0


def failure(failed: StepFailed, request: RunRequest) -> Failure:
    """Failure of a step, with the likely cause of an error of the driver."""
    error, path, position = failed.error, failed.path, request.position_of(failed.path)
    if isinstance(error, DriverError):
        known = error_hint(error, failed.step)
        cause, advice = known or (None, None)
        return Failure(failed.action, f"{error.call}: {error.name}", error.reason, path, position, advice, cause)
    if isinstance(error, MemtopoError) and not isinstance(error, InternalError):
        return Failure(failed.action, error.message, None, path, position, error.hint)
    return Failure(failed.action, f"{type(error).__name__}: {error}", None, path, position)


def exit_code(error: BaseException) -> int:
    """Exit code of a run that an error ended."""
    if isinstance(error, Unavailable):
        return error.exit_code
    expected = isinstance(error, (MemtopoError, OSError, MemoryError)) and not isinstance(error, InternalError)
    return 4 if expected else 70
