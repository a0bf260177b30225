"""States of layouts: memory goes and comes back, addresses stay, and offloaded bytes return."""

from __future__ import annotations

from itertools import permutations

import pytest

from memtopo import planner
from memtopo.driver.ledger import Ledger
from memtopo.driver.types import DriverError, Location, LocationKind
from memtopo.drivers.sim import SimDriver
from memtopo.executor import Execution, StepFailed
from memtopo.kinds.chunks.steps import CreateChunk
from memtopo.kinds.layout import current
from memtopo.kinds.mappings.steps import MapChunk, parts_of
from memtopo.kinds.pinned.steps import AllocatePinned
from memtopo.kinds.resources import Synchronize
from memtopo.kinds.states.steps import AwaitCopy, CopyIn, CopyOut
from memtopo.planner import Plan
from memtopo.plans.transition import Transition, transition
from tests.helpers.conducted import make_transition
from tests.helpers.failing_driver import Failing
from tests.helpers.machines import invented
from tests.helpers.specs import diagnose, geometry_of, plan_of, run, run_request
from tests.run.test_transition import Built, built

TWO = invented(2)
SLEEPING = """
ranges: {weights: {size: 8MiB}, kv: {size: 8MiB}, view: {size: 2MiB}}
chunks:
  w: {location: [gpu0, gpu1], size: 2MiB, count: 4}
  page: {location: gpu1, size: 2MiB, count: 4}
map: {weights: [w], kv: [page], view: [page.1]}
access: {weights: {gpu0: rw, gpu1: r}, kv: {gpu1: rw}, view: {gpu0: r}}
states:
  asleep: {offload: {weights: host:0}, drop: kv}
  half: {drop: page.0:2, offload: {w.1: host:0}}
  empty: {drop: [weights, kv]}
"""
M = 2 << 20


AREAS = """
ranges: {r: {size: 2MiB}, q: {size: 2MiB}, s: {size: 2MiB, count: 2}}
chunks: {c: {location: gpu0, size: 2MiB, count: 2}, d: {location: gpu0, size: 2MiB, count: 2}}
map: {r: [c.0], q: [c.1], s: [{chunk: d, each: 1}]}
access: {r: {gpu0: rw}, q: {gpu0: rw}, s: {gpu0: rw}}
states: {asleep: {offload: {r: host:0, q: host:0, s.1: host:0}}}
"""
"""Single chunks are offloaded."""

PINNED = SLEEPING.replace("host:0", "pinned")


def plans(text: str = SLEEPING) -> dict[str, Plan]:
    plan = plan_of(text, TWO)
    return {"awake": plan, **planner.plan_states(plan, geometry_of(text, TWO))}


def write(layout: Built, name: str, data: list[bytes]) -> None:
    """Write some bytes to each 2 MiB of a range."""
    execution = layout.execution
    base = execution.layout.ranges[name].address
    with current(execution.driver, execution.layout.contexts[0]):
        for index, each in enumerate(data):
            execution.driver.memcpy_htod(base + index * M + 77, each)


def used(layout: Built) -> list[int]:
    """Bytes of each GPU that are in use."""
    execution, found = layout.execution, []
    for context in execution.layout.contexts.values():
        with current(execution.driver, context):
            free, total = execution.driver.mem_get_info()
        found.append(total - free)
    return found


