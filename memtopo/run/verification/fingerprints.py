"""Fingerprints of the bytes that a change keeps, computed by kernels before and after it.

Unlike a pattern, a fingerprint leaves the bytes as they are, so that memory in use can be verified.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple, cast

from memtopo.common.units import by_key
from memtopo.driver.kernels import MOST_AREAS, KernelDriver
from memtopo.driver.types import LocationKind
from memtopo.executor import Execution, failing
from memtopo.kinds.layout import current
from memtopo.kinds.resources import MODULES
from memtopo.kinds.step import Finding, Readable, Step
from memtopo.planner import Plan
from memtopo.plans.transition import transition
from memtopo.run.reports import FindingTally

ASPECT = "fingerprint"
"""Aspect of the findings."""

_HINT = "no program may write memory of the layout during a change; otherwise the bytes were lost"
_UNSAFE = "a mapping is not as planned, and a kernel that reads memory without access ends the process"
_EQUAL = Finding(ASPECT, "", "", "")


class ReadablePlace(NamedTuple):
    """Bytes of a resource as one plan has them, with the GPU that reads them."""

    bytes: Readable
    device: int
    step: Step

    def subject(self) -> str:
        name = self.step.describe().subject
        where = self.bytes.label if self.bytes.label != name else "this process"
        return f"{name} in {where} at {self.bytes.offset:#x} by gpu{self.device}"


class Fingerprints:
    """Fingerprints of what a change keeps: chunks, buffers, and chunks whose bytes are offloaded or return.

    Every byte is read, by a GPU that may read it: offloaded bytes over the link to the host. What nothing but other
    processes created is left out, and so is managed memory, whose pages a read would migrate.
    """

    def __init__(
        self, execution: Execution, after: Mapping[Hashable, ReadablePlace], taken: Mapping[Hashable, int]
    ) -> None:
        self._execution, self._after, self._taken = execution, after, taken

    @classmethod
    def take(cls, execution: Execution, plan: Plan) -> Fingerprints:
        """Read what a change of a built layout to another plan will keep. Raises `StepFailed`.

        Access must be as planned, since a kernel that reads memory which it may not read ends the process (fact 24).
        """
        execution.resume()
        old, new = execution.plan.steps, plan.steps
        before, after = readable_places(old), readable_places(new)
        every = (*old, *new)
        elsewhere = {step.keeps for step in every if step.keeps is not None}
        areas = {need for step in every if step.keeps is not None for need in step.needs}
        replaced = {step.provides for step in transition(old, new).undo if step.allocates} - elsewhere
        own = {step.provides for step in every if step.allocates} | elsewhere
        kept = (own - replaced - areas).intersection(before, after)
        taken = _read(execution, {resource: place for resource, place in before.items() if resource in kept})
        return cls(execution, {resource: after[resource] for resource in taken}, taken)

    @property
    def count(self) -> int:
        """Number of chunks and buffers that were read."""
        return len(self._taken)

    def compared_after(self, check: FindingTally) -> FindingTally:
        """Return the comparison after the check of a change, which must have found no wrong access.

        Otherwise nothing is read, and all of it counts as not checked. Raises `StepFailed`.
        """
        found = FindingTally()
        if check.differs("access") or check.differs("mapped chunk"):
            found.not_checked(ASPECT, self.count, _UNSAFE)
        else:
            found.add(self.compare())
        return found

    def compare(self) -> Iterator[Finding]:
        """Read everything again after the change, with access as planned, and compare. Raises `StepFailed`."""
        found = _read(self._execution, self._after)
        for resource, before in self._taken.items():
            if found[resource] == before:
                yield _EQUAL
            else:
                place = self._after[resource]
                yield Finding(
                    ASPECT, place.subject(), f"{before:#018x}", f"{found[resource]:#018x}", place.step.path, _HINT
                )


def readable_places(steps: Iterable[Step], *, write: bool = False) -> dict[Hashable, ReadablePlace]:
    """Place of each resource where a GPU may read it, or also `write` it: its own GPU, if that is possible."""
    homes: dict[Hashable, int] = {}
    found: dict[Hashable, ReadablePlace] = {}
    for step in steps:
        if (allocated := step.allocates) and allocated[0].kind is LocationKind.GPU:
            homes[step.provides] = allocated[0].id
        readable = step.readable
        if readable is None:
            continue
        gpus = [each for each in readable.gpus if not write or each not in readable.read_only]
        home = homes.get(readable.resource)
        if home in gpus:
            found[readable.resource] = ReadablePlace(readable, home, step)
        elif gpus:
            found.setdefault(readable.resource, ReadablePlace(readable, gpus[0], step))
    return found


def _read(execution: Execution, places: Mapping[Hashable, ReadablePlace]) -> dict[Hashable, int]:
    """Fingerprint of each place, after all work of its GPU."""
    by_device = by_key((place.device, resource) for resource, place in places.items())
    found: dict[Hashable, int] = {}
    for device, resources in by_device.items():
        with failing("fingerprints of kept memory"), _kernels(execution, device) as driver:
            driver.ctx_synchronize()
            for first in range(0, len(resources), MOST_AREAS):
                some = resources[first : first + MOST_AREAS]
                execution.raise_if_stopped()
                areas = [places[resource].bytes for resource in some]
                parts = [(execution.layout.address(each.label) + each.offset, each.size) for each in areas]
                found.update(zip(some, driver.fingerprint(parts), strict=True))
    return found


@contextmanager
def _kernels(execution: Execution, device: int) -> Iterator[KernelDriver]:
    """The driver with a GPU's context current and its kernels loaded, for this time if the layout has none."""
    driver, layout = cast("KernelDriver", execution.driver), execution.layout
    with current(driver, layout.contexts[device]):
        if device in layout.of(MODULES):
            yield driver
            return
        module = driver.module_load_data()
        try:
            yield driver
        finally:
            driver.module_unload(module)
