from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memtopo.output.diagram.markup import fitting, number, packed, width


@given(st.text(max_size=80), st.integers(40, 400))
def test_a_fitted_text_has_at_most_the_width(text: str, room: int) -> None:
    assert width(fitting(text, room, 12), 12) <= room


@given(st.lists(st.text("ab 1×", max_size=30), max_size=8), st.integers(60, 400))
def test_packed_lines_have_at_most_the_width(parts: list[str], room: int) -> None:
    lines = packed(parts, room, 12)
    assert all(width(line, 12) <= room for line in lines)
    assert sum(map(len, lines)) >= min(1, sum(map(len, parts)))


def test_lines_are_not_broken_within_a_size() -> None:
    assert packed(["16 × 2 MiB at 64 MiB"], 110, 12) == ["16 × 2 MiB", "at 64 MiB"]


@pytest.mark.parametrize(("amount", "text"), [(0, "0"), (-0.04, "0"), (1.25, "1.2"), (-3.0, "-3"), (100, "100")])
def test_lengths_are_written_to_a_tenth(amount: float, text: str) -> None:
    assert number(amount) == text
