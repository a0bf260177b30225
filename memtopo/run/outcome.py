"""Failure of a run for its report, and the exit status of its cause."""

from __future__ import annotations

from memtopo.common.errors import Exit, InternalError, MemtopoError, Unavailable
from memtopo.driver.types import DriverError
from memtopo.executor import StepFailed
from memtopo.plans.report import Failure
from memtopo.run.hints import error_hint
from memtopo.session.request import RunRequest


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


def exit_code(error: BaseException | None) -> int:
    """Return the exit status of a run that ended with an error."""
    if isinstance(error, Unavailable):
        return error.exit_code
    expected = isinstance(error, (MemtopoError, OSError, MemoryError)) and not isinstance(error, InternalError)
    return Exit.FAILED if expected else Exit.BUG
