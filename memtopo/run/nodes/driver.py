"""The driver of a run on several nodes: places the agents, notices lost ones, merges the reports.

While such a layout is held, a front answers for all nodes: a holder on the driver's host. It has no exports: processes
attach on their node. Where an agent has the layout's name on the driver's host, that agent answers for all nodes
itself, and there is no front.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as NoAnswer
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

from msgspec import Struct

from memtopo.common import __version__
from memtopo.common.errors import ExchangeError, Exit, Unavailable, UsageError
from memtopo.driver.handles import Handle
from memtopo.language import Document, SpecText
from memtopo.machine import Machine, dump, parse
from memtopo.plans.progress import PhasePart, PhaseState, Progress, SafeProgress
from memtopo.plans.report import Checks, Report
from memtopo.run.nodes.agent import NODE, About, MachineOfNode, NodeResult, NodeTask, held_nodes
from memtopo.run.nodes.cluster import PlacedAgents, RayCluster
from memtopo.run.nodes.hub import RunEnd
from memtopo.run.nodes.reports import NodeEnd, merged_nodes
from memtopo.session.composition import Holding, RunRequest
from memtopo.sharing.claims import Claim, claim
from memtopo.sharing.endpoints import endpoint
from memtopo.sharing.holder import hold
from memtopo.sharing.holder.state import HeldNodes, HolderInfo, Supervision
from memtopo.sharing.offers import Offer

Serving = Callable[[Mapping[str, str], "str | None"], None]
"""Function that gets the paths of the sockets of a held layout: by node, and on the driver's host."""

_FRONT = "driver"
"""Name of the driver's host among the ends of a run."""

_INTERVAL = 0.1
_PROGRESS = 0.5
"""Seconds after which an agent is asked for its progress again."""

_PATIENCE = 120.0
"""Seconds that a cluster has to place and start the agents."""

_HUB = 5.0
"""Seconds that the hub has to say how the run ended."""

_SPARE = 20.0
"""Seconds beyond the timeout of the workers that those of a lost agent have to take down by themselves."""


class _Node(Struct):
    """One agent of a run, as the driver sees it: its pending call, and its end."""

    name: str
    call: Callable[..., Future[Any]]
    pending: Future[Any]
    heartbeat: Heartbeat
    end: NodeEnd | None = None


def hosts(placed: PlacedAgents, holding: Holding | None = None) -> dict[str, str]:
    """Return the host of each node.

    Raises `Unavailable` for an agent of another version of memtopo, and `UsageError` for two that would hold a layout
    at one socket.
    """
    found: dict[str, About] = _answers(placed, "about")
    for name, about in found.items():
        if about.version != __version__:
            message = f"node {name!r}, host {about.host}, has memtopo {about.version}, and the driver {__version__}"
            raise Unavailable(message, hint="install the same version on all nodes")
    host_of = {name: about.host for name, about in found.items()}
    if holding is None or NODE in (holding.socket or ""):
        return host_of
    first: dict[tuple[str, int], str] = {}
    for node, about in found.items():
        other = first.setdefault((about.host, about.files), node)  # the first agent that sees the same files
        if other != node:
            message = f"nodes {other!r} and {node!r} are both on host {about.host}, and cannot have one socket there"
            usual = Path(endpoint("usual").folder).parent  # is there, unlike the folder itself
            folder = endpoint("named", holding.socket).folder if holding.socket else usual
            raise UsageError(message, hint=f"name one for each: --socket '{folder}/{NODE}.sock'")
    return host_of


def local_machines(placed: PlacedAgents, document: Document) -> dict[str, Machine]:
    """Return the machine of each node, with its real GPUs and the trials that decide the alternatives of a spec.

    Raises `Unavailable` for a node without GPUs.
    """
    found: dict[str, MachineOfNode] = _answers(placed, "machine", SpecText.of(document))
    for name, each in found.items():
        if each.error:
            raise Unavailable(f"node {name!r}: {each.error}", hint=each.hint)
    return {name: parse(each.record.encode(), f"node {name}") for name, each in found.items()}


def _answers(placed: PlacedAgents, method: str, *arguments: object) -> dict[str, Any]:
    """Results of a method of all agents. Raises `Unavailable` if one does not answer."""
    calls = {name: node.agent(method, *arguments) for name, node in placed.nodes.items()}
    try:
        return {name: call.result(_PATIENCE) for name, call in calls.items()}
    except NoAnswer as error:
        raise Unavailable(f"an agent did not answer for {_PATIENCE:g} s") from error


