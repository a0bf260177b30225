"""Summary of a record: memory at a moment by location, kind, process and source, over time, and never freed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from msgspec import Struct

from memtopo.records.live import ProcessMemory
from memtopo.records.objects import PHYSICAL, Memory, source_of
from memtopo.records.record import Moment, Sample

MOST_POINTS = 600
"""Points of a line over time."""


class MemoryRow(Struct, frozen=True):
    """Memory of one kind, of one process, at one location, from one source: objects, and bytes of all of them."""

    location: str
    kind: str
    process: str
    source: str
    objects: int
    size: int


class RecordSummary(Struct, frozen=True):
    """Memory of a record at a moment, `time` seconds after its begin.

    `timeline` has the bytes at each location over time, as pairs of seconds and bytes; `peaks` the most of these.
    `leaks` are what the program never freed.
    """

    name: str
    moment: str
    time: float
    seconds: float
    calls: int
    machine: str
    processes: tuple[str, ...]
    marks: tuple[str, ...]
    memory: tuple[MemoryRow, ...]
    leaks: tuple[MemoryRow, ...]
    peaks: dict[str, int]
    timeline: dict[str, tuple[tuple[float, int], ...]]


def summary(name: str, moment: Moment) -> RecordSummary:
    """Return the summary of a record at a moment."""
    record = moment.record
    seconds = record.calls[-1].time if record.calls else 0.0
    return RecordSummary(
        name=name,
        moment=moment.name,
        time=moment.time,
        seconds=seconds,
        calls=record.made,
        machine=record.heads[0].machine,
        processes=tuple(each.process for each in record.heads),
        marks=tuple(dict.fromkeys(record.labels)),
        memory=_rows(moment.processes),
        leaks=_rows(moment.end),
        peaks={at: max(each.memory.get(at, 0) for each in moment.samples) for at in _locations(moment.samples)},
        timeline={at: _line(moment.samples, at, seconds) for at in _locations(moment.samples)},
    )


def _rows(processes: Iterable[ProcessMemory]) -> tuple[MemoryRow, ...]:
    found: dict[tuple[str, str, str, str], list[Memory]] = defaultdict(list)
    for process in processes:
        every = [*process.chunks(), *(each for kind in PHYSICAL[1:] for each in process.objects(kind))]
        for each in every:
            if each.physical:
                found[each.location, each.kind, process.name, source_of(each.call)].append(each)
    rows = [MemoryRow(*key, len(own), sum(each.size for each in own)) for key, own in found.items()]
    return tuple(sorted(rows, key=lambda row: (row.location, -row.size, row.kind, row.process)))


def _locations(samples: Sequence[Sample]) -> list[str]:
    return sorted({location for each in samples for location in each.memory})


def _line(samples: Sequence[Sample], location: str, seconds: float) -> tuple[tuple[float, int], ...]:
    """Bytes at a location over time: of each of `MOST_POINTS` intervals the most, and the last if that is another."""
    width = seconds / MOST_POINTS or 1.0
    found: dict[int, tuple[int, int]] = {}
    for each in samples:
        interval, size = int(each.time / width), each.memory.get(location, 0)
        found[interval] = max(found.get(interval, (0, 0))[0], size), size
    points: list[tuple[float, int]] = []
    for interval, (most, last) in found.items():
        points += [(interval * width, most)] + ([((interval + 0.5) * width, last)] if last != most else [])
    return tuple(points)
