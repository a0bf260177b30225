"""Geometry of a layout in a state, which is drawn: it has what the plan of that state has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from memtopo import planner
from memtopo.geometry import Geometry, RangeGroup
from memtopo.kinds.mappings.steps import MapChunk
from memtopo.kinds.views import in_state, state_names
from memtopo.language import read_file
from memtopo.machine import load
from memtopo.output.diagram.build import build_diagram
from memtopo.planner import Plan
from memtopo.rules import validate
from tests.helpers.specs import EVERY_SPEC, document

MACHINE = load("h200x4")
PARTS = """
ranges:
  r: {size: 32MiB}
  ring: {size: 8MiB}
  other: {size: 8MiB, count: 2}
  turns: {size: 8MiB, count: 3}
  repeated: {size: 16MiB, count: 2}
chunks:
  a: {location: [gpu0, gpu1], size: 2MiB, count: 12}
  b: {location: gpu1, size: 2MiB, count: 8}
  c: {location: gpu0, size: 2MiB}
  d: {location: gpu0, size: 2MiB}
  e: {location: gpu0, size: 2MiB, count: 3}
map:
  r: [{chunk: a, offset: 4MiB}]
  ring: [c, c, b.2, b.3]
  other: [{chunk: b, each: 4}]
  turns: [{chunk: a, each: 4, order: round-robin}]
  repeated: [{chunk: d, each: 3}, {chunk: e.1, each: 2}, {chunk: e, each: all}]
access:
  r: {gpu0: rw, gpu1: rw}
  ring: {gpu0: rw, gpu1: rw}
  other: {gpu1: rw}
  turns: {gpu0: rw, gpu1: rw}
  repeated: {gpu0: rw}
states:
  parts: {drop: ["a.1:3", a.5, b.0, e.0], offload: {"a.8:11": "host:0", b.7: pinned}}
  ends: {drop: ["a.0:2", a.11, c, d, "e.1:3"]}
  ranges: {drop: [other.1], offload: {ring: "host:0"}}
"""
IMPORTED = """
processes:
  server:
    ranges: {r: {size: 8MiB}}
    chunks: {w: {location: gpu0, size: 2MiB, count: 4, handles: fd}}
    map: {r: [w]}
    access: {r: {gpu0: rw}}
    exports: {end: {chunk: "w.2:4", via: fd}}
    states: {asleep: {drop: [w.0, w.3]}}
  reader:
    imports: {end: {from: server.end}}
    ranges: {v: {size: 4MiB}}
    map: {v: [end]}
    access: {v: {gpu0: rw}}
"""


def placed(geometry: Geometry) -> Iterator[tuple[str, int, str]]:
    """Label, offset and chunk of each mapping."""
    for placements in geometry.placements.values():
        for each in placements:
            for nth in range(each.count):
                chunk = each.chunk.label(each.index(nth))
                yield each.range.label(each.instance), each.offset + nth * each.chunk.size, chunk


def mapped(plan: Plan) -> Iterator[tuple[str, int, str]]:
    """The same of a plan, without the memory that keeps offloaded bytes."""
    steps = (step for step in plan.steps if isinstance(step, MapChunk) and "@" not in step.range)
    return ((step.range, step.offset, step.chunk) for step in steps)


def compared(geometry: Geometry) -> None:
    """Compare each state with its plan: the mappings of each process, and the memory of all."""
    plan = planner.plan(geometry, MACHINE)
    plans = {"awake": plan} | planner.plan_states(plan, geometry)
    assert list(state_names(geometry)) == list(plans)
    for state, memory in planner.memory_by_state(plan, geometry).items():
        present, planned = in_state(geometry, state), plans[state]
        for label, member in present.members.items():
            assert sorted(placed(member)) == sorted(mapped(planned.processes.get(label, planned)))
        if not any(group.growing for group in geometry.every):  # a drawing counts those that a program may create
            assert {each.device: each.used for each in build_diagram(present, MACHINE).memory} == memory


@pytest.mark.parametrize(
    "spec", [path for path in EVERY_SPEC if "\n  states:" in (text := path.read_text()) or "\nstates:" in text]
)
def test_a_state_of_a_spec_has_what_its_plan_has(spec: Path) -> None:
    geometry = validate(read_file(str(spec)), MACHINE).geometry
    assert geometry
    compared(geometry)


@pytest.mark.parametrize("text", [PARTS, IMPORTED])
def test_a_state_without_parts_of_chunks_has_what_its_plan_has(text: str) -> None:
    geometry = validate(document(text), MACHINE).geometry
    assert geometry
    compared(geometry)


def test_a_state_that_drops_an_elastic_range_has_neither_its_chunks_nor_its_zeros() -> None:
    text = """
