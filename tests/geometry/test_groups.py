"""Groups and geometry: numbers that follow from the entries of a spec."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memtopo.common.units import MiB, parse_size
from memtopo.driver.types import HandleType, Location, LocationKind, gpu
from memtopo.geometry.access import from_offset
from memtopo.geometry.groups import (
    Backing,
    ChunkGroup,
    Group,
    Origin,
    RangeGroup,
    declared_as,
    from_outside,
    gpus,
    has_size,
    in_turns,
    largest_count,
    property_words,
    round_robin,
)
from memtopo.geometry.model import Geometry, Slice
from memtopo.kinds import lay_out
from memtopo.kinds.ipc import BufferGroup
from memtopo.language.names import Reference
from memtopo.spec import read
from tests.helpers.machines import invented
from tests.helpers.specs import document, geometry_of

HOST = Location(LocationKind.HOST)
X = Geometry("x")


def group(text: str, name: str) -> Group:
    (found,) = (each for each in geometry_of(text).every if each.name == name)
    return found


def test_an_import_takes_each_handle_of_one_holder_before_the_next() -> None:
    text = """
processes:
  w: {count: 2, chunks: {c: {location: gpu0, size: 2MiB, count: 3, handles: fd}}, exports: {c: {chunk: c, via: fd}}}
  r: {imports: {i: {from: w.c}}}
"""
    imported = geometry_of(text).processes["r"].of(ChunkGroup)["i"]
    origin = imported.origin
    assert origin
    assert [origin.of(index) for index in range(imported.count)] == [
        *(("w.0", index) for index in range(3)),
        *(("w.1", index) for index in range(3)),
    ]
    assert (origin.text("w.1"), origin.identity) == ("w.1.c", (("w.0", "w.1"), "c"))
    assert (from_outside(imported), declared_as(imported)) == (False, "import")
    assert (imported.shares(), imported.demand(), imported.contexts) == ({}, {}, frozenset())


def test_an_import_of_another_layout_is_external() -> None:
    imported = group("imports: {i: {from: l/w, location: gpu0, size: 2MiB}}", "i")
    assert imported.origin
    assert (from_outside(imported), declared_as(imported), imported.origin.text("l")) == (True, "import", "l/w")
    own = group("chunks: {c: {location: gpu0, size: 2MiB}}", "c")
    assert (from_outside(own), declared_as(own), own.produced, own.stream) == (False, "chunk", False, None)


def test_elastic_chunks_that_a_holder_lends_take_no_memory_of_the_importer() -> None:
    lent = group("imports: {i: {from: pool/page, location: gpu0, size: 2MiB, count: {max: 8}}}", "i")
    assert isinstance(lent, ChunkGroup)
    assert (lent.growing, lent.limit, lent.largest_shares(), lent.demand()) == (True, 8, {}, {})


def test_round_robin_gives_the_rest_to_the_first_locations() -> None:
    places = [gpu(1), HOST, gpu(0)]
    assert [round_robin(count, places) for count in (0, 1, 5, 6)] == [
        {gpu(1): 0, HOST: 0, gpu(0): 0},
        {gpu(1): 1, HOST: 0, gpu(0): 0},
        {gpu(1): 2, HOST: 2, gpu(0): 1},
        {gpu(1): 2, HOST: 2, gpu(0): 2},
    ]
    assert round_robin(5, [gpu(1), gpu(0), gpu(1)]) == {gpu(1): 3, gpu(0): 2}
    assert gpus([*places, Location(LocationKind.HOST_NUMA, 1)]) == {0, 1}


def test_shares_and_demand_count_the_objects_and_bytes_of_each_location() -> None:
    text = "{location: [gpu0, host, gpu0, gpu1], size: 2MiB, count: 6}"
    chunks = group(f"chunks: {{c: {text}}}", "c")
    assert chunks.shares() == {gpu(0): 3, HOST: 2, gpu(1): 1}
    assert chunks.demand() == {gpu(0): 6 * MiB, HOST: 4 * MiB, gpu(1): 2 * MiB}
    assert chunks.contexts == {0, 1}
    assert (chunks.declared_size, list(chunks.details())) == (2 * MiB, [])
    assert chunks.own_access(0, None) == ()


def test_handles_of_chunks_are_those_of_the_entry() -> None:
    text = "chunks: {c: {location: [gpu0, gpu1], size: 2MiB, count: 2, handles: fd}, d: {location: gpu0, size: 2MiB}}"
    chunks = geometry_of(text).of(ChunkGroup)
    assert (chunks["c"].handles, chunks["d"].handles) == (HandleType.FD, HandleType(0))
    assert [chunks["c"].location_of(index) for index in range(2)] == [gpu(0), gpu(1)]


@pytest.mark.parametrize(
    ("entry", "stride", "extent", "hints"),
    [
        ("size: 6MiB, count: 3", 6, 18, [0, 0, 0]),
        (
            "size: 6MiB, count: 3, address: 0x200000000000",
            6,
            18,
            [0x200000000000 + each * 6 * MiB for each in range(3)],
        ),
        ("size: 6MiB, count: 2, align: 4MiB, address: 0x200000000000", 8, 14, [0x200000000000, 0x200000800000]),
        ("size: 8MiB, count: 2, align: 4MiB, address: 0x200000000000", 8, 16, [0x200000000000, 0x200000800000]),
        ("size: 2MiB, address: 0x200000000000", 2, 2, [0x200000000000]),
    ],
)
def test_counted_ranges_ask_for_aligned_consecutive_addresses(
    entry: str, stride: int, extent: int, hints: list[int]
) -> None:
    ranges = geometry_of(f"ranges: {{r: {{{entry}}}}}").of(RangeGroup)["r"]
    assert declared_as(ranges) == "range"
    assert (ranges.stride, ranges.extent) == (stride * MiB, extent * MiB)
    assert [ranges.address_hint(index) for index in range(ranges.count)] == hints


def test_parts_and_spans_end_after_their_last_byte() -> None:
    text = """
