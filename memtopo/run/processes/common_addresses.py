"""Addresses that all instances of a counted process have in common, for ranges with `same_address`.

After the reserve phase, every instance reports the addresses that it has. As long as they differ, the conductor
chooses one that an instance has, and all others reserve the range there, where it is free: a hint is not binding (fact
11). It ends with a round in which all have what they were asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain, groupby

from memtopo.common.errors import Failed
from memtopo.common.units import rounded_up
from memtopo.driver.types import ADDRESS_BLOCK, LAST_ADDRESS
from memtopo.kinds.resources import ReserveRange, common_ranges
from memtopo.planner import Plan
from memtopo.run.messages import Addresses, AgreeOn

TRIES = 16
"""Largest number of addresses that are tried for a range."""

_LOWEST = 1 << 36
"""Lowest address that is tried, unless a process has a lower one: the addresses of contexts are below (fact 11)."""

CommandEach = Callable[[Mapping[str, AgreeOn]], Mapping[str, Addresses]]
"""Sends each process its command, and returns the answers by label."""


class NoCommonAddress(Failed):
    """Processes that found no address which is free in all of them."""


def agree(plans: Mapping[str, Plan], command_each: CommandEach) -> None:
    """Bring the instances of each counted process to common addresses. Raises `NoCommonAddress` after `TRIES` each."""
    ranges = {label: common_ranges(plan.items) for label, plan in plans.items()}
    common = (label for label in plans if ranges[label])
    for _, labels in groupby(common, key=lambda label: label.partition(".")[0]):
        instances = list(labels)
        _Agreement(instances, chain.from_iterable(ranges[label] for label in instances), command_each).reach()


class _Agreement:
    """Search for the common addresses of the `ranges` of all instances of a process."""

    def __init__(self, instances: Sequence[str], ranges: Iterable[ReserveRange], command_each: CommandEach) -> None:
        self._instances, self._command_each = instances, command_each
        self._strides: dict[str, int] = {}
        for step in ranges:
            stride = rounded_up(step.size, max(step.align, ADDRESS_BLOCK))
            self._strides[step.label] = max(self._strides.get(step.label, 0), stride)
        self._tried: dict[str, set[int]] = {label: set() for label in self._strides}
        self._end = _LOWEST
        """Address from which on nothing was tried."""
        self._from_lowest = False
        """True once the search has reached the end of the address space, and has gone on from the lowest address."""

    def reach(self) -> None:
        """Try addresses until all instances have the same. Raises `NoCommonAddress`."""
        wanted: dict[str, int] = {}
        for number in range(TRIES + 1):
            answers = self._command_each(dict.fromkeys(self._instances, AgreeOn(wanted)))
            found = {label: {each.addresses[label] for each in answers.values()} for label in self._strides}
            if all({wanted.get(label)} == addresses for label, addresses in found.items()):
                return
            asked, wanted = wanted, self._next(found, number)
        raise _disagreement(asked, answers)

    def _next(self, found: Mapping[str, AbstractSet[int]], number: int) -> dict[str, int]:
        """Addresses to try next: what all have, the highest that some have and none was asked for, and new ones.

        In the second half of the tries, all are new ones, at growing distances, since those around are taken.
        """
        if not self._from_lowest:
            self._end = max(self._end, *(max(each) + self._strides[label] for label, each in found.items()))
        self._end += ADDRESS_BLOCK << number
        wanted: dict[str, int] = {}
        for label, addresses in found.items():
            new = addresses - self._tried[label] if number < TRIES // 2 else frozenset[int]()
            wanted[label] = max(addresses if len(addresses) == 1 else new or [self._behind(self._strides[label])])
            self._tried[label].add(wanted[label])
        return wanted

    def _behind(self, stride: int) -> int:
        """Address behind all others; at the end of the address space, it goes on from the lowest."""
        address = rounded_up(self._end, stride & -stride)
        if address + stride > LAST_ADDRESS:
            self._from_lowest, address = True, rounded_up(_LOWEST, stride & -stride)
        self._end = address + stride
        return address


def _disagreement(wanted: Mapping[str, int], answers: Mapping[str, Addresses]) -> NoCommonAddress:
    process, label = next(
        (process, label)
        for process, answer in answers.items()
        for label, address in answer.addresses.items()
        if address != wanted[label]
    )
    other = f"{process} has it at {answers[process].addresses[label]:#x} in place of {wanted[label]:#x}"
    message = f"range {label!r} has no address that is free in all processes: after {TRIES} tries, {other}"
    return NoCommonAddress(message, hint="write an 'address' that is free in all of them, or omit 'same_address'")
