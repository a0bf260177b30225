"""Traces as they are read, and their summary."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from memtopo.common.decoding import decode
from memtopo.common.errors import UsageError, system_errors
from memtopo.common.files import read_file
from memtopo.common.units import by_key
from memtopo.driver.trace_files import HEAD, SUFFIX, is_trace

LARGEST_FILE = 4 << 30
_LARGEST_LINE = 4 << 20
"""Bytes of a line; small values in it take thirty times the memory."""

MARK = "mark"
"""Method of a line that names a moment."""

CONTEXT = 5
"""Calls before a failed one that a summary has."""


class TraceHead(Struct, frozen=True):
    """First line of a process in a trace: the layout, the process if there are several, and the machine.

    `layout` is empty for a program that was captured. `gpus` are the UUIDs of the GPUs that the process sees, in its
    order; empty where all processes see the same.
    """

    layout: str
    process: str
    machine: str
    simulated: bool
    driver: str
    pid: int
    started: str
    gpus: tuple[str, ...] = ()


_Seconds = Annotated[float, Meta(ge=0, le=1e9)]


class TracedCall(Struct, frozen=True, kw_only=True):
    """One line of a trace. `seconds` is None for a call that did not return.

    A program that was captured has the `thread` of each call, the GPU of the context that was current (`device`, by the
    ordinals of the process), and on request the `stack`, innermost function first.
    """

    process: str = ""
    number: int = field(name="n")
    time: _Seconds
    phase: str
    step: str | None = None
    undo: bool = False
    call: str
    method: str
    arguments: dict[str, Any]
    result: Any = None
    error: str | None = None
    reason: str | None = None
    seconds: _Seconds | None = None
    thread: int | None = None
    device: int | None = None
    stack: tuple[str, ...] = ()


class _Version(Struct, frozen=True):
    memtopo_trace_file: Literal[1]


class TraceFile(Struct, frozen=True):
    """A trace that was read: its head, and its calls in order."""

    head: TraceHead
    calls: tuple[TracedCall, ...]


class FunctionTimes(Struct, frozen=True):
    """Calls of one C function: their number, those with an error, and seconds."""

    function: str
    calls: int
    errors: int
    total: float
    median: float
    longest: float


class FailedCall(Struct, frozen=True):
    """A call of a step that failed, or one that did not return, with the calls before it in its process."""

    call: TracedCall
    before: tuple[TracedCall, ...]


class TraceSummary(Struct, frozen=True):
    """Summary of the traces of one run: failed calls first, then all calls by function, longest total first."""

    traces: tuple[TraceHead, ...]
    calls: int
    seconds: float
    failed: tuple[FailedCall, ...]
    functions: tuple[FunctionTimes, ...]


def read_traces(paths: Iterable[str | Path]) -> list[TraceFile]:
    """Read files, and all traces in folders. Raises `UsageError`."""
    found = [trace for path in paths for file in _files(Path(path)) for trace in _read(file)]
    if not found:
        raise UsageError("there is no trace", hint="'memtopo apply SPEC --trace FILE' writes one")
    return found


def _files(path: Path) -> list[Path]:
    """A file, or the traces in a folder, in which other files may be."""
    if not path.is_dir():
        return [path]
    with system_errors(UsageError, f"the traces in {str(path)!r} cannot be read"):
        return [file for file in sorted(path.glob(f"*{SUFFIX}")) if file.is_file() and is_trace(file)]


def _read(path: Path) -> list[TraceFile]:
    """Read the traces of a file: one for each process that wrote its first line into it."""
    with system_errors(UsageError, f"the trace {str(path)!r} cannot be read"):
        data = read_file(path, LARGEST_FILE)
    try:
        decode(data[: _LARGEST_LINE + 1].partition(b"\n")[0], _Version)
    except ValueError as error:
        raise no_record(path) from error
    lines = data.split(b"\n")
    for number, line in enumerate(lines, 1):
        if len(line) > _LARGEST_LINE:
            found = f"line {number:,} has {len(line):,} bytes, more than {_LARGEST_LINE:,}"
            raise UsageError(f"the trace {str(path)!r} is damaged: {found}", hint="make it again")
    try:
        return _traces([line.decode(errors="replace") for line in lines])
    except ValueError as error:
        raise UsageError(f"the trace {str(path)!r} is damaged: {error} is no call", hint="make it again") from error


_OTHERS = {b"\x80": "'memtopo import' makes a record of a snapshot of PyTorch", b"\xfd7zXZ": "unpack it: xz -d"}


def no_record(path: str | Path) -> UsageError:
    """Return the error of a file that is no trace, and what to do with it."""
    hint = "name a file that 'memtopo apply --trace FILE' or 'memtopo capture' has written; 'memtopo draw' shows a spec"
    with suppress(OSError, ValueError), Path(path).open("rb") as file:
        start = file.read(5)
        hint = next((text for magic, text in _OTHERS.items() if start.startswith(magic)), hint)
    return UsageError(f"{str(path)!r} is no trace of memtopo", hint=hint)


def _traces(lines: Sequence[str]) -> list[TraceFile]:
    """Traces of a file's lines. A process that executes another program begins a trace again."""
    found: list[tuple[TraceHead, list[TracedCall]]] = []
    latest: dict[str, list[TracedCall]] = {}
    *whole, last = lines
    for number, line in enumerate(whole, 1):
        try:
            if line.startswith(HEAD):
                head = decode(line, TraceHead)
                latest[head.process] = []
                found.append((head, latest[head.process]))
            else:
                call = _call(line)
                latest.get(call.process, found[0][1]).append(call)
        except ValueError as error:
            raise ValueError(f"line {number}") from error
    if ended := _last(last):
        latest.get(ended.process, found[0][1]).append(ended)
    return [TraceFile(head, tuple(calls)) for head, calls in found]