def load(layout: Built, name: str, count: int) -> list[bytes]:
    execution = layout.execution
    base = execution.layout.ranges[name].address
    with current(execution.driver, execution.layout.contexts[0]):
        size = execution.layout.ranges[name].size
        return [execution.driver.memcpy_dtoh(base + index * M + 77, count) for index in range(size // M)]


@pytest.mark.parametrize("text", [SLEEPING, PINNED])
def test_the_memory_of_a_state_is_what_its_switch_leaves(text: str) -> None:
    foretold = planner.memory_by_state(plan_of(text, TWO), geometry_of(text, TWO))
    with built(plans(text)["awake"]) as layout:
        awake = used(layout)
        for name, plan in plans(text).items():
            make_transition(layout.execution, plan)
            less = [foretold["awake"][f"gpu{gpu}"] - foretold[name][f"gpu{gpu}"] for gpu in range(2)]
            assert [one - other for one, other in zip(awake, used(layout), strict=True)] == less


@pytest.mark.parametrize("text", [SLEEPING, PINNED])
def test_offloaded_bytes_return_under_the_same_addresses(text: str) -> None:
    """Through a second sleep, too, with other bytes."""
    states = plans(text)
    keeper = "pinned" if text == PINNED else "host:0"
    with built(states["awake"]) as layout:
        ranges = dict(layout.execution.layout.ranges)
        for written in ([b"one", b"two", b"six", b"ten"], [b"1st", b"2nd", b"3rd", b"4th"]):
            write(layout, "weights", written)
            make_transition(layout.execution, states["asleep"])
            areas = layout.execution.layout.memory if text == PINNED else layout.execution.layout.chunks
            assert sorted(each for each in areas if "@" in each) == [f"{each}@{keeper}" for each in ("w.1", "w")]
            make_transition(layout.execution, states["awake"])
            assert load(layout, "weights", 3) == written
        assert layout.execution.layout.ranges == ranges


PARTS = """
ranges: {r: {size: 4MiB}}
chunks: {c: {location: gpu0, size: 2MiB, count: 2}}
map: {r: [c]}
access: {r: [{size: 2MiB, grant: {gpu0: rw}}, {offset: 2MiB, size: 2MiB, grant: {gpu0: rw, gpu1: r}}]}
states: {asleep: {offload: {r: host:0}}}
"""


def test_bytes_return_to_adjacent_chunks_once_access_to_all_of_them_is_granted() -> None:
    states = plans(PARTS)
    with built(states["awake"]) as layout:
        write(layout, "r", [b"one", b"two"])
        make_transition(layout.execution, states["asleep"])
        make_transition(layout.execution, states["awake"])
        assert load(layout, "r", 3) == [b"one", b"two"]


READ_ONLY = SLEEPING.replace("weights: {gpu0: rw, gpu1: r}", "weights: {gpu0: r, gpu1: r}")


def test_bytes_that_everyone_may_only_read_return_and_stay_read_only() -> None:
    """Each GPU copies its own chunks, where memtopo maps them once more."""
    states = plans(READ_ONLY)
    written = [b"one", b"two", b"six", b"ten"]
    with built(states["awake"]) as layout:
        driver, ranges = layout.execution.driver, layout.execution.layout.ranges
        for gpu, index in ((0, 0), (1, 0), (0, 1), (1, 1)):
            with current(driver, layout.execution.layout.contexts[gpu]):
                driver.memcpy_htod(ranges[f"w@copies:gpu{gpu}"].address + index * M + 77, written[2 * index + gpu])
        for name in ("asleep", "half", "awake"):
            make_transition(layout.execution, states[name])
        assert load(layout, "weights", 3) == written
        with pytest.raises(DriverError):
            write(layout, "weights", written)


@pytest.mark.parametrize("text", [SLEEPING, PINNED, READ_ONLY])
def test_every_pair_of_states_can_be_switched(text: str) -> None:
    states = plans(text)
    with built(states["awake"]) as layout:
        found: dict[str, object] = {}
        for one, other in permutations(states, 2):
            for name in (one, other):
                make_transition(layout.execution, states[name])
                state = layout.state()
                assert found.setdefault(name, state) == state
        make_transition(layout.execution, states["awake"])


def test_a_chunk_is_offloaded_from_its_own_gpu_where_that_may_write() -> None:
    text = SLEEPING.replace("gpu1: r}", "gpu1: rw}")
    states = plans(text)
    copies = [step for step, _ in transition(states["awake"].steps, states["asleep"].steps).actions]
    assert [(step.chunks, step.device) for step in copies if isinstance(step, CopyOut)] == [
        ((f"w.{number}",), number % 2) for number in (3, 2, 1, 0)
    ]


@pytest.mark.parametrize(
    ("one", "other", "text"), [("awake", "asleep", SLEEPING), ("asleep", "awake", PINNED), ("half", "asleep", SLEEPING)]
)
def test_every_failing_call_of_a_switch_restores_state_and_bytes(one: str, other: str, text: str) -> None:
    states = plans(text)
    written = [b"one", b"two", b"six", b"ten"]
    for at in range(1, calls_of(states, one, other) + 1):
        with built(states["awake"]) as layout:
            write(layout, "weights", written)
            make_transition(layout.execution, states[one])
            before = layout.state()
            layout.failing.at = layout.failing.calls + at
            with pytest.raises(StepFailed):
                make_transition(layout.execution, states[other])
            layout.failing.at = 0
            assert layout.state() == before, (at, layout.failing.failed)
            make_transition(layout.execution, states["awake"])
            assert load(layout, "weights", 3) == written


def calls_of(states: dict[str, Plan], one: str, other: str) -> int:
    """Number of driver calls of a switch."""
    with built(states["awake"]) as layout:
        make_transition(layout.execution, states[one])
        before = layout.failing.calls
        make_transition(layout.execution, states[other])
        return layout.failing.calls - before


def test_memory_goes_and_comes_part_by_part_beside_copies() -> None:
    """A part is released before the next copy is awaited, and its bytes return before the next part is created."""
    text = SLEEPING.replace("w: {location: [gpu0, gpu1], size: 2MiB", "w: {location: gpu0, size: 256MiB").replace(
        "weights: {size: 8MiB}", "weights: {size: 1GiB}"
    )
    awake = plan_of(text, TWO)
    asleep = planner.plan_states(awake, geometry_of(text, TWO))["asleep"]

    def of_weights(plan: Transition) -> list[str]:
        verbs = {CopyOut: "copy", CopyIn: "copy back", AwaitCopy: "await", CreateChunk: "chunk", MapChunk: "mapping"}
        return [
            verbs[type(step)]
            for step, _ in plan.actions
            if type(step) in verbs and step.describe().subject.startswith("w.")
        ]

    assert of_weights(transition(awake.steps, asleep.steps)) == ["copy"] * 4 + ["await", "mapping", "chunk"] * 4
    assert of_weights(transition(asleep.steps, awake.steps)) == ["chunk", "mapping", "copy back"] * 4


def test_page_locked_memory_counts_as_memory_of_the_host() -> None:
    awake = plan_of(PINNED, TWO)
    (area,) = (step for step in awake.steps if isinstance(step, AllocatePinned) and step.label == "w@pinned")
    assert area.allocates == (Location(LocationKind.HOST), 4 * M)
    assert awake.memory["host"] == 5 * M
    (found,) = diagnose(PINNED, TWO.model_copy(update={"host_bytes": 4 * M}))
    assert (found.code, found.path) == ("MT402", ("states", "asleep", "offload", "weights", "size"))


def test_a_device_named_pinned_keeps_its_bytes_itself() -> None:
    spec = PINNED.replace("location: [gpu0, gpu1]", "location: gpu0") + "devices: {pinned: gpu1}\n"
    assert plan_of(spec, TWO).memory == {"gpu0": 4 * M, "gpu1": 9 * M}


def test_refused_page_locked_memory_is_taken_down() -> None:
    plan = plan_of(PINNED, TWO)
    with SimDriver(TWO) as driver:
        driver.init()
        ledger = Ledger(Failing(driver, only={"mem_host_alloc"}, at=2))
        execution = Execution(plan, ledger)
        with pytest.raises(StepFailed, match="allocate pinned"):
            execution.build()
        assert not execution.take_down().leaks
        assert ledger.empty


def test_adjacent_mappings_are_unmapped_by_one_call() -> None:
    """At most 128 MiB; mappings that are gone before are left out."""
    text = SLEEPING.replace(
        "page: {location: gpu1, size: 2MiB, count: 4}", "page: {location: gpu1, size: 2MiB, count: 65}"
    )
    text = text.replace("kv: {size: 8MiB}", "kv: {size: 130MiB}")
    states = plans(text)
    there = transition(states["awake"].steps, states["empty"].steps)
    assert [len(parts_of(step)) for step, _ in there.actions if len(parts_of(step)) > 1] == [64, 4]
    with built(states["awake"]) as layout:
        before = layout.state()
        address = layout.execution.layout.ranges["weights"].address + M
        layout.execution.driver.mem_unmap(address, M)
        del layout.execution.layout.mappings[address]
        make_transition(layout.execution, states["empty"])
        make_transition(layout.execution, states["awake"])
        assert layout.state() == before


def test_work_is_awaited_last_only_if_a_switch_has_begun_any() -> None:
    states = plans()

    def waits(one: str, other: str) -> list[tuple[str, bool]]:
        actions = transition(states[one].steps, states[other].steps).actions
        return [(step.describe().subject, undo) for step, undo in actions if isinstance(step, Synchronize)]

    before = [("gpu1", True), ("gpu0", True)]
    assert waits("awake", "asleep") == before
    assert waits("asleep", "awake") == [*before, ("gpu0", False), ("gpu1", False)]


def test_areas_of_single_chunks_are_reported_beside_ranges() -> None:
    """The label of such an area has a dot and no number at its end."""
    made = run_request(AREAS, TWO)
    report = run(made, TWO).report
    labels = ["r", "q", "s.0", "c.0@host:0", "c.1@host:0", "d.1@host:0"]
    assert (report.outcome, [each.first for each in report.placed]) == ("ok", labels)
    assert [each.last for each in report.placed] == [*labels[:2], "s.1", *labels[3:]]
    mapped = {row.first: row.where for row in report.plan.rows if row.verb == "map"}
    assert [mapped[label] for label in labels[3:]] == [(label,) for label in labels[3:]]
