"""Reports of a run: what all have, and sums of checks and resources over processes and nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from memtopo.plans.report import Checks, Difference, Left, Rate, Report, Tally
from memtopo.run.findings import MAX_DIFFERENCES
from memtopo.run.request import RunRequest


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
    return sum_of_checks(named) or Checks(())


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
        _sum(left.ledger_before for left in found),
        _sum(left.ledger_held for left in found),
        _sum(left.ledger_after for left in found),
        sum(left.fds_before for left in found),
        sum(held) if held else None,
        sum(left.fds_after for left in found),
        tuple(memory[name] for name in sorted(memory)),
    )


def _sum(accounts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for account in accounts:
        for kind, count in account.items():
            total[kind] = total.get(kind, 0) + count
    return total
