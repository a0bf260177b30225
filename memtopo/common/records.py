"""Records: classes of values of which a layout may have hundreds of thousands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """Make a class a dataclass with slots, whose instances are compared and hashed by value, and never changed.

    Type checkers refuse an assignment to a field. The interpreter does not: a dataclass that it keeps frozen takes five
    times as long to create.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)
