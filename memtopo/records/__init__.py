"""Records of all processes of a run, in the order of time, the memory at one moment, and its summary."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from math import inf, nan
from pathlib import Path

from msgspec import Struct

from memtopo.common.errors import UsageError
from memtopo.common.units import summed
from memtopo.plans.trace import MARK, TracedCall, TraceFile, TraceHead, read_traces
from memtopo.records.calls import PHYSICAL, Memory, source_of
from memtopo.records.live import ProcessMemory

PEAK, END = "peak", "end"

MOST_POINTS = 600
"""Points of a line over time."""


class RecordedCall(Struct, frozen=True):
    """A call of a record: its process by index, and its time in seconds since the first process began."""

    time: float
    process: int
    call: TracedCall


class Record(Struct, frozen=True):
    """Calls of processes, in the order of time."""

    heads: tuple[TraceHead, ...]
    calls: tuple[RecordedCall, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the moments that the program marked, in order."""
        return tuple(str(each.call.arguments.get("label")) for each in self.calls if each.call.method == MARK)

    @property
    def made(self) -> int:
        """Number of calls of the driver."""
        return sum(each.call.method != MARK for each in self.calls)

    @property
    def gpus(self) -> list[tuple[int, ...]]:
        """Ordinals among all GPUs of the record, by those of each process; empty where all see the same."""
        uuids = list(dict.fromkeys(uuid for head in self.heads for uuid in head.gpus))
        return [tuple(uuids.index(each) for each in head.gpus) for head in self.heads]

    def processes(self) -> list[ProcessMemory]:
        """Return the processes before their first calls, with GPUs by their UUIDs, where the record has them."""
        return [ProcessMemory(head, gpus) for head, gpus in zip(self.heads, self.gpus, strict=True)]


class Sample(Struct, frozen=True):
    """Bytes of memory by location after a call."""

    time: float
    memory: dict[str, int]


class Moment(Struct, frozen=True):
    """Memory of all processes at one moment: after the first `calls` calls of a record, `time` seconds after its begin.

    `end` are the processes at the end of the record, where nothing should be left. `samples` are of the whole record.
    """

    record: Record
    name: str
    calls: int
    time: float
    processes: tuple[ProcessMemory, ...]
    end: tuple[ProcessMemory, ...]
    samples: tuple[Sample, ...]


def read_record(paths: Iterable[str | Path]) -> Record:
    """Read a record: traces in files or folders. Raises `UsageError`."""
    return merged(read_traces(paths))


def moment_of(path: str, at: str | None = None) -> Moment:
    """Return the memory at a moment of the record in a file or folder, by default at its peak. Raises `UsageError`."""
    return moment(read_record([path]), at or PEAK)


def merged(traces: Sequence[TraceFile]) -> Record:
    """Return the calls of several traces in the order of time. Raises `UsageError`."""
    try:
        starts = [datetime.fromisoformat(each.head.started).timestamp() for each in traces]
    except (ValueError, OverflowError) as error:
        raise UsageError(f"the record has no start time: {error}") from error
    first = min(starts)
    calls = [
        RecordedCall(start - first + call.time, index, call)
        for index, (trace, start) in enumerate(zip(traces, starts, strict=True))
        for call in trace.calls
    ]
    heads = tuple(each.head for each in traces)
    return Record(heads, tuple(sorted(calls, key=lambda each: each.time)))


def moment(record: Record, at: str = PEAK) -> Moment:
    """Return the memory at a moment: `peak`, `end`, seconds since the begin, or a label that the program marked.

    The peak has the most memory, of these moments the one with most of it mapped and accessible, and of these the last.
    Raises `UsageError` for an unknown label and a damaged call.
    """
    end, samples, peak = record.processes(), [Sample(0.0, {})], 0
    weights = [each.weight for each in end]
    total: tuple[int, ...] = (0, 0, 0, 0)
    highest = total
    for index, each in enumerate(record.calls, 1):
        end[each.process].apply(each.call, each.time)
        before, after = weights[each.process], end[each.process].weight
        if before != after:
            weights[each.process] = after
            total = tuple(one - old + new for one, old, new in zip(total, before, after, strict=True))
            if before[0] != after[0]:
                samples.append(Sample(each.time, memory(end)))
        if total >= highest:
            peak, highest = index, total
    calls = peak if at == PEAK else _calls_until(record, at)
    found = record.processes()
    for each in record.calls[:calls]:
        found[each.process].apply(each.call, each.time)
    time = record.calls[calls - 1].time if calls else 0.0
    return Moment(record, at, calls, time, tuple(found), tuple(end), tuple(samples))


def memory(processes: Iterable[ProcessMemory]) -> dict[str, int]:
    """Return the bytes of memory of processes by location."""
    return dict(+summed(each.memory for each in processes))


def _calls_until(record: Record, at: str) -> int:
    """Return the number of calls until a moment. Raises `UsageError`."""
    if at == END:
        return len(record.calls)
    for index, each in enumerate(record.calls):
        if each.call.method == MARK and each.call.arguments.get("label") == at:
            return index + 1
    try:
        seconds = float(at.removesuffix("s"))
    except ValueError:
        seconds = nan
    if not 0 <= seconds < inf:
        known = [PEAK, END, *dict.fromkeys(record.labels)]
        message = f"the record has no moment {at!r}"
        raise UsageError(message, hint=f"there are {', '.join(known)}, and seconds since its start")
    return sum(each.time <= seconds for each in record.calls)


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
