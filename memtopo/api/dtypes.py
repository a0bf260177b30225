"""Element types of views, by the names of NumPy, PyTorch and JAX."""

from __future__ import annotations

from typing import NamedTuple

from memtopo.api.errors import Unsuitable
from memtopo.common.units import shorten
from memtopo.diagnostics.messages import choose

_INT, _UINT, _FLOAT, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 4, 5, 6
_E4M3FN, _E5M2 = 10, 12


class DType(NamedTuple):
    """Element type: name, code and bits in DLPack, and the `typestr` of the array interfaces, if there is one."""

    name: str
    code: int
    bits: int
    typestr: str | None

    @property
    def itemsize(self) -> int:
        """Size of one element in bytes."""
        return self.bits // 8


def _known() -> dict[str, DType]:
    kinds: list[tuple[str, int, str, tuple[int, ...]]] = [
        ("int", _INT, "i", (8, 16, 32, 64)),
        ("uint", _UINT, "u", (8, 16, 32, 64)),
    ]
    kinds += [("float", _FLOAT, "f", (16, 32, 64)), ("complex", _COMPLEX, "c", (64, 128))]
    found = [
        DType(f"{name}{bits}", code, bits, f"{'|' if bits == 8 else '<'}{letter}{bits // 8}")  # noqa: PLR2004 a byte
        for name, code, letter, widths in kinds
        for bits in widths
    ]
    found.append(DType("bool", _BOOL, 8, "|b1"))
    found.append(DType("bfloat16", _BFLOAT, 16, None))
    found += [DType(f"float8_{name}", code, 8, None) for name, code in (("e4m3fn", _E4M3FN), ("e5m2", _E5M2))]
    return {each.name: each for each in found}


DTYPES = _known()
"""All types by name."""


def dtype(given: object) -> DType:
    """Return the type for a name, or for the object of NumPy or PyTorch. Raises `Unsuitable`."""
    name = given if isinstance(given, str) else getattr(given, "name", None) or getattr(given, "__name__", None)
    text = str(name or given).removeprefix("torch.")
    if text not in DTYPES:
        raise Unsuitable(f"dtype {shorten(text)!r} is not known", hint=choose(text, list(DTYPES)))
    return DTYPES[text]
