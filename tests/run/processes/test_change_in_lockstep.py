"""Changes and switches of layouts of several processes, which go through all stages together in this process."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from memtopo.driver.types import gpu
from memtopo.executor import StepFailed
from memtopo.kinds.layout import current
from memtopo.kinds.pools.steps import POOL_HANDLES
from memtopo.language.names import AWAKE
from memtopo.plans.transition import Stage
from memtopo.run.messages import MakeStage
from memtopo.run.processes.workers import ChangeRefused
from tests.helpers import multi_process_strategies, strategies
from tests.helpers.conducted import state_by_labels
from tests.helpers.examples import check_block
from tests.helpers.lockstep import Together, together
from tests.helpers.machines import invented
from tests.helpers.specs import ROOT, run_request

TWO = invented(2)
MACHINE = strategies.machine()
SLEEP = Path(ROOT / "specs" / "tensor-parallel-sleep.yaml")
SMALL = """
processes:
  server:
    ranges: {w: {size: 8MiB}}
    chunks: {w: {location: [gpu0, gpu1], size: 2MiB, count: 4, handles: fd}}
    map: {w: [w]}
    access: {w: {gpu0: rw, gpu1: rw}}
    exports: {w: {chunk: w, via: fd}}
    states:
      asleep: {offload: {w: host:0}}
      half: {drop: [w.0, w.2]}
  engine:
    count: 2
    devices: {mine: [gpu0, gpu1]}
    ranges: {w: {size: 8MiB}, kv: {size: 4MiB}}
    chunks: {page: {location: mine, size: 2MiB, count: 2}}
    imports: {w: {from: server.w}}
    map: {w: [w], kv: [page]}
    access: {w: {mine: r}, kv: {mine: rw}}
    states:
      asleep: {drop: [kv]}
      unmapped: {drop: [w]}
"""
OTHER = SMALL[: SMALL.index("    states:\n      asleep: {offload")].replace("count: 4,", "count: 4, rdma: true,") + (
    SMALL[SMALL.index("  engine:") :].replace("kv: {size: 4MiB}", "kv: {size: 8MiB}").replace("{mine: r}", "{mine: rw}")
)


def state_of(layout: Together) -> dict[str, tuple[object, ...]]:
    """State of each process by the labels of its spec."""
    return {label: state_by_labels(run.execution, run.ledger) for label, run in layout.runs.items()}


def addresses(layout: Together) -> dict[str, dict[str, object]]:
    return {label: dict(run.execution.layout.ranges) for label, run in layout.runs.items()}


def test_every_pair_of_states_is_switched_and_addresses_stay() -> None:
    with together(SMALL, TWO) as layout:
        ranges = addresses(layout)
        found: dict[str, object] = {}
        for one, other in permutations(layout.plans.states, 2):
            for name in (one, other):
                layout.switch(name)
                assert found.setdefault(name, state_of(layout)) == state_of(layout)
        assert addresses(layout) == ranges
        layout.switch(AWAKE)


@pytest.mark.parametrize("state", ["asleep", "unmapped"])
def test_importers_read_the_bytes_that_returned(state: str) -> None:
    with together(SMALL, TWO) as layout:
        layout.write()
        layout.switch(state)
        layout.switch(AWAKE)
        assert layout.read((state,))


def test_a_change_to_another_spec_equals_applying_it() -> None:
    with together(OTHER, TWO) as layout:
        expected = state_of(layout)
    with together(SMALL, TWO) as layout:
        ranges = addresses(layout)
        layout.change_to(run_request(OTHER, TWO))
        assert state_of(layout) == expected
        for label in ("server", "engine.0"):
            assert addresses(layout)[label]["w"] == ranges[label]["w"]
        layout.write()
        assert layout.read()
        layout.change_to(run_request(SMALL, TWO))
        layout.switch("asleep")
        layout.switch(AWAKE)
        assert layout.generation == 5


def test_a_full_check_compares_what_is_kept_and_finds_what_was_written_meanwhile() -> None:
    with together(SMALL, TWO, "full") as layout:
        layout.write()
        for state in ("asleep", AWAKE):
            checks = layout.switch(state, check="full")
            assert not checks.different
            assert sum(tally.looked_at for tally in checks.tallies if tally.aspect == "fingerprint") == 4
        layout.before[MakeStage(Stage.COPY)] = lambda: overwrite(layout, "server", "w")
        checks = layout.switch("half", check="full")
        assert [each.subject.split(":")[0] for each in checks.differences] == ["server", "server"]


def test_kernels_of_a_full_check_are_unloaded_by_a_change_with_a_fast_one() -> None:
    """Also after the contexts that a held layout does not need were released, and retained for the next change."""
    with together(SMALL, TWO, "full") as layout:
        layout.release_contexts()
        layout.change_to(run_request(OTHER, TWO))
        layout.change_to(run_request(SMALL, TWO))
        assert [run.ledger.counts()["modules"] for run in layout.runs.values()] == [0, 0, 0]


def overwrite(layout: Together, process: str, name: str) -> None:
    """Write to each 2 MiB of a range of a process."""
    execution = layout.runs[process].execution
    with current(execution.driver, execution.layout.contexts[0]):
        for index in range(4):
            execution.driver.memcpy_htod(execution.layout.ranges[name].address + (index << 21), b"other")


def own_pool(by_pool: str, by_import: str) -> str:
    """Spec of processes that import the allocation of each, with the GPUs that the pool and the import name."""
    return f"""