ranges: {r: {size: 8MiB, count: 3}}
chunks: {c: {location: gpu0, size: 2MiB, count: 2}}
map: {r.1: [{chunk: c, offset: 2MiB}]}
access: {"r.1:3": [{offset: 2MiB, size: 4MiB, grant: {gpu0: rw}}]}
"""
    geometry = geometry_of(text)
    (part,) = geometry.parts["r"]
    assert (part.offset, part.end, part.instances, part.times) == (2 * MiB, 6 * MiB, (1, 3), 2)
    (placement,) = geometry.placements["r", 1]
    assert (placement.where, placement.offset, placement.end) == (("r", 1), 2 * MiB, 6 * MiB)
    assert [list(from_offset([placement], MiB * each)) for each in (0, 5, 6)] == [[placement], [placement], []]


def test_gpus_of_a_geometry_are_those_of_its_groups_and_its_grants() -> None:
    text = "ranges: {r: {size: 2MiB}}\nchunks: {c: {location: PLACE, size: 2MiB}}\nmap: {r: c}\naccess: {r: ACCESS}"
    machine = invented(5)
    for place, access, expected in (
        ("gpu2", "{}", [2]),
        ("gpu2", "{gpu4: r, gpu1: none}", [2, 4]),
        ("gpu2", "{gpu3: none, gpu0: rw}", [0, 2]),
        ("host:0", "{host: r, gpu4: rw}", [4]),
        ("host:0", "{host: r}", []),
    ):
        assert geometry_of(text.replace("PLACE", place).replace("ACCESS", access), machine).gpus == expected


def test_unresolved_entries_are_known_by_section() -> None:
    read_spec, _ = read(document("ranges: {r: {size: 2MiB}}\nmap: {r: nope}\naccess: {r: {gpu0: r}}").root, frozenset())
    geometry = lay_out(read_spec, invented(1)).geometry
    assert [section for section in ("ranges", "map", "access", "chunks") if geometry.has_unresolved(section)] == ["map"]
    assert not Geometry("x").has_unresolved("map")


def test_a_layout_has_its_process_or_all_of_them_as_members() -> None:
    single = geometry_of("buffers: {b: {location: gpu0, size: 2MiB}}")
    assert single.members == {"": single}
    assert list(single.every) == [single.of(BufferGroup)["b"]]
    assert single.of(ChunkGroup) == {}
    several = geometry_of("processes: {a: {events: {e: {device: gpu0}}}, b: {count: 2, events: {e: {device: gpu0}}}}")
    assert list(several.members) == list(several.processes) == ["a", "b.0", "b.1"]
    assert several.processes["b.0"] is several.processes["b.1"]


@pytest.mark.parametrize(
    ("text", "produced"),
    [
        ("external: {f: {from: camera, via: opaque_fd, device: gpu0, size: 8MiB}}", True),
        ("buffers: {b: {location: gpu0, size: 2MiB}}", False),
    ],
)
def test_a_layout_with_external_memory_needs_a_producer(text: str, produced: bool) -> None:
    geometry = geometry_of(text)
    (made,) = geometry.every
    assert (geometry.produced, declared_as(made)) == (produced, made.noun)


def test_the_held_part_of_a_layout_has_the_held_processes_alone_or_all_where_none_joins() -> None:
    text = "processes: {a: {HELDcount: 2, events: {e: {device: gpu0}}}, b: {events: {e: {device: gpu1}}}}"
    whole, joined = geometry_of(text.replace("HELD", "")), geometry_of(text.replace("HELD", "held: true, "))
    assert (whole.held_part is whole, whole.is_held_part) == (True, False)
    assert (list(joined.held_part.processes), joined.is_held_part) == (["a.0", "a.1"], False)
    assert joined.held_part.is_held_part


def test_a_context_is_kept_only_for_objects_that_end_with_it() -> None:
    """Fact 73."""
    text = """
