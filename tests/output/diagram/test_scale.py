from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memtopo.output.diagram.bar import lengths
from memtopo.output.diagram.labels import separated
from memtopo.output.diagram.markup import number
from memtopo.output.diagram.typography import fitting, packed, width

SIZES = st.lists(st.integers(1, 1 << 50), min_size=1, max_size=200)


@given(SIZES, st.integers(50, 800))
def test_lengths_fill_the_room(sizes: list[int], room: int) -> None:
    """Lengths are positive, as long together as the room, and of two sizes the larger is no shorter"""
    made = lengths(sizes, room, 5)
    assert sum(made) == pytest.approx(room)
    assert all(length > 0 for length in made)
    ordered = [length for _, length in sorted(zip(sizes, made, strict=True))]
    assert all(a <= b + 1e-6 for a, b in pairwise(ordered))


def test_lengths_are_to_scale() -> None:
    """Sizes that can all be seen are to scale; one that could not has the least length, and the rest is to scale"""
    assert lengths([1, 2, 1], 100, 5) == [25, 50, 25]
    assert lengths([1, 1000, 1000], 205, 5) == [5, 100, 100]


def test_too_many_lengths_are_to_scale() -> None:
    """Where the least lengths would take more than half of the room, all is to scale"""
    assert lengths([1] * 30 + [70], 100, 5) == pytest.approx([1.0] * 30 + [70.0])


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(1, 40)), min_size=1, max_size=30))
def test_labels_keep_clear(wanted: list[tuple[int, int]]) -> None:
    """Labels stay in their order, do not overlap, and end where there is room"""
    wished = sorted(float(wish) for wish, _ in wanted)
    heights = [float(height) for _, height in wanted]
    end = max(400.0, sum(heights))
    tops = separated(wished, heights, end)
    assert all(top >= -1e-9 for top in tops)
    for (top, below), height in zip(pairwise([*tops, end]), heights, strict=True):
        assert top + height <= below + 1e-9


def test_labels_stay_where_they_wish() -> None:
    """A label that is in nobody's way stands where it wishes to"""
    assert separated([10, 50, 90], [20, 20, 20], 200) == [10, 50, 90]


@given(st.text(max_size=80), st.integers(40, 400))
def test_a_text_is_fitted(told: str, room: int) -> None:
    """What is fitted into a room takes no more of it"""
    assert width(fitting(told, room, 12), 12) <= room


@given(st.lists(st.text("ab 1×", max_size=30), max_size=8), st.integers(60, 400))
def test_lines_have_room(parts: list[str], room: int) -> None:
    """No line of packed parts is longer than the room, and none of them is lost"""
    lines = packed(parts, room, 12)
    assert all(width(line, 12) <= room for line in lines)
    assert sum(map(len, lines)) >= min(1, sum(map(len, parts)))


def test_sizes_are_not_broken() -> None:
    """A line is not broken within a size, or between `at` and an offset"""
    assert packed(["16 × 2 MiB at 64 MiB"], 110, 12) == ["16 × 2 MiB", "at 64 MiB"]


@pytest.mark.parametrize(("amount", "told"), [(0, "0"), (-0.04, "0"), (1.25, "1.2"), (-3.0, "-3"), (100, "100")])
def test_numbers(amount: float, told: str) -> None:
    """A length is written to a tenth, without what says nothing"""
    assert number(amount) == told
