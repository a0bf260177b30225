"""Text that all drawings share: sizes, offsets, spans of names, and access."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby

from memtopo.common.text import display_width, numbered, printable
from memtopo.common.units import exact, rounded, shorten
from memtopo.geometry.diagram import DeviceAccess, MappingSpan, MemoryDiagram, ProcessDiagram, RangeDiagram

_FEW = 2  # names that are listed one by one
_NAMED = 3  # entries of an elastic range, and parts of a chunk
_LONGEST_PART = 20  # characters of a part's name
_SAME_ADDRESS = "same address in all processes"
_DIGITS = 4  # of an offset in full
_GPU = re.compile(r"((?:[^/]+/)?gpu)([0-9]+)")


def shortened(name: str, columns: int) -> str:
    """A name in at most so many columns, without its middle: the ends of names differ most."""
    shown = printable(name)
    if display_width(shown) <= columns:
        return shown
    start = _first(shown, (columns - 1) // 2)
    return f"{start.rstrip()}…{_first(shown[::-1], columns - 1 - display_width(start))[::-1].lstrip()}"


def _first(text: str, columns: int) -> str:
    widths = accumulate(map(display_width, text))
    return text[: sum(width <= columns for width in widths)]


def first_and_last(count: int, most: int) -> Sequence[int]:
    """Indices of what has a label: all, or the first ones and the last one."""
    return range(count) if count <= most else [*range(most - 1), count - 1]


def granted(access: Sequence[DeviceAccess]) -> str:
    """Access in short: `gpu0 rw, gpu1-3 r`."""
    if not access:
        return "no access"
    groups = groupby(access, key=lambda each: each.access)
    return ", ".join(
        f"{name} {printable(word)}"
        for word, group in groups
        for name in _gpu_ranges([printable(each.device) for each in group])
    )


def order(span: MappingSpan) -> str:
    """Remark after the locations of a span that does not show which chunk is on which of them."""
    return " in mixed order" if span.mixed else ""


def multiple(count: int, size: int) -> str:
    """A size, or several equal ones: `16 × 2 MiB`."""
    return rounded(size) if count == 1 else f"{count:,} × {rounded(size)}"


def name_range(first: str, last: str) -> str:
    """A name, or the first one and the number of the last: `page.0 … 31`; both names if they have no common stem."""
    if last == first:
        return first
    stem, _, number = last.rpartition(".")
    return f"{first} … {number if stem and first.rpartition('.')[0] == stem else last}"


def chunk_names(span: MappingSpan, count: int) -> str:
    """The chunks of a span of `count` equal ranges; of all of them if these are consecutive."""
    stem, number = numbered(span.last)
    if number is None:
        return name_range(span.first, span.last)
    in_turn = span.step == 1 and span.interval == count
    if span.interval > 1 and not in_turn:
        return f"{span.first}, {name_range(f'{stem}.{span.index + span.interval}', span.last)}"
    ahead = span.step * (count - 1) if in_turn or span.step == span.count else 0
    return name_range(span.first, f"{stem}.{number + ahead}")


def parts(span: MappingSpan) -> str:
    """First parts of each chunk of a span in words: `signal 4 KiB, data 2 MiB`; empty if it has none."""
    words = [f"{shorten(part.name, _LONGEST_PART)} {rounded(part.size)}" for part in span.parts[:_NAMED]]
    left = len(span.parts) - _NAMED
    return ", ".join([*words, *([f"{left:,} more parts"] if left > 0 else [])])


def short_names(names: Sequence[str]) -> list[str]:
    """Names as they are if they are few, otherwise with ranges of GPUs: `gpu0-3`."""
    return list(names) if len(names) <= _FEW else list(_gpu_ranges(names))


def _gpu_ranges(names: Sequence[str]) -> Iterator[str]:
    """Names, with consecutive GPUs of a node as a range: `gpu0-3`, `a/gpu0-3`."""
    numbered = [(index, _GPU.fullmatch(name), name) for index, name in enumerate(names)]
    for _, group in groupby(numbered, key=lambda each: (each[1][1], int(each[1][2]) - each[0]) if each[1] else each[2]):
        found = list(group)
        last = found[-1][1]
        yield found[0][2] if len(found) == 1 or last is None else f"{found[0][2]}-{last[2]}"


def offset(amount: int) -> str:
    """An offset in full if that is short, otherwise to a tenth."""
    whole = exact(amount)
    digits = whole.rstrip("BKMGTi")
    return f"{digits} {whole[len(digits) :]}".rstrip() if len(digits) <= _DIGITS else rounded(amount)


def processes(process: ProcessDiagram) -> str:
    """The processes of a diagram: `reader.0 … 3`, or `reader.0, reader.2 … 6` with other processes between them.

    With their node: `reader.0 … 3 on a`.
    """
    node = f" on {process.node}" if process.node else ""
    if process.step == 1 or process.count == 1:
        return name_range(process.first, process.last) + node
    stem, number = numbered(process.first)
    second = process.last if number is None else f"{stem}.{number + process.step}"
    return f"{process.first}, {name_range(second, process.last)}{node}"


def remark(range_: RangeDiagram) -> str:
    """Further properties of a range in words: what a program maps in it, with its access, and a common address."""
    return "; ".join(filter(None, (_elastic(range_), _SAME_ADDRESS if range_.same_address else "")))


def _elastic(range_: RangeDiagram) -> str:
    """Entries whose chunks a program maps in a range, and the chunk behind the rest; empty if it is not elastic."""
    if not range_.elastic:
        return ""
    some = [*map(printable, range_.elastic[:_NAMED]), *(["…"] if len(range_.elastic) > _NAMED else [])]
    zeros = f", zeros of {printable(range_.zero)}" if range_.zero else ""
    return f"elastic: {', '.join(some)}{_elastic_access(range_)}{zeros}"


def _elastic_access(range_: RangeDiagram) -> str:
    """Access of what a program maps, in brackets; empty if it is that of the mapped chunks."""
    found = range_.elastic_access
    if {*found} == {span.access for span in range_.pieces if span.chunk}:
        return ""
    return f" ({granted(found[0] if found else ()) if len(found) < 2 else 'access by part'})"  # noqa: PLR2004


def used_bytes(memory: MemoryDiagram) -> str:
    """Bytes of a memory that the layout uses: `32 MiB used`, or `up to 32 MiB used` if a program creates chunks."""
    return f"{'up to ' if memory.growing else ''}{rounded(memory.used)} used"