ranges: {r: {size: 4MiB}}
chunks: {c: {location: [gpu0, gpu1], size: 2MiB, count: 2}}
map: {r: c}
access: {r: {gpu2: rw, gpu3: none}}
events: {e: {device: gpu1}}
"""
    geometry = geometry_of(text, invented(4))
    assert (geometry.gpus, geometry.idle_gpus, geometry.kept_contexts) == ([0, 1, 2], [0, 2], frozenset({1}))


def test_a_context_is_kept_for_buffers_and_events_of_another_layout() -> None:
    text = """
imports:
  b: {from: l/b, via: ipc, location: gpu0, size: 2MiB}
  e: {from: l/e, device: gpu1}
  c: {from: l/c, location: gpu2, size: 2MiB}
ranges: {r: {size: 2MiB}}
map: {r: c}
access: {r: {gpu2: r}}
"""
    geometry = geometry_of(text, invented(3))
    assert (geometry.idle_gpus, geometry.kept_contexts) == ([2], frozenset({0, 1}))


def test_locations_in_turns_end_before_they_repeat() -> None:
    one, other = gpu(0), gpu(1)
    for locations, turns in (
        ([one, other, one, other], 2),
        ([one, other, one], 2),
        ([one, one, other], 3),
        ([one] * 3, 1),
        ([one], 1),
        ([one, other, other, one], 3),
    ):
        assert in_turns(locations) == locations[:turns]


def test_chunks_that_are_gone_are_not_in_the_memory_of_their_location() -> None:
    chunks = geometry_of("chunks: {c: {location: [gpu0, gpu1], size: 2MiB, count: 7}}").of(ChunkGroup)["c"]
    present = replace(chunks, gone=((1, 3), (4, 5)))
    assert (present.shares(), present.demand()) == ({gpu(0): 2, gpu(1): 2}, {gpu(0): 4 * MiB, gpu(1): 4 * MiB})
    assert replace(chunks, count=0, limit=7).largest_shares() == {gpu(0): 4, gpu(1): 3}
    assert not any(replace(chunks, count=0, limit=7, gone=((0, 0),)).largest_shares().values())


def test_an_origin_names_its_sources_and_the_objects_behind_its_handles() -> None:
    """Of its own process it uses the objects themselves; those of a held layout have the name of the layout, too."""
    exported = group("chunks: {c: {location: gpu0, size: 2MiB, count: 4}}", "c")
    origin = Origin(("r.0", "r.1"), "w", 2, "fd", siblings=True, exported=exported, first=1, own="r.1")
    assert [origin.own_label(index) for index in range(4)] == [None, None, "c.1", "c.2"]
    assert (origin.resource(1), replace(origin, exported=None).resource(1)) == (("chunk", "c.2"), None)
    held = replace(origin, layout="pool", siblings=False)
    assert (held.sources, held.text("r.0")) == ((("pool", "r.0.w"), ("pool", "r.1.w")), "pool/r.0.w")
    assert origin.sources == (("r.0", "w"), ("r.1", "w"))


def test_the_size_of_an_import_is_that_before_or_after_rounding_and_in_its_own_granules() -> None:
    chunk = group("chunks: {c: {location: gpu0, size: 3MiB, round: up, rdma: true}}", "c")
    text = "{buffers: {b: {location: gpu0, size: 3MiB}}, exports: {b: {buffer: b, via: ipc}}}"
    buffer = geometry_of(f"processes: {{p: {text}}}").processes["p"].of(BufferGroup)["b"]
    for each in (chunk, buffer):
        assert [has_size(parse_size(f"{size}MiB"), each, each) for size in (2, 3, 4)] == [False, True, True]
    assert isinstance(chunk, ChunkGroup)
    assert has_size(parse_size("4 granules"), replace(chunk, granule=MiB), chunk)
    assert (property_words(chunk), property_words(buffer)) == (("rdma",), ())


def test_a_range_has_its_elastic_chunks_and_their_zero_page_behind_it() -> None:
    text = "chunks: {c: {location: gpu0, size: 2MiB, count: {min: 1, max: 3}}, z: {location: gpu0, size: 2MiB}}"
    chunks = geometry_of(text).of(ChunkGroup)
    assert [largest_count(each) for each in chunks.values()] == [3, 1]
    backing = Backing((chunks["c"],), chunks["z"])
    assert (backing.every, replace(backing, zero=None).every) == ((chunks["c"], chunks["z"]), (chunks["c"],))


def test_placements_map_each_step_of_their_chunks_or_one_chunk_again_and_again() -> None:
    text = "ranges: {r: {size: 6MiB}}\nchunks: {c: {location: gpu0, size: 2MiB, count: 9}}\nmap: {r: c.2:5}"
    (plain,) = geometry_of(text).placements["r", 0]
    second, one = replace(plain, step=2), replace(plain, step=0)
    mapped = [[[*each.mapped(index)] for index in (0, 2, 3, 4, 8)] for each in (plain, second, one)]
    assert mapped == [[[], [0], [1], [2], []], [[], [0], [], [1], []], [[], [0, 1, 2], [], [], []]]
    assert [[*each.indices] for each in (plain, second, one)] == [[2, 3, 4], [2, 4, 6], [2]]
    numbers = range(3)
    chunks = [([*each.chunks(numbers)], [*each.chunks(numbers[::-1])]) for each in (plain, second, one)]
    assert chunks == [([2, 3, 4], [4, 3, 2]), ([2, 4, 6], [6, 4, 2]), ([2, 2, 2], [2, 2, 2])]
    assert [[*each.spans] for each in (plain, second, one)] == [[(2, 5)], [(2, 3), (4, 5), (6, 7)], [(2, 3)]]


def test_one_element_is_repeated_and_a_part_of_one_element_is_not() -> None:
    counted, single = (group(f"chunks: {{c: {{location: gpu0, size: 2MiB{n}}}}}", "c") for n in (", count: 1", ""))
    for chunks, reference, repeated in (
        (counted, Reference("c"), False), (counted, Reference("c", 0, 1), True), (single, Reference("c"), True)
    ):  # fmt: skip
        assert isinstance(chunks, ChunkGroup)
        assert Slice(chunks, 0, 1, reference, None, ()).repeated is repeated
    assert isinstance(counted, ChunkGroup)
    assert not Slice(counted, 0, 2, Reference("c", 0, 2), None, ()).repeated


def test_a_geometry_names_locations_with_its_node_and_has_the_processes_beside_one() -> None:
    whole = Geometry("x", nodes={"a": ("p.0", "p.1"), "b": ("q",)}, processes=dict.fromkeys(("p.0", "p.1", "q"), X))
    assert [replace(X, node="a").place(each) for each in (gpu(0), gpu(0).on("b"))] == ["a/gpu0", "b/gpu0"]
    assert X.place(gpu(0)) == "gpu0 of this machine"
    assert (whole.labels_beside("p.1"), X.labels_beside("p.1")) == (("p.0", "p.1"), ())
    assert [(node, each.nodes) for node, each in whole.by_node] == [("a", {"a": ("p.0", "p.1")}), ("b", {"b": ("q",)})]
    assert not X.is_held_part


def test_a_process_that_imports_from_outside_and_groups_of_derived_classes_are_found() -> None:
    text = "processes: {a: {events: {e: {device: gpu0}}}, b: {IMPORTS}}"
    for imports, outside in (("imports: {c: {from: l/c, location: gpu0, size: 2MiB}}", True), ("events: {}", False)):
        geometry = geometry_of(text.replace("IMPORTS", imports))
        assert geometry.imports_from_outside is outside
    one = geometry_of("buffers: {b: {location: gpu0, size: 2MiB}}\nevents: {e: {device: gpu0}}")
    assert [[each.name for each in one.instances_of(kind)] for kind in (Group, BufferGroup)] == [["b", "e"], ["b"]]
