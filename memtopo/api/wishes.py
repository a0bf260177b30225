"""What a view is to be, and the arithmetic of it: bytes, elements and shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from memtopo.api.dtypes import DType
from memtopo.api.errors import Unsuitable
from memtopo.common.units import exact

Shape = int | Sequence[int] | None


class Part(TypedDict, total=False):
    """Which part of some memory is viewed, and how: what is left out is the whole of it, for whom it suits best."""

    shape: Shape
    offset: int
    size: int | None
    device: str | int | None


@dataclass(frozen=True, slots=True)
class Wish:
    """Elements of a type in a shape, `offset` bytes on, `size` bytes in all, for a `device`.

    Without a shape there is one dimension; one extent may be -1. Without a size it goes as far as the shape does, or
    to the end where that does not say it.
    """

    dtype: DType
    shape: tuple[int, ...] | None
    offset: int
    size: int | None
    device: str | int | None

    def span(self, what: str, whole: int) -> tuple[int, int]:
        """Where it begins and ends within `whole` bytes. Raises `Unsuitable` where it is nothing, or goes past them."""
        said = self.shape is not None and -1 not in self.shape
        size = self.size
        if size is None:
            size = math.prod(self.shape or ()) * self.dtype.itemsize if said else whole - self.offset
        if self.offset < 0 or size <= 0 or self.offset + size > whole:
            told = (
                f"{what} has {exact(whole)}, and this view would be its bytes {self.offset:,} to {self.offset + size:,}"
            )
            hint = f"the whole of it has {whole // self.dtype.itemsize:,} elements of {self.dtype.name}"
            raise Unsuitable(told, hint=hint)
        return self.offset, self.offset + size

    def fit(self, what: str, size: int) -> tuple[int, ...]:
        """The shape of so many bytes, its -1 resolved. Raises `Unsuitable` where it does not come to them."""
        elements, rest = divmod(size, self.dtype.itemsize)
        if rest:
            raise Unsuitable(f"{what}: {size:,} bytes are no whole number of {self.dtype.name}")
        shape = (-1,) if self.shape is None else self.shape
        known = math.prod(extent for extent in shape if extent != -1)
        if shape.count(-1) == 1 and known > 0:
            shape = tuple(elements // known if extent == -1 else extent for extent in shape)
        if min(shape, default=0) < 0 or math.prod(shape) != elements:
            raise Unsuitable(f"{what}: {elements:,} elements of {self.dtype.name} are not of shape {list(shape)}")
        return shape


def extents(shape: Shape) -> tuple[int, ...] | None:
    """A shape as a tuple; a number alone is one dimension."""
    if shape is None:
        return None
    return (shape,) if isinstance(shape, int) else tuple(map(int, shape))
