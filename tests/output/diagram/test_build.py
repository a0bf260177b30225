from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from memtopo import machine, planner
from memtopo.common.units import GiB, MiB
from memtopo.geometry.diagram import DeviceAccess, Diagram, MappingSpan
from memtopo.geometry.groups import ChunkGroup, RangeGroup
from memtopo.kinds.heaps import BackupGroup, HeapGroup
from memtopo.kinds.ipc import BufferGroup
from memtopo.kinds.managed import ManagedAllocation
from memtopo.kinds.pinned import PinnedGroup
from memtopo.kinds.states.groups import OffloadArea
from memtopo.language import read_file
from memtopo.machine import CONTEXT_BYTES
from memtopo.output.blocks import Drawing
from memtopo.output.diagram.build import build_diagram
from memtopo.output.diagram.build.memory import Marks
from memtopo.output.diagram.build.ranges import MOST_SINGLE
from memtopo.output.diagram.svg import svg
from memtopo.rules import validate
from tests.helpers.command_line import run_memtopo
from tests.helpers.diagrams import ENOUGH_MEMORY, PARTS_AND_HOLES, text_diagram
from tests.helpers.machines import invented, with_nodes
from tests.helpers.specs import ROOT, SPECS, geometry_of, run, run_request


def one_range(mapped: str, chunks: str = "c: {location: gpu0, size: 2MiB, count: 8}", access: str = "{}") -> Diagram:
    return text_diagram(
        f"ranges: {{r: {{size: 64MiB}}}}\nchunks: {{{chunks}}}\nmap: {{r: [{mapped}]}}\naccess: {access}\n"
    )


def spans(found: Diagram, index: int = 0) -> tuple[MappingSpan, ...]:
    return found.ranges[index].pieces


def test_an_entry_that_two_spans_cover_has_the_mark_of_the_first() -> None:
    chunks = geometry_of("chunks: {c: {location: gpu0, size: 2MiB}, a: {location: gpu0, size: 2MiB}, "
                         "b: {location: gpu0, size: 2MiB}}").of(ChunkGroup)  # fmt: skip
    marks = Marks({})
    assert (marks.join("", [chunks["a"], chunks["b"]]), marks.join("", [chunks["c"], chunks["b"]])) == ("a", "c")
    assert [marks.mark("", chunks[name]) for name in "abc"] == ["a", "a", "c"]


