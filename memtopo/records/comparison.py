"""Comparison of the memory of a record with a spec, without names: what only one of both has.

Both are memory at a moment: that of the spec is the memory after the calls that its plan lists.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from msgspec import Struct

from memtopo.driver.functions import function
from memtopo.driver.recorder import DriverCall
from memtopo.driver.types import PROPERTY_FLAGS
from memtopo.driver.values import jsonable
from memtopo.geometry import Geometry
from memtopo.language import Document
from memtopo.planner import Plan
from memtopo.plans.trace import TracedCall, TraceHead
from memtopo.records import END, Moment, Record, RecordedCall, moment
from memtopo.records.calls import Memory
from memtopo.records.live import ProcessMemory
from memtopo.run.planned_calls import planned_calls

_KINDS = ("buffers", "allocations", "managed", "pinned", "registered", "external")


class Thing(NamedTuple):
    """Equal objects: their section of a spec, location, size in bytes, and all else that a spec says of them."""

    section: str
    location: str
    size: int
    words: str


class MemoryDifference(Struct, frozen=True):
    """Equal objects of which a spec and a record have different numbers.

    `position` is that of the entry in the spec, as `file:line:column`; None if the spec has none.
    """

    section: str
    location: str
    size: int
    words: str
    in_spec: int
    in_record: int
    position: str | None


class Comparison(Struct, frozen=True):
    """Differences of a record from a spec, most bytes first; without any, both have the same memory.

    `within` is the share of its bytes by which memory of one kind at one location may differ.
    """

    spec: str
    record: str
    moment: str
    within: float
    differences: tuple[MemoryDifference, ...]


def planned(plan: Plan, geometry: Geometry) -> Record:
    """Return the calls by which a plan builds a layout as a record."""
    heads, calls = [], []
    for index, (label, entries) in enumerate(planned_calls(plan, geometry).items()):
        heads.append(TraceHead(plan.name, label, "", simulated=True, driver="", pid=0, started=""))
        made = (each for each in entries if isinstance(each, DriverCall) and each.of_step and not each.undo)
        for number, each in enumerate(made):
            given = {name: jsonable(value, each.method, name) for name, value in each.arguments.items()}
            traced = TracedCall(
                process=label, number=number, time=0.0, phase=each.phase, step=f"{each.verb} {each.subject}",
                call=function(each.method).name, method=each.method, arguments=given, result=jsonable(each.result),
                seconds=0.0,
            )  # fmt: skip
            calls.append(RecordedCall(number, index, traced))
    return Record(tuple(heads), tuple(calls))


def compare(
    document: Document, plan: Plan, geometry: Geometry, recorded: Moment, name: str, within: float = 0.0
) -> Comparison:
    """Compare the layout of a spec with the memory of a record."""
    declared = moment(planned(plan, geometry), END)
    wanted, found = _things(declared.processes), _things(recorded.processes)
    missing = Counter({each: len(objects) for each, objects in wanted.items()})
    missing.subtract({each: len(objects) for each, objects in found.items()})
    tolerated = _tolerated(missing, wanted, within)
    rows = [
        MemoryDifference(
            *each, len(wanted.get(each, ())), len(found.get(each, ())), _position(document, wanted.get(each))
        )
        for each, count in missing.items()
        if count and each._replace(size=0) not in tolerated
    ]
    rows.sort(key=lambda row: (-row.size * abs(row.in_spec - row.in_record), row.section, row.location))
    return Comparison(document.file, name, recorded.name, within, tuple(rows))


def _tolerated(missing: Mapping[Thing, int], wanted: Mapping[Thing, Any], within: float) -> set[Thing]:
    """Objects of all sizes whose bytes differ by no more than a share of those in the spec."""
    if not within:
        return set()
    differences, totals = Counter[Thing](), Counter[Thing]()
    for each, count in missing.items():
        differences[each._replace(size=0)] += count * each.size
    for each, objects in wanted.items():
        totals[each._replace(size=0)] += each.size * len(objects)
    return {each for each, size in differences.items() if abs(size) <= within * totals[each]}


_Owned = tuple[str, str]
"""Process, and the step that made an object."""


def _things(processes: Iterable[ProcessMemory]) -> dict[Thing, list[_Owned]]:
    found: dict[Thing, list[_Owned]] = defaultdict(list)
    for process in processes:
        for thing, call in _of_process(process):
            found[thing].append((process.name, call.step or ""))
    return found


def _of_process(process: ProcessMemory) -> Iterator[tuple[Thing, TracedCall]]:
    for held in process.ranges:
        mapped = process.mapped.within(held.address, held.size)
        access = dict.fromkeys(f"{at} {word}" for each in mapped for at, word in sorted(each.grants.items()))
        yield Thing("ranges", "", held.size, ", ".join(access)), held.call
    for chunk in process.chunks():
        handles = chunk.details.get("handles", ())
        flags = [flag for flag in PROPERTY_FLAGS if chunk.details.get(flag) is True]
        yield _thing("chunks", chunk, " ".join((*handles, *flags))), chunk.call
    for kind in _KINDS:
        for each in process.objects(kind):
            yield _thing(kind, each, "write_combined" if each.details.get("write_combined") else ""), each.call


def _thing(section: str, memory: Memory, words: str) -> Thing:
    if memory.imported:
        return Thing("imports", "", memory.size, section)
    return Thing(section, memory.location, memory.size, words)


def _position(document: Document, owned: list[_Owned] | None) -> str | None:
    """Position of the entry of a spec that objects are of."""
    process, step = owned[0] if owned else ("", "")
    entry = step.rpartition(" ")[2].partition(".")[0]
    root = ("processes", process.partition(".")[0]) if process else ()
    written = document.written(root)
    for section in ("ranges", "chunks", "imports", "heaps", *_KINDS):
        entries = written.get(section) if isinstance(written, dict) else None
        if isinstance(entries, dict) and entry in entries:
            return document.position((*root, section, entry))
    return None
