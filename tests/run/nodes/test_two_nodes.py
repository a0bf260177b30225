"""Runs of two nodes within one process, without Ray: agents in threads, and real workers on simulators."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from memtopo.common.errors import Unavailable, UsageError
from memtopo.driver.handles import Handle
from memtopo.machine import Cluster
from memtopo.plans.report import Report
from memtopo.run.nodes.agent import RUN_VARIABLE, About, Agent, NodeResult, NodeTask, held_nodes, left_behind
from memtopo.run.nodes.cluster import PlacedAgents, PlacedNode
from memtopo.run.nodes.driver import Front, hosts, opened_front
from memtopo.run.nodes.hub import RunEnd
from memtopo.run.nodes.reports import NodeEnd, merged_nodes
from memtopo.session.composition import Holding, RunRequest
from memtopo.sharing.claims import claim
from memtopo.sharing.client import Client, connect
from memtopo.sharing.endpoints import endpoint
from memtopo.sharing.held import survey
from memtopo.sharing.holder.state import HolderInfo
from tests.helpers.machines import with_fabric
from tests.helpers.nodes import HubThread, call_of, node_request, node_tasks, running, with_worker
from tests.helpers.processes import open_descriptors
from tests.helpers.reports import tallies

TWO = Path(__file__).with_name("two_nodes.yaml")
CLUSTER = Cluster({"a": with_fabric(2), "b": with_fabric(2)})
LABELS = ["rank.0", "rank.1", "rank.2", "rank.3"]


def merged(request: RunRequest, hub: HubThread, results: Mapping[str, Future[NodeResult]]) -> Report:
    ends = {node: NodeEnd(result=future.result(120)) for node, future in results.items()}
    order = [RunEnd(*end) for end in hub("ends").result(10)]
    return merged_nodes(request, ends, order, {"a": "first", "b": "second"}, 0)


@pytest.fixture(scope="module")
def tasks() -> tuple[RunRequest, dict[str, NodeTask]]:
    request, document = node_request(TWO, CLUSTER, "full")
    return request, node_tasks(request, document, CLUSTER)


def test_two_nodes_share_a_heap_of_fabric_handles(tasks: tuple[RunRequest, dict[str, NodeTask]]) -> None:
    request, parts = tasks
    before = open_descriptors()
    with running(parts) as (_, hub, results):
        report = merged(request, hub, results)
    assert (report.outcome, report.exit_code, report.failure) == ("ok", 0, None), report
    assert [(each.name, each.outcome) for each in report.processes] == [(label, "ok") for label in LABELS]
    assert len({each.placed for each in report.processes}) == 1
    assert report.checks
    assert tallies(report.checks)["every byte"].as_declared == 40
    assert tallies(report.checks)["imported"].looked_at == 16
    assert [(each.name, each.host, each.processes) for each in report.nodes] == [
        ("a", "first", ("rank.0", "rank.1")),
        ("b", "second", ("rank.2", "rank.3")),
    ]
    assert all(each.left and not any(each.left.ledger_after.values()) for each in report.nodes)
    assert open_descriptors() == before


def test_the_processes_of_a_node_have_the_same_gpus(tasks: tuple[RunRequest, dict[str, NodeTask]]) -> None:
    """And no others: what others create on their nodes takes no memory of this one."""
    request, _ = tasks
    of = {label: replace(request, process=label, siblings=request.geometry.processes) for label in LABELS}
    here = {label: replace(of[label], node=request.geometry.labels_beside(label)).processes_of_node for label in LABELS}
    assert {label: [*found] for label, found in here.items()} == {
        label: LABELS[:2] if label in LABELS[:2] else LABELS[2:] for label in LABELS
    }
    assert [*of["rank.0"].processes_of_node] == LABELS


MIXED = """
memtopo: 1
name: mixed
processes:
  server:
    node: a
    chunks: {near: {location: gpu0, size: 2MiB, handles: [fd]}, far: {location: gpu0, size: 2MiB, handles: [fabric]}}
    ranges: {all: {size: 4MiB}}
    map: {all: [near, far]}
    access: {all: {gpu0: rw}}
    exports: {near: {chunk: near, via: fd}, far: {chunk: far, via: fabric}}
  beside:
    node: a
    imports: {w: {from: server.near}}
    ranges: {view: {size: 2MiB}}
    map: {view: [w]}
    access: {view: {gpu1: rw}}
  apart:
    node: b
    imports: {w: {from: server.far}}
    ranges: {view: {size: 2MiB}}
    map: {view: [w]}
    access: {view: {gpu1: r}}
