"""Random snapshots and records for the commands that read them: `python -m tests.fuzz.records SEED SECONDS`.

Each command runs in a fork of its own, whose processor time and peak memory are measured.
"""

from __future__ import annotations

import json
import lzma
import os
import pickle
import random
import resource
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from memtopo.cli.app import run
from memtopo.plans.trace import TracedCall, TraceHead
from tests.fuzz.mutation import ROOT
from tests.helpers.fork_server import import_all
from tests.helpers.python_process import ThisProcess, install
from tests.helpers.records import MIB, Calls

_IMPORTED = 70
"""MiB of an interpreter with memtopo."""

SECONDS, MEBIBYTES = 2.0, 300
"""Processor time and memory that a command may take."""

LARGEST = 4 << 20
"""Bytes of a file."""

_DEADLY, _STATUSES = 20, {0, 1, 2, 3, 4}
_DATA = ROOT / "tests" / "data"

COMMANDS: dict[str, list[tuple[str, ...]]] = {
    "snapshot": [("import", "{}"), ("import", "{}", "-o", "{}.jsonl"), ("show", "{}")],
    "record": [
        ("show", "{}"), ("show", "{}", "--json"), ("show", "{}", "--at", "0.01"), ("trace", "{}"),
        ("trace", "{}", "--json"), ("spec", "{}"), ("replay", "{}", "-m", "h200x4"),
        ("replay", "{}", "-m", "h200x2", "--json"), ("replay", "{}", "-m", "h200x4", "--as", "c"),
        ("replay", "{}", "-m", "h100x1", "--as", "cuda-python"), ("validate", "{}", "-m", "h200x4"),
        ("plan", "{}", "-m", "h200x4"), ("draw", "{}", "-m", "h200x4"),
        ("draw", "{}", "-m", "h200x4", "--format", "html"), ("budget", "{}", "-m", "h200x4"),
        ("diff", str(ROOT / "specs" / "quickstart.yaml"), "{}", "-m", "h200x2"),
    ],
}  # fmt: skip


class Case(NamedTuple):
    """A file, and a command that reads it."""

    kind: str
    what: str
    data: bytes
    command: tuple[str, ...]


class Measured(NamedTuple):
    """End of a command: its status, or the negated signal that killed it; seconds, MiB, and what it printed at last."""

    status: int
    seconds: float
    mebibytes: int
    output: str

    @property
    def fault(self) -> str | None:
        """Description of what a command may not do; None if it did nothing of this."""
        if self.status not in _STATUSES or "Traceback" in self.output:
            return f"status {self.status}: {self.output[-2000:]}"
        if self.seconds > SECONDS or self.mebibytes > MEBIBYTES:
            return f"{self.seconds:.1f} s, {self.mebibytes} MiB: {self.output[-300:]}"
        return None


def cases(seed: int) -> Iterator[Case]:
    """Endless sequence of cases."""
    chance = random.Random(seed)
    while True:
        kind = chance.choice(["snapshot", "record"])
        makers = _SNAPSHOTS if kind == "snapshot" else _RECORDS
        make = chance.choice(makers)
        data = make(chance)[:LARGEST]
        if chance.random() < 0.3:
            data = _damaged(chance, data)
        yield Case(kind, make.__name__.strip("_"), data, chance.choice(COMMANDS[kind]))


def measured(case: Case, folder: Path) -> Measured:
    """Run a command in a fork. Memory that this process has beyond an interpreter with memtopo does not count."""
    file = folder / "case"
    file.write_bytes(case.data)
    (folder / "case.jsonl").unlink(missing_ok=True)
    inherited = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() >> 20
    with (folder / "output").open("w+b") as output:
        pid = os.fork()
        if not pid:
            _run([word.format(file) for word in case.command], output.fileno())
        _, status, used = os.wait4(pid, 0)
        output.seek(max(output.seek(0, os.SEEK_END) - 20_000, 0))
        text = output.read().decode(errors="replace")
    mebibytes = (used.ru_maxrss >> 10) - max(inherited - _IMPORTED, 0)
    return Measured(os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, mebibytes, text)


def _run(words: list[str], output: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (_DEADLY, _DEADLY))
    for number in (1, 2):
        os.dup2(output, number)
    status = 70
    install(ThisProcess())  # so that the processes of a replay need no new interpreters
    try:
        status = run(words)
    finally:
        os._exit(status)


