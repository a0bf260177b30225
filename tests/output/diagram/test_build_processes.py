from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from memtopo import machine, planner
from memtopo.common.units import MiB
from memtopo.geometry.diagram import Diagram, HandleFlow, ProcessDiagram
from memtopo.geometry.groups import ChunkGroup
from memtopo.language import read_file
from memtopo.output.diagram.build import build_diagram
from memtopo.rules import validate
from tests.helpers.diagrams import text_diagram
from tests.helpers.specs import ENSEMBLES

RESERVED = "ranges: {{r: {{size: 64MiB}}}}, map: {{r: [{}]}}"


def kinds(found: Diagram) -> list[tuple[str, str, int, int]]:
    return [(each.first, each.last, each.count, each.step) for each in found.processes]


def counted(devices: str, count: int) -> Diagram:
    return text_diagram(
        f"processes: {{p: {{count: {count}, devices: {{mine: {devices}}}, "
        "chunks: {c: {location: mine, size: 2MiB}}, ranges: {r: {size: 2MiB}}, map: {r: [c]}}}"
    )


def exporter_and_importer(exported: str) -> tuple[ProcessDiagram, ...]:
    """One process whose chunks of 2 MiB another imports as `w`, and maps from the first on."""
    chunks = "c: {location: [gpu0, gpu1], size: 2MiB, count: 8, handles: fd}"
    found = text_diagram(
        f"processes: {{a: {{chunks: {{{chunks}}}, exports: {{out: {exported}}}}}, "
        f"b: {{imports: {{w: {{from: a.out}}}}, {RESERVED.format('w')}}}}}"
    )
    return found.processes


def test_equal_processes_are_one_diagram_with_a_step() -> None:
    assert kinds(counted("gpu0", 4)) == [("p.0", "p.3", 4, 1)]
    assert kinds(counted("[gpu0, gpu1]", 5)) == [("p.0", "p.4", 3, 2), ("p.1", "p.3", 2, 2)]
    assert kinds(counted("[gpu0, gpu0, gpu1]", 3)) == [("p.0", "p.1", 2, 1), ("p.2", "p.2", 1, 1)]


def test_equal_processes_at_uneven_distances_are_joined_only_as_neighbours() -> None:
    assert kinds(counted("[gpu0, gpu0, gpu1]", 5)) == [("p.0", "p.1", 2, 1), ("p.2", "p.2", 1, 1), ("p.3", "p.4", 2, 1)]


def test_memory_is_the_sum_of_all_processes() -> None:
    found = counted("[gpu0, gpu1]", 5)
    shares = [(each.device, share.chunk, share.count) for each in found.memory for share in each.shares]
    assert shares == [("gpu0", "p: c", 3), ("gpu1", "p: c", 2)]
    assert [each.used for each in found.memory] == [6 * MiB, 4 * MiB]
    assert [each.names for each in found.memory] == [(), ()], "mine is another device in each"
    contexts = [(each.total or 0) - each.used - (each.free or 0) for each in found.memory]
    assert contexts == [3 * machine.CONTEXT_BYTES, 2 * machine.CONTEXT_BYTES]


@pytest.mark.parametrize("path", ENSEMBLES, ids=lambda path: path.stem)
def test_sums_of_all_processes_are_those_of_the_plan(path: Path) -> None:
    facts = machine.load("h200x4")
    geometry = validate(read_file(path), facts).geometry
    assert geometry
    found = build_diagram(geometry, facts)
    used = Counter(planner.plan(geometry, facts).memory)
    for process in geometry.processes.values():  # elastic chunks: the largest number is drawn, the plan has the least
        for group in process.of(ChunkGroup).values():
            for location, count in group.largest_shares().items() if group.growing else ():
                used[str(location)] += (count - group.shares().get(location, 0)) * group.size
    assert {each.device: each.used for each in found.memory} == used
    assert sum(each.count for each in found.processes) == len(geometry.processes)
    labels = [f"{each.first.partition('.')[0]}.{int(each.first.partition('.')[2] or 0) + index * each.step}"
              for each in found.processes for index in range(each.count)]  # fmt: skip
    assert sorted(labels) == sorted(label if "." in label else f"{label}.0" for label in geometry.processes)
    firsts = {each.first for each in found.processes}
    assert all({flow.source, flow.target} <= firsts for flow in found.flows)


