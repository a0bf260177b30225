"""Map entries with `each`, `order` and `stride`: the same geometry as the mappings written out by hand."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from memtopo import planner
from memtopo.common.errors import InternalError
from memtopo.driver.types import Access, DriverError, Grant, gpu
from memtopo.geometry import Geometry
from memtopo.geometry.access import granted, mappings
from memtopo.kinds.chunks.steps import RETAINED, CreateChunk
from memtopo.kinds.mappings.steps import LONGEST_RUN, MapChunk, MapChunks, UnmapChunks, joined, parts_of
from memtopo.kinds.step import Step
from memtopo.output.diagram.build import build_diagram
from memtopo.planner import Plan
from tests.helpers.machines import invented
from tests.helpers.specs import codes, geometry_of, plan_of, steps_of
from tests.run.test_transition import built

MACHINE = invented(2)
CHUNKS = "chunks: {page: {location: [gpu0, gpu1], size: 2MiB, count: 24}, wide: {location: gpu1, size: 4MiB}}\n"
ACCESS = "access: {layer: {gpu0: rw}}\n"

Mapped = list[tuple[str, int, str]]


def mapped(geometry: Geometry) -> Mapped:
    """Range, offset and chunk of every mapping."""
    access = granted(geometry)
    return sorted(
        (placement.range.label(placement.instance), offset, placement.chunk.label(index))
        for placements in geometry.placements.values()
        for placement, index, offset, _ in mappings(placements, access)
    )


def mapped_by(ranges: str, entries: str) -> Mapped:
    return mapped(geometry_of(f"ranges: {{layer: {{{ranges}}}}}\n{CHUNKS}map: {{layer: [{entries}]}}\n{ACCESS}"))


@pytest.mark.parametrize(
    ("ranges", "entries", "placed"),
    [
        # each range has the next chunks, or one of them in turn
        ("size: 8MiB, count: 3", "{chunk: page, each: 2}",
         {"layer.0": "0 page.0, 2 page.1", "layer.2": "0 page.4, 2 page.5"}),
        ("size: 8MiB, count: 3", "{chunk: page, each: 2, order: round-robin}",
         {"layer.0": "0 page.0, 2 page.3", "layer.2": "0 page.2, 2 page.5"}),
        # a chunk without a count, or one element of a counted one, is repeated
        ("size: 9MiB, count: 2, round: up", "{chunk: page.3, each: 1}, {chunk: wide, each: fill}",
         {"layer.0": "0 page.3, 2 wide, 6 wide", "layer.1": "0 page.3, 2 wide, 6 wide"}),
        ("size: 6MiB", "{chunk: page.7, each: fill}", {"layer": "0 page.7, 2 page.7, 4 page.7"}),
        # every range has all chunks
        ("size: 8MiB, count: 2", "{chunk: page.2:4, each: all}, {chunk: wide, each: all}",
         {"layer.0": "0 page.2, 2 page.3, 4 wide", "layer.1": "0 page.2, 2 page.3, 4 wide"}),
        # a stride leaves gaps, the next entry begins after the last chunk, and entries with strides interleave
        ("size: 32MiB", "{chunk: page.0:3, stride: 6MiB}, wide", {"layer": "0 page.0, 6 page.1, 12 page.2, 14 wide"}),
        ("size: 32MiB, count: 2",
         "{chunk: page.0:6, each: 3, stride: 4MiB}, {chunk: page.6:12, each: 3, offset: 2MiB, stride: 4MiB}",
         {"layer.1": "0 page.3, 2 page.9, 4 page.4, 6 page.10, 8 page.5, 10 page.11"}),
    ],
)  # fmt: skip
def test_an_entry_places_chunks_in_each_range(ranges: str, entries: str, placed: dict[str, str]) -> None:
    """At offsets in MiB."""
    found = mapped_by(ranges, entries)
    for label, expected in placed.items():
        assert ", ".join(f"{offset >> 20} {chunk}" for where, offset, chunk in found if where == label) == expected


class Parts(NamedTuple):
    """A map entry: its chunks, and its keys in MiB."""

    chunks: list[str]
    each: int | str
    in_turn: bool
    stride: int
    offset: int | None
    size: int

    def chunk(self, taken: int, nth: int) -> str:
        """Chunk of the n-th mapping of a range, after `taken` mappings in all ranges."""
        if len(self.chunks) == 1:
            return self.chunks[0]
        return self.chunks[nth if self.each == "all" else taken]


@st.composite
def entries(draw: st.DrawFn) -> tuple[str, Parts]:
    """An entry as text, and its parts."""
    chunk, indices, size = draw(
        st.sampled_from(
            [("page", range(24), 2), ("page.0:8", range(8), 2), ("page.5", range(5, 6), 2), ("wide", None, 4)]
        )
    )
    chunks = [f"page.{index}" for index in indices] if indices else ["wide"]
    each = draw(st.one_of(st.integers(1, 3), st.sampled_from(["fill", "all"])))
    in_turn = len(chunks) > 1 and each != "all" and draw(st.booleans())
    stride = draw(st.sampled_from([None, size, size + 2, 8]))
    offset = draw(st.sampled_from([None, None, 0, 4, 12]))
    text = f"chunk: {chunk}, each: {each}" + ", order: round-robin" * in_turn
    text += f", stride: {stride}MiB" if stride else ""
    text += f", offset: {offset}MiB" if offset is not None else ""
    return f"{{{text}}}", Parts(chunks, each, in_turn, stride or size, offset, size)


def by_hand(parts: list[Parts], size: int, count: int) -> str:
    """The section `map` with every mapping of every range on its own."""
    lines: list[list[str]] = [[] for _ in range(count)]
    cursors = [0] * count
    for part in parts:
        starts = [cursor if part.offset is None else part.offset for cursor in cursors]
        number, taken = [0] * count, 0
        order = [*range(count)] * size if part.in_turn else [instance for instance in range(count) for _ in range(size)]
        for instance in order:
            at = starts[instance] + number[instance] * part.stride
            wanted = len(part.chunks) if part.each == "all" else part.each
            if at + part.size > size if wanted == "fill" else number[instance] == wanted:
                continue
            lines[instance].append(f"{{chunk: {part.chunk(taken, number[instance])}, offset: {at}MiB}}")
            cursors[instance] = at + part.size
            number[instance] += 1
            taken += 1
    return ", ".join(f"layer.{instance}: [{', '.join(written)}]" for instance, written in enumerate(lines))


def without_paths(steps: tuple[Step, ...]) -> list[Step]:
    return sorted((replace(step, path=()) for step in steps), key=repr)


@given(st.lists(entries(), min_size=1, max_size=3), st.integers(1, 4), st.integers(2, 20))
def test_entries_are_the_same_as_their_mappings_by_hand(made: list[tuple[str, Parts]], count: int, half: int) -> None:
    size = 2 * half
    head = f"ranges: {{layer: {{size: {size}MiB, count: {count}}}}}\n{CHUNKS}{ACCESS}"
    short = f"{head}map: {{layer: [{', '.join(text for text, _ in made)}]}}\n"
    assume(not {"MT303", "MT304", "MT305", "MT311"} & set(codes(short, MACHINE)))
    found = geometry_of(short, MACHINE)
    written = geometry_of(f"{head}map: {{{by_hand([parts for _, parts in made], size, count)}}}\n", MACHINE)
    assert mapped(found) == mapped(written)
    plans = [without_paths(planner.plan(each, MACHINE).steps) for each in (found, written)]
    assert plans[0] == plans[1]
    drawn = [sum(each.mapped * each.count for each in build_diagram(g, MACHINE).ranges) for g in (found, written)]
    assert drawn[0] == drawn[1]


def test_a_zero_page_behind_many_slots_is_one_placement_and_one_span_of_a_drawing() -> None:
    slots = 71_488
    geometry = geometry_of(
        f"ranges: {{layer: {{size: {2 * slots}MiB}}}}\nchunks: {{zero: {{location: gpu0, size: 2MiB}}}}\n"
        f"map: {{layer: [{{chunk: zero, each: fill}}]}}\n{ACCESS}",
        MACHINE,
    )
    ((placement,),) = geometry.placements.values()
    assert (placement.count, placement.step, list(placement.indices)) == (slots, 0, [0])
    (span,) = build_diagram(geometry, MACHINE).ranges[0].pieces
    assert (span.first, span.last, span.count, span.elsewhere) == ("zero", "zero", slots, 0)


M = 2 << 20
FOUR = """
ranges: {r: {size: 8MiB}, s: {size: 8MiB}}
chunks: {c: {location: gpu0, size: 2MiB, count: 4}}
map: {r: [c], s: [{chunk: c.0, offset: 4MiB}]}
access: {r: {gpu0: rw, gpu1: r}, s: {gpu0: r}}
"""


def run_in(plan: Plan) -> MapChunks:
    """Return the run of mappings of a plan."""
    (run,) = [item for item in plan.items if isinstance(item, MapChunks)]
    return run


def test_a_reference_that_a_check_could_not_release_is_released_once_by_the_next() -> None:
    with built(plan_of(FOUR, MACHINE), failing={"mem_release"}) as layout:
        ledger, live = layout.ledger, layout.execution.layout
        steps, before = steps_of(layout.execution.plan, MapChunk), layout.ledger.counts()
        run = run_in(layout.execution.plan)
        for check in (lambda: list(steps[1].check(ledger, live)), lambda: run.check(ledger, live)):
            layout.failing.at = layout.failing.calls + 1
            try:
                found = check()
            except DriverError:
                assert [*live.of(RETAINED)] == ["c.1"]
            else:
                assert (found.number, str(found.error)[:12]) == (0, "cuMemRelease")  # type: ignore[union-attr]
                assert sorted(live.of(RETAINED)) == ["c.0", "c.1", "c.2", "c.3"]
            layout.failing.at = 0
            assert run.check(ledger, live).number == 0
            for step in steps:
                assert [each for each in step.check(ledger, live) if each.expected != each.observed] == []
            assert (live.of(RETAINED), ledger.counts()) == ({}, before)


def test_the_undo_of_a_chunk_releases_a_reference_that_a_check_could_not_release() -> None:
    """And then its own."""
    with built(plan_of(FOUR, MACHINE), failing={"mem_release"}) as layout:
        ledger, live, before = layout.ledger, layout.execution.layout, layout.ledger.counts()
        mapping, create = (steps_of(layout.execution.plan, each)[1] for each in (MapChunk, CreateChunk))
        layout.failing.at = layout.failing.calls + 1
        with pytest.raises(DriverError):
            list(mapping.check(ledger, live))
        layout.failing.at = 0
        assert [*live.of(RETAINED)] == ["c.1"]
        mapping.undo(ledger, live)
        create.undo(ledger, live)
        after = {**before, "mappings": before["mappings"] - 1, "handles": before["handles"] - 1}
        assert (live.of(RETAINED), ledger.counts()) == ({}, after)


def test_mappings_that_are_checked_together_are_as_declared_up_to_the_first_that_is_not() -> None:
    with built(plan_of(FOUR, MACHINE)) as layout:
        ledger, live, before = layout.ledger, layout.execution.layout, layout.ledger.counts()
        steps, run = steps_of(layout.execution.plan, MapChunk), run_in(layout.execution.plan)
        own, other = steps[0].access, steps[4].access
        assert [run.check(ledger, live).number, run[::-1].check(ledger, live).number] == [4, 4]
        assert replace(run, placement=replace(run.placement, step=0)).check(ledger, live).number == 0
        live.chunks["c.1"], live.chunks["c.2"] = live.chunks["c.2"], live.chunks["c.1"]
        assert run.check(ledger, live).number == 1
        live.chunks["c.1"], live.chunks["c.2"] = live.chunks["c.2"], live.chunks["c.1"]
        more = replace(run, access=(own, own, other, own))
        assert more.check(ledger, live).number == 2
        assert [each.aspect for each in more[2].check(ledger, live) if each.expected != each.observed] == ["access"] * 2
        steps[1].undo(ledger, live)
        together = run.check(ledger, live)
        assert (together.number, together.error) == (1, None)
        assert [(each.aspect, each.observed) for each in steps[1].check(ledger, live)] == [
            ("mapped chunk", "nothing mapped")
        ]
        assert (live.of(RETAINED), ledger.counts()) == ({}, {**before, "mappings": before["mappings"] - 1})
        with pytest.raises(InternalError, match="runs past the end of s"):
            replace(steps[4], offset=8 * M).do(ledger, live)


def test_mappings_side_by_side_are_unmapped_together_and_what_is_left_of_them_one_by_one() -> None:
    with built(plan_of(FOUR, MACHINE)) as layout:
        ledger, live = layout.ledger, layout.execution.layout
        steps = steps_of(layout.execution.plan, MapChunk)
        single, together = joined(steps[::-1])
        assert (parts_of(single), parts_of(together)) == ((steps[4],), tuple(steps[:4]))
        assert [len(parts_of(each)) for each in joined([steps[3], steps[1], steps[0]])] == [1, 2]
        wide = [replace(steps[0], offset=at * LONGEST_RUN // 2, size=LONGEST_RUN // 2) for at in range(3)]
        assert [len(parts_of(each)) for each in joined(wide[::-1])] == [2, 1]
        steps[2].undo(ledger, live)
        assert isinstance(together, UnmapChunks)
        for _ in range(2):
            together.undo(ledger, live)
            assert ([*live.mappings.values()], ledger.counts()["mappings"]) == (["c.0"], 1)


def test_a_process_is_expected_to_have_access_for_the_gpus_that_it_sees() -> None:
    text = """
processes:
  one:
    visible: [gpu1]
    ranges: {kv: {size: 2MiB}}
    chunks: {c: {location: gpu1, size: 2MiB}}
    map: {kv: c}
    access: {kv: {gpu1: rw}}
"""
    (step,) = steps_of(plan_of(text, invented(2)).processes["one"], MapChunk)
    assert step.access == (Grant(gpu(1), Access.RW),)