# Values


def _odd(chance: random.Random) -> Any:
    """A value where another one is expected."""
    values: list[Callable[[], Any]] = [
        lambda: chance.choice([None, True, False, 0, -1, 1, 2, 1 << 31, 1 << 53, 1 << 63, (1 << 64) - 1, 1 << 64]),
        lambda: chance.choice([1 << 2000, -(1 << 4000), 0.5, -0.0, 1e308, float("nan"), float("inf"), float("-inf")]),
        lambda: chance.choice(["", "a", "gpu0", "gpu-1", "gpu99999999999", "host", "host:", "host:²", "\ud800"]),
        lambda: chance.choice(["\x1b[31m", "::error::x", "\u202e", "\0", "handle:", "rw", "cuda", "1" * 5000]),
        lambda: chance.choice(["x", "é", "\n", "a | b | "]) * chance.choice([100, 100_000]),
        lambda: chance.choice([[], {}, [[]], {"location": 5}, [{"location": "gpu0", "access": "rw"}], [1, "b"]]),
        lambda: [_nested(chance.choice([10, 60, 150, 250]))],
        lambda: list(range(chance.choice([3, 1000, 100_000]))),
    ]  # fmt: skip
    return chance.choice(values)()


def _nested(depth: int) -> Any:
    found: Any = 0
    for _ in range(depth):
        found = [found]
    return found


def _replaced(chance: random.Random, value: Any, odd: Callable[[random.Random], Any] = _odd) -> Any:
    """The value with a part of it replaced, removed or doubled."""
    if isinstance(value, dict) and value and chance.random() < 0.95:
        key = chance.choice([*value])
        return chance.choice(
            [
                {**value, key: _replaced(chance, value[key], odd)},
                {**value, key: _replaced(chance, value[key], odd)},
                {name: each for name, each in value.items() if name != key},
                {**value, chance.choice(["size", "address", "frames", "x"]): odd(chance)},
            ]
        )
    if isinstance(value, list) and value and chance.random() < 0.95:
        index = chance.randrange(len(value))
        count = chance.choice([0, 1, 1, 1, 1, 1, 2])
        return [*value[:index], *[_replaced(chance, value[index], odd)] * count, *value[index + 1 :]]
    return odd(chance)


def _damaged(chance: random.Random, data: bytes) -> bytes:
    """Bytes that are cut, or changed in some places."""
    found = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        low, high = sorted((chance.randint(0, len(found)), chance.randint(0, len(found))))
        match chance.randrange(6):
            case 0:
                del found[high:]
            case 1:
                del found[low : min(high, low + 30)]
            case 2 if found:
                found[chance.randrange(len(found))] = chance.randrange(256)
            case 3:
                found[low:low] = found[low : min(high, low + 300)]
            case 4:
                found[low:low] = chance.choice([b"\xef\xbb\xbf", b"\0", b"\n", b"\r\n", b"NaN", b"1e999", b"\xff\xfe"])
            case _:
                found = bytearray(b"\xef\xbb\xbf") + found if chance.random() < 0.2 else found
    return bytes(found)


# Snapshots


def _event(chance: random.Random, frames: list[Any], time: int) -> dict[str, Any]:
    actions = ["alloc", "free_requested", "segment_alloc", "segment_free", "segment_map", "segment_unmap", "oom"]
    address = 0x7F00_0000_0000 + chance.randrange(64) * 2 * MIB
    size = chance.choice([512, 2 * MIB, 20 * MIB, 1 << 33])
    return {
        "action": chance.choice([*actions, "segment_map", "snapshot", "other"]), "addr": address, "size": size,
        "stream": 0, "time_us": 1_700_000_000_000_000 + time, "frames": chance.choice(frames),
    }  # fmt: skip


