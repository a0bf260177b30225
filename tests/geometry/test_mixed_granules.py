"""GPUs of different granularity in one range: addresses, offsets and what is measured in granules."""

from __future__ import annotations

import pytest

from memtopo import planner
from memtopo.common.units import MiB
from memtopo.geometry.groups import RangeGroup
from memtopo.kinds.ranges import ReserveRange
from memtopo.machine import Machine
from tests.helpers.machines import invented
from tests.helpers.specs import codes, diagnose, run, run_request, validate_text

HEAD = """
chunks: {a: {location: gpu0, size: 2MiB}, b: {location: gpu1, size: 4MiB}}
access: {kv: {gpu0: rw}}
"""


def mixed() -> Machine:
    """A machine of a GPU with granules of 2 MiB and one with granules of 4 MiB."""
    fine, coarse = invented(2), invented(2, granule=4 * MiB)
    return fine.model_copy(update={"devices": [fine.devices[0], coarse.devices[1]]})


@pytest.mark.parametrize(
    ("range_", "align"),
    [("size: 8MiB", 4 * MiB), ("size: 8MiB, align: 2MiB", 4 * MiB), ("size: 8MiB, align: 16MiB", 16 * MiB)],
)
def test_a_range_begins_where_its_chunks_can(range_: str, align: int) -> None:
    """A range whose chunks have a larger granule than addresses have is aligned to that granule, and can be built"""
    text = f"ranges: {{first: {{size: 2MiB}}, kv: {{{range_}}}}}\nmap: {{first: a, kv: [b, a]}}{HEAD}"
    made = run_request(text, mixed())
    (_, step) = (step for step in made.plan.steps if isinstance(step, ReserveRange))
    assert step.align == align
    assert run(made, mixed()).report.exit_code == 0


def test_a_range_of_the_least_granule_needs_no_alignment() -> None:
    """Where addresses are aligned anyway, no alignment is asked for"""
    found = validate_text(
        f"ranges: {{kv: {{size: 2MiB}}, other: {{size: 4MiB}}}}\nmap: {{kv: a, other: b}}{HEAD}", mixed()
    )
    assert found.geometry is not None
    assert [run.align for run in found.geometry.of(RangeGroup).values()] == [0, 4 * MiB]
    assert planner.plan(found.geometry, mixed()).steps


def test_a_chunk_does_not_begin_between_its_granules() -> None:
    """An entry without an offset that would begin between granules is refused, with the next offset to write"""
    (fault,) = (
        fault
        for fault in diagnose(f"ranges: {{kv: {{size: 8MiB}}}}\nmap: {{kv: [a, b]}}{HEAD}", mixed())
        if fault.severity == "error"
    )
    assert (fault.code, fault.path) == ("MT303", ("map", "kv", 1))
    assert fault.message == "range 'kv': 'b' would begin at 2MiB, which is no multiple of 4MiB"
    assert fault.help == "write '{chunk: b, offset: 4MiB}'"
    assert codes(f"ranges: {{kv: {{size: 8MiB}}}}\nmap: {{kv: [a, {{chunk: b, offset: 4MiB}}]}}{HEAD}", mixed()) == []


@pytest.mark.parametrize("size", ["2 granules", "8MiB"])
def test_a_range_in_granules_of_an_unknown_chunk(size: str) -> None:
    """A range measured in granules is not judged where the chunk is not known that may have the largest"""
    text = f"ranges: {{kv: {{size: {size}}}}}\nmap: {{kv: [b, a, a]}}{HEAD}"
    assert codes(text, mixed()) == []
    assert codes(text.replace("4MiB", "4Mib"), mixed()) == ["MT105"]


def test_what_measures_an_empty_range() -> None:
    """The note on a size says whose granule it is: that of the chunks or, where there are none, of plain memory"""
    (empty,) = (fault for fault in diagnose("ranges: {kv: {size: 3MiB}}") if fault.code == "MT302")
    assert empty.notes == ("it has no chunks, and plain memory of this machine has a granularity of 2MiB",)
    (filled,) = (
        fault for fault in diagnose(f"ranges: {{kv: {{size: 3MiB}}}}\nmap: {{kv: a}}{HEAD}") if fault.code == "MT302"
    )
    assert filled.notes == ("the chunks in it have a granularity of 2MiB",)
    (far,) = (fault for fault in diagnose("ranges: {kv: {size: 2MiB, align: 256TiB}}") if fault.code == "MT306")
    assert far.help == "the default is 2MiB, without 'align'"
