"""Imports of a counted process from itself via legacy IPC, which cannot open a handle in its own process (fact 31)."""

from __future__ import annotations

from memtopo.kinds.ipc.steps import EVENT_HANDLES, AliasBuffer, AliasEvent, OpenBuffer, OpenEvent
from memtopo.run import processes
from tests.helpers.lockstep import together
from tests.helpers.machines import invented
from tests.helpers.reports import tallies
from tests.helpers.specs import ensemble, plan_of, run_request, steps_of

MACHINE = invented(2)
RANKS = """
processes:
  rank:
    count: COUNT
    buffers: {data: {location: gpu0, size: SIZE, count: 2}}
    events: {done: {device: gpu0}}
    exports: {data: {buffer: data, via: ipc}, done: {event: done, via: ipc}}
    imports: {all: {from: rank.data}, dones: {from: rank.done, order: [previous, own]}}
"""


def ranks(count: int, size: str = "1MiB") -> str:
    return RANKS.replace("COUNT", str(count)).replace("SIZE", size)


def test_each_process_has_its_own_objects_in_the_place_of_imported_ones() -> None:
    plans = plan_of(ranks(3), MACHINE).processes
    for number, label in enumerate(plans):
        buffers = {step.label: step.own for step in steps_of(plans[label], AliasBuffer)}
        assert buffers == {f"all.{2 * number}": "data.0", f"all.{2 * number + 1}": "data.1"}
        assert {step.label: step.own for step in steps_of(plans[label], AliasEvent)} == {"dones.1": "done"}
        assert {step.source.holder for step in steps_of(plans[label], OpenBuffer)} == {*plans} - {label}
        assert [step.source.holder for step in steps_of(plans[label], OpenEvent)] == [f"rank.{(number - 1) % 3}"]


def test_the_own_objects_of_an_exported_slice_are_those_of_the_slice() -> None:
    text = ranks(2).replace("count: 2}", "count: 4}").replace("{buffer: data,", "{buffer: data.2:4,")
    plan = plan_of(text, MACHINE).processes["rank.1"]
    assert {step.label: step.own for step in steps_of(plan, AliasBuffer)} == {"all.2": "data.2", "all.3": "data.3"}


def test_an_own_object_takes_no_call_and_no_memory() -> None:
    plan = plan_of(ranks(1), MACHINE)
    assert plan.memory == {"gpu0": 4 << 20}
    rank = plan.processes["rank.0"]
    assert [step.calls for step in steps_of(rank, AliasBuffer, AliasEvent)] == [0, 0, 0, 0]
    undone = [step for step in rank.steps if step.undoing.call]
    assert rank.summary().teardown_calls == len(undone) == 1 + 2 + 1 + 1


def test_ranks_read_what_every_rank_wrote_into_its_own_buffer() -> None:
    report = processes.apply(ensemble(ranks(2), MACHINE))
    assert report.outcome == "ok", report
    assert report.left
    assert not any(report.left.ledger_after.values())
    found = tallies(report.checks)
    assert found["buffer"].looked_at == found["buffer"].as_declared == 2 * (2 + 4)
    assert found["bytes"].as_declared == found["bytes"].looked_at >= 2 * 2 * (2 + 4)


def test_a_change_of_the_own_buffer_changes_its_alias() -> None:
    with together(ranks(1), MACHINE) as found:
        layout = found.runs["rank.0"].execution.layout
        before = layout.buffers["all.1"]
        assert before == layout.buffers["data.1"]
        found.change_to(run_request(ranks(1, "3MiB"), MACHINE))
        assert layout.buffers["all.1"] == layout.buffers["data.1"] != before
        assert layout.of(EVENT_HANDLES)["dones.0"] == layout.of(EVENT_HANDLES)["done"]
        found.write()
        assert found.read()
