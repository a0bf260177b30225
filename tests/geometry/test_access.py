"""Access to ranges and parts: declarations, and the spans that result."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memtopo.driver.types import Access, Location, LocationKind, gpu
from memtopo.geometry.access import AccessParts, access_spans, granted, mappings
from tests.helpers.specs import geometry_of

MIB = 1 << 20
M = 2 * MIB
HOST = Location(LocationKind.HOST)
HEAD = """
ranges: {kv: {size: 16MiB}, grid: {size: 4MiB, count: 4}}
chunks: {hot: {location: gpu0, size: 4MiB}, page: {location: [gpu0, gpu1], size: 2MiB, count: 6}}
"""


@pytest.mark.parametrize("name", ["host", "host:0"])
def test_host_and_its_nodes_are_one_device(name: str) -> None:
    head = "ranges: {kv: {size: 2MiB}}\nchunks: {c: {location: host:0, size: 2MiB}}\nmap: {kv: c}"
    (part,) = geometry_of(f"{head}\naccess: {{kv: {{{name}: r}}}}").parts["kv"]
    assert part.grants == ((HOST, Access.R),)


def stretches_of(text: str) -> list[tuple[str, int, int, str]]:
    """Each span of a layout: range, start and end in MiB, and access by location."""
    geometry = geometry_of(text)
    asked = AccessParts(geometry.parts)
    return [
        (
            each.range.label(each.instance),
            each.offset // MIB,
            (each.offset + each.size) // MIB,
            " ".join(f"{grant.location}:{grant.access.word}" for grant in each.grants),
        )
        for where, placed in geometry.placements.items()
        for each in access_spans(placed, asked.of(*where))
    ]


@pytest.mark.parametrize(
    ("access", "expected"),
    [
        ("kv: {gpu0: rw, gpu1: r}", [("kv", 0, 4, "gpu0:rw gpu1:r"), ("kv", 8, 10, "gpu0:rw gpu1:r")]),
        ("kv: {gpu0: none}", []),
        ("kv: {}", []),
        ("kv: []", []),
        ("kv: [{offset: 8MiB, size: 8MiB, grant: {gpu1: r}}]", [("kv", 8, 10, "gpu1:r")]),
        ("kv: [{offset: 4MiB, size: 4MiB, grant: {gpu1: r}}]", []),  # a hole
        ("kv: [{size: 16MiB, grant: {gpu0: rw}}, {size: 4MiB, grant: {gpu0: none}}]", [("kv", 8, 10, "gpu0:rw")]),
        ("kv: [{size: 4MiB, grant: {gpu0: none}}, {size: 16MiB, grant: {gpu0: rw}}]",
         [("kv", 0, 4, "gpu0:rw"), ("kv", 8, 10, "gpu0:rw")]),
        ("kv: [{size: 16MiB, grant: {gpu0: r}}, {offset: 8MiB, size: 2MiB, grant: {gpu1: rw}}]",
         [("kv", 0, 4, "gpu0:r"), ("kv", 8, 10, "gpu0:r gpu1:rw")]),
    ],
)  # fmt: skip
def test_access_covers_mappings_and_later_parts_override_earlier_ones(access: str, expected: list[Any]) -> None:
    assert stretches_of(f"{HEAD}map: {{kv: [hot, {{chunk: page.0, offset: 8MiB}}]}}\naccess: {{{access}}}") == expected


@pytest.mark.parametrize(
    ("access", "expected"),
    [
        ("grid: {gpu0: r}", ["grid.0", "grid.1", "grid.2"]),
        ("grid.1: {gpu0: r}", ["grid.1"]),
        ("grid.1:3: {gpu0: r}", ["grid.1", "grid.2"]),
        ("grid.0: {gpu0: r}, grid.2:4: {gpu0: r}", ["grid.0", "grid.2"]),
        ("grid.2: {gpu0: r}, grid.0: {gpu0: r}", ["grid.0", "grid.2"]),
        ("grid.3: {gpu0: r}", []),
    ],
)
def test_access_names_all_one_or_a_slice_of_counted_ranges(access: str, expected: list[str]) -> None:
    assert [span[0] for span in stretches_of(f"{HEAD}map: {{grid: page}}\naccess: {{{access}}}")] == expected


GRANULES = 12
DEVICES = [gpu(0), gpu(1), HOST]
PARTS = st.tuples(
    st.integers(0, GRANULES - 1),
    st.integers(1, GRANULES),
    st.dictionaries(st.sampled_from(DEVICES), st.sampled_from([Access.NONE, Access.R, Access.RW])),
)


@given(st.lists(st.booleans(), min_size=GRANULES, max_size=GRANULES), st.lists(PARTS, max_size=6))
def test_spans_are_equal_to_a_page_table_written_part_by_part(
    mapped: list[bool], parts: list[tuple[int, int, dict[Location, Access]]]
) -> None:
    table: list[dict[Location, Access]] = [{} for _ in range(GRANULES)]
    written = []
    for start, size, grant in parts:
        size = min(size, GRANULES - start)  # noqa: PLW2901 cut to the range
        for entry in table[start : start + size]:
            entry.update(grant)
        who = ", ".join(f"{place}: {access.word}" for place, access in grant.items())
        written.append(f"{{offset: {2 * start}MiB, size: {2 * size}MiB, grant: {{{who}}}}}")
    chunks = [f"{{chunk: c, offset: {2 * index}MiB}}" for index, is_mapped in enumerate(mapped) if is_mapped]
    text = f"ranges: {{kv: {{size: {2 * GRANULES}MiB}}}}\nchunks: {{c: {{location: host:0, size: 2MiB}}}}\n"
    text += f"map: {{kv: [{', '.join(chunks)}]}}\n" if chunks else ""
    text += f"access: {{kv: [{', '.join(written)}]}}"
    assert page_table(text) == [
        _some(entry) if is_mapped else {} for entry, is_mapped in zip(table, mapped, strict=True)
    ]


def page_table(text: str) -> list[dict[Location, Access]]:
    """The access that access_spans give to each granule; none may be given twice."""
    geometry = geometry_of(text)
    table: list[dict[Location, Access]] = [{} for _ in range(GRANULES)]
    for where, placed in geometry.placements.items():
        for each in access_spans(placed, AccessParts(geometry.parts).of(*where)):
            for index in range(each.offset // M, (each.offset + each.size) // M):
                assert table[index] == {}
                table[index] = dict(each.grants)
    return table


def _some(entry: dict[Location, Access]) -> dict[Location, Access]:
    return {place: access for place, access in entry.items() if access}


def test_every_mapping_has_the_access_of_its_span() -> None:
    text = """
