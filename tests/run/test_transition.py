"""Transitions of built layouts: what stays is not touched, and a failed one is rolled back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from memtopo import planner
from memtopo.common.errors import Stopped
from memtopo.driver.ledger import Ledger
from memtopo.driver.protocol import Driver
from memtopo.driver.wrappers import Call, Forwarder
from memtopo.drivers.sim import SimDriver
from memtopo.executor import Execution, StepFailed
from memtopo.kinds.mappings.steps import MapChunk, joined
from memtopo.machine import Machine
from memtopo.planner import Plan
from memtopo.plans.transition import Stage, transition
from memtopo.run.transition import Change
from tests.helpers import strategies
from tests.helpers.conducted import make_transition, state_by_labels
from tests.helpers.examples import check_block, examples
from tests.helpers.failing_driver import Failing
from tests.helpers.machines import invented
from tests.helpers.specs import geometry_of, plan_of

MACHINE = strategies.machine()
TWO = invented(2)
BEFORE = """
ranges: {kv: {size: 8MiB}, w: {size: 4MiB}}
chunks: {page: {location: gpu0, size: 2MiB, count: 4}, hot: {location: gpu1, size: 4MiB}}
map: {kv: [page], w: [hot]}
access: {kv: {gpu0: rw, gpu1: r}, w: {gpu1: rw}}
managed: {m: {size: 2MiB, prefer: gpu0}}
"""
AFTER = """
ranges: {kv: {size: 8MiB}, w: {size: 8MiB}, new: {size: 2MiB}}
chunks:
  page: {location: gpu0, size: 2MiB, count: 3}
  hot: {location: gpu1, size: 4MiB}
  c: {location: gpu0, size: 2MiB}
