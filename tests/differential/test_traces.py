"""Recorded traces of GPUs, and their replay on the simulator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import pytest

from memtopo import machine
from tests.differential import traces
from tests.differential.calls import Call
from tests.differential.replayer import Difference, answer_kind, compare, replay
from tests.differential.traces import END, Origin, Step, Trace
from tests.helpers.simulator import LAXER, STRICTER

RECORDED = sorted(traces.FOLDER.glob("*.xz"))
AMONG, TIMES = 1000, 3
"""Sequences of each file that the sample is taken from, and how many have each kind of answer to a call."""
H100 = machine.load("h100x1")


def unexplained(differences: tuple[Difference, ...]) -> list[tuple[str, str, str]]:
    return [(each.trace.seed, str(each.step), each.simulated) for each in differences if not each.explained_by]


def sample(recorded: Iterable[Trace]) -> Iterator[Trace]:
    """Yield the sequences with an answer to a call of a kind that fewer than `TIMES` before them have."""
    seen: Counter[tuple[str, str]] = Counter()
    for trace in islice(recorded, AMONG):
        kinds = {step_kind(step) for step in trace.steps}
        if any(seen[kind] < TIMES for kind in kinds):
            seen.update(kinds)
            yield trace


def step_kind(step: Step) -> tuple[str, str]:
    """Name of a call and kind of the answer to it."""
    return (step.call if step.call == END else Call.parse(step.call).spoken, answer_kind(step.answer))


def of_text(*lines: str) -> Trace:
    (trace,) = traces.parse(["# 1", *lines])
    return trace


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_a_sample_of_recorded_sequences_is_answered_as_on_hardware(path: Path) -> None:
    origin, recorded = traces.read(path)
    result = replay(machine.load(origin.machine), sample(recorded))
    assert result.sequences > 20
    assert unexplained(result.differences) == []


@pytest.mark.exhaustive(seconds=3)
@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_every_recorded_sequence_is_answered_as_on_hardware(path: Path) -> None:
    origin, recorded = traces.read(path)
    assert unexplained(replay(machine.load(origin.machine), recorded).differences) == []


def test_every_shipped_machine_has_traces() -> None:
    assert {traces.read(path)[0].machine for path in RECORDED} | {"h200x4", "h200x8"} == set(machine.shipped())


@pytest.mark.parametrize("path", sorted(traces.FOLDER.glob("h200x2*.xz")), ids=lambda path: path.stem)
def test_four_gpus_answer_as_two_of_their_kind(path: Path) -> None:
    """Sequences for two GPUs name no third one, and no fact depends on the number of those that are not used."""
    _, recorded = traces.read(path)
    assert unexplained(replay(machine.load("h200x4"), sample(recorded)).differences) == []


MOSTLY = ("advise m0 512 mostly gpu0 -> ok", "prefetch m0 512 gpu0 0 -> ok")
MADE = ("p0 = make 3M dedicated -> ok", "x0 = importmemory p0 6M -> ok")
SHARED = ("push gpu0 -> ok", "there push gpu0 -> ok", "a0 = there alloc 512 -> ok", "h0 = there share a0 -> ok")
OPENED = (*SHARED, "o0 = open h0 -> ok", "a1 = there alloc 512 -> ok", "h1 = there share a1 -> ok")


@pytest.mark.parametrize(
    ("lines", "simulated", "entry"),
    [
        ((*SHARED, "there freemem a0 -> ok", "o0 = open h0 -> NOT_PERMITTED"), "INVALID_VALUE", "ipc_open_mem_handle"),
        ((*SHARED, "o0 = open h0 -> NOT_PERMITTED"), "INVALID_VALUE", ""),
        ((*SHARED, "there freemem a0 -> ok", "o0 = open h0 -> ALREADY_MAPPED"), "ok", ""),
        ((*OPENED, "there freemem a0 -> ok", "o1 = open h1 -> ALREADY_MAPPED"), "ok", "ipc_open_mem_handle"),
        ((*OPENED, "o1 = open h1 -> ALREADY_MAPPED"), "ok", ""),
        (("g0 = shareevent e0 -> died SIGSEGV",), "INVALID_HANDLE", "ipc_get_event_handle"),
        (("streamwait 0 e0 -> died SIGSEGV",), "INVALID_HANDLE", "stream_wait_event"),
        (("streamwait 0 e0 -> ok",), "INVALID_HANDLE", ""),
        ((*MOSTLY, "write m0 00112233 -> ok", "hostread m0 4 -> 8d8d8d8d"), "00112233", "host_read"),
        ((*MOSTLY, "hostread m0 4 -> 8d8d8d8d"), "00112233", ""),
        ((*MADE, "b0 = mapbuffer x0 0 4M -> ok"), "INVALID_VALUE", "external_memory_get_mapped_buffer"),
    ],
)
def test_a_difference_that_a_driver_fact_explains_has_its_entry(
    lines: tuple[str, ...], simulated: str, entry: str
) -> None:
    """Facts 53, 60, 72, 76 and 78."""
    trace = of_text(*lines)
    assert Difference(trace, len(trace.steps) - 1, simulated).explained_by == entry
    assert entry in {"", *STRICTER, *LAXER}


def test_a_trace_is_read_as_it_was_written(tmp_path: Path) -> None:
    origin = Origin("h100x1", "defined")
    written = [
        Trace("7", (Step("c0 = create 2M gpu0", "ok"), Step("release c0", "died SIGSEGV"))),
        Trace("8", (Step("pop", "INVALID_CONTEXT"),)),
    ]
    traces.write(tmp_path / "t.xz", origin, written)
    read, found = traces.read(tmp_path / "t.xz")
    assert (read, list(found)) == (origin, written)


def test_a_sequence_is_compared_up_to_its_first_difference() -> None:
    trace = of_text("c0 = create 2M gpu0 -> ok", "release c0 -> INVALID_VALUE", "release c0 -> ok")
    difference = compare(H100, trace)
    assert difference
    assert (difference.position, difference.simulated) == (1, "ok")
    assert str(difference.kind) == "release: INVALID_VALUE, simulated ok"
    assert not difference.explained_by


def test_a_mapping_past_the_end_of_its_reservation_is_explained() -> None:
    """Fact 15."""
    trace = of_text("r0 = reserve 2M -> ok", "c0 = create 4M gpu0 -> ok", "map r0 4M c0 -> ok")
    difference = compare(H100, trace)
    assert difference
    assert difference.explained_by == "mem_map"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["r0 = reserve 4M -> ok", "unmap r0+2M 4M -> ok", "free r0 4M -> INVALID_VALUE"], True),
        (["r0 = reserve 4M -> ok", "unmap r0+2M 4M -> INVALID_VALUE", "free r0 4M -> INVALID_VALUE"], False),
        (["r0 = reserve 4M -> ok", "unmap r0+2M 4M -> INVALID_VALUE"], True),
        (["r0 = reserve 4M -> ok", "free r0 4M -> ok", "get r0 gpu0 -> 0"], True),
        (["r0 = reserve 4M -> ok", "get r0+2M gpu0 -> 0"], False),
        (["a0 = alloc 512 -> ok", "fill a0+508 7 8 -> ok"], True),
        (["r0 = reserve 4M -> ok", "r1 = reserve 4M 32M r0 -> ok"], True),
        (["get junk gpu0 -> 0"], False),
    ],
)
def test_calls_that_depend_on_what_lies_beside_a_reservation_are_known(lines: list[str], expected: bool) -> None:
    trace = of_text(*lines)
    assert Difference(trace, len(lines) - 1, "?").by_neighbours is expected
