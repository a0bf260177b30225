"""Merging of the reports of nodes: one outcome, and a node that is lost told apart from one that has ended."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from memtopo.common.decoding import encode
from memtopo.machine import Cluster
from memtopo.plans.report import Checks, DeviceMemory, Failure, Leak, Left, PhaseTime, ProcessReport, Report, Tally
from memtopo.run.nodes.agent import NodeResult
from memtopo.run.nodes.hub import RunEnd
from memtopo.run.nodes.reports import NodeEnd, merged_nodes
from tests.helpers.machines import with_fabric
from tests.helpers.nodes import node_request

REQUEST, _ = node_request(
    Path(__file__).with_name("two_nodes.yaml"), Cluster({"a": with_fabric(2), "b": with_fabric(2)})
)
LEFT = Left({"handles": 0}, {"handles": 2}, {"handles": 0}, 9, 9, 9, (DeviceMemory("gpu0", 10, 8, 10),))
CHECKS = Checks((Tally("access", 4, 4),), (), 0)
HOSTS = {"a": "first", "b": "second"}


def report(node: str, **changes: object) -> Report:
    """Report of a node whose processes were built and taken down."""
    processes = tuple(ProcessReport(label, 7, "ok", left=LEFT) for label in REQUEST.geometry.nodes[node])
    made = Report("two-nodes", None, REQUEST.machine, "ok", 0, REQUEST.summary(), (), CHECKS, left=LEFT)
    return replace(made, **{"processes": processes, **changes})


def ended(node: str, cause: str = "", **changes: object) -> NodeEnd:
    return NodeEnd(NodeResult(encode(report(node, **changes)).decode(), cause))


def merged(a: NodeEnd, b: NodeEnd, *order: RunEnd, interrupted: int = 0) -> Report:
    return merged_nodes(REQUEST, {"a": a, "b": b}, order, HOSTS, interrupted)


def test_two_nodes_that_did_all_are_ok() -> None:
    found = merged(ended("a"), ended("b"), RunEnd("a", ""), RunEnd("b", ""))
    assert (found.outcome, found.exit_code, found.failure, found.leaks) == ("ok", 0, None, ())
    assert found.checks
    assert found.checks.tallies == (Tally("access", 8, 8),)
    assert [each.checks for each in found.nodes] == [CHECKS, CHECKS]
    full = replace(REQUEST, check="full")
    assert merged_nodes(full, {"a": ended("a"), "b": ended("b")}, [], HOSTS, 0).notes == (*full.notes(),) != ()
    assert found.left
    assert [(each.device, each.after) for each in found.left.memory] == [("a/gpu0", 10), ("b/gpu0", 10)]
    assert [each.name for each in found.processes] == ["rank.0", "rank.1", "rank.2", "rank.3"]
    assert [(each.name, each.host, each.outcome) for each in found.nodes] == [
        ("a", "first", "ok"),
        ("b", "second", "ok"),
    ]


def test_a_node_whose_agent_died_and_left_nothing_has_ended() -> None:
    found = merged(ended("a", "node b: its agent is lost"), NodeEnd(cause="it was killed"), RunEnd("b", "lost"))
    assert (found.outcome, found.exit_code, found.leaks) == ("failed", 4, ())
    assert found.failure
    assert (found.failure.step, found.failure.error) == ("node b", "its agent is lost: it was killed")
    assert [each.outcome for each in found.nodes] == ["taken down", "ended"]
    assert [each.outcome for each in found.processes] == ["taken down", "taken down", "ended", "ended"]


def test_processes_that_an_agent_left_behind_are_a_leak() -> None:
    found = merged(ended("a", "node b: lost"), NodeEnd(cause="it was killed", left=(11, 12)), RunEnd("b", "lost"))
    assert (found.outcome, found.exit_code) == ("leaked", 5)
    assert [each.what for each in found.leaks] == ["node b: processes 11, 12"]
    assert found.nodes[1].outcome == "lost"
    assert [each.outcome for each in found.processes] == ["taken down", "taken down", "lost", "lost"]


def test_a_node_that_does_not_answer_is_lost_with_what_it_may_hold() -> None:
    found = merged(ended("a", "node b: lost"), NodeEnd(cause="the node died", reachable=False), RunEnd("b", "lost"))
    assert (found.outcome, found.exit_code) == ("leaked", 5)
    assert [each.what for each in found.leaks] == ["node b: 2 MiB of gpu0, 2 MiB of gpu1 of rank.2, rank.3"]
    assert found.leaks[0].error == "lost, not known to be taken down: the node died"
    assert [each.outcome for each in found.nodes] == ["taken down", "lost"]
    assert [(each.outcome, each.lost) for each in found.processes[1:3]] == [
        ("taken down", None),
        ("lost", "with its agent: the node died"),
    ]
    assert found.nodes[1].memory == {"gpu0": 2 << 20, "gpu1": 2 << 20}


def test_the_failure_is_that_of_the_node_that_ended_first() -> None:
    first = Failure("rank.2: create own", "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY")
    second = Failure("rank.0: import all.2", "node b cannot be reached")
    a = ended("a", outcome="failed", exit_code=4, failure=second)
    b = ended("b", outcome="failed", exit_code=4, failure=first)
    assert merged(a, b, RunEnd("b", "no memory"), RunEnd("a", "no answer")).failure == first
    assert merged(a, b, RunEnd("a", "no answer"), RunEnd("b", "no memory")).failure == second
    followed = ended("a", "node b: no memory", outcome="failed", exit_code=4, failure=second)
    assert merged(followed, b).failure == first


def test_a_death_is_the_failure_though_an_import_on_another_node_failed_first() -> None:
    a = ended("a", outcome="failed", exit_code=4, failure=Failure("rank.0: import all.2", "CUDA_ERROR_INVALID_VALUE"))
    order = RunEnd("a", "no import"), RunEnd("b", "gone")
    killed = Failure("rank.2: importing", "process rank.2 was killed by SIGKILL")
    processes = (ProcessReport("rank.2", 7, "died", "was killed by SIGKILL"), ProcessReport("rank.3", 8, "taken down"))
    b = ended("b", outcome="failed", exit_code=4, failure=killed, processes=processes)
    assert merged(a, b, *order).failure == killed
    lost = merged(a, NodeEnd(cause="it was killed"), *order).failure
    assert lost
    assert lost.error == "its agent is lost: it was killed"


def test_without_a_hub_the_nodes_say_why_they_took_down() -> None:
    gone = "the hub of the run has ended"
    found = merged(ended("a", gone), ended("b", gone))
    assert (found.outcome, found.exit_code) == ("failed", 4)
    assert found.failure == Failure("work with the other nodes", gone)
    assert {each.outcome for each in found.nodes} == {"taken down"}


@pytest.mark.parametrize(("code", "expected"), [(70, 70), (3, 3), (4, 4)])
def test_an_agent_without_a_report_gives_its_error(code: int, expected: int) -> None:
    broken = NodeEnd(NodeResult(error="no GPU", hint="look", exit_code=code))
    found = merged(ended("a", "node b: no GPU"), broken, RunEnd("b", "no GPU"))
    assert (found.outcome, found.exit_code) == ("failed", expected)
    assert found.failure == Failure("node b", "no GPU", hint="look")
    assert (found.nodes[1].outcome, found.nodes[1].lost) == ("failed", "no GPU")
    assert [(each.outcome, each.lost) for each in found.processes[1:3]] == [("taken down", None), ("failed", None)]


def test_a_node_that_followed_a_failure_was_taken_down_though_it_failed_too() -> None:
    failed = {
        "outcome": "failed",
        "exit_code": 4,
        "failure": Failure("rank.0: import all.2", "node b cannot be reached"),
    }
    b = ended("b", outcome="failed", exit_code=4, failure=Failure("rank.2: create own", "CUDA_ERROR_OUT_OF_MEMORY"))
    for cause, outcome in (("node b: no memory", "taken down"), ("", "failed")):
        found = merged(ended("a", cause, **failed), b, RunEnd("b", "no memory"))
        assert [each.outcome for each in found.nodes] == [outcome, "failed"]


def test_a_phase_of_all_nodes_has_all_their_steps_and_takes_as_long_as_the_slowest() -> None:
    a = ended("a", times=(PhaseTime("open", 2, 1.0, 1.0, 2.0), PhaseTime("map", 3, 4.0, 2.0, 6.0)), notes=("x", "y"))
    b = ended("b", times=(PhaseTime("open", 5, 3.0, 0.5, 3.5), PhaseTime("map", 1, 1.0, 4.0, 5.0)), notes=("y", "z"))
    found = merged(a, b)
    assert found.times == (PhaseTime("open", 7, 3.0, 0.5, 3.5), PhaseTime("map", 4, 4.0, 2.0, 6.0))
    assert found.notes == ("x", "y", "z")


def test_leaks_signals_and_differences_have_their_exit_codes() -> None:
    leak = ended("b", outcome="leaked", exit_code=5, leaks=(Leak("rank.2: chunk own", "CUDA_ERROR_UNKNOWN"),))
    assert (merged(ended("a"), leak).outcome, merged(ended("a"), leak).exit_code) == ("leaked", 5)
    found = merged(ended("a"), ended("b"), interrupted=15)
    assert (found.outcome, found.exit_code, found.failure) == ("interrupted", 143, None)
    late = ended("b", outcome="failed", exit_code=4, failure=Failure("rank.2: import all.0", "node a has ended"))
    found = merged(ended("a", outcome="interrupted", exit_code=143), late, RunEnd("b", "no answer"), interrupted=15)
    assert (found.outcome, found.failure, found.nodes[0].outcome) == ("interrupted", None, "taken down")
    different = ended("b", outcome="different", exit_code=6, checks=replace(CHECKS, different=1))
    assert (merged(ended("a"), different).outcome, merged(ended("a"), different).exit_code) == ("different", 6)