def _snapshot(chance: random.Random) -> Any:
    """Values of a snapshot, with shared stacks."""
    single = [
        {"filename": f"/a/{number}.py", "line": number, "name": "f" * chance.choice([1, 300])} for number in range(9)
    ]
    frames = [[chance.choice(single) for _ in range(chance.choice([0, 3, 300]))] for _ in range(4)]
    number = chance.choice([0, 5, 300, 3000])
    traces = [[_event(chance, frames, time) for time in range(number)] for _ in range(chance.choice([0, 1, 2]))]
    segments = [
        {
            "device": chance.randrange(2), "address": 0x7F00_0000_0000 + each * 2 * MIB, "total_size": 2 * MIB,
            "is_expandable": chance.random() < 0.5, "blocks": [], "frames": chance.choice(frames),
            "segment_pool_id": (0, 0),
        }
        for each in range(chance.choice([0, 3, 60]))
    ]  # fmt: skip
    return {"segments": segments, "device_traces": traces, "allocator_settings": {"a": 0.8, "b": True, "c": None}}


def _odd_value(chance: random.Random) -> Any:
    others: list[Any] = [b"bytes", {1: 2}, {(1, 2): 3}, {1, 2}]
    return _odd(chance) if chance.random() < 0.5 else chance.choice(others)


def _plausible(chance: random.Random) -> bytes:
    values = _snapshot(chance)
    for _ in range(chance.choice([0, 1, 1, 3])):
        values = _replaced(chance, values, _odd_value)
    try:
        return pickle.dumps(values, chance.randrange(pickle.HIGHEST_PROTOCOL + 1))
    except UnicodeEncodeError:
        return pickle.dumps(_snapshot(chance))


def _recorded(chance: random.Random) -> bytes:
    return chance.choice(sorted((_DATA / "snapshots").iterdir())).read_bytes()


def _shared(chance: random.Random) -> bytes:
    """One value in many places, or lists that contain each other."""
    times = chance.choice([3, 100, 20_000, 1_000_000])
    event = {"action": "segment_map", "addr": 2 * MIB, "size": 2 * MIB, "frames": []}
    match chance.randrange(6):
        case 0:
            values: Any = {"segments": [], "device_traces": [[event] * min(times, 5000)] * min(times, 1100)}
        case 1:
            values = {"segments": [], "device_traces": [[event] * times]}
        case 2:
            segment = {"device": 0, "address": 1 << 21, "total_size": 1 << 21, "is_expandable": True}
            values = {"segments": [segment] * times, "device_traces": []}
        case 3:
            deep: Any = "x"
            for _ in range(min(times, 60)):
                deep = (deep, deep, deep) if chance.random() < 0.5 else [deep] * 8
            values = {"segments": deep, "device_traces": [[{**event, chance.choice([*event]): deep}]]}
        case 4:
            loop: list[Any] = []
            other: dict[str, Any] = {"segments": loop, "device_traces": loop, "frames": loop, "addr": loop, "size": 1}
            loop += [loop, other] * min(times, 20)
            values = chance.choice([loop, other, {"segments": [other, loop], "device_traces": [[other]]}])
        case _:
            frame = {"filename": "/" + "x" * times, "line": 1, "name": "y" * times}
            stacks = [[dict(frame) for _ in range(300)] for _ in range(20)]
            values = {"segments": [], "device_traces": [[{**event, "frames": stacks[n % 20]} for n in range(1000)]]}
    return pickle.dumps(values)


def _amplified(chance: random.Random) -> bytes:
    """A small file of many calls, of long lines, or of many GPUs."""
    number = chance.choice([10, 1000, 5000, 15_000])
    frames = [{"filename": "/a/" + "b" * 190, "line": n, "name": "n" * 190} for n in range(chance.choice([0, 10, 256]))]
    base = 1 << 40
    match chance.randrange(4):
        case 0:  # each event spans the cuts of all others
            spans = [(base - n * MIB, 2 * n * MIB) for n in range(1, number)]
        case 1:
            spans = [(base + n * MIB, MIB) for n in range(number)]
        case 2:
            spans = [(base + chance.randrange(1 << 30), chance.randrange(1 << 30)) for _ in range(number)]
        case _:
            spans = [(base + 2 * n * MIB, MIB) for n in range(number)]
    action = chance.choice(["segment_map", "segment_unmap", "segment_alloc", "segment_free"])
    both = chance.random() < 0.3
    events = [
        {"action": action, "addr": at, "size": size, "time_us": n, "frames": frames}
        for n, (at, size) in enumerate(spans)
    ]
    if both:
        events += [{**each, "action": "segment_unmap"} for each in events]
    segments = [{"device": n, "address": 1 << 30, "total_size": 2 * MIB} for n in range(chance.choice([0, 1024]))]
    return pickle.dumps({"segments": segments, "device_traces": [events]})


