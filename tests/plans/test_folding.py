"""Folding of what is alike: ranks that differ by their numbers and GPUs are one, in plans and in drawings."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from memtopo.drivers.target import recorded
from memtopo.geometry.diagram import Diagram
from memtopo.kinds.layout import Reservation
from memtopo.language import read_file, read_text
from memtopo.machine import Cluster, load
from memtopo.output.blocks import Drawing
from memtopo.output.ci import page_lines
from memtopo.output.console import unstyled
from memtopo.output.diagram.build import build_diagram
from memtopo.output.plan import summary_page
from memtopo.planner import plan
from memtopo.plans import folding
from memtopo.plans.report import Placed, PlanSummary
from memtopo.rules import validate
from tests.helpers.machines import invented, with_fabric, with_multicast
from tests.helpers.specs import ROOT

MOST_LINES = 100
SPECS = sorted([*(ROOT / "specs").glob("*.yaml"), *(ROOT / "specs" / "real").glob("*.yaml")])


def planned(path: Path) -> tuple[PlanSummary, Diagram]:
    """Plan and drawing of a spec; with eight ranks, if it has a number of them, on as many GPUs."""
    ranks = {name: "8" for name in ("ranks", "pes") if name in read_file(path).declared}
    machine = with_multicast(invented(8, memory=140 << 30) if ranks else load("h200x4"))
    geometry = validate(read_file(path, settings=ranks), machine).geometry
    assert geometry
    return plan(geometry, machine).summary(), build_diagram(geometry, machine)


@pytest.mark.parametrize("name", ["nccl", "deepep", "vllm-all-reduce", "nvshmem", "flashinfer", "nccl-nvls"])
def test_ranks_of_a_library_are_one(name: str) -> None:
    """All of them, and none of what only some of them do is left out."""
    summary, diagram = planned(ROOT / "specs" / "real" / f"{name}.yaml")
    found = [each.plan for each in folding.alike(summary.processes, {})]
    assert [each.count for each in found if each.count > 1] == [8]
    (calls,) = {sum(row.calls for row in each.rows) for each in summary.processes if "." in each.first}
    assert sum(row.calls for row in found[-1].rows) == calls
    assert [each.count for each in folding.picture(diagram).processes] == [each.count for each in found]


def test_neighbours_in_a_ring_are_named_by_their_distance() -> None:
    summary, _ = planned(ROOT / "specs" / "real" / "nccl.yaml")
    (found,) = folding.alike(summary.processes, {})
    where = {row.first: row.where for row in found.plan.rows if row.phase == "import"}
    assert where == {
        "windows.*": ("rank.*.user",),
        "recv-of-next.0": ("rank.next.recv",),
        "send-of-previous.0": ("rank.previous.send",),
    }
    assert found.gpus == tuple(f"gpu{number}" for number in range(8))
    created = {row.where for row in found.plan.rows if row.verb == "create" and row.first == "user"}
    assert created == {(folding.OWN,)}


def test_the_only_neighbour_of_a_process_is_the_other_one() -> None:
    summary, _ = planned(ROOT / "specs" / "real" / "ucx.yaml")
    (found,) = folding.alike(summary.processes, {})
    where = {row.first: row.where for row in found.plan.rows if row.phase == "import"}
    assert where == {"remote.0": ("worker.other.user",), "fragments-of-peer.0": ("worker.other.fragments",)}


def test_what_a_process_uses_of_its_own_comes_before_what_it_opens_of_the_others() -> None:
    summary, _ = planned(ROOT / "specs" / "real" / "vllm-all-reduce.yaml")
    (found,) = folding.alike(summary.processes, {})
    rows = [(row.verb, row.first, row.calls, row.where) for row in found.plan.rows if row.phase == "import"]
    assert rows == [
        ("use own buffer", "metas.own", 0, ("meta",)),
        ("open buffer", "metas.*", 7, ("rank.*.meta",)),
        ("use own buffer", "inputs.own", 0, ("input",)),
        ("open buffer", "inputs.*", 7, ("rank.*.input",)),
    ]


def test_flows_between_alike_processes_are_those_of_the_first() -> None:
    _, diagram = planned(ROOT / "specs" / "real" / "nccl.yaml")
    found = folding.picture(diagram).flows
    assert {(each.source, each.target, each.name, each.processes) for each in found} == {
        ("rank.0", "rank.0", "windows", 8),
        ("rank.0", "rank.0", "recv-of-next", 1),
        ("rank.0", "rank.0", "send-of-previous", 1),
    }


def test_memory_that_others_have_taken_keeps_no_process_apart() -> None:
    """It differs between the GPUs of a live machine."""
    _, diagram = planned(ROOT / "specs" / "real" / "nvshmem.yaml")
    pictures = [
        replace(each.picture, memory=tuple(replace(memory, taken=number) for memory in each.picture.memory))
        for number, each in enumerate(diagram.processes)
    ]
    live = [replace(each, picture=picture) for each, picture in zip(diagram.processes, pictures, strict=True)]
    assert [each.count for each in folding.picture(replace(diagram, processes=tuple(live))).processes] == [8]


def test_ranks_of_a_node_are_one_and_nodes_stay_apart() -> None:
    """Also where the numbers of a node do not begin at 0."""
    machines = Cluster({"a": load("h200x4"), "b": load("h200x4")})
    geometry = validate(read_file(ROOT / "specs" / "nodes" / "tensor-parallel.yaml"), machines).geometry
    assert geometry
    found = [*folding.alike(plan(geometry, machines).summary().processes, {})]
    assert [(each.plan.first, each.plan.last, each.plan.node) for each in found] == [
        ("rank.0", "rank.3", "a"),
        ("rank.4", "rank.7", "b"),
    ]


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_a_drawing_is_under_two_screens(path: Path) -> None:
    """At 80 columns."""
    diagram = folding.picture(planned(path)[1])
    assert len(unstyled(Drawing(diagram), 80).splitlines()) <= MOST_LINES


RING = """memtopo: 1
name: ring
processes:
  pe:
    count: 8
    nodes: [a, b]
    devices: {mine: [gpu0, gpu1, gpu2, gpu3]}
    chunks: {part: {location: mine, size: 2MiB, handles: [fabric]}}
    ranges: {side: {size: 2MiB}}
    exports: {part: {chunk: part, via: fabric}}
    imports: {other: {from: pe.part, order: ORDER}}
    map: {side: [other]}
    access: {side: {mine: rw}}
