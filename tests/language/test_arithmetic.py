"""Arithmetic of parameters: exact, bounded, and equal to Python's own."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memtopo.common.units import LARGEST, exact
from memtopo.diagnostics.model import InvalidValue
from memtopo.language.arithmetic import DEEPEST_NESTING, LONGEST, Quantity, evaluate, quantity

PARAMETERS = {
    "pages": "16",
    "page": "2MiB",
    "none": "0",
    "where": "gpu0",
    "big": str(LARGEST),
}


def refused(text: str) -> InvalidValue:
    with pytest.raises(InvalidValue) as found:
        evaluate(text, PARAMETERS.__getitem__)
    return found.value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$pages", "16"),
        ("$page", "2MiB"),
        ("$pages * $page", "32MiB"),
        ("$page*$pages", "32MiB"),
        ("64MiB / $page", "32"),
        ("64MiB / $pages", "4MiB"),
        ("2 + 3 * 4", "14"),
        ("(2 + 3) * 4", "20"),
        ("20 - 5 - 3", "12"),
        ("64 / 4 / 2", "8"),
        ("(1 - 3) * (1 - 2)", "2"),
        ("4 KiB + 1B", "4097B"),
        ("$page - 2MiB", "0"),
        ("$none + $page", "2MiB"),
        ("$page * $none", "0"),
        (f"$big + 0 * {LARGEST}", str(LARGEST)),
        ("(0 - $big) + $big", "0"),
    ],
)
def test_arithmetic_has_the_value_of_its_operators(text: str, value: str) -> None:
    assert str(evaluate(text, PARAMETERS.__getitem__)) == value


def test_an_inexact_division_names_its_remainder_and_the_nearest_multiples() -> None:
    wrong = refused("100MiB / 3")
    assert wrong.message == "100MiB / 3 leaves a remainder of 1B"
    assert wrong.help == f"{100 * 2**20 - 1}B and {exact(100 * 2**20 + 2)} are multiples of 3"


def test_parentheses_and_texts_of_the_largest_size_have_a_value() -> None:
    assert evaluate("(" * DEEPEST_NESTING + "1" + ")" * DEEPEST_NESTING, str).amount == 1
    assert evaluate("1+" * (LONGEST // 2 - 1) + "10", str).amount == LONGEST // 2 + 9
    assert refused("1+" * (LONGEST // 2) + "1").code == "MT902"


NUMBERS = st.integers(0, 40) | st.integers(0, LARGEST)
EXPRESSIONS = st.recursive(
    NUMBERS.map(str),
    lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda each: f"({each[0]} {each[1]} {each[2]})"),
    max_leaves=8,
)
FLAT = st.lists(st.tuples(NUMBERS.map(str), st.sampled_from("+-*/")), min_size=1, max_size=6).map(
    lambda parts: " ".join(f"{number} {sign}" for number, sign in parts)[:-2]
)


class Exact(int):
    """Python's integers with a division that fails where it is not exact, and a bound on every result."""

    def _of(self, found: Fraction | int) -> Exact:
        if Fraction(found).denominator != 1 or not -LARGEST <= int(found) <= LARGEST:
            raise ArithmeticError
        return Exact(found)

    def __add__(self, other: int) -> Exact:
        return self._of(int(self) + int(other))

    def __sub__(self, other: int) -> Exact:
        return self._of(int(self) - int(other))

    def __mul__(self, other: int) -> Exact:
        return self._of(int(self) * int(other))

    def __truediv__(self, other: int) -> Exact:
        return self._of(Fraction(int(self), int(other)))


def by_python(text: str) -> int | None:
    """Value of an expression by Python's own evaluation; None if it has none."""
    words = text.replace("(", " ( ").replace(")", " ) ").split()
    code = "".join(f"Exact({word})" if word.isdecimal() else word for word in words)
    try:
        found = int(eval(code, {"Exact": Exact}))
    except ArithmeticError:
        return None
    return found if found >= 0 else None


@given(EXPRESSIONS | FLAT)
def test_arithmetic_is_equal_to_that_of_python(text: str) -> None:
    expected = by_python(text)
    if expected is None:
        assert refused(text).code == "MT903"
    else:
        assert evaluate(text, str) == Quantity(expected)


@given(st.integers(0, LARGEST), st.booleans())
def test_a_value_is_read_from_its_own_text(amount: int, in_bytes: bool) -> None:
    """A size of 0 is written as 0, which is a number as well."""
    value = Quantity(amount, in_bytes)
    assert quantity(str(value)) == (value if amount else Quantity(0))


@given(st.text("$()+-*/0123456789 MiBnamespcoge", max_size=40))
def test_any_text_has_a_value_or_is_refused(text: str) -> None:
    code = None
    try:
        assert 0 <= evaluate(text, lambda name: PARAMETERS.get(name, "1")).amount <= LARGEST
    except InvalidValue as wrong:
        code = wrong.code
    assert code in (None, "MT902", "MT903")