_OPCODES = b"(.0Nabdehijlqrstu})]VXSTUIJKLMFGp\x80\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8f\x94\x95c\x93R"
_WORDS = [
    b"]\x94", b"}\x94", b"(", b"e", b"u", b"s", b"a", b")", b"\x86", b"t", b"l", b"d", b"h\0", b"h\1", b"h\2",
    b"\x8c\x08segments\x94", b"\x8c\x0ddevice_traces", b"\x8c\x06action", b"I1\n", b"Fx\n", b"L0x1\n",
    b"I" + b"9" * 5000 + b"\n", b"I0x" + b"f" * 50_000 + b"\n", b"\x8a\x08" + b"\x7f" * 8, b"\x8a\xff" + b"\x7f" * 255,
    b"\x8b" + struct.pack("<i", 25_000) + b"\x7f" * 25_000, b"\x8b\xff\xff\xff\x7f", b"X\xff\xff\xff\xffabc",
    b"X\x03\0\0\0abc", b"\x8d" + b"\xff" * 8, b"\x95" + b"\xff" * 8, b"\x95" + b"\0" * 8, b"cos\nsystem\n",
]  # fmt: skip
_REPEATED = [b"N", b"]", b"}", b"\x94", b"(", b"\x88", b"K\x01", b")", b"h\0", b"]a", b"\x86"]


def _instructions(chance: random.Random) -> bytes:
    """Random instructions of pickles, and many equal ones."""
    found = bytearray(b"\x80\x04")
    for _ in range(chance.choice([5, 50, 500])):
        random_byte = bytes([chance.choice(_OPCODES)])
        found += chance.choice([random_byte, chance.choice(_WORDS), chance.choice(_WORDS)])
        if chance.random() < 0.03 and len(found) < 3 << 20:
            found += chance.choice(_REPEATED) * chance.choice([1, 100, 1_000_000])
    return bytes(found) + chance.choice([b"", b".", b"e.", b"u."])


_SNAPSHOTS = [_plausible, _plausible, _recorded, _shared, _amplified, _instructions]


# Records

_CAPTURED = sorted(_DATA.glob("records/*.jsonl.xz"))


