"""The hub: meetings of all nodes, gates that a lost node does not block, and ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from memtopo.run.nodes.hub import Hub, RunEnd


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


def test_a_gate_waits_for_all_nodes_that_are_not_lost() -> None:
    hub = Hub(["a", "b", "c"])
    assert settled(hub.leave_gate("a", 0), hub.leave_gate("b", 0)) == [None, None]
    hub = Hub(["a", "b", "c"])
    calls = hub.leave_gate("a", 0), hub.leave_gate("b", 0), hub.lose("c", "its raylet died")
    assert settled(*calls) == [True, True, None]


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
