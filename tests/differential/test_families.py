"""Families of calls beside the VMM's, recorded and replayed on the simulator."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from memtopo import machine
from memtopo.drivers.sim import SimDriver
from tests.differential import traces
from tests.differential.calls import UNDEFINED, compiled
from tests.differential.families import FAMILIES, generator, length, needs
from tests.differential.recorder import Order, record
from tests.differential.replayer import compare, replay
from tests.differential.resource_calls import needs_of
from tests.differential.resources import Surroundings
from tests.differential.runner import answers
from tests.differential.traces import Origin, Step, Trace

TWO = machine.load("h200x2")
SEQUENCES = 15
WRONG = {
    "buffers": "mem_free",
    "events": "event_record",
    "managed": "mem_advise",
    "ipc": "memcpy_htod",
    "chunks": "mem_set_access",
    "external": "memcpy_htod",
    "pools": "mem_pool_set_access",
    "pinned": "mem_host_unregister",
    "dmabufs": "mem_map",
}
"""A call of each family that a wrong simulator accepts without an effect."""


@cache
def recorded(family: str, seeds: range) -> list[Trace]:
    found = []
    with Surroundings(TWO) as surroundings:
        for seed in seeds:
            with SimDriver(TWO) as driver:
                driver.init()
                contexts = [driver.device_primary_ctx_retain(device) for device in (0, 1)]
                session = surroundings.session(driver, contexts, needs(family))
                calls, steps = generator(family, seed, 2), []
                for _ in range(length(family)):
                    call = calls.next()
                    steps.append(Step(call, compiled(call)(session)))
                    calls.note(*steps[-1])
                assert session.close(), seed
                found.append(Trace(str(seed), tuple(steps)))
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_a_recorded_family_is_replayed_without_a_difference(family: str, tmp_path: Path) -> None:
    order = Order("h200x2", family, seconds=60, first=5, most=SEQUENCES)
    done = record(order, Origin("h200x2", family), workers=1, out=tmp_path / "t.xz")
    assert done == (SEQUENCES, SEQUENCES * length(family), ())
    origin, found = traces.read(tmp_path / "t.xz")
    assert origin == Origin("h200x2", family)
    assert replay(TWO, found) == (SEQUENCES, SEQUENCES * length(family), ())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_wrong_simulator_gives_differences(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = recorded(family, range(SEQUENCES))
    assert replay(TWO, found).differences == ()
    monkeypatch.setattr(SimDriver, WRONG[family], lambda *_: None)
    assert replay(TWO, found).differences


@pytest.mark.parametrize("family", FAMILIES)
def test_calls_of_a_family_are_mostly_meaningful_and_use_nothing_undefined(family: str) -> None:
    found = recorded(family, range(SEQUENCES))
    answered = Counter(step.answer for trace in found for step in trace.steps)
    assert UNDEFINED not in answered
    assert answered["ok"] > answered.total() / 3
    assert any(each.isupper() for each in answered)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_seed_always_gives_the_same_sequence_of_a_family(family: str) -> None:
    first, second = recorded(family, range(1, 3))
    assert recorded(family, range(1, 2)) == [first]
    assert first.steps != second.steps


def test_no_stream_of_another_gpu_waits_for_an_interprocess_event() -> None:
    """Fact 75: the simulator refuses it, and hardware does not survive it."""
    steps = [step for trace in recorded("events", range(200)) for step in trace.steps]
    answers = {step.answer for step in steps if "streamwait" in step.call}
    assert "ok" in answers
    assert "INVALID_HANDLE" not in answers


def test_what_a_sequence_needs_is_seen_in_its_calls() -> None:
    assert needs_of(["c0 = create 2M gpu0", "push gpu0"]) == (False, False, False)
    assert needs_of(["a0 = there alloc 64K"]) == (True, True, False)
    assert needs_of(["t0 = timeline 0", "event 2"]) == (True, False, True)


def test_calls_of_two_processes_are_made_in_fresh_ones() -> None:
    calls = ["push gpu0", "there push gpu0", "a0 = alloc 512", "write a0 00112233", "h0 = share a0"]
    more = ["o0 = there open h0", "there read o0 4", "o1 = there open h0", "o2 = open h0"]
    assert answers("h200x2", calls + more)[5:] == ["ok", "00112233", "again", "INVALID_CONTEXT"]


def test_a_difference_names_the_call_of_the_second_process() -> None:
    difference = compare(TWO, Trace("1", (Step("a0 = there alloc 64K", "ok"),)))
    assert difference
    assert str(difference.kind) == "there alloc: ok, simulated INVALID_CONTEXT"
