"""Pages of traces: failed calls with those before them, and all calls by function."""

from __future__ import annotations

import pytest

from memtopo.output import calls, console
from memtopo.plans.trace import TracedCall, TraceFile, TraceHead, summary

ADDRESS = 0x7F00_0000_0000


def call(
    number: int, error: str | None = None, seconds: float | None = 0.5, step: str | None = "create c"
) -> TracedCall:
    given = {"address": ADDRESS, "size": 2 << 20}
    return TracedCall("", number, 0.1, "map", step, False, "cuMemMap", "mem_map", given, None, error, None, seconds)


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
