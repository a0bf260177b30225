"""Addresses that all instances of a counted process have in common, for ranges with `same_address`.

After the reserve phase, every instance reports the addresses that it has. As long as they differ, the coordinator
chooses one that an instance has, and all others reserve the range there, where it is free: a hint is not binding (fact
11). It ends with a round in which all have what they were asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, groupby

from memtopo.common.errors import MemtopoError
from memtopo.driver.types import ADDRESS_BLOCK, LAST_ADDRESS
from memtopo.executor import Execution
from memtopo.kinds.step import CommonRange
from memtopo.planner import Plan
from memtopo.run.processes.messages import Addresses, AgreeOn

TRIES = 16
"""Largest number of addresses that are tried for a range."""

CommandEach = Callable[[Mapping[str, AgreeOn]], Mapping[str, Addresses]]
"""Sends each process its command, and returns the answers by label."""


class NoCommonAddress(MemtopoError):
    """Processes that found no address which is free in all of them."""

    exit_code = 4


def bring_to(execution: Execution, command: AgreeOn) -> Addresses:
    """Reserve ranges of a process where they are asked for, if they are free there. Raises `StepFailed`."""
    layout = execution.layout
    steps = {found.label: step for step in execution.plan.steps if (found := step.common_range)}
    layout.agreed |= command.addresses
    for label, address in command.addresses.items():
        if layout.address(label) != address:
            execution.relocate(steps[label], address)
    return Addresses({label: layout.address(label) for label in steps})


def agree(plans: Mapping[str, Plan], command_each: CommandEach) -> None:
    """Bring the instances of each counted process to common addresses. Raises `NoCommonAddress` after `TRIES` each."""
    ranges = {label: [found for step in plan.steps if (found := step.common_range)] for label, plan in plans.items()}
    common = (label for label in plans if ranges[label])
    for _, labels in groupby(common, key=lambda label: label.partition(".")[0]):
        instances = list(labels)
        _Agreement(instances, chain.from_iterable(ranges[label] for label in instances), command_each).reach()


class _Agreement:
    """Search for the common addresses of the `ranges` of all instances of a process."""

    def __init__(self, instances: Sequence[str], ranges: Iterable[CommonRange], command_each: CommandEach) -> None:
        self._instances, self._command_each = instances, command_each
        self._strides: dict[str, int] = {}
        for label, size, align in ranges:
            stride = -(-size // max(align, ADDRESS_BLOCK)) * max(align, ADDRESS_BLOCK)
            self._strides[label] = max(self._strides.get(label, 0), stride)
        self._tried: dict[str, list[int]] = {label: [] for label in self._strides}

    def reach(self) -> None:
        """Try addresses until all instances have the same. Raises `NoCommonAddress`."""
        wanted: dict[str, int] = {}
        for _ in range(TRIES + 1):
            answers = self._command_each(dict.fromkeys(self._instances, AgreeOn(wanted)))
            found = {label: [each.addresses[label] for each in answers.values()] for label in self._strides}
            if all({wanted.get(label)} == {*addresses} for label, addresses in found.items()):
                return
            wanted = {label: self._next(label, addresses) for label, addresses in found.items()}
        raise _disagreement(self._instances, found)

    def _next(self, label: str, addresses: Sequence[int]) -> int:
        """Address to try next: one that all have, the highest that an instance has and was not tried, or a new one."""
        tried = self._tried[label]
        if len({*addresses}) == 1:
            return addresses[0]
        new = [address for address in addresses if address not in tried]
        tried.append(max(new) if new else self._beside([*tried, *addresses], self._strides[label]))
        return tried[-1]

    @staticmethod
    def _beside(addresses: Sequence[int], stride: int) -> int:
        """Address behind all others, or before them if the address space ends there."""
        behind = max(addresses) + stride
        return behind if behind + stride <= LAST_ADDRESS else max(min(addresses) - stride, stride)


def _disagreement(instances: Sequence[str], found: Mapping[str, Sequence[int]]) -> NoCommonAddress:
    label, addresses = next((label, each) for label, each in found.items() if len({*each}) > 1)
    different = next(index for index, address in enumerate(addresses) if address != addresses[0])
    both = f"{addresses[0]:#x} in {instances[0]} and {addresses[different]:#x} in {instances[different]}"
    message = f"range {label!r} has no address that is free in all processes: after {TRIES} tries it is at {both}"
    return NoCommonAddress(message, hint="write an 'address' that is free in all of them, or leave 'same_address' out")