map: {kv: [page.1, page.0, page.2], w: [hot], new: [c]}
access: {kv: {gpu0: rw}, w: {gpu1: r, gpu0: rw}, new: {gpu0: rw}}
managed: {m: {size: 2MiB, prefer: gpu1}}
"""


SLEEPING = """
ranges: {a: {size: 2MiB}, b: {size: 2MiB}}
chunks: {a: {location: gpu0, size: 2MiB}, b: {location: gpu0, size: 2MiB}}
map: {a: [a], b: [b]}
access: {a: {gpu0: rw}, b: {gpu0: rw}}
states: {asleep: {offload: {a: host:0, b: host:0}}}
"""


class Built:
    """A layout on a simulator, with the calls of the changes counted and one of them failing."""

    def __init__(self, driver: SimDriver, plan: Plan, only: set[str] | None) -> None:
        self.failing = Failing(driver, only=only, every=only is not None)
        self.ledger = Ledger(self.failing)
        self.execution = Execution(plan, self.ledger)
        self.execution.build()

    def state(self) -> tuple[object, ...]:
        """State of the layout by the labels of the spec, after a check by queries."""
        assert [each for each in self.execution.check() if each.expected != each.observed] == []
        return state_by_labels(self.execution, self.ledger)

    def handles(self) -> tuple[dict[str, object], dict[str, int]]:
        """Addresses of ranges, and handles of chunks."""
        return dict(self.execution.layout.ranges), dict(self.execution.layout.chunks)


@contextmanager
def built(plan: Plan, machine: Machine = TWO, failing: set[str] | None = None) -> Iterator[Built]:
    """A built layout, which is taken down at the end; `failing` methods fail from the call that `at` is set to."""
    with SimDriver(machine) as driver:
        driver.init()
        layout = Built(driver, plan, failing)
        yield layout
        layout.failing.at = 0
        assert not layout.execution.take_down().leaks
        assert layout.ledger.empty


def state_of(plan: Plan, machine: Machine = TWO) -> tuple[object, ...]:
    with built(plan, machine) as layout:
        return layout.state()


def test_a_reference_that_neither_a_check_nor_a_change_could_release_is_released_at_the_end() -> None:
    with built(plan_of(BEFORE, TWO), failing={"mem_release"}) as layout:
        layout.failing.at = layout.failing.calls + 1
        with pytest.raises(StepFailed, match=r"^check of map "):
            list(layout.execution.check())
        with pytest.raises(StepFailed, match=r"^undo create "):
            make_transition(layout.execution, plan_of("chunks: {c: {location: gpu0, size: 2MiB}}", TWO))


def test_what_both_plans_have_keeps_its_address_and_handle() -> None:
    with built(plan_of(BEFORE, TWO)) as layout:
        ranges, chunks = layout.handles()
        make_transition(layout.execution, plan_of(AFTER, TWO))
        after_ranges, after_chunks = layout.handles()
        assert layout.state() == state_of(plan_of(AFTER, TWO))
        assert after_ranges["kv"] == ranges["kv"]
        assert {label: after_chunks[label] for label in ("page.0", "page.1", "page.2", "hot")} == {
            label: chunks[label] for label in ("page.0", "page.1", "page.2", "hot")
        }


def test_only_what_differs_is_touched() -> None:
    bigger = BEFORE.replace("w: {gpu1: rw}", "w: {gpu1: r}")
    steps = transition(plan_of(BEFORE, TWO).steps, plan_of(bigger, TWO).steps)
    assert [step.verb for step in steps.undo] == ["synchronize", "synchronize"]
    assert [(step.verb, step.describe().subject, step.describe().where) for step in steps.do[:-2]] == [
        ("grant", "w", "gpu1 r")
    ]
    assert not transition(plan_of(BEFORE, TWO).steps, plan_of(BEFORE, TWO).steps).actions


def test_a_transition_without_steps_touches_nothing() -> None:
    old, new = plan_of(BEFORE, TWO), plan_of(AFTER, TWO)
    with built(old) as layout:
        assert not make_transition(layout.execution, old)
        assert make_transition(layout.execution, new)


@pytest.mark.parametrize(("call", "nth", "touched"), [("ctx_synchronize", 2, False), ("mem_create", 1, True)])
def test_a_change_that_only_waited_for_the_gpus_has_not_touched_the_layout(call: str, nth: int, touched: bool) -> None:
    """One that was rolled back after any other call has."""
    old, new = plan_of(BEFORE, TWO), plan_of(AFTER, TWO)
    with built(old, failing={call}) as layout:
        layout.failing.at = layout.failing.calls + nth
        making = Change(layout.execution, new, transition(old.steps, new.steps))
        with pytest.raises(StepFailed):
            advance(making)
        layout.failing.at = 0
        making.start_rollback("interrupted")
        advance(making)
        assert making.end() is touched


def advance(making: Change) -> None:
    for stage in Stage:
        making.make(stage)


def test_a_rollback_undoes_in_reverse_order() -> None:
    """Access is taken from a pool before the pool is destroyed."""
    pools = "pools: {p: {location: gpu0, accessed_by: gpu1}}\nallocations: {a: {pool: p, size: 2MiB}}\n"
    with built(plan_of(BEFORE, TWO), failing={"mem_alloc_from_pool_async"}) as layout:
        before = layout.state()
        layout.failing.at = 1
        with pytest.raises(StepFailed, match=r"^allocate from pool a"):  # and no RollbackFailed, which begins otherwise
            make_transition(layout.execution, plan_of(BEFORE + pools, TWO))
        assert layout.state() == before


@pytest.mark.parametrize("last", Stage)
def test_a_layout_can_be_taken_down_after_each_stage_of_a_change(last: Stage) -> None:
    """With imports released before memory, and every call as the driver accepts it: `built` finds nothing left."""
    old, new = plan_of(BEFORE, TWO), plan_of(AFTER, TWO)
    with built(old) as layout:
        making = Change(layout.execution, new, transition(old.steps, new.steps))
        for stage in Stage:
            making.make(stage)
            if stage is last:
                break


def test_a_joint_undo_unmaps_what_is_left_of_its_mappings() -> None:
    with built(plan_of(BEFORE, TWO)) as layout:
        execution = layout.execution
        steps = [step for step in execution.plan.steps if isinstance(step, MapChunk) and step.range == "kv"]
        (joint,) = joined(steps[::-1])
        execution.act(steps[1], undo=True)
        for _ in range(2):
            execution.act(joint, undo=True)
            assert [*execution.layout.mappings.values()] == ["hot"]


@pytest.mark.parametrize("last", Stage)
def test_a_layout_can_be_taken_down_after_each_stage_of_a_rollback(last: Stage) -> None:
    """Of one that begins after the change was adopted for its check."""
    old, new = plan_of(BEFORE, TWO), plan_of(AFTER, TWO)
    with built(old) as layout:
        making = Change(layout.execution, new, transition(old.steps, new.steps))
        advance(making)
        making.start_rollback("interrupted")
        for stage in Stage:
            making.make(stage)
            if stage is last:
                break


class Noted(Forwarder):
    """A driver that keeps the names of the calls that copy, wait for a GPU, or unmap."""

    def __init__(self, driver: Driver) -> None:
        self.found: list[str] = []
        super().__init__(driver)

    def _wrap(self, method: str, call: Call) -> Call:
        @wraps(call)
        def noted(*args: Any, **kwargs: Any) -> Any:
            if method in {"memcpy_async", "event_record", "event_synchronize", "ctx_synchronize", "mem_unmap"}:
                self.found.append(method)
            return call(*args, **kwargs)

        return noted


LARGE = """
ranges: {a: {size: 192MiB}}
chunks: {a: {location: gpu0, size: 64MiB, count: 3}}
map: {a: [a]}
access: {a: {gpu0: rw}}
states: {asleep: {offload: {a: host:0}}}
"""
"""Chunks of which the first two are copied by one call, and the last two are unmapped by one call."""


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        (SLEEPING, ["event_synchronize", "mem_unmap"] * 2),
        (LARGE, ["event_synchronize", "event_synchronize", "mem_unmap", "mem_unmap"]),
    ],
)
def test_a_change_waits_for_each_copy_before_it_unmaps_what_that_reads(text: str, ends: list[str]) -> None:
    """By an event behind the copy (fact 18)."""
    awake, asleep = plan_of(text, TWO), planner.plan_states(plan_of(text, TWO), geometry_of(text, TWO))
    with built(awake) as layout:
        layout.execution.driver = noted = Noted(layout.ledger)
        make_transition(layout.execution, asleep["asleep"])
        copies = ["memcpy_async", "event_record"] * 2
        assert [each for each in noted.found if each != "ctx_synchronize"] == copies + ends


def test_a_rollback_waits_for_copies_before_it_unmaps_what_they_write() -> None:
    """The bytes of the first chunk return while the second one cannot be created (fact 18)."""
    awake, asleep = plan_of(SLEEPING, TWO), planner.plan_states(plan_of(SLEEPING, TWO), geometry_of(SLEEPING, TWO))
    with built(awake, failing={"mem_create"}) as layout:
        make_transition(layout.execution, asleep["asleep"])
        layout.execution.driver = noted = Noted(layout.ledger)
        layout.failing.at = layout.failing.calls + 2
        with pytest.raises(StepFailed, match=r"^create b"):
            make_transition(layout.execution, awake)
        copied = noted.found.index("memcpy_async")
        assert noted.found[copied:] == ["memcpy_async", "ctx_synchronize", "mem_unmap"]
        layout.failing.at = 0


def test_a_chunk_whose_bytes_return_exists_before_it_is_exported() -> None:
    text = SLEEPING.replace("2MiB}}\nmap", "2MiB, handles: fd}}\nexports: {b: {chunk: b, via: fd}}\nmap")
    awake, asleep = plan_of(text, TWO), planner.plan_states(plan_of(text, TWO), geometry_of(text, TWO))["asleep"]
    with built(awake) as layout:
        make_transition(layout.execution, asleep)
        make_transition(layout.execution, awake)
        assert {"a", "b"} <= layout.execution.layout.chunks.keys()


def test_a_stopped_change_is_rolled_back() -> None:
    with built(plan_of(BEFORE, TWO)) as layout:
        before = layout.state()
        asked = count()
        layout.execution.stop = lambda: next(asked) > 8
        with pytest.raises(Stopped):
            make_transition(layout.execution, plan_of(AFTER, TWO))
        layout.execution.stop = lambda: False
        assert layout.state() == before


@settings(max_examples=examples(80), deadline=None, suppress_health_check=list(HealthCheck))
@given(strategies.specs(), strategies.specs())
def test_a_change_equals_applying_the_new_spec(one: str, other: str) -> None:
    equals(one, other)


@pytest.mark.exhaustive(seconds=14)
@pytest.mark.parametrize("block", range(50))
def test_ten_thousand_changes_equal_applying_the_new_spec(block: int) -> None:
    check_block(block, 200, equals, strategies.specs(), strategies.specs())


def equals(one: str, other: str) -> None:
    first, second = plan_of(one, MACHINE), plan_of(other, MACHINE)
    with built(first, MACHINE) as layout:
        before = layout.state()
        make_transition(layout.execution, second)
        assert layout.state() == state_of(second, MACHINE)
        make_transition(layout.execution, first)
        assert layout.state() == before