def test_an_import_has_the_mark_of_its_exporter() -> None:
    exporter, importer = exporter_and_importer("{chunk: c, via: fd}")
    (span, _) = importer.picture.ranges[0].pieces
    assert (span.chunk, span.first, span.last, span.origin) == ("a: c", "w.0", "w.7", "a.out")
    assert exporter.picture.exports[0].mark == "a: c"
    assert exporter.picture.memory[0].shares[0].chunk == "a: c"
    assert importer.picture.memory == ()


def test_an_exported_slice_has_its_first_and_last_chunk() -> None:
    exporter, importer = exporter_and_importer("{chunk: 'c.1:4', via: fd}")
    (export,) = exporter.picture.exports
    assert (export.first, export.last, export.count, export.bytes_each) == ("c.1", "c.3", 3, 2 * MiB)
    assert importer.picture.ranges[0].pieces[0].locations == ("gpu1", "gpu0")


def test_many_exports_of_single_chunks_are_one_span() -> None:
    names = range(8)
    chunks = ", ".join(f"c{n}: {{location: gpu0, size: 2MiB, handles: fd}}" for n in names)
    exports = ", ".join(f"e{n}: {{chunk: c{n}, via: fd}}" for n in names)
    imports = ", ".join(f"i{n}: {{from: a.e{n}}}" for n in names)
    mapped = RESERVED.format(", ".join(f"i{n}" for n in names))
    found = text_diagram(
        f"processes: {{a: {{chunks: {{{chunks}}}, exports: {{{exports}}}}}, b: {{imports: {{{imports}}}, {mapped}}}}}"
    )
    span = found.processes[1].picture.ranges[0].pieces[0]
    assert (span.first, span.last, span.count, span.origin) == ("i0", "i7", 8, "a.e0 … a.e7")
    assert {span.chunk} == {"a: c0"}


def test_equal_importers_have_one_flow_per_source() -> None:
    found = text_diagram(
        "processes: {p: {count: 5, devices: {mine: [gpu0, gpu1]}, "
        "chunks: {c: {location: mine, size: 2MiB, handles: fd}}, exports: {out: {chunk: c, via: fd}}, "
        f"imports: {{every: {{from: p.out}}}}, {RESERVED.format('every')}}}}}"
    )
    assert [(flow.source, flow.target, flow.count, flow.processes) for flow in found.flows] == [
        ("p.0", "p.0", 1, 3),
        ("p.1", "p.0", 1, 2),
        ("p.0", "p.1", 1, 3),
        ("p.1", "p.1", 1, 2),
    ]
    assert {(flow.export, flow.name, flow.kind, flow.via, flow.bytes_each) for flow in found.flows} == {
        ("out", "every", "chunk", "fd", 2 * MiB)
    }


@pytest.mark.parametrize("process", ["", "p"])
def test_imports_from_a_holder_are_flows_from_outside(process: str) -> None:
    own = f"imports: {{w: {{from: store/w, location: gpu0, size: 2MiB, count: 4}}}}, {RESERVED.format('w')}"
    found = text_diagram(f"processes: {{p: {{{own}}}}}" if process else own.replace("}, ", "}\n"))
    path = ("processes", "p") if process else ()
    assert found.flows == (
        HandleFlow("store", "w", process, "w", "chunk", "fd", 4, 2 * MiB, (*path, "imports", "w"), outside=True),
    )
    ranges = found.processes[0].picture.ranges if process else found.ranges
    assert ranges[0].pieces[0].origin == "store/w"
    assert found.memory == ()


def test_buffers_and_events_are_resources() -> None:
    found = text_diagram(
        "processes:\n"
        "  a:\n    buffers: {b: {location: gpu1, size: 1MiB, count: 3}}\n    events: {done: {device: gpu0}}\n"
        "    exports: {b: {buffer: b, via: ipc}, done: {event: done, via: ipc}}\n"
        "  c:\n    imports: {from-a: {from: a.b}, done: {from: a.done}}\n"
    )
    own, theirs = (each.picture.things for each in found.processes)
    assert [(each.kind, each.name, each.mark, each.count, each.locations, each.origin) for each in (*own, *theirs)] == [
        ("buffer", "b", "a: b", 3, ("gpu1",), ""),
        ("event", "done", "", 1, ("gpu0",), ""),
        ("buffer", "from-a", "a: b", 3, ("gpu1",), "a.b"),
        ("event", "done", "", 1, ("gpu0",), "a.done"),
    ]
    assert own[0].notes == ("1 MiB in a block of its own",)
    assert theirs[0].notes == ()
    assert [flow.kind for flow in found.flows] == ["buffer", "event"]
