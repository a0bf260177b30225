"""Memory snapshots of PyTorch as records: the driver calls that its caching allocator has made.

A snapshot has the segments of the allocator at its end, and, where its history was recorded, how they were made: by
`cuMemAlloc`, or, with expandable segments, by maps of chunks into reserved addresses. What existed before the history
is made at its begin.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct

from memtopo.common import __version__
from memtopo.common.errors import UsageError
from memtopo.common.files import read_file
from memtopo.common.text import printable
from memtopo.common.units import LARGEST, by_key, shorten
from memtopo.driver.functions import function
from memtopo.driver.trace import VERSION
from memtopo.plans.trace import MARK
from memtopo.records.pickles import RefusedPickle, plain_values

LARGEST_FILE = 1 << 30
MOST_EVENTS = 4_000_000
MOST_SHARED, BYTES_OF_EVENT = 10_000, 16
"""Events and segments that a snapshot may have in any case, and the least bytes of each further one in its file.

PyTorch writes twice as many bytes; events that are shared in the pickle may have two.
"""

MOST_GPUS = 1024
MOST_CALLS, MOST_PIECES = 60_000, 30_000
MOST_BYTES = 64 << 20
"""Limits of a record, which PyTorch reaches by no history of usual length."""

_MOST_FRAMES, _LONGEST = 256, 200
_WITHOUT_ADDRESS = ("oom", "snapshot")

_Call = dict[str, Any]
_T = TypeVar("_T")
Span = tuple[int, int]
"""Addresses from the first to the one behind the last."""


class _Event(Struct, frozen=True):
    """Entry of the history of a GPU, with the functions that led to it, innermost first."""

    time: int
    device: int
    action: str
    address: int
    size: int
    stack: tuple[str, ...]


class Snapshot(Struct, frozen=True):
    """Segments at the end by GPU, and the events of all GPUs in the order of time.

    `allocated` has the size and the stack of each segment by address, `mapped` the spans of expandable ones.
    """

    allocated: Mapping[int, Mapping[int, tuple[int, tuple[str, ...]]]]
    mapped: Mapping[int, Sequence[Span]]
    events: Sequence[_Event]


def read_snapshot(path: str) -> Snapshot:
    """Read the pickle of a snapshot, as `torch.cuda.memory._dump_snapshot` writes it. Raises `UsageError`."""
    try:
        data = read_file(Path(path), LARGEST_FILE)
    except OSError as error:
        raise UsageError(f"the snapshot {path!r} cannot be read: {(error.strerror or str(error)).lower()}") from error
    try:
        return _snapshot(plain_values(data), MOST_SHARED + len(data) // BYTES_OF_EVENT)
    except RefusedPickle as error:
        hint = "name a file that torch.cuda.memory._dump_snapshot() has written"
        raise UsageError(f"{path!r} is not a snapshot of PyTorch: {error.message}", hint=hint) from error


def record_lines(snapshot: Snapshot) -> Iterator[str]:
    """Lines of the record of a snapshot, the head first. Raises `UsageError` for too many calls or bytes."""
    first = min((event.time for event in snapshot.events if event.time), default=0)
    started = datetime.fromtimestamp(first / 1e6, UTC).isoformat(timespec="microseconds")
    head = {
        "memtopo_trace_file": VERSION, "memtopo": __version__, "layout": "", "process": "", "machine": "PyTorch",
        "simulated": False, "driver": "", "pid": 0, "started": started,
    }  # fmt: skip
    yield json.dumps(head)
    size, stacks = 0, dict[tuple[str, ...], str]()
    for number, call in enumerate(_calls(snapshot, first), 1):
        stack = call.pop("stack", ())
        line = json.dumps({"n": number, **call})
        if stack:  # of many calls, and long: one that is encoded again takes most of the time
            stacks[stack] = stacks.get(stack) or json.dumps(stack)
            line = f'{line[:-1]}, "stack": {stacks[stack]}}}'
        size += len(line)
        if number > MOST_CALLS or size > MOST_BYTES:
            raise _too_large(f"more than {MOST_CALLS:,} calls or {MOST_BYTES >> 20} MiB")
        yield line


def _too_large(what: str) -> UsageError:
    hint = "record a shorter history: torch.cuda.memory._record_memory_history(max_entries=10000, stacks='python')"
    return UsageError(f"the record of the snapshot would have {what}", hint=hint)


def _calls(snapshot: Snapshot, first: int) -> Iterator[_Call]:
    """Calls in the order of time, which is in seconds from the `first` microsecond."""
    events = by_key((event.device, event) for event in snapshot.events)
    used = sorted({*snapshot.allocated, *snapshot.mapped, *events})
    gpus = {device: _Gpu.of(device, snapshot, events.get(device, ())) for device in used}
    for gpu in gpus.values():
        yield from gpu.begin()
    for event in snapshot.events:
        seconds = max(event.time - first, 0) / 1e6 if event.time else 0.0
        for call in gpus[event.device].follow(event):
            yield call | {"time": round(seconds, 6), "stack": event.stack}


class _Gpu(Struct):
    """Calls for the segments of one GPU: expandable ones in pieces, which no event maps or unmaps in part."""

    device: int
    cuts: list[int]
    reservations: list[Span]
    allocated: dict[int, tuple[int, tuple[str, ...]]]
    mapped: set[Span]
    reserved: set[Span] = set()
    chunks: dict[Span, int] = {}
    created: int = 0

    @classmethod
    def of(cls, device: int, snapshot: Snapshot, events: Sequence[_Event]) -> _Gpu:
        """Return the GPU as it was before its events: from the segments at the end, with the events undone.

        Raises `UsageError` for too many pieces.
        """
        spans = [_span(event) for event in events if event.action in ("segment_map", "segment_unmap")]
        spans += snapshot.mapped.get(device, ())
        cuts = sorted({end for span in spans for end in span})
        found = cls(device, cuts, list(_joined(spans)), dict(snapshot.allocated.get(device, {})), set())
        if (pieces := sum(last - first - 1 for first, last in map(found.between, spans))) > MOST_PIECES:
            raise _too_large(f"{pieces:,} pieces of expandable segments, more than {MOST_PIECES:,}")
        found.mapped.update(piece for span in snapshot.mapped.get(device, ()) for piece in found.pieces(span))
        for event in reversed(events):
            if event.action == "segment_alloc":
                found.allocated.pop(event.address, None)
            elif event.action == "segment_free":
                found.allocated[event.address] = event.size, ()
            elif event.action == "segment_map":
                found.mapped.difference_update(found.pieces(_span(event)))
            elif event.action == "segment_unmap":
                found.mapped.update(found.pieces(_span(event)))
        return found

    def between(self, span: Span) -> Span:
        """Indices of the cuts in a span: of the first one, and behind the last one."""
        return bisect_left(self.cuts, span[0]), bisect_right(self.cuts, span[1])

    def pieces(self, span: Span) -> Iterator[Span]:
        """Parts of a span between the places at which any event cuts it."""
        first, last = self.between(span)
        return pairwise(self.cuts[first:last])

    def begin(self) -> Iterator[_Call]:
        """Calls for the context, and for what existed before the events."""
        yield self._call("device_primary_ctx_retain", {"device": self.device}, 1 + self.device)
        for address, (size, stack) in sorted(self.allocated.items()):
            yield self._call("mem_alloc", {"size": size}, address) | {"stack": stack}
        for piece in sorted(self.mapped):
            yield from self._map(piece)

    def follow(self, event: _Event) -> Iterator[_Call]:
        """Calls of one event; blocks inside of segments need none."""
        match event.action:
            case "segment_alloc":
                yield self._call("mem_alloc", {"size": event.size}, event.address)
            case "segment_free":
                yield self._call("mem_free", {"address": event.address})
            case "segment_map":
                for piece in [each for each in self.pieces(_span(event)) if each not in self.chunks]:
                    yield from self._map(piece)
            case "segment_unmap":
                for piece in [each for each in self.pieces(_span(event)) if each in self.chunks]:
                    yield from self._unmap(piece)
            case "oom":
                yield self._call("mem_alloc", {"size": event.size}, error="CUDA_ERROR_OUT_OF_MEMORY")
            case "snapshot":
                yield self._call(MARK, {"label": "snapshot"})

    def _map(self, piece: Span) -> Iterator[_Call]:
        start, end = piece
        held = self.reservations[bisect_right(self.reservations, start, key=itemgetter(0)) - 1]
        if held not in self.reserved:
            self.reserved.add(held)
            given = {"size": held[1] - held[0], "alignment": 0, "address": 0, "flags": 0}
            yield self._call("mem_address_reserve", given, held[0])
        self.created += 1
        handle = self.chunks[piece] = (self.device << 32) + self.created
        gpu, size = f"gpu{self.device}", end - start
        properties = {"location": gpu, "handles": list[str]()}
        yield self._call("mem_create", {"size": size, "properties": properties, "flags": 0}, handle)
        yield self._call("mem_map", {"address": start, "size": size, "offset": 0, "handle": handle, "flags": 0})
        grants = [{"location": gpu, "access": "rw"}]
        yield self._call("mem_set_access", {"address": start, "size": size, "grants": grants})

    def _unmap(self, piece: Span) -> Iterator[_Call]:
        start, end = piece
        yield self._call("mem_unmap", {"address": start, "size": end - start})
        yield self._call("mem_release", {"handle": self.chunks.pop(piece)})

    def _call(self, method: str, arguments: _Call, result: int | None = None, error: str | None = None) -> _Call:
        name = method if method == MARK else function(method).name
        ends = {"result": result} if error is None else {"error": error}
        about = {"time": 0.0, "phase": "", "thread": 0, "device": self.device, "call": name, "method": method}
        return {**about, "arguments": arguments, **ends, "seconds": 0.0}


def _span(event: _Event) -> Span:
    return event.address, event.address + event.size


def _joined(spans: Iterable[Span]) -> Iterator[Span]:
    """Spans of all addresses that any of several has, apart from one another."""
    start = end = -1
    for first, last in sorted(spans):
        if first > end:
            if end > start:
                yield start, end
            start, end = first, last
        end = max(end, last)
    if end > start:
        yield start, end


# The values of a pickle, which may be anything


def _snapshot(values: Any, most: int) -> Snapshot:
    """Snapshot from the values of its pickle, with at most a number of events. Raises `RefusedPickle`."""
    found = _mapping(values, "it")
    traces = [_list(each, "a history") for each in _list(found.get("device_traces", []), "device_traces")]
    segments = found.get("segments")
    if not isinstance(segments, list):
        raise RefusedPickle("it has no segments")
    number, most = sum(map(len, traces)) + len(segments), min(most, MOST_EVENTS)
    if len(traces) > MOST_GPUS or number > most:
        raise RefusedPickle(f"it has more than {MOST_GPUS:,} GPUs or {most:,} events: {len(traces):,} and {number:,}")
    stacks = _Stacks({}, {})
    events = [
        _event(device, _mapping(each, "an event"), stacks) for device, trace in enumerate(traces) for each in trace
    ]
    allocated: dict[int, dict[int, tuple[int, tuple[str, ...]]]] = {}
    mapped: dict[int, list[Span]] = {}
    for each in segments:
        segment = _mapping(each, "a segment")
        device, address = _number(segment, "device", MOST_GPUS), _number(segment, "address")
        size = _number(segment, "total_size", LARGEST - address)
        if segment.get("is_expandable") is True:
            mapped.setdefault(device, []).append((address, address + size))
        else:
            allocated.setdefault(device, {})[address] = size, stacks.stack(segment.get("frames"))
    return Snapshot(allocated, mapped, sorted(events, key=lambda event: event.time))


def _event(device: int, given: Mapping[str, Any], stacks: _Stacks) -> _Event:
    action = _typed(given, "action", str)
    time = _number(given, "time_us", 1 << 53) if "time_us" in given else 0
    address = _number(given, "addr") if action not in _WITHOUT_ADDRESS else 0
    size = _number(given, "size", LARGEST - address)
    return _Event(time, device, action, address, size, stacks.stack(given.get("frames")))


class _Stacks(Struct, frozen=True):
    """Functions of lists of frames: `linear.py:109 __init__`. Events share lists, and these frames: each is read once.

    Both are known by the identities of the values of the pickle, which exist meanwhile.
    """

    stacks: dict[int, tuple[str, ...]]
    frames: dict[int, str]

    def stack(self, frames: Any) -> tuple[str, ...]:
        if not isinstance(frames, list):
            return ()
        if id(frames) not in self.stacks:
            self.stacks[id(frames)] = tuple(map(self._frame, frames[:_MOST_FRAMES]))
        return self.stacks[id(frames)]

    def _frame(self, given: Any) -> str:
        if id(given) not in self.frames:
            frame = _mapping(given, "a frame")
            file, name = (_typed(frame, key, str, "") for key in ("filename", "name"))
            file = file[-_LONGEST:].rpartition("/")[2]
            text = f"{file}:{_typed(frame, 'line', int, 0)} {name[:_LONGEST]}"
            self.frames[id(given)] = printable(shorten(text, _LONGEST))
        return self.frames[id(given)]


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise RefusedPickle(f"{what} is a {type(value).__name__}, not a dictionary")
    return value


def _list(value: Any, what: str) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise RefusedPickle(f"{what} is a {type(value).__name__}, not a list")
    return value


def _typed(given: Mapping[str, Any], key: str, type_: type[_T], default: _T | None = None) -> _T:
    value = given.get(key, default)
    if type(value) is not type_:
        raise RefusedPickle(f"its {key} is a {type(value).__name__}, not a {type_.__name__}")
    return value


def _number(given: Mapping[str, Any], key: str, most: int = LARGEST) -> int:
    value = given.get(key)
    if type(value) is not int or not 0 <= value < most:
        shown = value if type(value) is int else f"a {type(value).__name__}"
        raise RefusedPickle(f"its {key} is not a number of bytes, an address or a time below {most:,}: it is {shown}")
    return value
