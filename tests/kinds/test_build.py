"""Resolution to a geometry: placements of chunks, round-robin distribution, and granules."""

from __future__ import annotations

from collections import Counter

import pytest

from memtopo.geometry.groups import ChunkGroup, RangeGroup
from memtopo.machine import Granularity, Machine
from tests.helpers.machines import HANDLES, invented
from tests.helpers.specs import diagnose, geometry_of

MIB = 1 << 20
# (range, offset, chunk), a line for each mapping
Mappings = list[tuple[str, int, str]]


def mappings(text: str) -> Mappings:
    """Every mapping, in MiB, in order of its address."""
    return [
        (
            each.range.label(each.instance),
            (each.offset + turn * each.chunk.size) // MIB,
            each.chunk.label(each.first + turn),
        )
        for placed in geometry_of(text).placements.values()
        for each in placed
        for turn in range(each.count)
    ]  # fmt: skip


HEAD = """
ranges: {kv: {size: 16MiB}, grid: {size: 4MiB, count: 4}}
chunks: {hot: {location: gpu0, size: 4MiB}, page: {location: [gpu0, gpu1], size: 2MiB, count: 6}}
"""


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        # packing: an entry starts where the one before it ended
        ("kv: hot", [("kv", 0, "hot")]),
        ("kv: [hot, hot]", [("kv", 0, "hot"), ("kv", 4, "hot")]),
        ("kv: [hot, page.5, hot]", [("kv", 0, "hot"), ("kv", 4, "page.5"), ("kv", 6, "hot")]),
        # an offset moves the cursor, and leaves a hole
        ("kv: [{chunk: hot, offset: 2MiB}, page.0]", [("kv", 2, "hot"), ("kv", 6, "page.0")]),
        ("kv: [hot, {chunk: page.1, offset: 12MiB}, page.2]",
         [("kv", 0, "hot"), ("kv", 12, "page.1"), ("kv", 14, "page.2")]),
        ("kv: [{chunk: hot, offset: 8MiB}, {chunk: page.0, offset: 0}]", [("kv", 0, "page.0"), ("kv", 8, "hot")]),
        ("kv: [{chunk: page.3, offset: 3 granules}]", [("kv", 6, "page.3")]),
        # slices are half-open
        ("kv: [page.0:2, page.4:6]",
         [("kv", 0, "page.0"), ("kv", 2, "page.1"), ("kv", 4, "page.4"), ("kv", 6, "page.5")]),
        ("kv: [page.2, page.2:3]", [("kv", 0, "page.2"), ("kv", 2, "page.2")]),
        # a counted range is filled one reservation after another
        ("grid: [page]",
         [("grid.0", 0, "page.0"), ("grid.0", 2, "page.1"), ("grid.1", 0, "page.2"), ("grid.1", 2, "page.3"),
          ("grid.2", 0, "page.4"), ("grid.2", 2, "page.5")]),
        ("grid: [hot, page.0]", [("grid.0", 0, "hot"), ("grid.1", 0, "page.0")]),
        ("grid: [page.0, {chunk: hot, offset: 4MiB}]", [("grid.0", 0, "page.0"), ("grid.1", 0, "hot")]),
        ("grid: [{chunk: hot, offset: 12MiB}]", [("grid.3", 0, "hot")]),
        # some of a counted range
        ("grid.3: [hot]", [("grid.3", 0, "hot")]),
        ("grid.1:3: [page.0:3]", [("grid.1", 0, "page.0"), ("grid.1", 2, "page.1"), ("grid.2", 0, "page.2")]),
        ("grid.0:2: [page.0], grid.2:4: [page.1]", [("grid.0", 0, "page.0"), ("grid.2", 0, "page.1")]),
        ("grid.1:3: [{chunk: page.0, offset: 6MiB}]", [("grid.2", 2, "page.0")]),
        ("grid: [page.0], grid.0: [{chunk: page.1, offset: 2MiB}]", [("grid.0", 0, "page.0"), ("grid.0", 2, "page.1")]),
    ],
)  # fmt: skip
def test_chunks_are_mapped_consecutively_or_at_their_offset(entries: str, expected: Mappings) -> None:
    assert mappings(f"{HEAD}map: {{{entries}}}") == expected


@pytest.mark.parametrize(
    ("locations", "count", "expected"),
    [
        ("gpu0", 3, ["gpu0", "gpu0", "gpu0"]),
        ("[gpu0, gpu1]", 5, ["gpu0", "gpu1", "gpu0", "gpu1", "gpu0"]),
        ("[gpu1, host, gpu1]", 4, ["gpu1", "host", "gpu1", "gpu1"]),
    ],
)
def test_counted_chunks_are_distributed_round_robin(locations: str, count: int, expected: list[str]) -> None:
    run = geometry_of(f"chunks: {{page: {{location: {locations}, size: 2MiB, count: {count}}}}}").of(ChunkGroup)["page"]
    assert [str(run.properties_of(index).location) for index in range(run.count)] == expected
    assert {str(location): share for location, share in run.shares().items()} == Counter(expected)
    assert set(map(str, run.distinct_locations)) == set(expected)
    assert [run.label(index) for index in range(run.count)] == [f"page.{index}" for index in range(count)]


