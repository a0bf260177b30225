"""Steps of access."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import ClassVar

from memtopo.common.text import numbered
from memtopo.driver.protocol import Driver
from memtopo.driver.types import WHOLE_HOST, Access, Grant, LocationKind
from memtopo.kinds.kind import StepDifference
from memtopo.kinds.layout import Layout
from memtopo.kinds.mappings.steps import MapChunk, runs
from memtopo.kinds.step import DEFECT_ADVICE, PROBE_ADVICE, ErrorHint, Phase, Step, StepDescription

SHORT_GRANT = 128
SHORT_GRANT_BYTES = 256 << 20
"""Maximum number and bytes of the mappings of one call in a change, so that bytes return while the next mappings get
access. A single mapping may be larger."""


class SetAccess(Step, frozen=True):
    """Grant access to whole mappings without holes between them (facts 20, 63). `MapChunk` checks the result.

    A refused call has made the grants that stand before the refused one (fact 62). There is nothing to undo in either
    case: unmapping ends the access, and revoking it would take 24 µs per chunk.
    """

    range: str
    offset: int
    size: int
    grants: tuple[Grant, ...]

    phase = Phase.GRANT
    verb = "grant"
    call = "cuMemSetAccess"
    hints: ClassVar = {
        "NOT_SUPPORTED": ErrorHint(
            "one of the devices cannot access the other's memory (fact 20)",
            f"grant access only to peers; {PROBE_ADVICE}",
        ),
        "ALREADY_MAPPED": ErrorHint(
            "a mapping runs past its range, into memory that the context uses (fact 15)", DEFECT_ADVICE
        ),
        "INVALID_VALUE": ErrorHint("access is set for whole mappings without a hole (fact 20)", DEFECT_ADVICE),
    }
    required: ClassVar = {"range": "range"}
    effect = None  # access belongs to mappings

    @property
    def position(self) -> tuple[str, int]:
        """End of its last mapping, so that it follows all of them."""
        return self.range, self.offset + self.size - 1

    def do(self, driver: Driver, layout: Layout) -> None:
        driver.mem_set_access(layout.ranges[self.range].address + self.offset, self.size, self.grants)

    def describe(self) -> StepDescription:
        group, _ = numbered(self.range)
        granted = ", ".join(f"{grant.location} {grant.access.word}" for grant in self.grants)
        return StepDescription(self.range, granted, 0, (group, self.grants))


_Change = tuple[MapChunk, tuple[Grant, ...]]
"""Mapping, and the grants by which its access changes."""


def access_changes(
    difference: StepDifference, mapping: type[MapChunk] = MapChunk, grant: type[SetAccess] = SetAccess
) -> Iterator[SetAccess]:
    """Grants for new mappings, and different grants for kept ones; adjacent mappings with equal grants share one.

    `mapping` and `grant` are the classes of the steps.
    """
    steps = ((step, difference.kept.get(effect)) for effect, step in difference.after.items() if type(step) is mapping)
    changed = (
        (step, grants) for step, old in steps if old is not step and (grants := _changed(_access(old), step.access))
    )
    for run in runs(changed, _granted_together):
        (first, grants), (last, _) = run[0], run[-1]
        yield grant(first.path, first.range, first.offset, last.offset + last.size - first.offset, grants)


def _granted_together(run: Sequence[_Change], change: _Change) -> bool:
    (first, grants), (last, _), (step, own) = run[0], run[-1], change
    adjacent = (step.range, step.offset) == (last.range, last.offset + last.size) and own == grants
    return adjacent and len(run) < SHORT_GRANT and step.offset + step.size - first.offset <= SHORT_GRANT_BYTES


def _access(step: Step | None) -> tuple[Grant, ...]:
    return step.access if isinstance(step, MapChunk) else ()


@lru_cache(maxsize=1024)
def _changed(old: tuple[Grant, ...], new: tuple[Grant, ...]) -> tuple[Grant, ...]:
    """Grants by which one access becomes another."""
    before, after = dict(old), dict(new)
    changed = (
        # The driver has one access for the host and all its NUMA nodes.
        Grant(
            location if location.kind is LocationKind.GPU else WHOLE_HOST,
            after.get(location, Access.NONE),
        )
        for location in sorted({*before, *after})
        if before.get(location, Access.NONE) != after.get(location, Access.NONE)
    )
    return tuple(changed)
