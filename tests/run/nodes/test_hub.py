"""The hub and the peers of a node: meetings, gates that a lost node does not block, ends, and exchanges of agents."""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Awaitable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from memtopo.driver.handles import Handle
from memtopo.run.messages import HandleAnswer, HandleRequest
from memtopo.run.nodes.hub import Hub, NodePeers, RunEnd
from memtopo.run.processes.worker_process import Peers, Router
from memtopo.sharing.channel import Received
from memtopo.sharing.status import NodeStatus
from tests.helpers.processes import open_descriptors


def settled(*calls: Awaitable[Any]) -> list[Any]:
    """Results of calls that are made one after the other; None for one that still waits after all were made."""

    async def made() -> list[Any]:
        tasks = []
        for call in calls:
            tasks.append(asyncio.ensure_future(call))
            for _ in range(5):
                await asyncio.sleep(0)
        found = [task.result() if task.done() else None for task in tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return found

    return asyncio.run(made())


def test_a_meeting_gives_each_node_the_values_of_all() -> None:
    hub = Hub(["a", "b"])
    assert settled(hub.arrive("a", 1, 10), hub.arrive("b", 1, 20)) == [[10, 20], [10, 20]]


def test_a_meeting_waits_for_all_nodes() -> None:
    hub = Hub(["a", "b", "c"])
    assert settled(hub.arrive("a", 1, 1), hub.arrive("b", 1, 1), hub.arrive("c", 2, 1)) == [None, None, None]


def test_nodes_may_be_at_different_meetings() -> None:
    hub = Hub(["a", "b"])
    calls = hub.arrive("a", 1, 1), hub.arrive("b", 1, 2), hub.arrive("b", 2, 4), hub.arrive("a", 2, 3)
    assert settled(*calls) == [[1, 2], [1, 2], [4, 3], [4, 3]]


def test_a_failure_and_a_loss_end_a_meeting_without_values() -> None:
    for method in (Hub.end, Hub.lose):
        hub = Hub(["a", "b"])
        calls = hub.arrive("a", 1, 1), method(hub, "b", "no memory"), hub.failed(), hub.ended(), hub.arrive("a", 2, 1)
        assert settled(*calls) == [None, None, RunEnd("b", "no memory"), RunEnd("b", "no memory"), None]


def test_a_release_is_an_end_and_no_failure() -> None:
    hub = Hub(["a", "b"])
    found = settled(hub.end("a", ""), hub.ended(), hub.failed(), hub.arrive("a", 1, 1), hub.arrive("b", 1, 2))
    assert found == [None, RunEnd("a", ""), None, [1, 2], [1, 2]]


def test_a_failure_is_the_end_of_a_run_that_was_released_before_it() -> None:
    hub = Hub(["a", "b"])
    assert settled(hub.end("a", ""), hub.end("b", "no memory"), hub.ended())[-1] == RunEnd("b", "no memory")


def test_the_first_of_several_failures_is_that_of_the_run() -> None:
    hub = Hub(["a", "b", "c"])
    calls = hub.end("a", ""), hub.end("b", "no memory"), hub.lose("c", "its raylet died"), hub.failed(), hub.ended()
    assert settled(*calls)[-2:] == [RunEnd("b", "no memory")] * 2


def test_the_status_of_a_node_is_its_last_report_and_a_lost_node_is_unreachable() -> None:
    hub = Hub(["a", "b", "c"])
    reports = [
        NodeStatus(*each) for each in (("b", "2nd", "serving"), ("a", "1st", "serving"), ("b", "2nd", "releasing"))
    ]
    found = settled(*map(hub.report, reports), hub.statuses())[-1]
    assert [(each.node, each.host, each.state) for each in found] == [
        ("a", "1st", "serving"),
        ("b", "2nd", "releasing"),
        ("c", "", "starting"),
    ]
    lost = settled(hub.lose("b", "its raylet died"), hub.lose("c", "its raylet died"), hub.statuses())[-1]
    assert [each.state for each in lost] == ["serving", "unreachable", "unreachable"]


def test_a_gate_waits_for_all_nodes_that_are_not_lost() -> None:
    hub = Hub(["a", "b", "c"])
    assert settled(hub.leave_gate("a", 0), hub.leave_gate("b", 0)) == [None, None]
    hub = Hub(["a", "b", "c"])
    calls = hub.leave_gate("a", 0), hub.leave_gate("b", 0), hub.lose("c", "its raylet died")
    assert settled(*calls) == [True, True, None]


def test_a_gate_does_not_wait_for_a_node_that_has_finished() -> None:
    """It may be another one than those that are lost."""
    hub = Hub(["a", "b", "c"])
    calls = hub.leave_gate("a", 0), hub.finish("b"), hub.lose("c", "its raylet died")
    assert settled(*calls) == [True, None, None]


def test_a_failure_opens_no_gate() -> None:
    hub = Hub(["a", "b"])
    assert settled(hub.leave_gate("a", 0), hub.end("b", "no memory")) == [None, None]


def test_a_gate_is_not_the_other_one() -> None:
    hub = Hub(["a", "b"])
    assert settled(hub.leave_gate("a", 0), hub.leave_gate("b", 1)) == [None, None]


def test_the_sockets_are_known_once_all_nodes_serve() -> None:
    assert settled((hub := Hub(["a", "b"])).serving(), hub.serve("a", "/a.sock")) == [None, None]
    found = settled((hub := Hub(["a", "b"])).serving(), hub.serve("a", "/a.sock"), hub.serve("b", "/b.sock"))
    assert found[0] == {"a": "/a.sock", "b": "/b.sock"}


def test_ends_keep_their_order() -> None:
    hub = Hub(["a", "b"])
    found = settled(hub.end("b", "first"), hub.end("a", "second"), hub.ends())
    assert found[-1] == [RunEnd("b", "first"), RunEnd("a", "second")]


HOMES = {"rank.0": "a", "rank.1": "b"}
REQUEST = HandleRequest("rank.0", "rank.1", "own", 0, 1)


class Line:
    """Calls to one actor, each with the future that the test completes."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], Future[Any]]] = []

    def __call__(self, method: str, *arguments: Any) -> Future[Any]:
        self.calls.append((method, arguments, Future()))
        return self.calls[-1][2]

    def named(self, method: str) -> list[tuple[Any, ...]]:
        return [arguments for name, arguments, _ in self.calls if name == method]

    def future(self, method: str) -> Future[Any]:
        return next(future for name, _, future in reversed(self.calls) if name == method)


class Routes(Router):
    """What a node's router gets from elsewhere."""

    def __init__(self) -> None:
        super().__init__({}, Peers())
        self.requests: list[HandleRequest] = []
        self.answers: list[Received[HandleAnswer]] = []

    def forward_request(self, request: HandleRequest) -> None:
        self.requests.append(request)

    def forward_answer(self, answer: Received[HandleAnswer]) -> None:
        self.answers.append(answer)


class Node:
    """The peers of node a, with the lines to the hub and to node b."""

    def __init__(self) -> None:
        self.hub, self.b, self.routes = Line(), Line(), Routes()
        self.peers = NodePeers("a", HOMES, self.hub, {"b": self.b})

    def readable(self) -> bool:
        poll = select.poll()
        for descriptor in self.peers.descriptors:
            poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(0))

    def serve(self) -> Routes:
        assert self.readable()
        self.peers.serve(self.routes)
        return self.routes


