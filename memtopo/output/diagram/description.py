"""A drawing in a few sentences, for those who do not see it."""

from __future__ import annotations

from collections.abc import Iterator

from memtopo.common.units import rounded
from memtopo.output.diagram import notation
from memtopo.output.diagram.model import Diagram, MappingSpan, RangeDiagram, Resource

MOST = 12


def told(picture: Diagram) -> str:
    """What a picture shows, and no more of it than can be listened to."""
    return " ".join([*_processes(picture), *_own(picture), *_memory(picture)]) or "Nothing."


def _processes(picture: Diagram) -> Iterator[str]:
    for process in picture.processes[:MOST]:
        taken = [flow for flow in picture.flows if flow.target == process.first]
        sources = dict.fromkeys("outside" if flow.outside else flow.source.partition(".")[0] for flow in taken)
        imports = f" imports from {', '.join(sources)}" if sources else ""
        own = " ".join(_own(process.picture))
        yield f"Process {notation.processes(process)}{imports}{': ' if own else '.'}{own}"
    yield from _more(sum(process.count for process in picture.processes[MOST:]), "processes")


def _own(picture: Diagram) -> Iterator[str]:
    yield from _ranges(picture)
    yield from _things(picture)


def _ranges(picture: Diagram) -> Iterator[str]:
    for shown in picture.ranges[:MOST]:
        name, size = notation.subjects(shown.first, shown.last), notation.multiple(shown.count, shown.size)
        yield f"Range {name}, {size}: {_of(shown)}."
    yield from _more(sum(shown.count for shown in picture.ranges[MOST:]), "ranges")


def _of(shown: RangeDiagram) -> str:
    if not shown.mapped:
        return "nothing mapped"
    parts = [_piece(piece, shown.count) for piece in shown.pieces[:MOST]]
    return "; ".join([*parts, *([f"{more:,} more"] if (more := len(shown.pieces) - MOST) > 0 else [])])


def _piece(piece: MappingSpan, times: int) -> str:
    if not piece.chunk:
        return f"a hole of {rounded(piece.size)}"
    on = ", ".join(notation.few(piece.locations))
    return f"{notation.of_all(piece, times)}, {notation.multiple(piece.count, piece.bytes_each)} on {on}"


def _things(picture: Diagram) -> Iterator[str]:
    for shown in picture.things[:MOST]:
        kind = (shown.noun or shown.kind).capitalize()
        size = f", {notation.multiple(shown.count, shown.bytes_each)}" if shown.bytes_each else ""
        on = f" on {', '.join(notation.few(shown.locations))}" if shown.locations else ""
        origin = f" from {shown.origin}" if shown.origin else ""
        yield ", ".join([f"{kind} {shown.name}{size}{on}{origin}", *shown.notes, *_parts(shown)]) + "."
    yield from _more(len(picture.things) - MOST, "things")


def _parts(shown: Resource) -> Iterator[str]:
    for part in shown.parts[:MOST]:
        yield f"{part.name} of {notation.multiple(part.count, part.bytes_each)} at {notation.offset(part.offset)}"
    if (more := len(shown.parts) - MOST) > 0:
        yield f"{more:,} more"


def _memory(picture: Diagram) -> Iterator[str]:
    for memory in picture.memory[:MOST]:
        free = f", {rounded(memory.free)} free" if memory.free is not None else ""
        yield f"Memory of {memory.device}: {rounded(memory.used)} used{free}."


def _more(count: int, things: str) -> Iterator[str]:
    if count > 0:
        yield f"And {count:,} more {things}."
