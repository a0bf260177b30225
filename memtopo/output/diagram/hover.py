"""What a pointer is told: everything that is known of a place, a line for each thing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from memtopo.common.units import exact, rounded
from memtopo.diagnostics.model import Path
from memtopo.output.diagram import wording
from memtopo.output.diagram.model import MappingSpan, MemoryShare, RangeDiagram
from memtopo.output.diagram.pen import Pen


def piece(shown: MappingSpan, range_: RangeDiagram, pen: Pen, base: int | None) -> str:
    """One piece of a range; `base` is where the range begins, if that is known."""
    return "\n".join(_piece(shown, range_, pen, base))


def pieces(found: Sequence[MappingSpan], range_: RangeDiagram, pen: Pen) -> str:
    """Many pieces of a range that are drawn as one."""
    size = sum(each.size for each in found)
    mapped = [each for each in found if each.chunk]
    of = f"{sum(each.count for each in mapped):,} mappings"
    told = [f"{of} and {len(found) - len(mapped):,} holes" if len(mapped) < len(found) else of]
    told.append(f"{rounded(size)} at {exact(found[0].offset)} of {range_.first}")
    return "\n".join([*told, *_written(mapped[0].path if mapped else range_.path, pen)])


def share(shown: MemoryShare, device: str, pen: Pen) -> str:
    """What one memory holds of one kind of chunk."""
    told = [shown.chunk, f"{wording.multiple(shown.count, shown.bytes_each)} on {pen.called(device)}"]
    return "\n".join([*told, *_written(shown.path, pen)])


def _piece(shown: MappingSpan, range_: RangeDiagram, pen: Pen, base: int | None) -> Iterator[str]:
    yield wording.of_all(shown, range_.count) if shown.chunk else "hole: addresses without memory"
    yield f"{_size(shown)} at {exact(shown.offset)} of {wording.subjects(range_.first, range_.last)}"
    if base is not None:
        yield f"address 0x{base + shown.offset:x}"
    if shown.chunk:
        yield f"on {', '.join(map(pen.called, wording.few(shown.locations)))}"
        yield f"handles {', '.join(shown.handles) or 'none'}"
        yield f"access {wording.granted(shown.access)}" if shown.access else "no access"
        if shown.origin:
            yield f"from {shown.origin}"
    yield from _written(shown.path, pen)


def _size(shown: MappingSpan) -> str:
    whole = exact(shown.size)
    return f"{wording.multiple(shown.count, shown.bytes_each)} = {whole}" if shown.count > 1 else whole


def _written(path: Path, pen: Pen) -> Iterator[str]:
    if path and (place := pen.place(path)):
        yield place
