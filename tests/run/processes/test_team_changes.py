"""Changes of layouts with a multicast object, in which processes add their GPUs before any of them binds memory."""

from __future__ import annotations

import pytest

from memtopo.executor import StepFailed
from memtopo.kinds.multicast.steps import BOUND_BYTES
from memtopo.run.processes.workers import ChangeRefused
from memtopo.run.transition import RollbackFailed
from tests.helpers.lockstep import Together, together
from tests.helpers.machines import invented, with_multicast
from tests.helpers.specs import run_request

MACHINE = with_multicast(invented(2))
TEAM = """
processes:
  creator:
    multicast: {team: {devices: [gpu0, gpu1], size: SIZE, handles: fd}}
    exports: {team: {multicast: team, via: fd}}
  rank:
    count: 2
    devices: {mine: [gpu0, gpu1]}
    ranges: {uc: {size: SIZE}, mc: {size: SIZE}}
    chunks: {part: {location: mine, size: SIZE, handles: fd}}
    imports: {team: {from: creator.team}}
    bind: {team: BOUND}
    map: {uc: [part], mc: [team]}
    access: {uc: {mine: rw}, mc: {mine: ACCESS}}
    states: {idle: {drop: [part]}}
"""
BOUND = ("[part]", "{range: uc}")


def spec(size: str = "2MiB", bound: str = "[part]", access: str = "rw") -> str:
    return TEAM.replace("SIZE", size).replace("BOUND", bound).replace("ACCESS", access)


def state_of(layout: Together) -> dict[str, tuple[object, ...]]:
    """What is open and bound in each process, and its ranges."""
    return {
        label: (run.ledger.counts(), dict(run.execution.layout.of(BOUND_BYTES)), sorted(run.execution.layout.ranges))
        for label, run in layout.runs.items()
    }


@pytest.mark.parametrize("bound", BOUND)
def test_a_team_of_another_size_is_bound_anew_by_all(bound: str) -> None:
    with together(spec("4MiB", bound), MACHINE) as layout:
        expected = state_of(layout)
    with together(spec("2MiB", bound), MACHINE) as layout:
        layout.change_to(run_request(spec("4MiB", bound), MACHINE))
        assert state_of(layout) == expected
        assert not any(run.recheck().different for run in layout.runs.values())


def test_other_access_to_the_address_leaves_the_bindings() -> None:
    with together(spec(), MACHINE) as layout:
        before = state_of(layout)
        layout.change_to(run_request(spec(access="r"), MACHINE))
        assert state_of(layout) == before
        assert not any(run.recheck().different for run in layout.runs.values())


@pytest.mark.parametrize("bound", BOUND)
def test_memory_that_returns_is_bound_again(bound: str) -> None:
    with together(spec(bound=bound), MACHINE) as layout:
        before = state_of(layout)
        layout.switch("idle")
        assert not any(run.execution.layout.of(BOUND_BYTES) for run in layout.runs.values())
        layout.switch("awake")
        assert state_of(layout) == before


@pytest.mark.parametrize("bound", BOUND)
@pytest.mark.parametrize("process", ["creator", "rank.1"])
def test_a_failing_call_of_a_change_rolls_back_all(process: str, bound: str) -> None:
    """Every call that the change makes in the process.

    An object that a process cannot release keeps the GPUs that others have added, so that these cannot add them again:
    then the layout can only be taken down.
    """
    target = run_request(spec("4MiB", bound), MACHINE)
    with together(spec("2MiB", bound), MACHINE) as layout:
        first = layout.failing[process].calls
        layout.change_to(target)
        calls = layout.failing[process].calls - first
    assert calls > 2
    for at in range(1, calls + 1):
        with together(spec("2MiB", bound), MACHINE) as layout:
            before, failing = state_of(layout), layout.failing[process]
            failing.at = failing.calls + at
            with pytest.raises((StepFailed, ChangeRefused)) as raised:
                layout.change_to(target)
            failing.at = 0
            if isinstance(raised.value, RollbackFailed):
                assert failing.failed == "cuMemRelease", raised.value
                continue
            assert process in str(raised.value)
            assert state_of(layout) == before, (at, failing.failed)
            assert not any(run.recheck().different for run in layout.runs.values()), (at, failing.failed)