def _text(lines: list[Any]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def _lines_of(calls: Calls) -> list[Any]:
    head = {name: getattr(calls.head, name) for name in TraceHead.__struct_fields__}
    every = [{name: getattr(call, name) for name in TracedCall.__struct_fields__} for call in calls.calls]
    return [{"memtopo_trace_file": 1, **head}, *({"n": call["number"], **call} for call in every)]


def _random_arguments(chance: random.Random, address: int) -> list[tuple[str, dict[str, Any]]]:
    fill = {"address": address, "value": 1, "count": chance.choice([1, 1 << 34]), "stream": 0}
    return [
        ("mem_alloc", {"size": chance.choice([1, MIB, 1 << 40, 1 << 63])}),
        ("mem_alloc_managed", {"size": MIB, "flags": 1}),
        ("mem_host_alloc", {"size": MIB, "flags": 0}),
        ("mem_host_register", {"address": address, "size": chance.choice([4096, 1 << 36]), "flags": 0}),
        ("mem_alloc_async", {"size": MIB, "stream": chance.choice([0, 7])}),
        ("mem_free", {"address": address}),
        ("memset_d8_async", fill),
        ("memcpy_async", {"destination": address, "source": address, "size": 1 << 34, "stream": 0}),
        ("mark", {"label": "m"}),
        ("mem_pool_create", {"properties": {"location": "gpu0", "handles": ["fd"]}}),
        ("event_create", {"flags": 0}),
        ("mem_export_to_shareable_handle", {"handle": 1001, "kind": 1}),
        ("mem_import_from_shareable_handle", {"shared": "descriptor", "kind": 1}),
    ]


def _random_calls(chance: random.Random) -> list[Any]:
    """Lines of random calls of one or two processes: most of them for what exists."""
    every = [Calls(name) for name in chance.choice([[""], [""], ["a", "b"]])]
    for calls in every:
        ranges = [calls.reserve(chance.choice([2, 4, 64, 1 << 20])) for _ in range(chance.randint(0, 3))]
        places = chance.choices(["gpu0", "gpu1", "host:0"], k=chance.randint(0, 4))
        chunks = [calls.create(2, place, ["fd"]) for place in places]
        for chunk in chunks:
            if ranges:
                calls.map(chance.choice(ranges), 2 * chance.randrange(4), chunk, 2)
        for base in ranges:
            calls.grant(base, 2, gpu0=chance.choice(["r", "rw", "none"]))
        for number in range(chance.choice([0, 10, 300])):
            address = chance.choice([1 << 41, number << 32])
            method, given = chance.choice(_random_arguments(chance, address))
            calls.call(method, given, result=chance.choice([address, None]), device=0, thread=1)
    return [line for calls in every for line in _lines_of(calls)]


def _captured(chance: random.Random) -> list[Any]:
    lines = lzma.decompress(chance.choice(_CAPTURED).read_bytes()).decode().splitlines()
    first = chance.randrange(len(lines)) if chance.random() < 0.5 else 1
    return [json.loads(line) for line in [lines[0], *lines[first : first + chance.choice([50, 500, 5000])]]]


def _plain_record(chance: random.Random) -> bytes:
    return _text(chance.choice([_random_calls, _captured])(chance))


def _odd_record(chance: random.Random) -> bytes:
    lines = chance.choice([_random_calls, _captured])(chance)
    for _ in range(chance.choice([1, 3, 30])):
        index = chance.randrange(len(lines))
        lines[index] = _replaced(chance, lines[index])
    return _text(lines)


def _odd_arguments(chance: random.Random) -> bytes:
    """Calls whose arguments or results are others."""
    lines = chance.choice([_random_calls, _captured])(chance)
    for _ in range(chance.choice([1, 3, 30])):
        line = lines[chance.randrange(len(lines))]
        key = chance.choice([*["arguments"] * 4, "result", "error", "stack", "device", "thread", "time"])
        if isinstance(line, dict) and key in line:
            line[key] = _replaced(chance, line[key])
    return _text(lines)


def _odd_text(chance: random.Random) -> bytes:
    """Lines that no writer of JSON makes."""
    lines = _text(chance.choice([_random_calls, _captured])(chance)).split(b"\n")
    index = chance.randrange(len(lines))
    lines[index] = chance.choice(
        [
            lines[index].replace(b"{", b'{"n": 1, "n": 2, ', 1),
            lines[index].replace(b'": ', b'": ' + b"[" * chance.choice([100, 10_000]), 1),
            lines[index].replace(b"0", b"NaN"),
            lines[index].replace(b"0", b"-Infinity", 1),
            lines[index].replace(b"0", b"1e400", 1),
            lines[index].replace(b"0", b"9" * chance.choice([20, 4000, 100_000])),
            lines[index].replace(b"0", b"0.0"),
            lines[index].replace(b"_", b"\\ud800"),
            lines[index].replace(b"e", b"\\u0000"),
            b'{"memtopo_trace_file"',
            lines[0],
            b"[" * 100_000,
            b"\xff" * 100,
            b" " * 100_000,
        ]
    )
    return b"\n".join(lines)


_RECORDS = [_plain_record, _odd_record, _odd_arguments, _odd_arguments, _odd_text]


def main() -> None:
    """Run cases for a time; a case that breaks a rule is written to the folder in which this runs, and goes on."""
    seed, seconds = int(sys.argv[1]), float(sys.argv[2])
    most = Measured(0, 0.0, 0, "")
    import_all()
    count, until = 0, time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        for count, case in enumerate(cases(seed), 1):
            found = measured(case, Path(folder))
            most = Measured(0, max(most.seconds, found.seconds), max(most.mebibytes, found.mebibytes), "")
            if found.fault:
                name = f"fuzz-{seed}-{count}"
                Path(name).write_bytes(case.data)
                sys.stdout.write(f"{name}: {case.what}, {len(case.data):,} bytes, {case.command}: {found.fault}\n")
                sys.stdout.flush()
            if time.monotonic() > until:
                break
    sys.stdout.write(f"{count:,} cases, at most {most.seconds:.2f} s and {most.mebibytes} MiB\n")


if __name__ == "__main__":
    main()