class NodesRun:
    """One run of the tasks of all nodes: the agents until each has a result or is lost.

    Once all nodes hold the layout, `serving` gets the path of the socket of each, and of the one that answers for all
    nodes on this host, if there is one.
    """

    def __init__(
        self,
        cluster: RayCluster,
        placed: PlacedAgents,
        request: RunRequest,
        tasks: Mapping[str, NodeTask],
        *,
        stop: Callable[[], int] = lambda: 0,
        serving: Serving = lambda _sockets, _front: None,
        progress: Progress | None = None,
    ) -> None:
        self._cluster, self._placed, self._request, self._tasks = cluster, placed, request, tasks
        self._stop, self._report_serving = stop, serving
        self._progress = NodesProgress(SafeProgress(progress or Progress()))
        self._stack = ExitStack()
        self._front: Front | None = None
        self._task = next(iter(tasks.values()))
        self._stopped = 0
        agents = {name: node.agent for name, node in placed.nodes.items()}
        self._nodes: list[_Node] = []
        for name, task in tasks.items():
            call = agents[name]
            polls = Heartbeat(partial(call, "progress"), min(_PROGRESS, task.timeout / 4), time.monotonic())
            self._nodes.append(_Node(name, call, call("run", task, placed.hub, agents), polls))
        self._serving = placed.hub("serving") if self._task.holding else None

    def run(self, hosts: Mapping[str, str]) -> Report:
        """Wait for the ends of all nodes, which are on some `hosts`, and return one report."""
        with self._stack:
            while waiting := [node for node in self._nodes if node.end is None]:
                wait([node.pending for node in waiting], timeout=_INTERVAL, return_when="FIRST_COMPLETED")
                if (number := self._stop()) and not self._stopped:
                    self._stopped = number
                    for node in waiting:
                        node.call("stop", number)
                self._note_serving()
                for node in waiting:
                    self._look_at(node)
            self._progress.end()
            order: list[RunEnd] = []
            with suppress(Exception):  # errors of Ray have no common class; without the hub, there are the reports
                order = [RunEnd(*end) for end in self._placed.hub("ends").result(_HUB)]
            ends = {node.name: node.end for node in self._nodes if node.end}
            report = merged_nodes(self._request, ends, order, hosts, self._stopped)
            if self._front:
                self._front.report_end(report)
            return report

    def _note_serving(self) -> None:
        """Open the front once all nodes serve; it ends when all of them have ended."""
        task, hub, request = self._task, self._placed.hub, self._request
        if self._serving and task.holding and self._serving.done():
            if not self._serving.exception():
                self._progress.end()
                info = HolderInfo(request.plan.name, request.spec, request.machine, task.source)
                front = opened_front(info, task.holding, held_nodes(hub, self._tasks), lambda: hub("end", _FRONT, ""))
                self._front = self._stack.enter_context(front)
                self._report_serving(self._serving.result(), self._front.path if self._front else None)
            self._serving = None

    def _look_at(self, node: _Node) -> None:
        """Take the result or the progress of an agent; one without an answer for too long is lost."""
        if node.pending.done():
            error = node.pending.exception()
            if error is None and (result := node.pending.result()) is not None:
                node.end = NodeEnd(result=result)
            elif error is not None and (cause := self._cluster.loss(error)):
                self._lose(node, cause)
            elif error is not None and not self._cluster.unavailable(error):
                node.end = NodeEnd(result=NodeResult(error=f"internal error: {error}", exit_code=Exit.BUG))
                self._placed.hub("end", node.name, f"internal error: {error}")
            else:
                node.pending = node.call("result")
        now = time.monotonic()
        for state in node.heartbeat.answers(now):
            self._progress.update(node.name, state)
        if node.end is None and node.heartbeat.silence(now) > self._task.timeout:
            self._cluster.kill(self._placed.nodes[node.name])
            self._lose(node, f"it gave no sign of life for {self._task.timeout:g} s")

    def _lose(self, node: _Node, cause: str) -> None:
        """Have the others take down, and find out what is left on the node."""
        self._placed.hub("lose", node.name, f"its agent is lost: {cause}")
        task, place = self._tasks[node.name], self._placed.nodes[node.name]
        left = self._cluster.lost_processes(place, node.name, task.run, self._task.timeout + _SPARE)
        node.end = NodeEnd(cause=cause, reachable=left is not None, left=tuple(left or ()))


_ENDED = -1


class _NoExports:
    def offers(self) -> Sequence[Offer]:
        return ()

    def handle(self, export: str, index: int) -> Handle:
        raise ExchangeError("unknown", f"{export!r} number {index} is exported on its node")

    def check(self) -> Checks:
        raise ExchangeError("failed", "a layout of several nodes is checked on each of them, by 'memtopo check' there")