ranges: {kv: {size: 24MiB}}
chunks: {hot: {location: gpu0, size: 4MiB}, page: {location: gpu1, size: 2MiB, count: 6}}
map: {kv: [page.4:6, hot, page.0:3, {chunk: page.1:5, offset: 16MiB}]}
access:
  kv:
    - {offset: 2MiB, size: 6MiB, grant: {gpu0: rw}}
    - {offset: 10MiB, size: 2MiB, grant: {gpu1: r}}
    - {offset: 18MiB, size: 4MiB, grant: {gpu0: r, gpu1: rw}}
"""
    geometry = geometry_of(text)
    placed = geometry.placements["kv", 0]
    found = [
        (placement.chunk.label(index), offset // MIB, " ".join(f"{place}:{access.word}" for place, access in grants))
        for placement, index, offset, grants in mappings(placed, granted(geometry))
    ]
    assert found == [
        ("page.4", 0, ""), ("page.5", 2, "gpu0:rw"), ("hot", 4, "gpu0:rw"),
        ("page.0", 8, ""), ("page.1", 10, "gpu1:r"), ("page.2", 12, ""),
        ("page.1", 16, ""), ("page.2", 18, "gpu0:r gpu1:rw"), ("page.3", 20, "gpu0:r gpu1:rw"), ("page.4", 22, ""),
    ]  # fmt: skip


def test_a_span_has_the_path_of_the_last_part_that_gives_access_there() -> None:
    parts = "[{size: 16MiB, grant: {gpu0: r}}, {offset: 8MiB, size: 2MiB, grant: {gpu1: rw}}]"
    geometry = geometry_of(f"{HEAD}map: {{kv: [hot, {{chunk: page.0, offset: 8MiB}}]}}\naccess: {{kv: {parts}}}")
    spans = granted(geometry)["kv", 0]
    assert [each.path for each in spans] == [("access", "kv", 0), ("access", "kv", 1)]


def test_mappings_without_any_access_have_none() -> None:
    text = "ranges: {kv: {size: 4MiB}}\nchunks: {c: {location: gpu0, size: 2MiB, count: 2}}\nmap: {kv: c}"
    geometry = geometry_of(text)
    found = mappings(geometry.placements["kv", 0], granted(geometry))
    assert [(index, offset, grants) for _, index, offset, grants in found] == [(0, 0, ()), (1, 2 * MIB, ())]


def test_adjacent_mappings_with_equal_access_are_one_span() -> None:
    text = "ranges: {kv: {size: 64MiB}}\nchunks: {a: {location: gpu0, size: 2MiB, count: 20}}\n"
    text += "map: {kv: [a.0:4, a.7, a.5, {chunk: a.8:12, offset: 32MiB}, a]}\naccess: {kv: {gpu0: rw}}"
    assert stretches_of(text.replace("64MiB", "96MiB")) == [("kv", 0, 12, "gpu0:rw"), ("kv", 32, 80, "gpu0:rw")]
