from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memtopo.output.diagram.bar import lengths, separated

SIZES = st.lists(st.integers(1, 1 << 50), min_size=1, max_size=200)


@given(SIZES, st.integers(50, 800))
def test_lengths_fill_the_room_in_the_order_of_sizes(sizes: list[int], room: int) -> None:
    made = lengths(sizes, room, 5)
    assert sum(made) == pytest.approx(room)
    assert all(length > 0 for length in made)
    ordered = [length for _, length in sorted(zip(sizes, made, strict=True))]
    assert all(a <= b + 1e-6 for a, b in pairwise(ordered))


def test_lengths_are_to_scale_but_for_the_least() -> None:
    assert lengths([1, 2, 1], 100, 5) == [25, 50, 25]
    assert lengths([1, 1000, 1000], 205, 5) == [5, 100, 100]


def test_lengths_are_all_to_scale_if_there_are_too_many() -> None:
    assert lengths([1] * 30 + [70], 100, 5) == pytest.approx([1.0] * 30 + [70.0])


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(1, 40)), min_size=1, max_size=30))
def test_labels_do_not_overlap(wanted: list[tuple[int, int]]) -> None:
    wished = sorted(float(wish) for wish, _ in wanted)
    heights = [float(height) for _, height in wanted]
    end = max(400.0, sum(heights))
    tops = separated(wished, heights, end)
    assert all(top >= -1e-9 for top in tops)
    for (top, below), height in zip(pairwise([*tops, end]), heights, strict=True):
        assert top + height <= below + 1e-9


def test_labels_without_neighbours_stay_at_their_preferred_position() -> None:
    assert separated([10, 50, 90], [20, 20, 20], 200) == [10, 50, 90]
