"""Generated sequences, and their recording by processes, on the simulator."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from memtopo import machine
from memtopo.drivers.sim import SimDriver
from tests.differential import traces
from tests.differential.calls import UNDEFINED, compiled
from tests.differential.generator import LENGTH, MODES, Generator
from tests.differential.minimiser import NoDifference, minimal, minimised
from tests.differential.neighbours import depends
from tests.differential.recorder import Order, note_death, record
from tests.differential.replayer import compare, replay
from tests.differential.runner import answers
from tests.differential.session import Session
from tests.differential.traces import Origin, Step, Trace

TWO = machine.load("h200x2")
ORIGIN = Origin("h200x2", "defined")


def sequence(seed: int, mode: str) -> tuple[Step, ...]:
    with SimDriver(TWO) as driver:
        driver.init()
        session = Session(driver, [driver.device_primary_ctx_retain(device) for device in (0, 1)])
        generator = Generator(seed, 2, mode)
        steps = []
        for _ in range(LENGTH):
            call = generator.next()
            steps.append(Step(call, compiled(call)(session)))
            generator.note(*steps[-1])
        assert session.close()
    return tuple(steps)


@pytest.mark.parametrize("mode", MODES)
def test_a_seed_always_gives_the_same_sequence(mode: str) -> None:
    assert sequence(1, mode) == sequence(1, mode) != sequence(2, mode)


def test_generated_calls_are_mostly_meaningful_and_partly_wrong() -> None:
    found = Counter(step.answer for seed in range(100) for step in sequence(seed, "defined"))
    assert found["ok"] > found.total() / 3
    assert found["INVALID_VALUE"] > found.total() / 20
    assert UNDEFINED not in found


def test_what_is_recorded_on_the_simulator_is_replayed_without_a_difference(tmp_path: Path) -> None:
    order = Order("h200x2", "defined", seconds=60, first=5, most=3)
    recorded = record(order, ORIGIN, workers=2, out=tmp_path / "t.xz")
    assert recorded == (6, 6 * LENGTH, ())
    origin, found = traces.read(tmp_path / "t.xz")
    kept = list(found)
    assert origin == ORIGIN
    assert {trace.seed for trace in kept} == {str(seed) for seed in range(5, 11)}
    assert replay(TWO, kept) == (6, 6 * LENGTH, ())


def test_a_process_that_ends_early_is_reported(tmp_path: Path) -> None:
    recorded = record(Order("no-such-machine", "defined", 0.01, 0), ORIGIN, workers=1, out=tmp_path / "t.xz")
    assert recorded == (0, 0, ("1",))


def test_calls_are_made_in_a_fresh_process() -> None:
    calls = ["c0 = create 2M gpu1", "props c0", "release c1"]
    assert answers("h200x2", calls) == ["ok", "gpu1", UNDEFINED]


def test_the_minimal_part_has_exactly_the_calls_that_are_needed() -> None:
    calls = [str(number) for number in range(40)]
    assert minimal(calls, lambda part: {"3", "17", "39"} <= set(part)) == ("3", "17", "39")
    with pytest.raises(NoDifference):
        minimal(calls, lambda part: "40" in part)


def test_a_difference_is_minimised_in_fresh_processes() -> None:
    calls = ("r0 = reserve 2M", "c0 = create 2M gpu1", "map r0 2M c0")
    recorded = Trace("", tuple(map(Step, calls, answers("h200x2", calls))))
    one = machine.load("h100x1")
    found = compare(one, recorded)
    assert found
    shortest = minimised(found, "h200x2", one)
    assert shortest.trace.steps == (Step("c0 = create 2M gpu1", "ok"),)
    assert shortest.simulated == "INVALID_DEVICE"


def test_only_the_mode_beyond_reaches_past_the_end_of_what_it_has() -> None:
    assert not any(reaches_past_the_end(sequence(seed, "defined")) for seed in range(60))
    assert any(reaches_past_the_end(sequence(seed, "beyond")) for seed in range(10))


def reaches_past_the_end(steps: tuple[Step, ...]) -> bool:
    """Hints at a freed reservation are not counted: their alignment alone differs between drivers."""
    return depends([step for step in steps if " = reserve " not in step.call or len(step.call.split()) < 5])


@pytest.mark.parametrize(
    ("recorded", "last"),
    [
        ("# 1\npop -> ok\nc0 = create 32T gpu0 -> ", Step("c0 = create 32T gpu0", "died SIGSEGV")),
        ("# 1\npop -> ok\n", Step("end", "died SIGSEGV")),
    ],
)
def test_a_death_is_the_answer_to_the_last_call_or_to_the_end(recorded: str, last: Step, tmp_path: Path) -> None:
    (tmp_path / "t").write_text(recorded)
    note_death(tmp_path / "t", "SIGSEGV")
    (trace,) = traces.parse((tmp_path / "t").read_text().splitlines())
    assert trace.steps == (Step("pop", "ok"), last)


def test_a_death_at_the_end_is_a_difference_of_the_calls_before_it() -> None:
    found = compare(TWO, Trace("1", (Step("pop", "INVALID_CONTEXT"), Step("end", "died SIGSEGV"))))
    assert found
    assert str(found.kind) == "end: died, simulated ok"
    assert found.calls == ("pop",)