"""


def test_descriptors_go_within_a_node_and_fabric_handles_between() -> None:
    request, document = node_request(MIXED, CLUSTER, "full")
    with running(node_tasks(request, document, CLUSTER)) as (_, hub, results):
        report = merged(request, hub, results)
    assert (report.outcome, report.exit_code) == ("ok", 0), report
    assert [(each.name, each.processes) for each in report.nodes] == [("a", ("server", "beside")), ("b", ("apart",))]
    found = {each.name: tallies(each.checks) for each in report.processes if each.checks}
    assert {name: each["every byte"].as_declared for name, each in found.items()} == {
        "server": 4,
        "beside": 1,
        "apart": 1,
    }


def test_a_worker_that_dies_takes_down_both_nodes(
    tasks: tuple[RunRequest, dict[str, NodeTask]], monkeypatch: pytest.MonkeyPatch
) -> None:
    request, parts = tasks
    monkeypatch.setenv("MEMTOPO_CRASH", "rank.3:mem_map#2:SIGKILL:self")
    worker = Path(__file__).parents[1] / "processes" / "signalled_worker.py"
    with running(with_worker(parts, sys.executable, "-P", str(worker))) as (_, hub, results):
        report = merged(request, hub, results)
    assert (report.outcome, report.exit_code) == ("failed", 4)
    assert report.failure
    assert (report.failure.step, report.failure.error) == ("rank.3: map", "process rank.3 was killed by SIGKILL")
    assert [each.outcome for each in report.processes] == ["taken down"] * 3 + ["died"]
    assert [each.outcome for each in report.nodes] == ["taken down", "failed"]
    others = [each.left for each in report.processes if each.name != "rank.3"]
    assert all(left and not any(left.ledger_after.values()) for left in others)
    assert [left_behind(part.run, node, 0) for node, part in parts.items()] == [[], []]


def test_an_agent_that_cannot_plan_its_part_ends_the_run_and_holds_up_no_other_one(
    tasks: tuple[RunRequest, dict[str, NodeTask]],
) -> None:
    part, agent = tasks[1]["a"], Agent()
    hub = HubThread(["a", "b"])
    try:
        assert agent.result() is None
        found = agent.run(replace(part, machines={**part.machines, "b": "{}"}), hub, {})
        assert (bool(found.error), found.report, agent.result()) == (True, "", found)
        assert [RunEnd(*end) for end in hub("ends").result(10)] == [RunEnd("a", found.error)]
        assert hub("leave_gate", "b", 0).result(10)
    finally:
        hub.close()


def test_workers_that_are_left_behind_are_those_of_one_run_and_one_node() -> None:
    variables = {**os.environ, RUN_VARIABLE: "run-1/a1"}
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, env=variables) as worker:
        places = [("run-1", "a1"), ("run-1", "b"), ("run", "a1"), ("run-2", "a1"), ("run-1", "a")]
        assert [left_behind(run, node, 0.0) for run, node in places] == [[worker.pid], [], [], [], []]


def test_nothing_is_known_of_nodes_whose_hub_is_gone() -> None:
    hub = HubThread(["a", "b"])
    hub.close()
    assert [(each.node, each.state) for each in held_nodes(hub, "ab", "a").statuses()] == [
        ("a", "unreachable"),
        ("b", "unreachable"),
    ]


def test_an_agent_of_another_version_is_refused() -> None:
    with ThreadPoolExecutor() as pool:
        calls: dict[str, Any] = {node: call_of(Agent(), pool) for node in "ab"}
        calls["b"] = lambda _method: pool.submit(lambda: About("0.0", 1, "second"))
        placed = PlacedAgents({node: PlacedNode(call, node) for node, call in calls.items()}, hub=calls["a"])
        with pytest.raises(Unavailable, match=r"node 'b', host second, has memtopo 0\.0, and the driver"):
            hosts(placed)


def test_a_held_layout_is_served_on_each_node_and_released_by_any(tmp_path: Path) -> None:
    request, document = node_request(TWO, CLUSTER)
    parts = node_tasks(request, document, CLUSTER, holding=Holding(f"{tmp_path}/{{node}}.sock"))
    with running(parts) as (_, hub, results):
        sockets = hub("serving").result(120)
        assert sockets == {node: f"{tmp_path}/{node}.sock" for node in "ab"}
        with connect(endpoint(socket=sockets["b"])) as client:
            assert set(client.offers()) == {"rank.2.own", "rank.3.own"}
            assert client.release().outcome == "ok"
        report = merged(request, hub, results)
    assert (report.outcome, report.exit_code) == ("ok", 0), report
    assert any("node b: held for" in note and "a release here" in note for note in report.notes)
    assert any("node a: held for" in note and "the end of another node" in note for note in report.notes)
    assert os.listdir(tmp_path) == []


def test_nodes_that_see_the_same_files_need_a_socket_each(tmp_path: Path) -> None:
    with ThreadPoolExecutor() as pool:
        calls: dict[str, Any] = {node: call_of(Agent(), pool) for node in "ab"}
        placed = PlacedAgents({node: PlacedNode(call, node) for node, call in calls.items()}, hub=calls["a"])
        for taken in (Holding(), Holding(f"{tmp_path}/x.sock"), Holding(f"{tmp_path}/")):
            with pytest.raises(UsageError, match="nodes 'a' and 'b' are both on host") as caught:
                hosts(placed, taken)
            assert str(caught.value.hint).endswith("/{node}.sock'")
        assert [*hosts(placed, Holding(f"{tmp_path}/{{node}}.sock"))] == [*hosts(placed)] == ["a", "b"]


def test_a_node_that_never_began_delays_no_teardown(tmp_path: Path) -> None:
    request, document = node_request(TWO, CLUSTER)
    parts = node_tasks(request, document, CLUSTER, holding=Holding(f"{tmp_path}/{{node}}.sock"))
    with claim(endpoint(socket=f"{tmp_path}/b.sock")), running(parts) as (_, hub, results):
        report = merged(request, hub, results)
    assert (report.outcome, report.exit_code, report.notes) == ("failed", 4, ())
    assert report.failure
    assert (report.failure.step, "is already held by" in report.failure.error) == ("node b", True)


def test_a_hub_that_is_gone_ends_both_nodes(tasks: tuple[RunRequest, dict[str, NodeTask]]) -> None:
    request, parts = tasks
    with running(parts) as (_, hub, results):
        hub.close()
        ends = {node: NodeEnd(result=future.result(120)) for node, future in results.items()}
    report = merged_nodes(request, ends, [], {}, 0)
    assert (report.outcome, report.exit_code) == ("failed", 4)
    assert report.failure
    assert report.failure.error == "the hub of the run has ended"
    assert {each.outcome for each in report.nodes} == {"taken down"}


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[HubThread, Front, dict[str, Any]]]:
    """A layout that two nodes hold, and its front on the driver's host."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    request, document = node_request(TWO, CLUSTER)
    holding = Holding(f"{tmp_path}/{{node}}.sock")
    parts = node_tasks(request, document, CLUSTER, holding=holding)
    info = HolderInfo(request.plan.name, request.spec, request.machine, parts["a"].source)
    with running(parts) as (_, hub, results):
        hub("serving").result(120)
        nodes = held_nodes(hub, parts)
        with opened_front(info, holding, nodes, lambda: hub("end", "driver", "")) as front:
            assert front
            yield hub, front, {"request": request, "results": results}