processes:
  rank:
    count: 2
    pools: {{p: {{location: gpu2, handles: fd, accessed_by: [{by_pool}]}}}}
    allocations: {{a: {{pool: p, size: 64KiB}}}}
    exports: {{a: {{allocation: a, via: fd}}}}
    imports: {{all: {{from: rank.a, accessed_by: [{by_import}]}}}}
"""


def users_of_pools(layout: Together) -> list[set[str]]:
    """GPUs with access to the pool of each process, there."""
    drivers = [(run.execution.driver, run.execution.layout.of(POOL_HANDLES)["p"]) for run in layout.runs.values()]
    return [{f"gpu{n}" for n in range(4) if driver.mem_pool_get_access(pool, gpu(n))} for driver, pool in drivers]


def test_an_own_pool_has_the_access_that_the_pool_and_its_imports_declare() -> None:
    accesses = [("gpu2", "gpu2"), ("gpu2", "gpu0"), ("gpu0", "gpu0, gpu1"), ("gpu1", "gpu0")]
    with together(own_pool(*accesses[-1]), MACHINE) as layout:
        for pair in permutations(accesses, 2):
            for by_pool, by_import in pair:
                layout.change_to(run_request(own_pool(by_pool, by_import), MACHINE))
                assert users_of_pools(layout) == [{"gpu2", *f"{by_pool}, {by_import}".split(", ")}] * 2
                layout.write()
                assert layout.read()


def fails(at: int, process: str, state: str, target: str | None) -> None:
    """Assert that a change rolls back in all processes after one call of one of them, and say which."""
    with together(SMALL, TWO) as layout:
        layout.write()
        layout.switch(state)
        layout.release_contexts()
        before, ranges = state_of(layout), addresses(layout)
        failing = layout.failing[process]
        failing.at = failing.calls + at
        with pytest.raises((StepFailed, ChangeRefused)) as raised:
            change(layout, target)
        failing.at = 0
        assert process in str(raised.value)
        assert failing.failed
        assert str(failing.failed) in str(raised.value)
        assert not any(run.recheck().different for run in layout.runs.values())
        assert (state_of(layout), addresses(layout)) == (before, ranges), (at, failing.failed)
        assert layout.state == state
        layout.switch(AWAKE)
        lost = {"asleep": ("asleep",), AWAKE: (target,) if target else ()}[state]
        assert layout.read(lost) or target is None, (at, failing.failed)


def change(layout: Together, target: str | None) -> None:
    if target is None:
        layout.change_to(run_request(OTHER, TWO))
    else:
        layout.switch(target)


def calls_of(process: str, state: str, target: str | None) -> int:
    with together(SMALL, TWO) as layout:
        layout.switch(state)
        layout.release_contexts()
        before = layout.failing[process].calls
        change(layout, target)
        return layout.failing[process].calls - before


CHANGES = [(AWAKE, "asleep"), ("asleep", AWAKE), (AWAKE, None)]
PROCESSES = ["server", "engine.1"]


@pytest.mark.parametrize(("state", "target"), CHANGES)
@pytest.mark.parametrize("process", PROCESSES)
def test_a_failing_call_of_a_process_rolls_back_all(process: str, state: str, target: str | None) -> None:
    """A sample; `test_every_failing_call_of_a_process_rolls_back_all` has every call."""
    calls = calls_of(process, state, target)
    assert calls > 10
    for at in range(1, calls + 1, max(1, calls // 6)):
        fails(at, process, state, target)


@pytest.mark.exhaustive(seconds=3)
@pytest.mark.parametrize(("state", "target"), CHANGES)
@pytest.mark.parametrize("process", PROCESSES)
def test_every_failing_call_of_a_process_rolls_back_all(process: str, state: str, target: str | None) -> None:
    for at in range(1, calls_of(process, state, target) + 1):
        fails(at, process, state, target)


def without_ipc(spec: strategies.Spec) -> str:
    """Text of a spec without imports over ipc, which do not work within one process (fact 31)."""
    processes = spec["processes"]
    for process in processes.values():
        for name, entry in [*process.get("imports", {}).items()]:
            holder, _, export = entry["from"].partition(".")
            if processes[holder]["exports"][export]["via"] == "ipc":
                del process["imports"][name]
    return f"processes: {json.dumps(processes)}"


def equals(one: str, other: str) -> None:
    with together(other, MACHINE) as layout:
        expected = state_of(layout)
    with together(one, MACHINE) as layout:
        before = state_of(layout)
        layout.change_to(run_request(other, MACHINE))
        assert state_of(layout) == expected
        layout.write()
        assert layout.read()
        layout.change_to(run_request(one, MACHINE))
        assert state_of(layout) == before


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(multi_process_strategies.pairs())
def test_a_change_of_several_processes_equals_applying_the_new_spec(
    both: tuple[strategies.Spec, strategies.Spec],
) -> None:
    equals(*map(without_ipc, both))


@pytest.mark.exhaustive(seconds=6)
@pytest.mark.parametrize("block", range(40))
def test_two_thousand_changes_of_several_processes_equal_applying_the_new_spec(block: int) -> None:
    check_block(block, 50, lambda both: equals(*map(without_ipc, both)), multi_process_strategies.pairs())