class Front:
    """Serves a layout as a whole at a claimed endpoint, until `close`; `release` is called if a client releases it."""

    def __init__(
        self, claimed: Claim, info: HolderInfo, holding: Holding, nodes: HeldNodes, release: Callable[[], object]
    ) -> None:
        self.path = claimed.endpoint.path
        self._claim, self._info, self._holding, self._nodes = claimed, info, holding, nodes
        self._release = release
        self._end, self._ready = Event(), Event()
        self._thread = Thread(target=self._serve, name="front")
        self._thread.start()
        self._ready.wait()

    def report_end(self, report: Report) -> None:
        """End the service, and send the end of the layout to the clients that wait for a release."""
        self._end.set()
        self._thread.join()
        self._claim.report_end(report)

    def close(self) -> None:
        """End the service, and the connections of clients that wait for a release."""
        self._end.set()
        self._thread.join()
        self._claim.close()

    def _serve(self) -> None:
        try:
            done = hold(
                _NoExports(),
                self._claim,
                self._info,
                stop=lambda: _ENDED if self._end.is_set() else 0,
                lasting=self._holding.lasting,
                grace=self._holding.grace,
                allow_uids=self._holding.allow_uids,
                ready=self._ready.set,
                supervision=Supervision(nodes=self._nodes, reports_end=True),
            )
        except ExchangeError:
            return
        finally:
            self._ready.set()
        if done.why != "ended":
            self._release()


@contextmanager
def opened_front(
    info: HolderInfo, holding: Holding, nodes: HeldNodes, release: Callable[[], object]
) -> Iterator[Front | None]:
    """Serve a layout as a whole at its name on this host; None if another process has the name."""
    try:
        claimed = claim(endpoint(info.name))
    except ExchangeError:
        yield None
        return
    with closing(Front(claimed, info, holding, nodes, release)) as front:
        yield front


def node_tasks(
    request: RunRequest,
    document: Document,
    machines: Mapping[str, tuple[str, Machine]],
    *,
    timeout: float,
    holding: Holding | None = None,
    worker: Sequence[str] = (),
) -> dict[str, NodeTask]:
    """Return the task of each node of a validated spec; `machines` has each node's machine with its name."""
    run = secrets.token_hex(8)
    records = {node: dump(machine) for node, (_, machine) in machines.items()}
    return {
        node: NodeTask(
            node=node,
            run=run,
            spec=SpecText.of(document),
            machines=records,
            names={node: name for node, (name, _) in machines.items()},
            simulated=request.machine.simulated,
            check=request.check,
            seed=request.seed,
            timeout=timeout,
            rehearse=request.rehearse,
            holding=holding,
            worker=tuple(worker),
        )
        for node in request.geometry.nodes
    }


class Heartbeat:
    """Polls of an agent, one at a time, and the seconds for which the last has had no answer.

    Time without a poll does not count: the driver may have handled the end of another agent.
    """

    def __init__(self, poll: Callable[[], Future[Any]], every: float, now: float) -> None:
        self._poll, self._every, self._last_answer = poll, every, now
        self._pending: Future[Any] | None = None
        self._polled: float | None = None

    def answers(self, now: float) -> Iterator[Any]:
        """Yield the answer to the last poll, if there is one, and poll again when the interval is over.

        A poll that failed is repeated.
        """
        if self._pending and self._pending.done():
            if not self._pending.exception():
                self._last_answer, self._polled = now, None
                yield self._pending.result()
            self._pending = None
        if self._pending is None and now - self._last_answer > self._every:
            self._pending = self._poll()
            self._polled = now if self._polled is None else self._polled

    def silence(self, now: float) -> float:
        """Seconds since the first poll that has no answer; 0 if there is none."""
        return 0.0 if self._polled is None else now - self._polled


_NONE = PhasePart(0, 0)


class NodesProgress:
    """Calls hooks as the phases of all nodes go on. The nodes meet after each phase, so that none is far behind.

    A phase begins as the first node enters it. Its steps are those of the nodes in it, each of which counts as a
    process.
    """

    def __init__(self, hooks: Progress) -> None:
        self._hooks = hooks
        self._states: dict[str, PhaseState | None] = {}
        self._name = ""
        self._counted: dict[str, PhasePart] = {}

    def update(self, node: str, state: PhaseState | None) -> None:
        """Take the state of a node; None between phases."""
        before = self._states.get(node)
        self._states[node] = state
        if state is None:
            if not any(self._states.values()):
                self.end()
            return
        entered = before is None or before.name != state.name
        if entered and (self._name != state.name or state.in_bytes):
            self._begin(state)
        if self._name == state.name:
            self._count(node, state)

    def end(self) -> None:
        """End the last phase, as the nodes do or are lost."""
        self._name = ""
        self._hooks.end()

    def _begin(self, state: PhaseState) -> None:
        """Begin a phase, or one in bytes again as a further node enters it: its size is known only now."""
        self._name, self._counted = state.name, {}
        inside = {node: each for node, each in self._states.items() if each and each.name == state.name}
        if not state.in_bytes:
            self._hooks.phase(state.name, 0, dict.fromkeys(self._states, 0))
            return
        sizes = {node: each.whole.total for node, each in inside.items()}
        self._hooks.volume(state.name, sum(sizes.values()), sizes)
        for node, each in inside.items():
            self._count(node, each)

    def _count(self, node: str, state: PhaseState) -> None:
        done, total = self._counted.get(node, _NONE)
        self._counted[node] = state.whole
        self._hooks.extend(max(0, state.whole.total - total), node)
        self._hooks.advance(max(0, state.whole.done - done), node)
