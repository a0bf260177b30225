"""Differences of plans: rows of what goes and comes, bytes that are lost, and memory before, after and in between."""

from __future__ import annotations

from memtopo.plans.difference import difference
from memtopo.plans.report import MemoryChange, PlanDifference
from tests.helpers.machines import invented
from tests.helpers.specs import plan_of

MACHINE = invented(2)
M = 2 << 20
BEFORE = """
ranges: {kv: {size: 8MiB}}
chunks: {page: {location: gpu0, size: 2MiB, count: 4}}
map: {kv: [page]}
access: {kv: {gpu0: rw}}
"""


def compared(after: str, before: str = BEFORE) -> PlanDifference:
    return difference(plan_of(before, MACHINE).steps, plan_of(after, MACHINE).steps, ("a", "b"))


def verbs(found: PlanDifference) -> list[tuple[str, str, int]]:
    return [(row.verb, row.first, row.calls) for row in (*found.undo, *found.do)]


def test_equal_specs_differ_in_nothing() -> None:
    found = compared(BEFORE)
    assert (found.empty, found.undo, found.do, found.lost) == (True, (), (), ())
    assert found.memory == {"gpu0": MemoryChange(4 * M, 4 * M, 4 * M)}


def test_fewer_chunks_are_unmapped_and_released() -> None:
    found = compared(BEFORE.replace("count: 4", "count: 3"))
    assert verbs(found) == [("unmap", "page.3", 1), ("release", "page.3", 1)]
    assert found.memory == {"gpu0": MemoryChange(4 * M, 3 * M, 4 * M)}
    assert not found.lost


def test_memory_that_moves_loses_its_bytes_and_needs_room_at_one_location_at_a_time() -> None:
    found = compared(BEFORE.replace("location: gpu0", "location: gpu1"))
    assert found.lost == ("page.0", "page.1", "page.2", "page.3")
    assert found.memory == {"gpu0": MemoryChange(4 * M, 0, 4 * M), "gpu1": MemoryChange(0, 4 * M, 4 * M)}


def test_a_chunk_at_another_offset_keeps_its_bytes() -> None:
    found = compared(BEFORE.replace("[page]", "[page.1, page.0, page.2:4]"))
    assert verbs(found) == [("unmap", "page.1", 2), ("map", "page.1", 2), ("grant", "kv", 1)]
    assert not found.lost


def test_access_is_granted_without_a_new_mapping() -> None:
    found = compared(BEFORE.replace("{gpu0: rw}", "{gpu0: r, gpu1: rw}"))
    assert [(row.verb, row.where) for row in found.do] == [
        ("retain context", ("gpu1",)),
        ("grant", ("gpu0 r, gpu1 rw",)),
    ]
    assert not found.undo
