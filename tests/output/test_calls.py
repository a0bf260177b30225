"""Pages of traces: failed calls with those before them, and all calls by function."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from memtopo.machine import MachineLine
from memtopo.output import calls, console
from memtopo.plans.trace import TracedCall, TraceFile, TraceHead, summary
from memtopo.records.replay import LeftOutCalls, Replay, ReplayDifference

ADDRESS = 0x7F00_0000_0000


def call(
    number: int, error: str | None = None, seconds: float | None = 0.5, step: str | None = "create c"
) -> TracedCall:
    given = {"address": ADDRESS, "size": 2 << 20}
    return TracedCall(
        number=number, time=0.1, phase="map", step=step, call="cuMemMap", method="mem_map", arguments=given,
        error=error, seconds=seconds,
    )  # fmt: skip


def shown(*traced: TracedCall, layout: str = "kv", simulated: bool = False) -> str:
    head = TraceHead(layout, "", "h200x2", simulated, "13.0", 1, "2026-01-01T00:00:00Z")
    return console.unstyled(calls.trace_page(summary([TraceFile(head, traced)])), 120)


def test_a_failed_call_is_shown_with_its_error_after_those_before_it() -> None:
    text = shown(call(1), call(2, error="CUDA_ERROR_UNKNOWN"))
    assert "cuMemMap failed: CUDA_ERROR_UNKNOWN" in text
    assert "2  create c  cuMemMap(address=0x7f0000000000, size=2097152)  500 ms" not in text
    assert "1  create c  cuMemMap(address=0x7f0000000000, size=2097152)  500 ms" in text
    assert "2  create c  cuMemMap(address=0x7f0000000000, size=2097152) = CUDA_ERROR_UNKNOWN  500 ms" in text


def test_a_call_that_did_not_return_is_the_last_one_and_has_no_time() -> None:
    text = shown(call(1), call(2, seconds=None))
    assert "the last call did not return" in text
    assert "2  create c  cuMemMap(address=0x7f0000000000, size=2097152) …" in text


@pytest.mark.parametrize(
    ("layout", "traced", "noted"),
    [("kv", call(1, "CUDA_ERROR_INVALID_VALUE", step=None), True), ("kv", call(1), False), ("", call(1, "BAD"), False)],
)
def test_errors_of_queries_alone_are_noted_as_expected(layout: str, traced: TracedCall, noted: bool) -> None:
    assert ("the errors are of queries" in shown(traced, layout=layout)) == noted


@pytest.mark.parametrize("simulated", [False, True])
def test_times_of_the_simulator_are_noted_as_such(simulated: bool) -> None:
    assert ("those of the simulator" in shown(call(1), simulated=simulated)) == simulated
    assert ("captured program" in shown(call(1), layout="")) is True


def replayed(**changes: Any) -> str:
    machine = MachineLine("h200x2", simulated=True, devices=(), driver="13.0")
    found = Replay(machine, "kv", 1, 9, 8, (), {}, None)
    return console.unstyled(calls.replay_page(replace(found, **changes)), 120)


def test_a_replay_has_what_was_left_out_and_other_errors_and_agrees_all_the_same() -> None:
    text = replayed(processes=2, left_out=(LeftOutCalls("cuX", 1000, "why"),), other_errors={"cuMemMap: A for B": 3000})
    rows = [line.split() for line in text.splitlines()]
    assert ["cuX", "1,000", "why"] in rows
    assert [each for each in (["processes", "2"], ["calls", "9"], ["made", "8"]) if each not in rows] == []
    assert "with other errors than in the record, 3,000 × cuMemMap: A for B" in text
    assert text.splitlines()[-1] == "ok: all calls that were made end as in the record"
    alone = replayed()
    assert not any(word in alone for word in ("processes", "not made", "other errors"))


@pytest.mark.parametrize(
    ("recorded", "here", "title"),
    [
        (None, "BAD", "cuMemMap: BAD, and the record has success"),
        ("BAD", None, "cuMemMap: success, and the record has BAD"),
    ],
)
def test_a_difference_of_a_replay_has_both_ends_and_the_calls_before_it(
    recorded: str | None, here: str | None, title: str
) -> None:
    text = replayed(difference=ReplayDifference(call(2, error=recorded), here, "the rule", (call(1),)))
    lines = [line.strip() for line in text.splitlines()]
    assert title in lines
    at = lines.index(title)
    assert [line[:2] for line in lines[at + 1 : at + 3]] == ["1 ", "2 "]
    assert lines[at + 3] == "reason: the rule"
    assert lines[-1] == "error: a call ends otherwise than in the record"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1 << 32, "0x100000000"), ((1 << 32) - 1, "4294967295"), ([1, 1 << 40], "{1, 0x10000000000}"),
        ({"a": 0, "b": [], "c": "x"}, "{c=x}"), (None, "None"), ("x", "x"),
    ],
)  # fmt: skip
def test_large_numbers_of_a_trace_are_hexadecimal_and_empty_fields_left_out(value: object, text: str) -> None:
    assert calls.value_text(value) == text
