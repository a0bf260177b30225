"""Description of a drawing in sentences, for screen readers."""

from __future__ import annotations

from collections.abc import Iterator

from memtopo.common.units import rounded
from memtopo.output.diagram import notation
from memtopo.output.diagram.model import Diagram, MappingSpan, RangeDiagram, Resource

MOST = 12
"""Processes, ranges, spans, resources, parts and memories that are described one by one."""


def description(diagram: Diagram) -> str:
    """A diagram in sentences, of bounded length."""
    return " ".join([*_processes(diagram), *_ranges_and_resources(diagram), *_memories(diagram)]) or "Nothing."


def _processes(diagram: Diagram) -> Iterator[str]:
    for process in diagram.processes[:MOST]:
        flows = [flow for flow in diagram.flows if flow.target == process.first]
        sources = dict.fromkeys("outside" if flow.outside else flow.source.partition(".")[0] for flow in flows)
        imports = f" imports from {', '.join(sources)}" if sources else ""
        content = " ".join(_ranges_and_resources(process.picture))
        yield f"Process {notation.processes(process)}{imports}{': ' if content else '.'}{content}"
    yield from _more(sum(process.count for process in diagram.processes[MOST:]), "processes")


def _ranges_and_resources(diagram: Diagram) -> Iterator[str]:
    for range_ in diagram.ranges[:MOST]:
        name = notation.name_range(range_.first, range_.last)
        yield f"Range {name}, {notation.multiple(range_.count, range_.size)}: {_content(range_)}."
    yield from _more(sum(range_.count for range_ in diagram.ranges[MOST:]), "ranges")
    yield from map(_resource, diagram.things[:MOST])
    yield from _more(len(diagram.things) - MOST, "resources")


def _content(range_: RangeDiagram) -> str:
    if not range_.mapped:
        return "nothing mapped"
    parts = [_span(span, range_.count) for span in range_.pieces[:MOST]]
    return "; ".join([*parts, *([f"{more:,} more"] if (more := len(range_.pieces) - MOST) > 0 else [])])


def _span(span: MappingSpan, count: int) -> str:
    if not span.chunk:
        return f"a hole of {rounded(span.size)}"
    on = ", ".join(notation.short_names(span.locations))
    return f"{notation.chunk_names(span, count)}, {notation.multiple(span.count, span.bytes_each)} on {on}"


def _resource(resource: Resource) -> str:
    noun = (resource.noun or resource.kind).capitalize()
    size = f", {notation.multiple(resource.count, resource.bytes_each)}" if resource.bytes_each else ""
    on = f" on {', '.join(notation.short_names(resource.locations))}" if resource.locations else ""
    origin = f" from {resource.origin}" if resource.origin else ""
    return ", ".join([f"{noun} {resource.name}{size}{on}{origin}", *resource.notes, *_parts(resource)]) + "."


def _parts(resource: Resource) -> Iterator[str]:
    for part in resource.parts[:MOST]:
        yield f"{part.name} of {notation.multiple(part.count, part.bytes_each)} at {notation.offset(part.offset)}"
    if (more := len(resource.parts) - MOST) > 0:
        yield f"{more:,} more"


def _memories(diagram: Diagram) -> Iterator[str]:
    for memory in diagram.memory[:MOST]:
        free = f", {rounded(memory.free)} free" if memory.free is not None else ""
        yield f"Memory of {memory.device}: {rounded(memory.used)} used{free}."


def _more(count: int, nouns: str) -> Iterator[str]:
    if count > 0:
        yield f"And {count:,} more {nouns}."
