from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from memtopo import machine, planner
from memtopo.cli import apply as apply_command
from memtopo.cli import plan as plan_command
from memtopo.common.units import MiB
from memtopo.geometry import Geometry
from memtopo.language import read_file
from memtopo.machine import Machine
from memtopo.output import json as rendering
from memtopo.output.diagram.build import build_diagram
from memtopo.output.diagram.build.ranges import MOST_SINGLE
from memtopo.output.diagram.model import DeviceAccess, Diagram, MappingSpan
from memtopo.rules.validation import validate
from tests.helpers.machines import invented
from tests.helpers.specs import ROOT, SPECS, judged

HARD = ROOT / "tests" / "golden" / "parts-and-holes.yaml"
ROOMY = 1 << 50


def geometry(text: str, facts: Machine) -> Geometry:
    found = judged(text, facts)
    assert found.geometry is not None, found.diagnostics
    return found.geometry


def pictured(text: str, gpus: int = 2) -> Diagram:
    facts = invented(gpus, memory=ROOMY)
    return build_diagram(geometry(text, facts), facts)


def one_range(mapped: str, chunks: str = "c: {location: gpu0, size: 2MiB, count: 8}", access: str = "{}") -> Diagram:
    return pictured(f"ranges: {{r: {{size: 64MiB}}}}\nchunks: {{{chunks}}}\nmap: {{r: [{mapped}]}}\naccess: {access}\n")


def pieces(found: Diagram, turn: int = 0) -> tuple[MappingSpan, ...]:
    return found.ranges[turn].pieces