@pytest.fixture
def node() -> Iterator[Node]:
    before = open_descriptors()
    found = Node()
    yield found
    found.peers.close()
    assert open_descriptors() == before


def test_a_request_goes_to_the_node_of_its_holder(node: Node) -> None:
    assert node.peers.forward(REQUEST)
    assert node.b.named("ask") == [(REQUEST,)]
    assert not node.peers.forward(HandleRequest("rank.0", "nobody", "own", 0, 1))
    assert not node.peers.forward(HandleRequest("rank.0", "rank.0", "own", 0, 1))


def test_a_request_that_cannot_be_sent_is_answered_here(node: Node) -> None:
    node.peers.forward(REQUEST)
    node.b.future("ask").set_exception(ConnectionError("the actor died"))
    (answer,) = node.serve().answers
    assert answer.message == HandleAnswer("rank.0", error="node b cannot be reached")


def test_an_answer_has_the_bytes_of_fabric_handles_as_arguments(node: Node) -> None:
    assert node.peers.answer(Received(HandleAnswer("rank.1"), [Handle.of(b"s" * 64)]))
    assert node.b.named("answer") == [(HandleAnswer("rank.1"), [(b"s" * 64, 0)])]
    assert not node.peers.answer(Received(HandleAnswer("#0")))


@pytest.mark.parametrize("others", [[], [Handle.of(b"t" * 64)]])
def test_descriptors_do_not_leave_the_node(node: Node, others: list[Handle]) -> None:
    """Nor do handles beside them, since an answer has all or none."""
    assert node.peers.answer(Received(HandleAnswer("rank.1"), [*others, Handle(fd=os.dup(0))]))
    ((answer, handles),) = node.b.named("answer")
    assert handles == []
    assert answer.error == "its handles are descriptors, which do not leave a node; other nodes import via fabric"


def test_requests_and_answers_of_others_wake_the_conductor_and_go_to_its_router(node: Node) -> None:
    assert not node.readable()
    node.peers.deliver(REQUEST)
    node.peers.deliver(Received(HandleAnswer("rank.0"), [Handle.of(b"t" * 64)]))
    routes = node.serve()
    assert routes.requests == [REQUEST]
    assert [each.handles[0].shared for each in routes.answers] == [b"t" * 64]
    assert not node.readable()