def test_a_count_of_one_makes_a_numbered_name() -> None:
    chunks = geometry_of("chunks: {a: {location: gpu0, size: 2MiB, count: 1}, b: {location: gpu0, size: 2MiB}}").of(
        ChunkGroup
    )
    assert [run.label(0) for run in chunks.values()] == ["a.0", "b"]


def uneven() -> Machine:
    """A machine whose granularity is 2 MiB, 4 MiB for what RDMA may reach, and 64 KiB on the host."""
    plain = invented(2)
    devices = [
        each.model_copy(update={"memory": each.memory.model_copy(update={"granularity": _granules(2, 4)})})
        for each in plain.devices
    ]
    small = [each.model_copy(update={"minimum": 64 << 10}) for each in plain.host["host:0"].granularity]
    host = {name: memory.model_copy(update={"granularity": small}) for name, memory in plain.host.items()}
    return plain.model_copy(update={"devices": devices, "host": host})


def _granules(plain: int, rdma: int) -> list[Granularity]:
    return [
        Granularity(handles=handles, rdma=flag, compressible=packed, minimum=unit * MIB, recommended=unit * MIB)
        for handles in HANDLES
        for flag, unit in ((False, plain), (True, rdma))
        for packed in (False, True)
    ]


@pytest.mark.parametrize(
    ("chunk", "size", "granule"),
    [
        ("location: gpu0, size: 3 granules", 6 * MIB, 2 * MIB),
        ("location: gpu0, size: 3 granules, rdma: true", 12 * MIB, 4 * MIB),
        ("location: host:0, size: 3 granules", 192 << 10, 64 << 10),
        ("location: [host:0, gpu1], size: 1 granule, count: 2", 2 * MIB, 2 * MIB),
        ("location: gpu0, size: 3MiB, round: up", 4 * MIB, 2 * MIB),
        ("location: gpu0, size: 1B, round: up, rdma: true", 4 * MIB, 4 * MIB),
        ("location: gpu0, size: 4MiB, round: up", 4 * MIB, 2 * MIB),
    ],
)
def test_the_granule_of_chunks_is_the_largest_of_their_locations(chunk: str, size: int, granule: int) -> None:
    run = geometry_of(f"chunks: {{a: {{{chunk}}}}}", uneven()).of(ChunkGroup)["a"]
    assert (run.size, run.granule) == (size, granule)


@pytest.mark.parametrize(
    ("inside", "granule"),
    [
        ("plain", 2 * MIB),
        ("plain, rdma", 4 * MIB),
        ("small", 64 << 10),
        ("small, {chunk: plain, offset: 2MiB}", 2 * MIB),
    ],
)
def test_the_granule_of_ranges_is_the_largest_of_their_chunks(inside: str, granule: int) -> None:
    text = f"""
ranges: {{kv: {{size: 64 granules}}, half: {{size: 1B, round: up}}}}
chunks:
  plain: {{location: gpu0, size: 4MiB}}
  rdma: {{location: gpu0, size: 4MiB, rdma: true}}
  small: {{location: host:0, size: 1MiB}}
map: {{kv: [{inside}, {{chunk: {inside.split(",", maxsplit=1)[0]}, offset: 48 granules}}]}}
access: {{kv: [{{offset: 48 granules, size: 16 granules, grant: {{gpu0: r}}}}]}}
"""
    geometry = geometry_of(text, uneven())
    assert geometry.of(RangeGroup)["kv"].size == 64 * granule
    assert geometry.placements["kv", 0][-1].offset == 48 * granule
    (part,) = geometry.parts["kv"]
    assert (part.offset, part.size) == (48 * granule, 16 * granule)
    assert geometry.of(RangeGroup)["half"].size == 2 * MIB  # holds nothing, so plain GPU memory's


def test_ranks_that_would_all_be_on_the_first_gpu_are_an_error_and_the_suggestion_is_not() -> None:
    text = """\
processes:
  pe:
    count: 4
    ranges: {r: {size: 2MiB}}
    chunks: {c: {location: [gpu0, gpu1, gpu2, gpu3], size: 2MiB}}
    map: {r: c}
    access: {r: {gpu0: rw}}
"""
    (found,) = diagnose(text, invented(4))
    assert found.notes == (
        "the count of a process does not distribute the list: each of its 4 processes has 1, on gpu0",
    )
    meant = text.replace("[gpu0, gpu1, gpu2, gpu3], ", "mine, ").replace("{gpu0: rw}", "{mine: rw}")
    meant = meant.replace("count: 4\n", "count: 4\n    devices: {mine: [gpu0, gpu1, gpu2, gpu3]}\n")
    geometry = geometry_of(meant, invented(4))
    assert [str(each.of(ChunkGroup)["c"].location_of(0)) for each in geometry.members.values()] == [
        f"gpu{n}" for n in range(4)
    ]
