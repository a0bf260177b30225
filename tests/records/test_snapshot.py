"""Memory snapshots of PyTorch: the record has the calls of its allocator, and nothing of a pickle is executed."""

from __future__ import annotations

import json
import os
import pickle
import pickletools
import random
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from memtopo.common.errors import UsageError
from memtopo.drivers.target import resolve
from memtopo.plans.trace import TracedCall
from memtopo.records import moment, read_record, snapshot
from memtopo.records.pickles import MOST_NESTED, RefusedPickle, plain_values
from memtopo.records.replay import replay
from memtopo.records.snapshot import read_snapshot, record_lines
from tests.cli.conftest import InlineRunner
from tests.helpers.specs import ROOT

SNAPSHOTS = ROOT / "tests" / "data" / "snapshots"
"""Of PyTorch 2.11 on an H100: three layers, a cache of which a part is freed, and a request that is too large."""

MIB = 1 << 20


def written(values: Any, folder: Path) -> Path:
    """A snapshot as PyTorch writes it."""
    file = folder / "snapshot.pickle"
    file.write_bytes(pickle.dumps(values))
    return file


def calls(file: Path, folder: Path) -> Sequence[TracedCall]:
    """The calls of the record of a snapshot."""
    record = folder / "record.jsonl"
    record.write_text("".join(f"{line}\n" for line in record_lines(read_snapshot(str(file)))))
    return [each.call for each in read_record([record]).calls]


