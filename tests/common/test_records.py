"""Records: their methods, which are compiled when they are first called, are those of a dataclass."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pytest

from memtopo.common.records import mutable_record, record


def point(decorator: Callable[[type[Any]], type[Any]]) -> type[Any]:
    class Point:
        """A point with all that a field can be declared with."""

        x: int
        y: int = 0
        names: tuple[str, ...] = field(default_factory=tuple, repr=False)
        note: str = field(default="", compare=False, kw_only=True)
        later: list[int] = field(default_factory=list, init=False, hash=False)
        always: int = field(default=7, init=False)
        _later: int = 1
        MISSING: int = 2
        never: int = field(init=False, repr=False, compare=False)

        def __post_init__(self) -> None:
            if self.x < 0:
                raise ValueError(self.x)

    return decorator(Point)


RECORD, DATACLASS = point(record), point(dataclass(frozen=True, slots=True))
ARGUMENTS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((1,), {}), ((1, 2), {}), ((1, 0, ("a",)), {}), ((1,), {"note": "b"}), ((), {"y": 1, "x": 2}),
]  # fmt: skip


@pytest.mark.parametrize(("args", "named"), ARGUMENTS)
def test_a_record_is_created_shown_and_hashed_as_a_dataclass(args: tuple[Any, ...], named: dict[str, Any]) -> None:
    ours, theirs = RECORD(*args, **named), DATACLASS(*args, **named)
    assert repr(ours) == repr(theirs)
    assert hash(ours) == hash(theirs)
    for other, more in ARGUMENTS:
        assert (ours == RECORD(*other, **more)) == (theirs == DATACLASS(*other, **more))
    assert ours != theirs
    assert repr(replace(ours, y=5)) == repr(replace(theirs, y=5))


@pytest.mark.parametrize("args", [(), (1, 2, (), 3, 4, "note"), (-1,)])
def test_a_record_refuses_what_a_dataclass_refuses(args: tuple[Any, ...]) -> None:
    errors = []
    for kind in (point(record), point(dataclass(frozen=True, slots=True))):
        with pytest.raises((TypeError, ValueError)) as raised:
            kind(*args)
        errors.append((raised.type, str(raised.value)))
    assert errors[0] == errors[1]


@record
class Shape:
    """A base with a method of its own."""

    name: str

    def __repr__(self) -> str:
        return self.name


@record
class Square(Shape):
    """A field more, and one that is computed."""

    side: int = 1

    @cached_property
    def area(self) -> int:
        """Computed once."""
        return self.side**2


def test_records_are_inherited_and_keep_their_own_methods() -> None:
    square = Square("a", 3)
    assert (repr(Shape("b")), square, square.area) == ("b", Square("a", 3), 9)
    assert Shape("a") != square
    assert (
        pickle.loads(pickle.dumps([Shape("b"), square])) == [Shape("b"), square] == copy.deepcopy([Shape("b"), square])
    )
    with pytest.raises(AttributeError):
        Shape("b").other = 1  # type: ignore[attr-defined]


@mutable_record
class Counter:
    """A number that changes."""

    value: int = 0


def test_mutable_records_are_compared_by_identity() -> None:
    one = Counter()
    one.value += 1
    assert repr(one) == "Counter(value=1)"
    assert one != Counter(1)
    assert len({one, Counter(1), one}) == 2