def shape(found: Diagram) -> list[tuple[str, int, int]]:
    """The first range's pieces: first chunk or nothing, offset and size in MiB."""
    return [(piece.first, piece.offset // MiB, piece.size // MiB) for piece in pieces(found)]


@pytest.mark.parametrize("path", [*SPECS, HARD], ids=lambda path: path.stem)
def test_pieces_cover_each_range(path: Path) -> None:
    """The pieces of a range lie one behind another and cover it to the byte; two neighbours are not both holes"""
    facts = machine.load("h200x4") if path != HARD else invented()
    found = validate(read_file(path), facts).geometry
    assert found
    for shown in build_diagram(found, facts).ranges:
        ends = [0, *(piece.offset + piece.size for piece in shown.pieces)]
        assert [piece.offset for piece in shown.pieces] == ends[:-1]
        assert ends[-1] == shown.size
        assert all(one.chunk or other.chunk for one, other in zip(shown.pieces, shown.pieces[1:], strict=False))
        assert all(piece.size == piece.count * piece.bytes_each for piece in shown.pieces if piece.chunk)


@pytest.mark.parametrize("path", [*SPECS, HARD], ids=lambda path: path.stem)
def test_sums_agree(path: Path) -> None:
    """A picture has the ranges, mappings, mapped bytes and memory that the geometry has"""
    facts = machine.load("h200x4") if path != HARD else invented()
    found = validate(read_file(path), facts).geometry
    assert found
    shown = build_diagram(found, facts)
    placements = [each for placed in found.placements.values() for each in placed]
    ranges = [(each, piece) for each in shown.ranges for piece in each.pieces]
    assert sum(each.count for each in shown.ranges) == sum(run.count for run in found.ranges.values())
    assert sum(each.count * piece.count for each, piece in ranges) == sum(each.count for each in placements)
    assert sum(each.count * each.mapped for each in shown.ranges) == sum(each.end - each.offset for each in placements)
    assert {each.device: each.used for each in shown.memory} == planner.plan(found, facts).memory
    held = Counter[str]()
    for each in shown.memory:
        assert each.used == sum(share.size for share in each.shares)
        assert each.free == (None if each.total is None else each.total - each.used)
        held.update({share.chunk: share.count for share in each.shares})
    others = sum(run.count for run in found.buffers.values()) + len(found.managed)
    assert held.total() == sum(run.count for run in found.chunks.values()) + others


def test_a_hole() -> None:
    """What is not mapped is a piece without a chunk: before, between and behind"""
    found = one_range("{chunk: c.0, offset: 2MiB}, {chunk: c.1, offset: 8MiB}")
    assert shape(found) == [("", 0, 2), ("c.0", 2, 2), ("", 4, 4), ("c.1", 8, 2), ("", 10, 54)]


def test_an_empty_range() -> None:
    """A range that nothing is mapped into is one hole"""
    found = pictured("ranges: {r: {size: 64MiB}}")
    assert shape(found) == [("", 0, 64)]
    assert found.ranges[0].mapped == 0


def test_cut_where_access_changes() -> None:
    """Neighbouring chunks are one piece as far as their access is the same"""
    found = one_range("c", access="{r: [{size: 4MiB, offset: 0, grant: {gpu0: rw, gpu1: r}}]}")
    assert shape(found) == [("c.0", 0, 4), ("c.2", 4, 12), ("", 16, 48)]
    assert pieces(found)[0].access == (DeviceAccess("gpu0", "rw"), DeviceAccess("gpu1", "r"))
    assert pieces(found)[1].access == ()


def test_entries_that_go_on_are_one_piece() -> None:
    """It does not matter in how many entries a run of chunks is mapped"""
    assert shape(one_range("c.0:3, c.3, c.4:8")) == shape(one_range("c"))


def test_locations_in_turn() -> None:
    """A piece names the locations from its first chunk on, and none that has no chunk in it"""
    dealt = "c: {location: [gpu0, gpu1], size: 2MiB, count: 8}"
    found = one_range("c.1:4, {chunk: c.5, offset: 8MiB}", dealt)
    assert [piece.locations for piece in pieces(found) if piece.chunk] == [("gpu1", "gpu0"), ("gpu1",)]


def test_chunks_that_are_seen_elsewhere() -> None:
    """A piece counts the other mappings of its chunks, in its own range or another"""
    ring = one_range("{chunk: c.0, offset: 0}, c.0, c.0:2")
    assert [(piece.first, piece.elsewhere) for piece in pieces(ring) if piece.chunk] == [
        ("c.0", 2),
        ("c.0", 2),
        ("c.0", 2),
    ]
    assert [piece.elsewhere for piece in pieces(one_range("c")) if piece.chunk] == [0]


def singles(count: int, places: list[str], size: str = "2MiB") -> Diagram:
    chunks = ", ".join(f"c{turn}: {{location: {places[turn % len(places)]}, size: {size}}}" for turn in range(count))
    return one_range(", ".join(f"c{turn}" for turn in range(count)), chunks)


def test_many_single_chunks_are_one_piece() -> None:
    """More than a handful of neighbouring entries of one equal chunk each are one piece, with their places in turn"""
    few, many = singles(MOST_SINGLE, ["gpu0"]), singles(MOST_SINGLE + 1, ["gpu0", "gpu1"])
    assert len(pieces(few)) == MOST_SINGLE + 1
    piece = pieces(many)[0]
    assert (piece.first, piece.last, piece.count) == ("c0", f"c{MOST_SINGLE}", MOST_SINGLE + 1)
    assert piece.locations == ("gpu0", "gpu1")


def test_single_chunks_on_places_without_order() -> None:
    """Single chunks whose places follow no order are one piece for each place"""
    found = singles(20, ["gpu0"] * 10 + ["gpu1"] * 10)
    assert [(piece.first, piece.locations) for piece in pieces(found)[:2]] == [("c0", ("gpu0",)), ("c10", ("gpu1",))]


def test_one_mark_for_one_piece() -> None:
    """Entries that one piece stands for are one share of each memory, under the mark of that piece"""
    found = singles(10, ["gpu0", "gpu1"])
    shares = [(share.chunk, share.count) for memory in found.memory for share in memory.shares]
    assert pieces(found)[0].chunk == "c0"
    assert shares == [("c0", 5), ("c0", 5)]


COUNTED = "ranges: {{r: {{size: 8MiB, count: 32}}}}\nchunks: {{c: {{location: gpu0, size: 2MiB, count: 200}}}}\n{}"


def test_equal_ranges_are_one() -> None:
    """Counted ranges that differ in the numbers of their chunks alone are one, with the step from each to the next"""
    found = pictured(COUNTED.format("map: {r: [c.0:128]}"))
    assert [(each.first, each.last, each.count) for each in found.ranges] == [("r.0", "r.31", 32)]
    assert [(piece.first, piece.last, piece.step) for piece in pieces(found)] == [("c.0", "c.3", 4)]


def test_ranges_that_show_the_same_chunks() -> None:
    """Where each of equal ranges maps the same chunks, the step is 0 and each is seen elsewhere"""
    entries = ", ".join(f"r.{turn}: [c.0:4]" for turn in range(32))
    (piece,) = pieces(pictured(COUNTED.format(f"map: {{{entries}}}")))
    assert (piece.step, piece.elsewhere) == (0, 31 * 4)


@pytest.mark.parametrize(
    ("rest", "told"),
    [
        ("map: {r: [c.0:126]}", ["r.0", "r.31"]),
        ("map: {r.0: [c.0:4], r.8: [c.0:4]}", ["r.0", "r.1", "r.8", "r.9"]),
        ("map: {r: [c.0:128]}\naccess: {r.0:16: {gpu0: rw}, r.16:32: {gpu0: r}}", ["r.0", "r.16"]),
        ("map: {r.0:16: [c.0:64], r.16:32: [c.100:164]}", ["r.0", "r.16"]),
    ],
)
def test_ranges_that_differ(rest: str, told: list[str]) -> None:
    """A range of another content, access or step is told on its own"""
    assert [each.first for each in pictured(COUNTED.format(rest)).ranges] == told


def test_names_of_a_device() -> None:
    """Memory carries every name that the spec has for its device; the host's has no total"""
    found = pictured(
        "devices: {left: 0, first: 0}\nranges: {r: {size: 4MiB}}\n"
        "chunks: {c: {location: left, size: 2MiB}, h: {location: host:0, size: 2MiB}}\n"
        "map: {r: [c, h]}\naccess: {r: {first: rw}}\n"
    )
    gpu, host = found.memory
    assert (gpu.device, gpu.names, gpu.total, gpu.free) == ("gpu0", ("left", "first"), ROOMY, ROOMY - 2 * MiB)
    assert (host.device, host.total, host.free) == ("host:0", None, None)


def test_memory_that_others_have() -> None:
    """Of a live device, what was in use already is told and is not free; of a recorded one it is not known"""
    facts = invented(1, memory=1100 * MiB)
    live = facts.model_copy(update={"devices": [facts.devices[0].model_copy(update={"free_bytes": 1060 * MiB})]})
    text = "ranges: {r: {size: 2MiB}}\nchunks: {c: {location: gpu0, size: 2MiB}}\nmap: {r: [c]}"
    (before,), (now,) = (build_diagram(geometry(text, each), each).memory for each in (facts, live))
    assert (before.taken, before.free) == (None, 1098 * MiB)
    assert (now.taken, now.free, now.total) == (40 * MiB, 1058 * MiB, 1100 * MiB)


@pytest.mark.parametrize("count", [1, 1000, 100_000])
def test_equal_things_do_not_make_it_longer(count: int) -> None:
    """A picture of a hundred thousand pages is as long as that of one"""
    found = pictured(
        f"ranges: {{r: {{size: 4MiB, count: {count}}}}}\n"
        f"chunks: {{c: {{location: gpu0, size: 2MiB, count: {count * 2}}}}}\n"
        "map: {r: [c]}\naccess: {r: {gpu0: rw}}\n"
    )
    assert (len(found.ranges), len(pieces(found)), len(found.memory[0].shares)) == (1, 1, 1)


def test_in_the_json() -> None:
    """A plan with a picture has it in its JSON, with tuples as lists; without one there is null"""
    facts = invented()
    found = geometry("ranges: {r: {size: 2MiB}}\nchunks: {c: {location: gpu0, size: 2MiB}}\nmap: {r: [c]}", facts)
    plan = planner.plan(found, facts)
    told = json.loads(rendering.dumps(plan.summary(build_diagram(found, facts))))
    assert told["picture"]["ranges"][0]["pieces"][0]["locations"] == ["gpu0"]
    assert json.loads(rendering.dumps(plan.summary()))["picture"] is None
    assert replace(plan.summary(build_diagram(found, facts)), picture=None) == plan.summary()


@pytest.mark.parametrize("command", [plan_command.command, apply_command.command])
def test_commands_carry_it(command: object, capsys: pytest.CaptureFixture[str]) -> None:
    """`plan --json` and `apply --json` have the picture of what they are about"""
    assert callable(command)
    assert command(str(ROOT / "specs" / "quickstart.yaml"), "h200x2", as_json=True) == 0
    told = json.loads(capsys.readouterr().out)["plan"]["picture"]
    assert [piece["first"] for piece in told["ranges"][0]["pieces"]] == ["hot", "cold", "page.0"]
    assert [memory["device"] for memory in told["memory"]] == ["gpu0", "gpu1"]


def test_managed_memory() -> None:
    """Managed memory is a thing on the GPU that allocates it, with what it is advised; what is usual is not said"""
    found = pictured(
        "managed:\n"
        "  index: {size: 8MiB, prefer: host, accessed_by: [gpu1, host]}\n"
        "  table: {size: 4MiB, attach: single, read_mostly: true, prefetch: gpu1}\n"
    )
    index, table = found.things
    assert (index.kind, index.name, index.bytes_each, index.locations) == ("managed", "index", 8 * MiB, ("gpu1",))
    assert index.notes == ("prefers host", "accessed by gpu1, host")
    assert table.notes == ("attached to one stream", "read mostly", "prefetched to gpu1")
    shares = {memory.device: [share.chunk for share in memory.shares] for memory in found.memory}
    assert shares == {"gpu1": [index.mark, table.mark]}
    assert found.flows == ()


FOREIGN = """
external:
  frame:
    {from: camera, via: opaque_fd, device: gpu1, size: 8MiB,
     buffers: {y: {offset: 0, size: 4MiB}, uv: {offset: 2MiB, size: 6MiB}}}
  tile: {from: camera/other, via: opaque_fd, device: gpu0, size: 2MiB, dedicated: true}
semaphores:
  ready: {from: camera, via: timeline_fd, device: gpu1, wait: 1, signal: 2}
  done: {from: camera, via: opaque_fd, device: gpu0, signal: true}
"""


def test_what_another_api_made() -> None:
    """An external object is a thing with its parts, which may overlap; a semaphore says what a check does with it"""
    frame, tile, ready, done = pictured(FOREIGN).things
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


def test_what_another_api_made_takes_no_memory() -> None:
    """The memory of an external object is the producer's: no device's memory counts it"""
    assert pictured(FOREIGN).memory == ()


def test_the_way_of_what_another_api_made() -> None:
    """Each object and each semaphore is one descriptor from outside, to the thing of the same name"""
    found = pictured(FOREIGN)
    assert {flow.name for flow in found.flows} == {thing.name for thing in found.things}
    assert all(flow.outside and flow.count == 1 and flow.source == "camera" for flow in found.flows)
    told = {flow.name: (flow.kind, flow.via, flow.bytes_each) for flow in found.flows}
    assert told == {
        "frame": ("memory", "opaque_fd", 8 * MiB),
        "tile": ("memory", "opaque_fd", 2 * MiB),
        "ready": ("semaphore", "timeline_fd", 0),
        "done": ("semaphore", "opaque_fd", 0),
    }


def test_a_process_that_takes_from_another_api() -> None:
    """Of several processes, the way leads to the one that has the thing, whose mark has its name"""
    found = pictured(
        "processes:\n"
        "  maker: {ranges: {r: {size: 2MiB}}, chunks: {c: {location: gpu0, size: 2MiB}}, map: {r: [c]}}\n"
        "  taker: {external: {frame: {from: camera, via: opaque_fd, device: gpu0, size: 2MiB}}}\n"
    )
    assert [(flow.source, flow.target, flow.name) for flow in found.flows] == [("camera", "taker", "frame")]
    assert [[thing.mark for thing in each.picture.things] for each in found.processes] == [[], ["taker: frame"]]