def event(action: str, addr: int, size: int, time: int = 1, **more: Any) -> dict[str, Any]:
    frames = [{"filename": "/a/b/layer.py", "line": 7, "name": "forward"}]
    return {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": time, "frames": frames, **more}


def segment(address: int, size: int, *, expandable: bool = False, device: int = 0) -> dict[str, Any]:
    return {
        "device": device, "address": address, "total_size": size, "is_expandable": expandable, "blocks": [],
    }  # fmt: skip


def made(found: Sequence[TracedCall], *methods: str) -> list[tuple[str, Mapping[str, Any]]]:
    return [(each.method, each.arguments) for each in found if each.method in methods]


@pytest.mark.parametrize("name", ["native", "expandable"])
def test_the_record_ends_with_the_segments_of_the_snapshot(run_inline: InlineRunner, tmp_path: Path, name: str) -> None:
    record = tmp_path / "record.jsonl"
    done = run_inline("import", SNAPSHOTS / f"{name}.pickle", "-o", record)
    assert done.status == 0
    assert f"saved to {record}" in done.err
    segments = plain_values((SNAPSHOTS / f"{name}.pickle").read_bytes())["segments"]
    at_end = moment(read_record([record]), "end")
    assert sum(each.memory["gpu0"] for each in at_end.processes) == sum(each["total_size"] for each in segments)
    found = replay(read_record([record]), resolve("h100x1"))
    assert (found.difference, found.left_out, found.other_errors) == (None, (), {})
    assert run_inline("show", record, "--at", "end").status == 0
    assert run_inline("import", SNAPSHOTS / f"{name}.pickle").out == record.read_text()


def test_calls_have_the_times_and_the_stacks_of_their_events(tmp_path: Path) -> None:
    found = calls(SNAPSHOTS / "native.pickle", tmp_path)
    first, second, *_ = (each for each in found if each.method == "mem_alloc" and each.arguments["size"] == 24 * MIB)
    assert first.stack[0] == second.stack[0] == "<string>:12 <module>"
    assert 0.16 < first.time < second.time < 0.2
    failed = [each for each in found if each.error]
    assert [(each.call, each.error, each.arguments) for each in failed] == [
        ("cuMemAlloc", "CUDA_ERROR_OUT_OF_MEMORY", {"size": 200 << 30})
    ]


def test_a_stack_has_the_innermost_functions_of_its_event(tmp_path: Path) -> None:
    frames = [{"filename": "a.py", "line": number, "name": "f"} for number in range(300)]
    history = [event("segment_alloc", 0x1000000, 2 * MIB, frames=frames)]
    found = calls(written({"segments": [segment(0x1000000, 2 * MIB)], "device_traces": [history]}, tmp_path), tmp_path)
    assert found[-1].stack == tuple(f"a.py:{number} f" for number in range(256))


def test_events_without_a_time_are_at_the_begin(tmp_path: Path) -> None:
    history = [event("segment_alloc", 0x1000000 * n, 2 * MIB, 2_000_000 * n) for n in (1, 2, 3)]
    del history[0]["time_us"]
    values = {"segments": [segment(0x1000000 * n, 2 * MIB) for n in (1, 2, 3)], "device_traces": [history]}
    found = calls(written(values, tmp_path), tmp_path)
    assert [each.time for each in found if each.method == "mem_alloc"] == [0.0, 0.0, 2.0]


def test_what_existed_before_the_history_is_made_at_its_begin(tmp_path: Path) -> None:
    """A segment that is freed without an allocation, one that is still there, and a map that is undone in part."""
    history = [
        event("segment_free", 0x1000000, 2 * MIB, 5),
        event("segment_alloc", 0x3000000, 4 * MIB, 6),
        event("segment_unmap", 0x10000000 + 2 * MIB, 2 * MIB, 7),
        event("segment_map", 0x10000000 + 8 * MIB, 2 * MIB, 8),
    ]
    segments = [
        segment(0x2000000, 20 * MIB), segment(0x3000000, 4 * MIB),
        segment(0x10000000, 2 * MIB, expandable=True), segment(0x10000000 + 4 * MIB, 6 * MIB, expandable=True),
    ]  # fmt: skip
    found = calls(written({"segments": segments, "device_traces": [history]}, tmp_path), tmp_path)
    before = [each for each in found if each.time == 0 and not each.stack]
    assert made(before, "mem_alloc") == [("mem_alloc", {"size": 2 * MIB}), ("mem_alloc", {"size": 20 * MIB})]
    assert [given["address"] for _, given in made(before, "mem_map")] == [0x10000000 + n * MIB for n in (0, 2, 4)]
    assert made(found, "mem_address_reserve")[0][1]["size"] == 10 * MIB
    assert [each.method for each in found if each.time > 0][:1] == ["mem_alloc"]
    record = read_record([tmp_path / "record.jsonl"])
    assert replay(record, resolve("h100x1")).difference is None
    assert sum(each.memory["gpu0"] for each in moment(record, "end").processes) == 32 * MIB


def test_a_segment_that_was_freed_and_made_again_at_its_address_is_as_it_was_at_the_begin(tmp_path: Path) -> None:
    history = [event("segment_free", 0x1000000, 2 * MIB, 5), event("segment_alloc", 0x1000000, 4 * MIB, 6)]
    values = {"segments": [segment(0x1000000, 4 * MIB)], "device_traces": [history]}
    found = calls(written(values, tmp_path), tmp_path)
    assert made(found, "mem_alloc", "mem_free") == [
        ("mem_alloc", {"size": 2 * MIB}),
        ("mem_free", {"address": 0x1000000}),
        ("mem_alloc", {"size": 4 * MIB}),
    ]


def test_a_snapshot_without_a_history_has_its_segments(tmp_path: Path) -> None:
    values = {"segments": [segment(0x2000000, 20 * MIB, device=1)], "device_traces": [[], []]}
    found = calls(written(values, tmp_path), tmp_path)
    assert [each.call for each in found] == ["cuDevicePrimaryCtxRetain", "cuMemAlloc"]
    assert {each.device for each in found} == {1}


@pytest.mark.parametrize("seed", range(20))
def test_random_histories_replay_without_a_difference(tmp_path: Path, seed: int) -> None:
    chosen = random.Random(seed)
    history, live, mapped = [], dict[int, int](), set[int]()
    base, page = 0x7F00_0000_0000, 2 * MIB
    for time in range(1, 200):
        first, count = chosen.randrange(32), chosen.randrange(1, 6)
        pages = {*range(first, first + count)}
        match chosen.randrange(4):
            case 0:
                address, size = 0x10_0000_0000 + time * 16 * MIB, page * chosen.randrange(1, 5)
                live[address] = size
                history.append(event("segment_alloc", address, size, time))
            case 1 if live:
                address = chosen.choice([*live])
                history.append(event("segment_free", address, live.pop(address), time))
            case 2 if not pages & mapped:
                mapped |= pages
                history.append(event("segment_map", base + first * page, count * page, time))
            case 3 if pages <= mapped:
                mapped -= pages
                history.append(event("segment_unmap", base + first * page, count * page, time))
    start = chosen.randrange(len(history) // 2)
    segments = [segment(address, size) for address, size in live.items()]
    segments += [segment(base + each * page, page, expandable=True) for each in mapped]
    calls(written({"segments": segments, "device_traces": [history[start:]]}, tmp_path), tmp_path)
    record = read_record([tmp_path / "record.jsonl"])
    assert replay(record, resolve("h100x1")).difference is None
    at_end = sum(each.memory["gpu0"] for each in moment(record, "end").processes)
    assert at_end == sum(live.values()) + len(mapped) * page


class _Runs:
    """What a hostile pickle does: it has a function called."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self._file}",)


def test_a_class_or_a_function_in_a_snapshot_is_refused_and_nothing_runs(
    run_inline: InlineRunner, tmp_path: Path
) -> None:
    trap = tmp_path / "executed"
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        file = tmp_path / "hostile.pickle"
        file.write_bytes(pickle.dumps({"segments": [_Runs(trap)]}, protocol))
        refused = run_inline("import", file)
        assert refused.status == 2
        assert "it has the class" in refused.err
        assert "system" in refused.err
    assert not trap.exists()
    with pytest.raises(RefusedPickle, match=r"OrderedDict"):
        plain_values(pickle.dumps(OrderedDict(a=1)))


BUILDING = ("REDUCE", "BUILD", "NEWOBJ", "OBJ", "INST", "EXT1")


@pytest.mark.parametrize("code", [each.code for each in pickletools.opcodes if each.name in BUILDING])
def test_instructions_that_build_objects_are_refused(code: str) -> None:
    with pytest.raises(RefusedPickle, match=r"instruction|damaged"):
        plain_values(b"\x80\x04}}" + code.encode("latin-1") + b"\x01.")


def test_a_pickle_that_is_cut_deep_or_of_another_form_is_refused(tmp_path: Path) -> None:
    whole = (SNAPSHOTS / "native.pickle").read_bytes()
    for end in (0, 1, 100, len(whole) // 2, len(whole) - 1):
        with pytest.raises(RefusedPickle):
            plain_values(whole[:end])
    with pytest.raises(RefusedPickle, match="in one another"):
        plain_values(b"\x80\x04" + b"(" * (MOST_NESTED + 1) + b".")
    wrong: list[Any] = [
        [], 5, {"segments": 5}, {"segments": [1]}, {"segments": [{"device": -1}]},
        {"segments": [segment(1, -5)]}, {"segments": [], "device_traces": 7},
        {"segments": [], "device_traces": [[{"action": 7}]]},
        {"segments": [], "device_traces": [[{"action": "segment_alloc", "addr": "1", "size": 2}]]},
        {"segments": [segment(True, 5)]}, {"segments": [segment(1, 5, device=1024)]},
        {"segments": [], "device_traces": [[event("segment_alloc", 1, 2, 1 << 53)]]},
    ]  # fmt: skip
    for values in wrong:
        with pytest.raises(UsageError, match="is not a snapshot of PyTorch"):
            read_snapshot(str(written(values, tmp_path)))


_EVENT = event("segment_map", 1 << 40, 2 * MIB)


def _crossed(number: int) -> dict[str, Any]:
    """Maps that each span the cuts of all others."""
    history = [event("segment_map", (1 << 40) - n * MIB, 2 * n * MIB) for n in range(1, number)]
    return {"segments": [], "device_traces": [history]}


def _deep(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = [value] * 8
    return value


REFUSED = {
    "shared lists in a message": (pickle.dumps({"segments": [segment(_deep("x", 40), 5)]}), "its address is .* a list"),
    "shared lists in a frame": (
        pickle.dumps({"segments": [], "device_traces": [[{**_EVENT, "frames": [{"filename": _deep("x", 40)}]}]]}),
        "its filename is a list",
    ),
    "a list in itself": (
        b"\x80\x04}\x94(\x8c\x08segments]\x94(}\x94(\x8c\x06device]\x94(h\x03h\x03euh\x02eu.",
        "its device is .* a list",
    ),
    "a number in digits": (b"I" + b"0x" + b"f" * 50_000 + b"\n.", "200,000 bits"),
    "a number in bytes": (b"\x8a\xff" + b"\x7f" * 255 + b".", "2,039 bits"),
    "a key that takes long to hash": (b"})\x94" + b"h\0h\0\x86\x94" + b"Ns.", "a key of the type tuple"),
    "a number as a key": (pickle.dumps({"segments": [], 1: 2}), "a key of the type int"),
    "lists in a row": (b"]" * 20_000 + b".", "20,001 bytes"),
    "a value that is shared by many numbers": (b"N" + b"\x94" * 20_000 + b".", "20,002 bytes"),
    "an event that is shared": (
        pickle.dumps({"segments": [], "device_traces": [[_EVENT] * 300] * 1000}), "1,000 and 300,000",
    ),
    "a segment that is shared": (pickle.dumps({"segments": [segment(1 << 21, 5)] * 40_000}), "0 and 40,000"),
    "a size beyond all addresses": (
        pickle.dumps({"segments": [segment((1 << 64) - 2, 2)]}), "its total_size is not .* below 1: it is 2",
    ),
    "an event beyond all addresses": (
        pickle.dumps({"segments": [], "device_traces": [[event("segment_map", (1 << 64) - 2, 2)]]}),
        "its size is not .* below 1: it is 2",
    ),
    "pieces of maps that cross": (pickle.dumps(_crossed(400)), "159,201 pieces"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_small_files_that_would_take_much_time_or_memory_are_refused(tmp_path: Path, what: str) -> None:
    data, message = REFUSED[what]
    (tmp_path / "snapshot").write_bytes(data)
    with pytest.raises(UsageError, match=message):
        list(record_lines(read_snapshot(str(tmp_path / "snapshot"))))


def test_calls_and_bytes_of_a_record_are_limited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    values = {"segments": [], "device_traces": [[event("segment_alloc", n << 21, 1) for n in range(1, 5)]]}
    read = read_snapshot(str(written(values, tmp_path)))
    lines = list(record_lines(read))
    size = sum(map(len, lines[1:]))
    for limit, most in (("MOST_CALLS", 5), ("MOST_BYTES", size)):
        with monkeypatch.context() as patch:
            patch.setattr(snapshot, limit, most)
            assert list(record_lines(read)) == lines
            patch.setattr(snapshot, limit, most - 1)
            with pytest.raises(UsageError, match="more than"):
                list(record_lines(read))


def test_maps_of_several_reservations_are_each_in_their_own(tmp_path: Path) -> None:
    """Segments that touch are one reservation."""
    spans = [(1 << 40, 2), ((1 << 40) + 2 * MIB, 4), (1 << 41, 2), (1 << 42, 6)]
    history = [event("segment_map", address, size * MIB, n) for n, (address, size) in enumerate(spans)]
    found = calls(written({"segments": [], "device_traces": [history]}, tmp_path), tmp_path)
    reserved = [(each.result, each.arguments["size"] // MIB) for each in found if each.method == "mem_address_reserve"]
    assert reserved == [(1 << 40, 6), (1 << 41, 2), (1 << 42, 6)]


def test_the_number_of_events_is_limited_over_all_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(snapshot, "MOST_EVENTS", 3)
    traces = [[event("segment_alloc", 1 << 21, 1), event("segment_free", 1 << 21, 1)]] * 2
    most = written({"segments": [], "device_traces": [traces[0], traces[1][:1]]}, tmp_path)
    assert len(read_snapshot(str(most)).events) == 3
    with pytest.raises(UsageError, match="3 events"):
        read_snapshot(str(written({"segments": [], "device_traces": traces}, tmp_path)))


def test_damaged_bytes_are_read_or_refused(tmp_path: Path) -> None:
    whole = (SNAPSHOTS / "expandable.pickle").read_bytes()
    chosen = random.Random(7)
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(chosen.randrange(1, 4)):
            data[chosen.randrange(len(data))] = chosen.randrange(256)
        file = tmp_path / "damaged.pickle"
        file.write_bytes(data)
        with suppress(UsageError):
            assert all(isinstance(json.loads(line), dict) for line in record_lines(read_snapshot(str(file))))


def test_a_file_that_is_no_record_is_not_replaced(run_inline: InlineRunner, tmp_path: Path) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    assert run_inline("import", SNAPSHOTS / "native.pickle", "-o", mine).status == 2
    assert mine.read_text() == "mine"
    assert run_inline("import", tmp_path / "none.pickle").status == 2


def test_each_gpu_has_the_segments_of_its_own_history(tmp_path: Path) -> None:
    """The numbers of their handles differ, too."""
    bases = [0x7F00_0000_0000, 0x7F80_0000_0000]
    histories = [
        [event("segment_free", 0x1000000, 2 * MIB, 5), event("segment_map", bases[0], 2 * MIB, 6)],
        [event("segment_alloc", 0x2000000, 4 * MIB, 5), event("segment_map", bases[1], 6 * MIB, 7)],
    ]
    segments = [
        segment(bases[1], 6 * MIB, expandable=True, device=1), segment(0x2000000, 4 * MIB, device=1),
    ]  # fmt: skip
    histories[0].append(event("segment_unmap", bases[0], 2 * MIB, 8))
    found = calls(written({"segments": segments, "device_traces": histories}, tmp_path), tmp_path)
    assert [(each.device, each.time) for each in found if each.method == "mem_alloc"] == [(0, 0.0), (1, 0.0)]
    record = read_record([tmp_path / "record.jsonl"])
    (end,) = moment(record, "end").processes
    assert {at: size // MIB for at, size in end.memory.items()} == {"gpu0": 0, "gpu1": 10}
    assert replay(record, resolve("h200x2")).difference is None
