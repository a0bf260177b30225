"""Failure of a run for its report: the likely cause of a driver error, with its fact and an advice, and the status.

The hints for the calls of steps are in their classes (`Step.hints`).
"""

from __future__ import annotations

from memtopo.common.errors import Exit, InternalError, MemtopoError, Unavailable
from memtopo.common.units import exact
from memtopo.driver.types import DriverError, LocationKind
from memtopo.executor import StepFailed
from memtopo.kinds.step import PROBE_ADVICE, ErrorHint, Step, StepDescription
from memtopo.plans.report import Failure
from memtopo.session.request import RunRequest

_COMPARE = "compare the checks of access above"

_INVALID_VALUE = {
    "cuMemcpyHtoD": ErrorHint("the device has no write access there (fact 23)", _COMPARE),
    "cuMemcpyDtoH": ErrorHint("the device has no access there (fact 23)", _COMPARE),
    "cuMemAddressFree": ErrorHint(
        "a range cannot be freed while anything is mapped inside (fact 12)", "see which mapping could not be undone"
    ),
}
"""Hints for INVALID_VALUE of calls that verify bytes, or undo a step."""

_ILLEGAL = ErrorHint(
    "a kernel of this process, or work of a graph, used memory without access, and every later call fails (fact 24)",
    "run the program that uses the memory under compute-sanitizer",
)
_BY_ERROR: dict[str, ErrorHint] = {
    "ILLEGAL_ADDRESS": _ILLEGAL,
    "LAUNCH_FAILED": _ILLEGAL,
    "OUT_OF_MEMORY": ErrorHint(None, "processes use the memory of the device: 'memtopo who' lists them"),
    "NOT_PERMITTED": ErrorHint(None, f"the process does not have a required permission: {PROBE_ADVICE}"),
    "NOT_SUPPORTED": ErrorHint(None, f"the device or driver cannot do this: {PROBE_ADVICE}"),
    "INVALID_CONTEXT": ErrorHint("no context of a GPU is current (fact 8)", "check whether other code pops contexts"),
    "CONTEXT_IS_DESTROYED": ErrorHint(
        "the primary context was released or reset under this run (fact 8)",
        "check whether other code resets the device",
    ),
    "INVALID_PTX": ErrorHint(None, "the driver is too old for the kernels: they need CUDA 11 or later"),
    "UNSUPPORTED_PTX_VERSION": ErrorHint(None, "the driver is too old for the kernels: they need CUDA 11 or later"),
    "ECC_UNCORRECTABLE": ErrorHint(None, "the GPU's memory is damaged: see 'nvidia-smi -q -d ECC'"),
}


_EXHAUSTED: dict[LocationKind, ErrorHint] = {
    LocationKind.GPU: ErrorHint(
        "{where} has less than {bytes} of free memory", "processes use its memory: 'memtopo who' lists them"
    ),
    LocationKind.HOST_NUMA: ErrorHint(
        "NUMA node {where} has less than {bytes} of free memory, and a chunk of a node is only on that node (fact 77)",
        "'numactl --hardware' shows the free memory of each node; 'location: host' uses memory of any node",
    ),
    LocationKind.HOST: ErrorHint(
        "the host has less than {bytes} of free memory, or a control group limits it", "'free -h' shows the free memory"
    ),
}
"""Hints for exhausted memory, by the kind of the location that a step allocates it on."""


def error_hint(error: DriverError, step: Step | None = None) -> ErrorHint | None:
    """Return the hint for an error of a driver call, by a step if one made it; None if there is none."""
    name = error.name.removeprefix("CUDA_ERROR_")
    description = step.describe() if step else StepDescription("it", "its own")
    found = _INVALID_VALUE.get(error.call) if name == "INVALID_VALUE" else None
    if step and error.call == step.call:
        found = found or step.hints.get(name)
        if name == "OUT_OF_MEMORY" and step.allocates:  # the memory that it was refused is named
            found = found or _EXHAUSTED.get(step.allocates[0].kind)
    found = found or _BY_ERROR.get(name)
    if found is None or found.cause is None:
        return found
    size = exact(description.bytes_each) if description.bytes_each else "size"
    cause = found.cause.format(subject=description.subject, where=description.where, bytes=size)
    return found._replace(cause=cause)


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