def shape(found: Diagram) -> list[tuple[str, int, int]]:
    """The first range's pieces: first chunk or nothing, offset and size in MiB."""
    return [(span.first, span.offset // MiB, span.size // MiB) for span in spans(found)]


@pytest.mark.parametrize("path", [*SPECS, PARTS_AND_HOLES], ids=lambda path: path.stem)
def test_spans_cover_each_range_to_the_byte(path: Path) -> None:
    facts = machine.load("h200x4") if path != PARTS_AND_HOLES else invented()
    found = validate(read_file(path), facts).geometry
    assert found
    for shown in build_diagram(found, facts).ranges:
        ends = [0, *(span.offset + span.size for span in shown.pieces)]
        assert [span.offset for span in shown.pieces] == ends[:-1]
        assert ends[-1] == shown.size
        assert all(one.chunk or other.chunk for one, other in zip(shown.pieces, shown.pieces[1:], strict=False))
        assert all(span.size == span.count * span.bytes_each for span in shown.pieces if span.chunk)


@pytest.mark.parametrize("path", [*SPECS, PARTS_AND_HOLES], ids=lambda path: path.stem)
def test_sums_are_those_of_the_geometry_and_the_plan(path: Path) -> None:
    facts = machine.load("h200x4") if path != PARTS_AND_HOLES else invented()
    found = validate(read_file(path), facts).geometry
    assert found
    shown = build_diagram(found, facts)
    placements = [each for placed in found.placements.values() for each in placed]
    ranges = [(each, span) for each in shown.ranges for span in each.pieces if span.path[-2:] != ("elastic", "zero")]
    assert sum(each.count for each in shown.ranges) == sum(run.count for run in found.of(RangeGroup).values())
    assert sum(each.count * span.count for each, span in ranges) == sum(each.count for each in placements)
    size = sum(each.count * span.size for each, span in ranges if span.chunk)
    assert size == sum(each.end - each.offset for each in placements)
    assert all(
        each.mapped == (each.size if each.zero else sum(span.size for span in each.pieces if span.chunk))
        for each in shown.ranges
    )
    most = Counter(planner.plan(found, facts).memory)
    for group in found.every:  # elastic chunks are drawn with as many as a program may create
        most.update({str(at): number * group.size for at, number in group.largest_shares().items()})
        most.subtract({str(at): number * group.size for at, number in group.shares().items()})
    assert {each.device: each.used for each in shown.memory} == most
    held = Counter[str]()
    for each in shown.memory:
        assert each.used == sum(share.size for share in each.shares)
        contexts = CONTEXT_BYTES * (each.device in [f"gpu{ordinal}" for ordinal in found.gpus])
        assert each.free == (None if each.total is None else each.total - each.used - contexts)
        held.update({share.chunk: share.count for share in each.shares})
    others = sum(run.count for run in found.of(BufferGroup).values())
    others += len(found.of(ManagedAllocation)) + sum(not area.inside for area in found.of(OffloadArea).values())
    others += sum(run.count for run in found.of(PinnedGroup).values() if not run.registered)
    others += sum(run.limit or 0 for run in found.of(HeapGroup).values())
    others += sum(run.size > 0 for run in found.of(BackupGroup).values())
    assert held.total() == sum(run.limit or run.count for run in found.of(ChunkGroup).values()) + others


def test_unmapped_addresses_are_spans_without_a_chunk() -> None:
    found = one_range("{chunk: c.0, offset: 2MiB}, {chunk: c.1, offset: 8MiB}")
    assert shape(found) == [("", 0, 2), ("c.0", 2, 2), ("", 4, 4), ("c.1", 8, 2), ("", 10, 54)]


def test_an_empty_range_is_one_hole() -> None:
    found = text_diagram("ranges: {r: {size: 64MiB}}")
    assert shape(found) == [("", 0, 64)]
    assert found.ranges[0].mapped == 0


def test_a_zero_chunk_is_mapped_read_only_wherever_the_layout_maps_nothing_else() -> None:
    text = """\
ranges: {{r: {{size: 16MiB, count: 2, elastic: {{chunks: page{}}}}}}}
chunks:
  page: {{location: gpu0, size: 2MiB, count: {{min: 0, max: 4}}}}
  blank: {{location: gpu1, size: 2MiB}}
  c: {{location: gpu0, size: 2MiB, count: 2}}
map: {{r.0: [{{chunk: c.0, offset: 4MiB}}], r.1: [{{chunk: c.1, offset: 4MiB}}]}}
access: {{r: [{{offset: 0, size: 12MiB, grant: {{gpu0: rw, gpu1: r}}}}]}}
"""
    (backed,) = text_diagram(text.format(", zero: blank")).ranges
    words = [
        (span.first, span.offset // MiB, span.count, [each.access for each in span.access]) for span in backed.pieces
    ]
    assert words == [
        ("blank", 0, 2, ["r", "r"]),
        ("c.0", 4, 1, ["rw", "r"]),
        ("blank", 6, 3, ["r", "r"]),
        ("blank", 12, 2, []),
    ]
    first = backed.pieces[0]
    assert (backed.count, backed.mapped, first.locations, first.interval) == (2, backed.size, ("gpu1",), 0)
    assert first.elsewhere == 2 * 7 - 2
    (program_only,) = text_diagram(text.format("")).ranges
    assert [span.first for span in program_only.pieces] == ["", "c.0", ""]


def test_a_span_ends_where_access_changes() -> None:
    found = one_range("c", access="{r: [{size: 4MiB, offset: 0, grant: {gpu0: rw, gpu1: r}}]}")
    assert shape(found) == [("c.0", 0, 4), ("c.2", 4, 12), ("", 16, 48)]
    assert spans(found)[0].access == (DeviceAccess("gpu0", "rw"), DeviceAccess("gpu1", "r"))
    assert spans(found)[1].access == ()


def test_map_entries_that_continue_are_one_span() -> None:
    assert shape(one_range("c.0:3, c.3, c.4:8")) == shape(one_range("c"))


def test_a_span_has_its_locations_from_its_first_chunk_on() -> None:
    spread = "c: {location: [gpu0, gpu1], size: 2MiB, count: 8}"
    found = one_range("c.1:4, {chunk: c.5, offset: 8MiB}", spread)
    assert [span.locations for span in spans(found) if span.chunk] == [("gpu1", "gpu0"), ("gpu1",)]


def test_a_span_counts_the_other_mappings_of_its_chunks() -> None:
    ring = one_range("{chunk: c.0, offset: 0}, c.0, c.0:2")
    assert [(span.first, span.elsewhere) for span in spans(ring) if span.chunk] == [("c.0", 2), ("c.0", 2), ("c.0", 2)]
    assert [span.elsewhere for span in spans(one_range("c")) if span.chunk] == [0]


def singles(count: int, places: list[str], size: str = "2MiB") -> Diagram:
    chunks = ", ".join(f"c{index}: {{location: {places[index % len(places)]}, size: {size}}}" for index in range(count))
    return one_range(", ".join(f"c{index}" for index in range(count)), chunks)


def test_many_equal_single_chunks_are_one_span() -> None:
    few, many = singles(MOST_SINGLE, ["gpu0"]), singles(MOST_SINGLE + 1, ["gpu0", "gpu1"])
    assert len(spans(few)) == MOST_SINGLE + 1
    span = spans(many)[0]
    assert (span.first, span.last, span.count) == ("c0", f"c{MOST_SINGLE}", MOST_SINGLE + 1)
    assert span.locations == ("gpu0", "gpu1")


def test_single_chunks_without_a_cycle_are_one_span_per_location() -> None:
    found = singles(20, ["gpu0"] * 10 + ["gpu1"] * 10)
    assert [(span.first, span.locations) for span in spans(found)[:2]] == [("c0", ("gpu0",)), ("c10", ("gpu1",))]


def test_entries_of_one_span_share_its_mark() -> None:
    found = singles(10, ["gpu0", "gpu1"])
    shares = [(share.chunk, share.count) for memory in found.memory for share in memory.shares]
    assert spans(found)[0].chunk == "c0"
    assert shares == [("c0", 5), ("c0", 5)]


COUNTED = "ranges: {{r: {{size: 8MiB, count: 32}}}}\nchunks: {{c: {{location: gpu0, size: 2MiB, count: 200}}}}\n{}"


def test_equal_neighbouring_ranges_are_one_with_a_step() -> None:
    found = text_diagram(COUNTED.format("map: {r: [c.0:128]}"))
    assert [(each.first, each.last, each.count) for each in found.ranges] == [("r.0", "r.31", 32)]
    assert [(span.first, span.last, span.step) for span in spans(found)] == [("c.0", "c.3", 4)]


class CountedLookups(dict[Any, Any]):
    """Placements whose lookups are counted."""

    lookups = 0

    def get(self, key: Any, default: Any = None) -> Any:
        self.lookups += 1
        return super().get(key, default)


def test_equal_empty_ranges_are_looked_at_together() -> None:
    rest = "map: {r.7: [c.0], r.900000: [c.1]}\naccess: {r.100:200: {gpu0: rw}}"
    facts = invented(1)
    given = geometry_of(COUNTED.format(rest).replace("count: 32", "count: 1000000"), facts)
    placements = CountedLookups(given.placements)
    found = build_diagram(replace(given, placements=placements), facts)
    assert [each.first for each in found.ranges] == ["r.0", "r.7", "r.8", "r.100", "r.200", "r.900000", "r.900001"]
    assert sum(each.count for each in found.ranges) == 1000000
    assert placements.lookups < 10


def test_ranges_with_the_same_chunks_have_step_0() -> None:
    entries = ", ".join(f"r.{index}: [c.0:4]" for index in range(32))
    (span,) = spans(text_diagram(COUNTED.format(f"map: {{{entries}}}")))
    assert (span.step, span.elsewhere) == (0, 31 * 4)


@pytest.mark.parametrize(
    ("rest", "firsts"),
    [
        ("map: {r: [c.0:126]}", ["r.0", "r.31"]),
        ("map: {r.0: [c.0:4], r.8: [c.0:4]}", ["r.0", "r.1", "r.8", "r.9"]),
        ("map: {r: [c.0:128]}\naccess: {r.0:16: {gpu0: rw}, r.16:32: {gpu0: r}}", ["r.0", "r.16"]),
        ("map: {r.0:16: [c.0:64], r.16:32: [c.100:164]}", ["r.0", "r.16"]),
    ],
)
def test_a_range_with_other_content_access_or_step_is_separate(rest: str, firsts: list[str]) -> None:
    assert [each.first for each in text_diagram(COUNTED.format(rest)).ranges] == firsts


def test_memory_has_all_names_of_its_device() -> None:
    found = text_diagram(
        "devices: {left: 0, first: 0}\nranges: {r: {size: 4MiB}}\n"
        "chunks: {c: {location: left, size: 2MiB}, h: {location: host:0, size: 2MiB}}\n"
        "map: {r: [c, h]}\naccess: {r: {first: rw}}\n"
    )
    gpu, host = found.memory
    assert (gpu.device, gpu.names, gpu.total, gpu.free) == (
        "gpu0",
        ("left", "first"),
        ENOUGH_MEMORY,
        ENOUGH_MEMORY - 2 * MiB - CONTEXT_BYTES,
    )
    assert (host.device, host.total, host.free) == ("host:0", None, None)


def test_memory_of_the_host_is_shown_for_each_node() -> None:
    """What is free on the host is what its nodes leave; managed memory that prefers the host is shown there alone."""
    facts = with_nodes(invented(1), 8 * GiB, 4 * GiB)
    text = """\
ranges: {r: {size: 1GiB}}
chunks: {a: {location: host:1, size: 3GiB}, b: {location: host:0, size: 1GiB}, c: {location: gpu0, size: 1GiB}}
map: {r: [c]}
access: {r: {gpu0: rw}}
managed: {m: {size: 2GiB, prefer: host}}
states: {asleep: {offload: {c: host:1}}, away: {offload: {c: pinned}}}
"""
    found = {each.device: each for each in build_diagram(geometry_of(text, facts), facts).memory}
    assert {name: (each.used // GiB, each.total, each.free) for name, each in found.items()} == {
        "gpu0": (1, 80 * GiB, 79 * GiB - CONTEXT_BYTES),
        "host": (3, 12 * GiB, 4 * GiB),
        "host:0": (1, 8 * GiB, 7 * GiB),
        "host:1": (4, 4 * GiB, 0),
    }
    unknown = build_diagram(geometry_of(text, invented(1, nodes=2)), invented(1, nodes=2)).memory
    assert [(each.total, each.free) for each in unknown if each.device != "gpu0"] == [(None, None)] * 3
    assert planner.plan(geometry_of(text, facts), facts).memory == {name: each.used for name, each in found.items()}


def test_memory_in_use_on_a_live_device_is_not_free() -> None:
    facts = invented(1, memory=1100 * MiB)
    live = facts.model_copy(update={"devices": [facts.devices[0].model_copy(update={"free_bytes": 1060 * MiB})]})
    text = "ranges: {r: {size: 2MiB}}\nchunks: {c: {location: gpu0, size: 2MiB}}\nmap: {r: [c]}"
    (before,), (now,) = (build_diagram(geometry_of(text, each), each).memory for each in (facts, live))
    assert (before.taken, before.free) == (None, 1098 * MiB - CONTEXT_BYTES)
    assert (now.taken, now.free, now.total) == (40 * MiB, 1058 * MiB - CONTEXT_BYTES, 1100 * MiB)


@pytest.mark.parametrize("count", [1, 1000, 20_000])
def test_a_diagram_does_not_grow_with_equal_chunks(count: int) -> None:
    found = text_diagram(
        f"ranges: {{r: {{size: 4MiB, count: {count}}}}}\n"
        f"chunks: {{c: {{location: gpu0, size: 2MiB, count: {count * 2}}}}}\n"
        "map: {r: [c]}\naccess: {r: {gpu0: rw}}\n"
    )
    assert (len(found.ranges), len(spans(found)), len(found.memory[0].shares)) == (1, 1, 1)


@pytest.mark.parametrize("command", ["plan", "apply"])
def test_plan_and_apply_print_the_diagram_as_json(command: str) -> None:
    found = run_memtopo(command, ROOT / "specs" / "quickstart.yaml", "--machine", "h200x2", "--json")
    assert found.status == 0
    printed = json.loads(found.out)["plan"]["picture"]
    assert [span["first"] for span in printed["ranges"][0]["pieces"]] == ["hot", "cold", "page.0"]
    assert [memory["device"] for memory in printed["memory"]] == ["gpu0", "gpu1"]


def test_managed_memory_is_a_resource_with_its_advice() -> None:
    found = text_diagram(
        "managed:\n"
        "  index: {size: 8MiB, prefer: host, accessed_by: [gpu1, host]}\n"
        "  table: {size: 4MiB, attach: single, read_mostly: true, prefetch: gpu1}\n"
    )
    index, table = found.things
    assert (index.kind, index.name, index.bytes_each, index.locations) == ("managed", "index", 8 * MiB, ("host",))
    assert table.locations == ("gpu1",)
    assert index.notes == ("prefers host", "accessed by gpu1, host")
    assert table.notes == ("attached to one stream", "read mostly", "prefetched to gpu1")
    shares = {memory.device: [share.chunk for share in memory.shares] for memory in found.memory}
    assert shares == {"gpu1": [table.mark], "host": [index.mark]}
    assert found.flows == ()


EXTERNAL = """
external:
  frame:
    {from: camera, via: opaque_fd, device: gpu1, size: 8MiB,
     buffers: {y: {offset: 0, size: 4MiB}, uv: {offset: 2MiB, size: 6MiB}}}
  tile: {from: camera/other, via: opaque_fd, device: gpu0, size: 2MiB, dedicated: true}
semaphores:
  ready: {from: camera, via: timeline_fd, device: gpu1, wait: 1, signal: 2}
  done: {from: camera, via: opaque_fd, device: gpu0, signal: true}
"""


def test_external_objects_have_parts_and_semaphores_have_values() -> None:
    frame, tile, ready, done = text_diagram(EXTERNAL).things
    assert (frame.kind, frame.bytes_each, frame.locations) == ("external", 8 * MiB, ("gpu1",))
    assert (frame.origin, frame.notes) == ("camera/frame", ())
    assert [(part.kind, part.name, part.offset, part.bytes_each) for part in frame.parts] == [
        ("part", "frame.y", 0, 4 * MiB),
        ("part", "frame.uv", 2 * MiB, 6 * MiB),
    ]
    assert {part.mark for part in frame.parts} == {frame.mark}
    assert [part.path for part in frame.parts] == [("external", "frame", "buffers", part) for part in ("y", "uv")]
    assert (tile.origin, tile.notes, tile.parts) == ("camera/other", ("dedicated",), ())
    assert (ready.kind, ready.origin, ready.locations) == ("semaphore", "camera/ready", ("gpu1",))
    assert ready.notes == ("timeline", "waits for 1", "signals 2")
    assert done.notes == ("binary", "signals")


def test_external_objects_use_no_memory_of_the_layout() -> None:
    assert text_diagram(EXTERNAL).memory == ()


def test_each_external_resource_is_one_handle_from_outside() -> None:
    found = text_diagram(EXTERNAL)
    assert {flow.name for flow in found.flows} == {thing.name for thing in found.things}
    assert all(flow.outside and flow.count == 1 and flow.source == "camera" for flow in found.flows)
    flows = {flow.name: (flow.kind, flow.via, flow.bytes_each) for flow in found.flows}
    assert flows == {
        "frame": ("memory", "opaque_fd", 8 * MiB),
        "tile": ("memory", "opaque_fd", 2 * MiB),
        "ready": ("semaphore", "timeline_fd", 0),
        "done": ("semaphore", "opaque_fd", 0),
    }


def test_external_resources_belong_to_the_importing_process() -> None:
    found = text_diagram(
        "processes:\n"
        "  maker: {ranges: {r: {size: 2MiB}}, chunks: {c: {location: gpu0, size: 2MiB}}, map: {r: [c]}}\n"
        "  taker: {external: {frame: {from: camera, via: opaque_fd, device: gpu0, size: 2MiB}}}\n"
    )
    assert [(flow.source, flow.target, flow.name) for flow in found.flows] == [("camera", "taker", "frame")]
    assert [[thing.mark for thing in each.picture.things] for each in found.processes] == [[], ["taker: frame"]]


def test_free_memory_is_that_of_the_report_while_the_layout_is_held() -> None:
    machine = invented(2)
    text = "ranges: {r: {size: 2GiB}}\nchunks: {c: {location: gpu0, size: 2GiB}}\nmap: {r: c}\naccess: {r: {gpu0: rw}}"
    (memory,) = build_diagram(geometry_of(text, machine), machine).memory
    left = run(run_request(text, machine), machine).report.left
    assert left
    assert [memory.free] == [each.held for each in left.memory if each.device == "gpu0"]


TWO_RANKS = """
processes:
  rank:
    count: 2
    devices: {mine: [gpu0, gpu1]}
    chunks: {w: {location: mine, size: 2MiB, count: COUNT, handles: fd}}
    exports: {w: {chunk: w, via: fd}}
  reader:
    ranges: {r: {size: 256MiB}}
    imports: {w: {from: rank.w}}
    map: {r: [w]}
    access: {r: {gpu0: r}}
"""


@pytest.mark.parametrize("count", [1, 2, 8, 64])
def test_chunks_that_are_imported_from_several_processes_are_drawn_on_their_gpus(count: int) -> None:
    found = text_diagram(TWO_RANKS.replace("COUNT", str(count)))
    pieces = [each for each in found.processes[-1].picture.ranges[0].pieces if each.chunk]
    drawn = [each.locations[nth % len(each.locations)] for each in pieces for nth in range(each.count)]
    assert drawn == ["gpu0"] * count + ["gpu1"] * count
    assert all(len({*each.locations}) == len(each.locations) for each in pieces)  # a label names each once


IRREGULAR = random.Random(1).choices(["gpu0", "gpu1"], k=400)


@pytest.mark.parametrize(
    ("order", "count", "mixed"),
    [
        (["gpu0", "gpu1"], 1000, False),
        (["gpu0", "gpu1", "gpu0"], 1000, False),
        (["gpu0", "gpu0", "gpu1"], 3, False),
        (["gpu0"] * 20 + ["gpu1"] * 20, 200, False),
        (["gpu0"] * 20 + ["gpu1"] * 20, 210, False),
        (["gpu0", "gpu1"] * 20 + ["gpu0"] * 7, 47, False),
        (IRREGULAR[:60], 60, False),
        (IRREGULAR, 400, True),
        (IRREGULAR, 1000, True),
    ],
    ids=lambda value: str(len(value)) if isinstance(value, list) else str(value),
)
def test_a_drawing_has_the_location_of_each_chunk_or_says_that_they_are_mixed(
    order: list[str], count: int, *, mixed: bool
) -> None:
    found = text_diagram(
        f"ranges: {{r: {{size: 2GiB}}}}\nmap: {{r: [c]}}\naccess: {{r: {{gpu0: rw}}}}\n"
        f"chunks: {{c: {{location: [{', '.join(order)}], size: 2MiB, count: {count}}}}}\n"
    )
    pieces = [each for each in found.ranges[0].pieces if each.chunk]
    drawn = [each.locations[nth % len(each.locations)] for each in pieces for nth in range(each.count)]
    assert len(drawn) == count
    assert [each.mixed for each in pieces] == [mixed] * len(pieces)
    assert (drawn == [order[index % len(order)] for index in range(count)]) is not mixed
    assert ("gpu0, gpu1 in mixed order" in svg(Drawing(found, "title"))) is mixed
