"""The driver of a run, with actors and a cluster whose answers the test gives: ends, losses and signals of agents."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from memtopo.machine import Cluster
from memtopo.plans.report import Report
from memtopo.run.nodes.agent import NodeResult
from memtopo.run.nodes.cluster import PlacedAgents, PlacedNode, RayCluster
from memtopo.run.nodes.driver import NodesRun
from memtopo.run.processes.workers import SPARE
from tests.helpers.machines import with_fabric
from tests.helpers.nodes import node_request, node_tasks
from tests.run.nodes.test_reports import HOSTS, ended

MACHINES = Cluster({"a": with_fabric(2), "b": with_fabric(2)})
REQUEST, DOCUMENT = node_request(Path(__file__).with_name("two_nodes.yaml"), MACHINES)


class Actor:
    """Calls to one actor; the first of a method has its first answer, which may be an error or none for now."""

    def __init__(self, **answers: list[Any]) -> None:
        self.answers = answers
        self.calls: list[tuple[str, tuple[Any, ...], Future[Any]]] = []
        self.called: dict[str, Callable[[], object]] = {}

    def __call__(self, method: str, *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.calls.append((method, arguments, future))
        if found := self.answers.get(method):
            answer = found.pop(0) if len(found) > 1 else found[0]
            future.set_exception(answer) if isinstance(answer, Exception) else future.set_result(answer)
        self.called.get(method, lambda: None)()
        return future

    def named(self, method: str) -> list[tuple[Any, ...]]:
        return [arguments for name, arguments, _ in self.calls if name == method]

    def finish(self, result: NodeResult | None) -> None:
        """End its run."""
        next(future for name, _, future in self.calls if name == "run").set_result(result)


class Agents(RayCluster):
    """A cluster: an EOFError is the loss of an actor, a ConnectionError that it cannot be reached at the moment."""

    def __init__(self, left: list[int] | None = None) -> None:
        super().__init__(None)
        self.left, self.surveyed, self.killed = left, list[str](), list[str]()
        self.patience = 0.0

    def loss(self, error: BaseException) -> str | None:
        return str(error) if isinstance(error, EOFError) else None

    def unavailable(self, error: BaseException) -> bool:
        return isinstance(error, ConnectionError)

    def lost_processes(self, node: PlacedNode, name: str, run: str, seconds: float) -> list[int] | None:
        del node, run
        self.patience = seconds
        self.surveyed.append(name)
        return self.left

    def kill(self, node: PlacedNode) -> None:
        self.killed.append(node.ray_node)


def result(node: str, cause: str = "") -> NodeResult:
    found = ended(node, cause).result
    assert found
    return found


def report_of(
    cluster: Agents, hub: Any, timeout: float = 30.0, stop: Callable[[], int] = lambda: 0, **agents: Any
) -> Report:
    placed = PlacedAgents({name: PlacedNode(each, name) for name, each in agents.items()}, hub)
    tasks = node_tasks(REQUEST, DOCUMENT, MACHINES, timeout)
    return NodesRun(cluster, placed, REQUEST, tasks, stop=stop).run(HOSTS)


def test_the_others_hear_of_a_lost_agent_and_its_node_is_searched_for_workers() -> None:
    a, b, hub = Actor(run=[EOFError("it was killed")]), Actor(), Actor(ends=[[("a", "its agent is lost")]])
    hub.called["lose"] = lambda: b.finish(result("b", "node a: its agent is lost"))
    cluster = Agents(left=[11])
    report = report_of(cluster, hub, a=a, b=b)
    assert hub.named("lose") == [("a", "its agent is lost: it was killed")]
    assert cluster.patience > 30.0 + SPARE, "the workers take as long to see that nobody leads them, and to take down"
    assert (cluster.surveyed, [leak.what for leak in report.leaks]) == (["a"], ["node a: processes 11"])
    assert [each.outcome for each in report.nodes] == ["lost", "taken down"]


def test_a_silent_agent_is_killed_and_lost_while_others_that_answer_go_on() -> None:
    a, b, hub = Actor(), Actor(progress=[None]), Actor(ends=[[("a", "its agent is lost")]])
    hub.called["lose"] = lambda: b.finish(result("b", "node a: its agent is lost"))
    cluster = Agents(left=[])
    report = report_of(cluster, hub, 0.05, a=a, b=b)
    assert (cluster.killed, [each.outcome for each in report.nodes]) == (["a"], ["ended", "taken down"])
    assert report.failure
    assert report.failure.error == "its agent is lost: it gave no sign of life for 0.05 s"


def test_the_result_of_an_agent_that_could_not_be_reached_is_asked_for_again() -> None:
    a = Actor(run=[ConnectionError("no route")], result=[None, ConnectionError("no route"), result("a")])
    b, hub = Actor(run=[result("b")]), Actor(ends=[[("a", ""), ("b", "")]])
    report = report_of(Agents(), hub, a=a, b=b)
    assert (report.outcome, len(a.named("result")), hub.named("lose")) == ("ok", 3, [])


def test_an_agent_that_raises_ends_the_run_as_an_internal_error() -> None:
    """Also without the hub's order of the ends."""
    a, b, hub = Actor(run=[ZeroDivisionError("of one node")]), Actor(), Actor(ends=[EOFError("it was killed")])
    hub.called["end"] = lambda: b.finish(result("b", "node a: internal error"))
    report = report_of(Agents(), hub, a=a, b=b)
    assert hub.named("end") == [("a", "internal error: of one node")]
    assert (report.outcome, report.exit_code) == ("failed", 70)
    assert report.failure
    assert (report.failure.step, report.failure.error) == ("node a", "internal error: of one node")


def test_the_first_signal_is_passed_on_once_to_the_agents_that_have_no_result() -> None:
    a, b, hub = Actor(run=[result("a")]), Actor(), Actor(ends=[[]])
    signals = iter([0, 15, 2])

    def stop() -> int:
        if (number := next(signals)) == 2:
            b.finish(result("b"))
        return number

    report = report_of(Agents(), hub, stop=stop, a=a, b=b)
    assert (a.named("stop"), b.named("stop")) == ([], [(15,)])
    assert (report.outcome, report.exit_code) == ("interrupted", 143)
