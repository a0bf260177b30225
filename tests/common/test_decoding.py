"""Decoding of JSON by types: the values, and the errors, which name a place and repeat no value."""

from __future__ import annotations

from typing import Annotated, Literal

import pytest
from msgspec import Meta, Struct

from memtopo.common.decoding import Mismatch, convert, decode, encode

Word = Literal["one", "two", "three"]


class Inner(Struct, frozen=True, forbid_unknown_fields=True):
    """Struct within another one."""

    number: Annotated[int, Meta(ge=1, le=9)] = 1
    word: Word | None = None


class Outer(Struct, frozen=True):
    """Struct with a field of each kind."""

    text: Annotated[str, Meta(max_length=3)]
    rate: float = 0.0
    each: Annotated[tuple[Inner, ...], Meta(max_length=2)] = ()
    named: dict[str, Inner] = {}
    version: Literal[1] = 1


LARGE = f'{{"text": "a", "named": {{"x": 1}}{" " * (16 << 20)}}}'


def test_a_value_is_decoded_as_it_was_encoded() -> None:
    value = Outer("a", 1.5, (Inner(2, "two"),), {"x": Inner(3)})
    assert decode(encode(value), Outer) == value
    assert convert({"text": "a"}, Outer) == Outer("a")


@pytest.mark.parametrize(
    ("text", "where", "needed"),
    [
        ("{}", "text", "field required"),
        ('{"text": 1}', "text", "input should be a valid string"),
        ('{"text": "long"}', "text", "string should have at most 3 characters"),
        ('{"text": "a", "rate": "x"}', "rate", "input should be a valid number"),
        ('{"text": "a", "each": {}}', "each", "input should be a valid array"),
        ('{"text": "a", "each": [{}, 3]}', "each.1", "input should be an object"),
        ('{"text": "a", "each": [{}, {}, {}]}', "each", "array should have at most 2 items"),
        ('{"text": "a", "each": [{"number": 0}]}', "each.0.number", "input should be greater than or equal to 1"),
        ('{"text": "a", "each": [{"number": 10}]}', "each.0.number", "input should be less than or equal to 9"),
        ('{"text": "a", "each": [{"word": "six"}]}', "each.0.word", "input should be 'one', 'two' or 'three'"),
        ('{"text": "a", "named": {"x.y": {"word": 1}}}', "named.x.y.word", "input should be a valid string"),
        ('{"text": "a", "named": {"x": {}, "y": {"number": ""}}}', "named.y.number", "input should be a valid integer"),
        ('{"text": "a", "version": 2}', "version", "input should be 1"),
        ("[]", "", "input should be an object"),
        ("{", "", "input should be valid JSON"),
        ('{"text": 1', "", "input should be valid JSON"),
        ('{"text": "a", "named": {"x": 1, "x": {}}}', "named.…", "input should be an object"),
        pytest.param(LARGE, "named.…", "input should be an object", id="a large text"),
    ],
)  # fmt: skip
def test_a_mismatch_names_the_place_and_what_is_needed(text: str, where: str, needed: str) -> None:
    with pytest.raises(Mismatch) as raised:
        decode(text, Outer)
    assert (raised.value.where, raised.value.needed, raised.value.unknown) == (where, needed, False)


def test_an_unknown_field_is_told_apart() -> None:
    with pytest.raises(Mismatch) as raised:
        decode('{"text": "a", "each": [{"nmber": 1}]}', Outer)
    assert (raised.value.where, raised.value.unknown) == ("each.0.nmber", True)
