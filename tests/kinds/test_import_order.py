"""Order of the processes that a counted process imports from."""

from __future__ import annotations

import pytest

from memtopo.driver.types import gpu
from memtopo.geometry import Geometry
from memtopo.geometry.groups import ChunkGroup
from memtopo.kinds.views import all_mapped_memory
from tests.helpers.lockstep import apply_together
from tests.helpers.machines import invented
from tests.helpers.specs import clean_geometry

PE = (
    "processes:\n pe: {count: COUNT, devices: {mine: [gpu0, gpu1]}, ranges: {heap: {size: 64MiB}}, "
    "chunks: {part: {location: mine, size: 2MiB, count: 2, handles: fd}}, exports: {part: {chunk: part, via: fd}}, "
    "imports: {x: {from: pe.part, order: ORDER}}, map: {heap: x}, access: {heap: {mine: rw}}}\n"
)
RANKS = (
    "processes:\n left: {count: 3, chunks: {c: {location: gpu0, size: 2MiB, handles: fd}}, "
    "exports: {c: {chunk: c, via: fd}}}\n"
    " right: {OTHERcount: 3, ranges: {v: {size: 8MiB}}, imports: {x: {from: left.c, order: [own, previous]}}, "
    "map: {v: x}, access: {v: {gpu0: r}}}\n"
)


def sources(geometry: Geometry) -> list[tuple[str, int]]:
    """Process and handle behind each object of the import `x`."""
    group = geometry.of(ChunkGroup)["x"]
    assert group.origin
    assert group.counted
    return [group.origin.of(index) for index in range(group.count)]


@pytest.mark.parametrize(
    ("order", "count", "processes"),
    [
        ("own-first", 4, {0: [0, 1, 2, 3], 1: [1, 2, 3, 0], 3: [3, 0, 1, 2]}),
        ("[own-first]", 1, {0: [0]}),
        ("[own, next, previous]", 4, {0: [0, 1, 3], 3: [3, 0, 2]}),
        ("[previous, next]", 4, {2: [1, 3]}),
        ("next", 3, {2: [0]}),
        ("[next, previous]", 2, {0: [1, 1]}),
        ("[own, next]", 1, {0: [0, 0]}),
    ],
)
def test_an_order_is_relative_to_the_number_of_the_importing_process(
    order: str, count: int, processes: dict[int, list[int]]
) -> None:
    found = clean_geometry(PE.replace("COUNT", str(count)).replace("ORDER", order)).processes
    for process, others in processes.items():
        expected = [(f"pe.{other}", handle) for other in others for handle in (0, 1)]
        assert sources(found[f"pe.{process}"]) == expected


def test_each_process_begins_the_round_robin_distribution_of_what_it_exports() -> None:
    text = """
processes:
  left: {count: 2, chunks: {c: {location: [gpu0, gpu1], size: 2MiB, count: 3, handles: fd}},
    exports: {c: {chunk: c, via: fd}}}
  right: {ranges: {v: {size: 12MiB}}, imports: {x: {from: left.c}}, map: {v: x}, access: {v: {gpu0: r}}}
"""
    found = clean_geometry(text).processes["right"].of(ChunkGroup)["x"]
    assert [found.location_of(index).id for index in range(found.count)] == [0, 1, 0, 0, 1, 0]


def test_locations_follow_the_order() -> None:
    found = clean_geometry(PE.replace("COUNT", "3").replace("ORDER", "own-first")).processes["pe.1"].of(ChunkGroup)["x"]
    assert [found.location_of(index) for index in range(6)] == [gpu(each) for each in (1, 1, 0, 0, 0, 0)]


def test_an_order_pairs_the_processes_of_equal_counts() -> None:
    found = clean_geometry(RANKS.replace("OTHER", "")).processes
    assert sources(found["right.0"]) == [("left.0", 0), ("left.2", 0)]
    assert sources(found["right.2"]) == [("left.2", 0), ("left.1", 0)]


def test_every_process_maps_its_own_part_first_and_reads_what_its_neighbours_wrote() -> None:
    text = PE.replace("COUNT", "3").replace("ORDER", "own-first")
    views = all_mapped_memory(clean_geometry(text))["pe.2"]
    mapped = [each.identity.owner for each in views if each.views]
    assert mapped == ["pe.2", "pe.2", "pe.0", "pe.0", "pe.1", "pe.1"]
    reports = apply_together(text, invented(2))
    assert {report.outcome for report in reports.values()} == {"ok"}, reports
    checks = [each.checks for each in reports.values() if each.checks]
    read = [tally.looked_at for each in checks for tally in each.tallies if tally.aspect == "bytes"]
    assert sum(read) >= 3 * 6 * 2
