"""Traces as they are read, and which of their calls a summary shows as failed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memtopo.common.errors import UsageError
from memtopo.driver.trace_files import SUFFIX
from memtopo.plans.trace import CONTEXT, MARK, TraceFile, read_traces, summary


def head(process: str = "", pid: int = 1, layout: str = "") -> str:
    return json.dumps({
        "memtopo_trace_file": 1, "layout": layout, "process": process, "machine": "m", "simulated": True,
        "driver": "13.0", "pid": pid, "started": "2026-01-01T00:00:00Z",
    })  # fmt: skip


def call(number: int, process: str = "", name: str = "cuMemCreate", error: str = "", **more: object) -> str:
    found = {"process": process, "n": number, "time": 0.1, "phase": "", "call": name, "method": name, "arguments": {}}
    return json.dumps(found | ({"error": error} if error else {}) | {"seconds": 0.5} | more)


def read(file: Path, *lines: str) -> list[TraceFile]:
    file.write_text("".join(f"{line}\n" for line in lines))
    return read_traces([file])


def test_a_program_that_executes_another_begins_a_trace_again(tmp_path: Path) -> None:
    """Lines of several processes alternate in one file."""
    found = read(
        tmp_path / "calls.jsonl", head("p", 1), head("q", 2), call(1, "p"), call(2, "q"), head("p", 3), call(3, "q"),
        call(4, "p"),
    )  # fmt: skip
    assert [(each.head.pid, [one.number for one in each.calls]) for each in found] == [(1, [1]), (2, [2, 3]), (3, [4])]


FAILED = [
    call(1, error="NO_MEMORY", step="create a"), call(2), call(3, error="NO_MEMORY", step="create b"),
    call(4, name="cuMemMap", error="NO_MEMORY"), call(5, error="BAD"), *(call(number) for number in range(6, 16)),
    call(16, error="BAD", step="create c"), call(17, seconds=None),
]  # fmt: skip


def shown(trace: list[TraceFile]) -> list[int]:
    return [each.call.number for each in summary(trace).failed]


def test_a_captured_program_has_the_first_call_of_each_function_and_error(tmp_path: Path) -> None:
    """A call that did not return is first. Those of a layout are all calls of steps; a query may fail."""
    assert shown(read(tmp_path / "captured.jsonl", head(), *FAILED)) == [17, 1, 3, 4, 5, 16]
    without_steps = [line.replace("step", "note") for line in FAILED]
    assert shown(read(tmp_path / "captured.jsonl", head(), *without_steps)) == [17, 1, 4, 5]
    assert shown(read(tmp_path / "layout.jsonl", head(layout="kv"), *FAILED)) == [17, 1, 3, 16]


def test_a_call_that_did_not_return_has_no_error(tmp_path: Path) -> None:
    functions = summary(read(tmp_path / "layout.jsonl", head(layout="kv"), *FAILED)).functions
    assert {each.function: (each.calls, each.errors) for each in functions} == {
        "cuMemCreate": (16, 4), "cuMemMap": (1, 1)
    }  # fmt: skip


def test_a_mark_is_no_call(tmp_path: Path) -> None:
    found = summary(read(tmp_path / "calls.jsonl", head(), call(1), call(2, name=MARK), call(3)))
    assert (found.calls, [(each.function, each.calls) for each in found.functions]) == (2, [("cuMemCreate", 2)])


def test_a_call_whose_time_or_duration_is_negative_is_damage(tmp_path: Path) -> None:
    for wrong in (call(2, seconds=-0.1), call(2, time=-0.1)):
        with pytest.raises(UsageError, match="is damaged: line 3 is no call"):
            read(tmp_path / "damaged.jsonl", head(), call(1, seconds=0.0), wrong, call(3))


def test_a_failed_call_has_the_calls_before_it_in_its_own_process(tmp_path: Path) -> None:
    lines = [call(number, process) for number in range(1, 10) for process in ("p", "q")]
    file = tmp_path / "calls.jsonl"
    (failed,) = summary(read(file, head("p"), head("q", 2), *lines, call(10, "q", error="BAD"))).failed
    assert [(each.process, each.number) for each in failed.before] == [("q", 10 - n) for n in range(CONTEXT, 0, -1)]


UNFINISHED = call(2)[: call(2).index(', "seconds"')]


@pytest.mark.parametrize(
    ("last", "numbers"),
    [
        (UNFINISHED, [1, 2]),
        (f'{UNFINISHED}, "error": "BAD"', [1]),
        (UNFINISHED[:-1], [1]),
        (call(2), [1, 2]),
        ("", [1]),
    ],
)
def test_a_last_call_did_not_return_if_its_line_ends_with_its_arguments(
    tmp_path: Path, last: str, numbers: list[int]
) -> None:
    """A line that is cut elsewhere is none."""
    file = tmp_path / "calls.jsonl"
    file.write_text(f"{head()}\n{call(1)}\n{last}")
    (found,) = read_traces([file])
    assert [each.number for each in found.calls] == numbers


def test_what_else_is_in_a_folder_of_traces_is_left_out(tmp_path: Path) -> None:
    read(tmp_path / f"a{SUFFIX}", head(), call(1))
    (tmp_path / f"b{SUFFIX}").write_text('{"other": 1}\n')
    (tmp_path / f"c{SUFFIX}").mkdir()
    assert [each.head.pid for each in read_traces([tmp_path])] == [1]


def test_functions_are_in_the_order_of_their_total_then_of_their_name(tmp_path: Path) -> None:
    lines = [call(n, name=name, seconds=each) for n, (name, each) in enumerate([
        ("cuB", 1.0), ("cuC", 0.5), ("cuC", 0.25), ("cuC", 3.0), ("cuA", 1.0)
    ])]  # fmt: skip
    found = summary([*read(tmp_path / "a.jsonl", head(), *lines), *read(tmp_path / "b.jsonl", head(), call(1))])
    assert [(each.function, each.total, each.median, each.longest) for each in found.functions] == [
        ("cuC", 3.75, 0.5, 3.0), ("cuA", 1.0, 1.0, 1.0), ("cuB", 1.0, 1.0, 1.0), ("cuMemCreate", 0.5, 0.5, 0.5)
    ]  # fmt: skip
    assert (found.seconds, len(found.traces)) == (6.25, 2)


def test_a_last_call_is_of_its_own_process_and_files_of_a_folder_are_in_order(tmp_path: Path) -> None:
    for name, number in (("b", 2), ("a", 1)):
        file = tmp_path / f"{name}{SUFFIX}"
        file.write_text(f"{head('p', number)}\n{head('q', 9)}\n{call(1, 'q')[:-1]}}}")
    found = read_traces([tmp_path])
    assert [(each.head.pid, len(each.calls)) for each in found] == [(1, 0), (9, 1), (2, 0), (9, 1)]


@pytest.mark.parametrize(
    ("start", "hint"), [(b"\x80\x04", "snapshot of PyTorch"), (b"\xfd7zXZ\0", "xz -d"), (b"{}\n", "apply --trace FILE")]
)
def test_a_file_that_is_no_trace_has_the_hint_for_its_kind(tmp_path: Path, start: bytes, hint: str) -> None:
    with pytest.raises(UsageError, match="there is no trace"):
        read_traces([tmp_path])
    file = tmp_path / "other"
    file.write_bytes(start)
    with pytest.raises(UsageError, match="is no trace of memtopo") as raised:
        read_traces([file])
    assert hint in (raised.value.hint or "")
