"""Amounts and names as people read them, at the limits of their units."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memtopo.machine import MachineLine
from memtopo.output import humanize
from memtopo.plans.report import ProcessPlan


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (-3, "0 s"), (119.9, "119 s"), (120, "2 min"), (7199, "119 min"), (7200, "2 h"), (172799, "47 h"),
     (172800, "2 d"), (86400 * 1500, "1,500 d")],
)  # fmt: skip
def test_an_age_is_in_whole_units_of_the_largest_that_has_two(seconds: float, text: str) -> None:
    assert humanize.age(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 µs"), (12e-6, "12 µs"),
     (850e-6, "850 µs"), (0.9994e-3, "999 µs"), (0.9996e-3, "1 ms"), (12.34e-3, "12.3 ms"), (4.562, "4.56 s"),
     (999.4, "999 s"), (999.6, "16 min 40 s"), (1205, "20 min 5 s"),
     (0.9999, "1 s"), (3725, "62 min 5 s")],
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
     ("long_name.0", "long_name.3", "long_name.0 … 3"), ("long_name.0", "other_name.3", "long_name.0 … other_name.3"),
     ("gpu0", "gpu1", "gpu0 … gpu1")],
)  # fmt: skip
def test_many_subjects_are_the_first_and_the_last(first: str, last: str, text: str) -> None:
    assert humanize.subjects(first, last) == text


def test_names_of_machines_and_processes_say_how_many_there_are() -> None:
    """And things that are one, or more."""
    assert [humanize.things(count) for count in (1, 2)] == ["1 thing is", "2 things are"]
    assert [humanize.devices(names) for names in ((), ("a", "b", "a"))] == ["no GPU", "2 × a, 1 × b"]
    machines = (MachineLine("m", simulated=simulated, devices=(), driver="") for simulated in (False, True))
    assert [*map(humanize.machine, machines)] == ["m", "m (simulated)"]


@pytest.mark.parametrize(("node", "on"), [(None, ""), ("a", " on a")])
def test_several_processes_of_a_plan_are_said_to_have_it_each(node: str | None, on: str) -> None:
    one = ProcessPlan("r.0", "r.0", 1, (), {}, node=node)
    several = replace(one, last="r.3", count=4)
    assert [humanize.processes(each) for each in (one, several)] == [f"r.0{on}", f"r.0 … r.3{on}, each"]


def test_long_values_of_parameters_are_cut_and_without_any_there_is_no_line() -> None:
    ((name, text),) = humanize.parameters({"n": "2", "long": "x" * 99})
    assert (name, text) == ("parameters", f"n=2 long={'x' * 39}…")
    assert [*humanize.parameters({})] == []
