"""Text that all drawings share: sizes, offsets, spans of names, and access."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from memtopo.common.text import printable
from memtopo.common.units import exact, rounded
from memtopo.output.diagram.model import DeviceAccess, MappingSpan, ProcessDiagram

_FEW = 2  # names that are told one by one
_DIGITS = 4  # of an offset that is told in full


def granted(access: Sequence[DeviceAccess]) -> str:
    """Access in few words: `gpu0 rw, gpu1-3 r`."""
    if not access:
        return "no access"
    alike = groupby(access, key=lambda each: each.access)
    return ", ".join(
        f"{name} {printable(word)}"
        for word, group in alike
        for name in spans([printable(each.device) for each in group])
    )


def multiple(count: int, size: int) -> str:
    """One size, or how often there is one: `16 × 2 MiB`."""
    return rounded(size) if count == 1 else f"{count:,} × {rounded(size)}"


def subjects(first: str, last: str) -> str:
    """One name, or the first and the number of the last; two names where they have no stem in common."""
    if last == first:
        return first
    stem, _, number = last.rpartition(".")
    return f"{first} … {number if stem and first.rpartition('.')[0] == stem else last}"


def of_all(shown: MappingSpan, times: int) -> str:
    """The chunks of a piece; where equal ranges go on with the next ones each, those of all of them."""
    stem, _, number = shown.last.rpartition(".")
    ahead = shown.step * (times - 1) if shown.step == shown.count else 0
    last = f"{stem}.{int(number) + ahead}" if ahead and number.isdecimal() else shown.last
    return subjects(shown.first, last)


def few(names: Sequence[str]) -> list[str]:
    """Names as they are, unless they are many in a row: `gpu0-3`."""
    return list(names) if len(names) <= _FEW else list(spans(names))


def spans(names: Sequence[str]) -> Iterator[str]:
    """Names, and of GPUs in a row the first and the last: `gpu0-3`."""
    numbered = [(index, int(name[3:]) if name[:3] == "gpu" and name[3:].isdecimal() else None, name)
                for index, name in enumerate(names)]  # fmt: skip
    for _, group in groupby(numbered, key=lambda each: each[2] if each[1] is None else each[1] - each[0]):
        found = list(group)
        yield found[0][2] if len(found) == 1 else f"{found[0][2]}-{found[-1][1]}"


def offset(amount: int) -> str:
    """An offset in full where that is short, else to a tenth."""
    whole = exact(amount)
    digits = whole.rstrip("BKMGTi")
    return f"{digits} {whole[len(digits) :]}".rstrip() if len(digits) <= _DIGITS else rounded(amount)


def processes(shown: ProcessDiagram) -> str:
    """The processes that one picture is of: `reader.0 … 3`, or `reader.0, reader.2 … 6` where others lie between."""
    if shown.step == 1 or shown.count == 1:
        return subjects(shown.first, shown.last)
    stem, _, number = shown.first.rpartition(".")
    second = f"{stem}.{int(number) + shown.step}" if number.isdecimal() else shown.last
    return f"{shown.first}, {subjects(second, shown.last)}"
