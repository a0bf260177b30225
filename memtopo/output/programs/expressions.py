"""Text that programs in all languages have in common: sums, sizes, divided lines, and fixed parts from files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from importlib import resources

from memtopo.output.programs.statements import Cycle, Linear, Table

WIDTH = 110
_UNITS = ((30, "GiB"), (20, "MiB"), (10, "KiB"))


def linear(value: Linear, divide: str, integer: Callable[[int], str]) -> str:
    """Expression of `i`; `divide` is the operator of a division without rest."""
    base = integer(value.base) if value.base else ""
    index = f"i % {value.every}" if value.every else "i"
    outer = f"i {divide} {value.every}" if value.every else "i"
    return _sum(base, _product(index, value.step, integer), _product(outer, value.outer, integer))


def index_of(value: Cycle | Table) -> str:
    """Index of the value that is chosen for `i`."""
    if isinstance(value, Cycle):
        return f"i % {len(value.values)}"
    return f"i - {value.first}" if value.first else "i"


def in_units(value: int) -> str | None:
    """A size as a multiple of KiB, MiB or GiB; None for a number that is none."""
    return next((f"{value >> shift} * {unit}" for shift, unit in _UNITS if value and not value % (1 << shift)), None)


def is_hint(method: str, name: str, value: object) -> bool:
    """Return true for the address that a range asks for, which is written as an address and not as a size."""
    return method == "mem_address_reserve" and name == "address" and type(value) is int and value > 0


def _product(variable: str, factor: int, integer: Callable[[int], str]) -> str:
    """A multiple of an expression; empty for none."""
    if factor in (0, 1):
        return variable * factor
    text = f"({variable})" if " " in variable else variable
    return f"-{text}" if factor == -1 else f"{'-' * (factor < 0)}{integer(abs(factor))} * {text}"


def _sum(*terms: str) -> str:
    """The sum of terms, without those that are empty."""
    first, *others = [each for each in terms if each] or ["0"]
    return first + "".join(f" - {each[1:]}" if each.startswith("-") else f" + {each}" for each in others)


_PARTS = resources.files("memtopo.output.programs").joinpath("parts")


def part(name: str) -> list[str]:
    """A part of every program, from its file, after an empty line."""
    return ["", *_PARTS.joinpath(name).read_text().rstrip().splitlines()]


@cache
def words_of_parts(suffix: str) -> frozenset[str]:
    """Words in the parts of a language, among them all identifiers, which no object may have."""
    texts = [each.read_text() for each in _PARTS.iterdir() if each.name.endswith(suffix)]
    return frozenset(word for text in texts for word in re.findall(r"[A-Za-z_]\w*", text))


def divided(line: str, indent: str, further: str) -> Iterator[str]:
    """A statement in lines that are not too long, divided after commas; the others are indented `further`."""
    while len(line) > WIDTH and (at := line.rfind(", ", len(indent) + 8, WIDTH)) > 0:
        yield line[: at + 1]
        line = f"{indent}{further}{line[at + 2 :]}"
    yield line
