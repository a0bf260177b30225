"""Values by their keys."""

from __future__ import annotations

from memtopo.common.keyed import by_key
from memtopo.common.units import summed


def test_values_and_keys_are_in_the_order_in_which_they_come() -> None:
    found = by_key(iter([("b", 2), ("a", 1), ("b", 2), ("b", 1)]))
    assert [*found.items()] == [("b", [2, 2, 1]), ("a", [1])]


def test_amounts_of_all_are_summed_by_their_keys() -> None:
    assert summed(({"a": 1, "b": 2}, {}, {"a": 3, "c": 0})) == {"a": 4, "b": 2, "c": 0}
