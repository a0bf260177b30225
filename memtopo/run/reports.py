"""Findings of checks, counted per aspect, and the reports of a run with its failure, merged over processes and nodes.

The hints for errors of a step's own call are in its class (`Step.hints`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from memtopo.common.errors import Exit, InternalError, MemtopoError, Unavailable
from memtopo.common.units import exact, summed
from memtopo.driver.types import DriverError, LocationKind
from memtopo.executor import StepFailed
from memtopo.kinds.step import PROBE_ADVICE, ErrorHint, Finding, Step, StepDescription
from memtopo.plans.report import Checks, Difference, Failure, Left, Rate, Report, Tally
from memtopo.session.composition import RunRequest


def report_on(request: RunRequest, outcome: tuple[str, int], **found: Any) -> Report:
    """Return the report on a request, with the fields of it that were found."""
    word, exit_code = outcome
    return Report(
        name=request.plan.name,
        spec=request.spec,
        machine=request.machine,
        outcome=word,
        exit_code=exit_code,
        plan=request.summary(),
        check=request.check,
        started=request.started,
        **found,
    )


def merged_checks(found: Mapping[str, Checks]) -> Checks:
    """Merge the checks of all processes, by label, which is empty if there is only one."""
    if "" in found:
        return found[""]
    named = [replace(checks, differences=tuple(_differences(label, checks))) for label, checks in found.items()]
    return sum_of_checks(named) or Checks((), (), 0)


def sum_of_checks(found: Sequence[Checks]) -> Checks | None:
    """Sums of some checks, whose differences name their processes; None without any."""
    if not found:
        return None
    tallies: dict[str, Tally] = {}
    for tally in (tally for checks in found for tally in checks.tallies):
        before = tallies.get(tally.aspect, Tally(tally.aspect, 0, 0))
        reasons = dict.fromkeys(why for why in (before.why_not, tally.why_not) if why)
        tallies[tally.aspect] = Tally(
            tally.aspect,
            before.looked_at + tally.looked_at,
            before.as_declared + tally.as_declared,
            before.not_checked + tally.not_checked,
            "; ".join(reasons) or None,
        )
    differences = tuple(each for checks in found for each in checks.differences)[:MAX_DIFFERENCES]
    different = sum(checks.different for checks in found)
    return Checks(tuple(tallies.values()), differences, different, tuple(_rates(found)))


def _rates(found: Sequence[Checks]) -> Iterator[Rate]:
    """Sums of the bytes and seconds of all processes, for each device and memory."""
    total: dict[tuple[str, str, str], tuple[int, float]] = {}
    for rate in (rate for checks in found for rate in checks.rates):
        key = rate.verb, rate.device, rate.memory
        size, seconds = total.get(key, (0, 0.0))
        total[key] = size + rate.bytes, seconds + rate.seconds
    return (Rate(*key, size, seconds) for key, (size, seconds) in total.items())


def _differences(label: str, checks: Checks) -> Iterator[Difference]:
    return (replace(each, subject=f"{label}: {each.subject}") for each in checks.differences)


def sum_of_left(found: Sequence[Left]) -> Left | None:
    """Sums over all processes; of each device's memory, which they share, the numbers of the first process."""
    if not found:
        return None
    held = [left.fds_held for left in found if left.fds_held is not None]
    memory = {device.device: device for left in reversed(found) for device in left.memory}
    return Left(
        dict(summed(left.ledger_before for left in found)),
        dict(summed(left.ledger_held for left in found)),
        dict(summed(left.ledger_after for left in found)),
        sum(left.fds_before for left in found),
        sum(held) if held else None,
        sum(left.fds_after for left in found),
        tuple(memory[name] for name in sorted(memory)),
    )


MAX_DIFFERENCES = 100
"""Number of differences that a report lists; it counts all of them."""

_LINE = 16
"""Bytes of a value that a difference shows."""


class FindingTally:
    """Counts findings, and keeps the first differences."""

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {}
        """For each aspect the number of findings, and how many of them are as declared."""
        self._not_checked: dict[str, tuple[int, str]] = {}
        self._differences: list[Difference] = []
        self.different = 0

    @property
    def empty(self) -> bool:
        """Return whether there are neither findings nor anything recorded as not checked."""
        return not self._counts

    def observed(self, aspect: str) -> int:
        """Number of findings of an aspect."""
        return self._counts.get(aspect, [0])[0]

    def differs(self, aspect: str) -> bool:
        """Return whether any finding of an aspect is not as declared."""
        observed, as_declared = self._counts.get(aspect, (0, 0))
        return observed != as_declared

    def add(self, findings: Iterable[Finding]) -> None:
        """Count findings."""
        all_counts = self._counts
        for finding in findings:
            aspect, _, expected, observed, _, _, times = finding
            counts = all_counts.get(aspect) or all_counts.setdefault(aspect, [0, 0])
            counts[0] += times
            if expected == observed:
                counts[1] += times
            else:
                self._add_difference(finding)

    def not_checked(self, aspect: str, count: int, why: str) -> None:
        """Count parts of an aspect that were not checked."""
        before, reasons = self._not_checked.get(aspect, (0, ""))
        if why not in reasons:
            reasons = f"{reasons}; {why}" if reasons else why
        self._not_checked[aspect] = before + count, reasons
        self._counts.setdefault(aspect, [0, 0])

    def merge_findings(self, other: FindingTally, aspect: str) -> None:
        """Count the findings of an aspect of another tally, and what it did not check of that."""
        if aspect not in other._counts:
            return
        counts = self._counts.setdefault(aspect, [0, 0])
        observed, as_declared = other._counts[aspect]
        counts[:] = counts[0] + observed, counts[1] + as_declared
        self.different += observed - as_declared
        if aspect in other._not_checked:
            self.not_checked(aspect, *other._not_checked[aspect])
        self._differences += [each for each in other._differences if each.aspect == aspect]
        del self._differences[MAX_DIFFERENCES:]

    def checks(self) -> Checks:
        """Return the counts and the differences as a part of the report."""
        tallies = [
            Tally(aspect, observed, as_declared, *self._not_checked.get(aspect, (0, None)))
            for aspect, (observed, as_declared) in self._counts.items()
        ]
        return Checks(tuple(tallies), tuple(self._differences), self.different)

    def _add_difference(self, finding: Finding) -> None:
        self.different += 1
        if len(self._differences) < MAX_DIFFERENCES:
            aspect, subject, expected, observed, path, hint, *_ = finding
            start = _first_difference(expected, observed)
            wanted, seen = _text(expected, start), _text(observed, start)
            self._differences.append(Difference(aspect, subject, wanted, seen, path, hint=hint))


def _first_difference(expected: object, observed: object) -> int:
    """Index of the line of bytes with the first difference; 0 if the values are no bytes."""
    if not isinstance(expected, bytes) or not isinstance(observed, bytes):
        return 0
    pairs = zip(expected, observed, strict=False)
    unequal = next((index for index, (one, other) in enumerate(pairs) if one != other), 0)
    return unequal // _LINE * _LINE


def _text(value: object, start: int) -> str:
    if not isinstance(value, bytes):
        return str(value)
    return f"{f'+{start:#x}: ' if start else ''}{value[start : start + _LINE].hex(' ', 4)}"


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