def test_a_meeting_is_over_when_the_hub_answers(node: Node) -> None:
    node.peers.arrive("here")
    assert node.hub.named("arrive") == [("a", 1, "here")]
    assert node.peers.arrived() is None
    node.hub.future("arrive").set_result(["here", "there"])
    assert node.readable()
    assert node.peers.arrived() == ["here", "there"]
    node.peers.arrive("again")
    assert node.peers.arrived() is None


def test_a_meeting_that_another_one_follows_has_no_values_for_it(node: Node) -> None:
    node.peers.arrive("here")
    first = node.hub.future("arrive")
    node.peers.arrive("again")
    assert node.hub.named("arrive") == [("a", 1, "here"), ("a", 2, "again")]
    first.set_result(["here", "there"])
    assert node.peers.arrived() is None


def test_a_node_says_once_why_it_takes_down(node: Node) -> None:
    """A failure elsewhere that is known only afterwards is not the cause."""
    node.peers.leave("process rank.0 was killed")
    node.hub.future("ended").set_result(("b", "node a cannot be reached"))
    assert node.peers.failed
    node.peers.leave("another error")
    assert (node.hub.named("end"), node.peers.cause) == ([("a", "process rank.0 was killed")], "")


def test_a_hub_that_is_gone_after_a_release_is_a_failure(node: Node) -> None:
    node.hub.future("ended").set_result(("b", ""))
    assert node.peers.released
    node.hub.future("failed").set_exception(ConnectionError("the actor died"))
    assert (node.peers.failed, node.peers.released) == ("the hub of the run has ended", False)


def test_a_failure_elsewhere_is_known_with_its_node(node: Node) -> None:
    node.hub.future("ended").set_result(("b", "no memory"))
    assert node.readable()
    assert (node.peers.failed, node.peers.released) == ("node b: no memory", False)
    node.peers.leave("process rank.0 was stopped")
    assert node.hub.named("end") == [("a", "")]
    assert node.peers.cause == "node b: no memory"


def test_a_release_elsewhere_is_no_failure_and_a_later_failure_is_known(node: Node) -> None:
    node.hub.future("ended").set_result(("b", ""))
    assert (node.peers.failed, node.peers.released) == ("", True)
    node.hub.future("failed").set_result(("b", "a worker died"))
    assert node.peers.failed == "node b: a worker died"


def test_a_hub_that_is_gone_is_a_failure(node: Node) -> None:
    node.hub.future("ended").set_exception(ConnectionError("the actor died"))
    assert node.peers.failed == "the hub of the run has ended"


def test_the_workers_go_on_once_all_nodes_have_left_a_gate(node: Node) -> None:
    with node.peers.gates() as ends:
        (wait, left), (_, other) = [(os.dup(ends[at]), os.dup(ends[at + 1])) for at in (0, 2)]
    assert not node.readable()
    os.close(left)
    node.serve()
    assert node.hub.named("leave_gate") == [("a", 0)]
    poll = select.poll()
    poll.register(wait, select.POLLIN)
    assert not poll.poll(0)
    node.hub.future("leave_gate").set_result(True)
    node.serve()
    assert poll.poll(0)
    for descriptor in (wait, other, _):
        os.close(descriptor)


def test_each_gate_is_left_once_and_opened_by_itself(node: Node) -> None:
    with node.peers.gates() as ends:
        waits = [os.dup(ends[0]), os.dup(ends[2])]
    for _ in range(2):
        node.peers.serve(node.routes)  # no worker holds an end
    assert node.hub.named("leave_gate") == [("a", 0), ("a", 1)]
    polls = [select.poll() for _ in waits]
    for poll, wait in zip(polls, waits, strict=True):
        poll.register(wait, select.POLLIN)
    gates = [future for method, _, future in node.hub.calls if method == "leave_gate"]
    opened = []
    for gate in gates:
        gate.set_result(True)
        node.peers.serve(node.routes)
        opened.append([bool(poll.poll(0)) for poll in polls])
    assert opened == [[True, False], [True, True]]
    for wait in waits:
        os.close(wait)


def test_a_gate_opens_without_a_hub(node: Node) -> None:
    with node.peers.gates() as ends:
        wait = os.dup(ends[0])
    node.serve()  # no worker holds an end
    node.hub.future("leave_gate").set_exception(ConnectionError("the actor died"))
    for _, _, future in node.hub.calls:
        if not future.done():
            future.set_exception(ConnectionError("the actor died"))
    node.serve()
    poll = select.poll()
    poll.register(wait, select.POLLIN)
    assert poll.poll(0)
    os.close(wait)