"""


@pytest.mark.parametrize("word", ["own", "next", "previous"])
def test_a_neighbour_on_another_node_has_the_same_name(word: str) -> None:
    """The last process of a node has its next one on the other node, and the last of all the first."""
    machines = Cluster({"a": with_fabric(4), "b": with_fabric(4)})
    geometry = validate(read_text(RING.replace("ORDER", word).encode(), "ring.yaml"), machines).geometry
    assert geometry
    found = [*folding.alike(plan(geometry, machines).summary().processes, {})]
    assert [(each.plan.node, each.plan.count) for each in found] == [("a", 4), ("b", 4)]
    where = {row.where for each in found for row in each.plan.rows if row.phase == "import"}
    assert where == {(f"pe.{word}.part",)}


def test_a_number_of_an_entry_is_not_that_of_its_node() -> None:
    """The first process of a node that uses the memory of the first one of all has not its own."""
    machines = Cluster({"a": with_fabric(4), "b": with_fabric(4)})
    geometry = validate(read_text(RING.replace("ORDER", "own").encode(), "ring.yaml"), machines).geometry
    assert geometry
    others = []
    for number, each in enumerate(plan(geometry, machines).summary().processes):
        where = (f"pe.{(number + 4) % 8}.part",)
        rows = tuple(replace(row, where=where) if row.phase == "import" else row for row in each.rows)
        others.append(replace(each, rows=rows))
    found = [*folding.alike(others, {})]
    assert [(each.plan.node, each.plan.count) for each in found] == [("a", 4), ("b", 4)]
    assert {row.where for each in found for row in each.plan.rows if row.phase == "import"} == {("pe.+4.part",)}


def test_ranges_at_equal_distances_in_the_order_of_their_numbers_are_one_entry() -> None:
    at = {"kv.0": 1, "kv.1": 3, "kv.2": 5, "kv.3": 8, "kv.5": 10, "w.6": 12, "w.7": 11, "w.8": 9, "a": 13, "b": 14}
    found = [*folding.placed({label: Reservation(address, 1) for label, address in at.items()})]
    assert found == [
        Placed("kv.0", "kv.2", 3, 1, 2), Placed("kv.3", "kv.3", 1, 8, 0), Placed("kv.5", "kv.5", 1, 10, 0),
        Placed("w.6", "w.7", 2, 12, -1), Placed("w.8", "w.8", 1, 9, 0), Placed("a", "a", 1, 13, 0),
        Placed("b", "b", 1, 14, 0),
    ]  # fmt: skip


def test_neighbours_are_not_shown_as_all_processes() -> None:
    text = RING.replace("ORDER", "[previous, next]").replace("size: 2MiB}}\n    exports", "size: 4MiB}}\n    exports")
    text = text.replace("    nodes: [a, b]\n", "").replace("count: 8", "count: 4")
    geometry = validate(read_text(text.encode(), "ring.yaml"), with_fabric(4)).geometry
    assert geometry
    (found,) = folding.alike(plan(geometry, with_fabric(4)).summary().processes, {})
    where = [row.where for row in found.plan.rows if row.phase == "import"]
    assert where == [("pe.previous.part",), ("pe.next.part",)]


def test_a_summary_has_memory_that_grows_once_for_processes_that_are_alike() -> None:
    text = """memtopo: 1
name: growing
processes:
  pe:
    count: 3
    devices: {mine: [gpu0, gpu1, gpu2]}
    ranges: {kv: {size: 64MiB, elastic: {chunks: [page]}}}
    chunks: {page: {location: mine, size: 2MiB, count: {max: 8}}}
    access: {kv: {mine: rw}}
"""
    machine = load("h200x4")
    geometry = validate(read_text(text.encode(), "growing.yaml"), machine).geometry
    assert geometry
    page = summary_page(plan(geometry, machine).summary(), recorded("h200x4", machine).line, {})
    lines = "\n".join(page_lines(page))
    assert lines.count("chunk pool page of pe") == 1
