"""Runs of several nodes within one process: agents in threads, a hub in the loop of another thread, no Ray."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from memtopo.drivers.target import of_nodes, recorded
from memtopo.language import Document, SpecText, read_file, read_text
from memtopo.machine import Cluster, dump
from memtopo.plans.report import Check
from memtopo.run.nodes.agent import Agent, NodeResult, NodeTask
from memtopo.run.nodes.hub import Hub
from memtopo.session.composition import RunRequest
from tests.helpers.specs import request_of


def node_request(spec: Path | str, cluster: Cluster, check: Check = "fast") -> tuple[RunRequest, Document]:
    """A request for a spec of several nodes, and its document."""
    document = read_file(spec) if isinstance(spec, Path) else read_text(spec.encode(), "test.yaml")
    nodes = of_nodes({node: recorded("test", machine) for node, machine in cluster.nodes.items()})
    return request_of(document, replace(nodes, name="test"), check=check), document


def node_tasks(
    request: RunRequest, document: Document, cluster: Cluster, timeout: float = 30.0, **others: Any
) -> dict[str, NodeTask]:
    """The tasks of all nodes; `others` are further fields."""
    records, run = {node: dump(machine) for node, machine in cluster.nodes.items()}, secrets.token_hex(8)
    return {
        node: NodeTask(
            node, run, SpecText.of(document), records,
            dict.fromkeys(records, "test"), simulated=True, check=request.check, seed=request.seed,
            timeout=timeout, **others,
        )
        for node in request.geometry.nodes
    }  # fmt: skip


Running = tuple[dict[str, Agent], "HubThread", dict[str, Future[NodeResult]]]


class HubThread:
    """A hub in the event loop of a thread, as in an actor of its own; `lose` is called for a node that dies."""

    def __init__(self, nodes: list[str]) -> None:
        self.hub, self._loop = Hub(nodes), asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def __call__(self, method: str, *arguments: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        with self._lock:
            if self._thread.is_alive():
                call = asyncio.run_coroutine_threadsafe(getattr(self.hub, method)(*arguments), self._loop)
                call.add_done_callback(lambda done: _pass_on(done, answer))
            else:
                answer.set_exception(ConnectionError("the hub has ended"))
        return answer

    def close(self) -> None:
        """End the hub; calls that wait fail, as those of an actor that died. A second call does nothing."""
        with self._lock:
            if self._thread.is_alive():
                asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop).result()
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join()
                self._loop.close()


def _pass_on(done: Future[Any], answer: Future[Any]) -> None:
    if done.cancelled():
        answer.set_exception(ConnectionError("the hub has ended"))
    else:
        answer.set_result(done.result())


async def _cancel_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def call_of(agent: Agent, pool: ThreadPoolExecutor) -> Callable[..., Future[Any]]:
    """Calls of an agent's methods in threads of a pool."""
    return lambda method, *arguments: pool.submit(getattr(agent, method), *arguments)


@contextmanager
def running(tasks: Mapping[str, NodeTask]) -> Iterator[Running]:
    """Agents that run the tasks, their hub, and the futures of their results."""
    hub = HubThread(list(tasks))
    agents = {node: Agent() for node in tasks}
    try:
        with ThreadPoolExecutor(8 * len(tasks)) as pool:
            calls = {node: call_of(agent, pool) for node, agent in agents.items()}
            try:
                runs = {node: pool.submit(agents[node].run, task, hub, calls) for node, task in tasks.items()}
                yield agents, hub, runs
            finally:
                for agent in agents.values():
                    agent.stop(15)
    finally:
        hub.close()


def with_worker(tasks: Mapping[str, NodeTask], *command: str) -> dict[str, NodeTask]:
    """The tasks with another worker."""
    return {node: replace(task, worker=command) for node, task in tasks.items()}