ranges: {heap: {size: 64MiB, elastic: {chunks: segment, zero: blank}}}
chunks: {segment: {location: gpu0, size: 2MiB, count: {min: 2, max: 32}}, blank: {location: gpu0, size: 2MiB}}
access: {heap: {gpu0: rw}}
states: {asleep: {drop: [heap]}}
"""
    geometry = validate(document(text), MACHINE).geometry
    assert geometry
    awake, asleep = build_diagram(geometry, MACHINE), build_diagram(in_state(geometry, "asleep"), MACHINE)
    assert (awake.ranges[0].elastic, awake.ranges[0].zero, awake.memory[0].used) == (("segment",), "blank", 66 << 20)
    assert (asleep.ranges[0].elastic, asleep.ranges[0].zero, asleep.memory[0].used) == ((), "", 2 << 20)


def test_ranges_are_elastic_in_a_state_that_drops_one_of_them() -> None:
    text = """
ranges: {heap: {size: 64MiB, count: 2, elastic: {chunks: segment}}}
chunks: {segment: {location: gpu0, size: 2MiB, count: {min: 2, max: 32}}}
access: {heap: {gpu0: rw}}
states: {half: {drop: [heap.1]}, none: {drop: [heap]}}
"""
    geometry = validate(document(text), MACHINE).geometry
    assert geometry
    ranges = {state: in_state(geometry, state).of(RangeGroup)["heap"] for state in ("half", "none")}
    assert {state: bool(each.elastic) for state, each in ranges.items()} == {"half": True, "none": False}


def test_the_drawing_of_a_large_state_is_as_large_as_that_of_the_layout() -> None:
    text = """
ranges: {r: {size: 512GiB}}
chunks: {a: {location: gpu0, size: 2MiB, count: 65536}}
map: {r: [a]}
access: {r: {gpu0: rw}}
states: {half: {drop: ["a.0:32768"]}}
"""
    geometry = validate(document(text), MACHINE).geometry
    assert geometry
    (range_,) = build_diagram(in_state(geometry, "half"), MACHINE).ranges
    assert [(span.offset, span.count) for span in range_.pieces] == [(0, 0), (1 << 36, 32768), (1 << 37, 0)]


HEAPS = """
heaps:
  weights: {location: gpu0, size: 64GiB, limit: 8GiB}
  kv: {location: gpu0, size: 64GiB, limit: 16GiB}
  more: {location: gpu0, size: 64GiB, limit: kv}
access: {weights: {gpu0: rw}, kv: {gpu0: rw}, more: {gpu0: rw}}
states:
  kept: {offload: {weights: pinned}, drop: [kv, more]}
  half: {drop: [weights, kv]}
"""


@pytest.mark.parametrize(("state", "used"), [("awake", 24 << 30), ("kept", 0), ("half", 16 << 30)])
def test_a_heap_takes_memory_in_a_state_that_neither_drops_nor_offloads_all_with_its_limit(
    state: str, used: int
) -> None:
    """The host has room for the bytes that a state offloads in all of them."""
    geometry = validate(document(HEAPS), MACHINE).geometry
    assert geometry
    found = {each.device: each.used for each in build_diagram(in_state(geometry, state), MACHINE).memory}
    assert (found.get("gpu0", 0), found["host"]) == (used, 8 << 30)