def _call(line: str) -> TracedCall:
    return decode(line, TracedCall)


def _last(line: str) -> TracedCall | None:
    """Return the call of a last line without an end: one that did not return ends with its arguments. None if cut."""
    with suppress(ValueError):
        return _call(line)
    with suppress(ValueError):
        call = _call(f"{line}}}")
        return call if next(reversed(json.loads(f"{line}}}"))) == "arguments" else None
    return None


def summary(traces: Sequence[TraceFile]) -> TraceSummary:
    """Summary of the traces of one run."""
    calls = [call for trace in traces for call in trace.calls if call.method != MARK]
    failed = [found for trace in traces for found in _failed(trace)]
    return TraceSummary(
        traces=tuple(trace.head for trace in traces),
        calls=len(calls),
        seconds=sum(call.seconds or 0.0 for call in calls),
        failed=tuple(sorted(failed, key=lambda each: each.call.seconds is not None)),
        functions=tuple(sorted(_times(calls), key=lambda each: (-each.total, each.function))),
    )


def _failed(trace: TraceFile) -> Iterator[FailedCall]:
    """Calls with an error, and a last call that did not return; of a layout calls of steps alone.

    Of each function and error of a captured program the first, since allocators try again.
    """
    calls, captured, seen = trace.calls, not trace.head.layout, set[tuple[str, str]]()
    for index, call in enumerate(calls):
        new = captured and (call.call, call.error or "") not in seen
        if call.seconds is None or (call.error and (call.step or new)):
            seen.add((call.call, call.error or ""))
            yield FailedCall(call, tuple(calls[max(index - CONTEXT, 0) : index]))


def _times(calls: Sequence[TracedCall]) -> Iterator[FunctionTimes]:
    for name, own in by_key((call.call, call) for call in calls).items():
        seconds = [call.seconds for call in own if call.seconds is not None] or [0.0]
        errors = sum(call.error is not None for call in own)
        yield FunctionTimes(name, len(own), errors, sum(seconds), median(seconds), max(seconds))
