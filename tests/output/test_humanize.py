"""Amounts and names as people read them, at the limits of their units."""

from __future__ import annotations

import pytest

from memtopo.output import humanize


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (-3, "0 s"), (119.9, "119 s"), (120, "2 min"), (7199, "119 min"), (7200, "2 h"), (172799, "47 h"),
     (172800, "2 d"), (86400 * 1500, "1,500 d")],
)  # fmt: skip
def test_an_age_is_in_whole_units_of_the_largest_that_has_two(seconds: float, text: str) -> None:
    assert humanize.age(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(850e-6, "850 µs"), (0.9994e-3, "999 µs"), (0.9996e-3, "1 ms"), (12.34e-3, "12.3 ms"), (4.562, "4.56 s"),
     (999.4, "999 s"), (999.6, "16 min 40 s"), (1205, "20 min 5 s")],
)  # fmt: skip
def test_a_duration_has_three_digits(seconds: float, text: str) -> None:
    assert humanize.duration(seconds) == text


@pytest.mark.parametrize(
    ("size", "seconds", "text"),
    [(10**12, 1, "1 TB/s"), (10**12 - 10**9, 1, "999 GB/s"), (10**9, 1, "1 GB/s"), (2 * 10**6, 2, "1 MB/s"),
     (1500, 1, "1.5 kB/s"), (5, 0, "0 kB/s")],
)  # fmt: skip
def test_a_rate_is_in_decimal_units(size: int, seconds: float, text: str) -> None:
    assert humanize.rate(size, seconds) == text


@pytest.mark.parametrize(
    ("before", "after", "memory", "text"),
    [(2, 2, True, "0"), (2, 4, False, "+2"), (4 << 20, 2 << 20, True, "-2 MiB"), (0, 2 << 20, True, "+2 MiB")],
)
def test_a_change_has_its_sign(before: int, after: int, memory: bool, text: str) -> None:
    assert humanize.change(before, after, memory=memory) == text


@pytest.mark.parametrize(
    ("first", "last", "text"),
    [("page.0", "", "page.0"), ("page.0", "page.0", "page.0"), ("page.0", "page.3", "page.0 … page.3"),
     ("long_name.0", "long_name.3", "long_name.0 … 3"), ("long_name.0", "other_name.3", "long_name.0 … other_name.3")],
)  # fmt: skip
def test_many_subjects_are_the_first_and_the_last(first: str, last: str, text: str) -> None:
    assert humanize.subjects(first, last) == text