def test_the_front_answers_for_all_nodes_and_releases_them(held: tuple[HubThread, Front, dict[str, Any]]) -> None:
    hub, _, more = held
    name = more["request"].plan.name
    (entry,) = survey().layouts
    assert (entry.name, entry.nodes, entry.exports, entry.importers) == (name, ("a", "b"), 4, 0)
    with connect(endpoint(name)) as client:
        status = client.status()
        assert [(each.node, each.state) for each in status.nodes] == [("a", "serving"), ("b", "serving")]
        assert [{offer.name for offer in each.offers} for each in status.nodes] == [
            {"rank.0.own", "rank.1.own"},
            {"rank.2.own", "rank.3.own"},
        ]
        with connect(endpoint(socket=status.nodes[0].socket)) as on_node:
            assert [each.node for each in on_node.status().nodes] == ["a", "b"]
        with connect(endpoint(socket=status.nodes[1].socket)) as importer:
            list(map(Handle.close, importer.handles("rank.2.own")))
            await_importers(client, ["b"])
            released = client.release(wait=0.0)
        assert not released.gone
    report = merged(more["request"], hub, more["results"])
    assert (report.outcome, report.exit_code) == ("ok", 0), report
    assert sum("the end of another node" in note for note in report.notes) == 2


def await_importers(client: Client, nodes: list[str]) -> None:
    deadline = time.monotonic() + 30
    while [each.node for each in client.status().nodes if each.importers] != nodes:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_an_agent_with_the_name_on_the_driver_s_host_answers_for_all_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no front then, and a release there waits for the teardown of all nodes."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    request, document = node_request(TWO, CLUSTER)
    parts = node_tasks(request, document, CLUSTER, holding=Holding())
    parts["b"] = replace(parts["b"], holding=Holding(f"{tmp_path}/b.sock"))
    info = HolderInfo(request.plan.name, request.spec, request.machine)
    with running(parts) as (_, hub, results):
        hub("serving").result(120)
        with (
            opened_front(info, Holding(), held_nodes(hub, parts), lambda: None) as front,
            connect(endpoint(request.plan.name)) as client,
        ):
            assert front is None
            assert [len(each.offers) for each in client.status().nodes] == [2, 2]
            assert client.release().gone
        report = merged(request, hub, results)
    assert (report.outcome, report.exit_code) == ("ok", 0), report
