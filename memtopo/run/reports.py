"""Findings of checks, counted per aspect, and the reports of a run, merged over processes and nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from memtopo.common.units import summed
from memtopo.kinds.step import Finding
from memtopo.plans.report import Checks, Difference, Left, Rate, Report, Tally
from memtopo.session.request import RunRequest


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
            aspect, _, expected, observed, _, _, times, _ = finding
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
