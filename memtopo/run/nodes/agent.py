"""The agent of a node: runs the conductor of the node's processes, and serves the other agents meanwhile.

It also serves the exports of a layout that is held, until any node is released.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from msgspec import Struct

from memtopo.common import __version__
from memtopo.common.decoding import encode
from memtopo.common.errors import Exit, InternalError, MemtopoError
from memtopo.driver.handles import Handle
from memtopo.drivers import target
from memtopo.drivers.target import Target
from memtopo.language import SpecText
from memtopo.machine import Cluster, dump, parse
from memtopo.plans.progress import CountedProgress, PhaseState
from memtopo.plans.report import Check
from memtopo.run import processes
from memtopo.run.holder import Holder
from memtopo.run.messages import HandleAnswer, HandleRequest
from memtopo.run.nodes.hub import Call, HandleBytes, NodePeers
from memtopo.session.composition import Composition, Holding, Revision, RunRequest
from memtopo.session.machines import with_needed_trials
from memtopo.sharing.channel import Received
from memtopo.sharing.claims import claim
from memtopo.sharing.endpoints import endpoint
from memtopo.sharing.holder.state import HeldNodes, HolderInfo, Supervision
from memtopo.sharing.status import NodeStatus, Status, unreachable
from memtopo.sharing.wire import layout_source

RUN_VARIABLE = "MEMTOPO_RUN_OF_NODES"
"""Environment variable of all workers of a run, by which workers without their agent are found."""

_PAUSE = 0.05

NODE = "{node}"
"""Stands for the name of a node in the path of its socket."""

_HOLDER_PATIENCE = 2.0
"""Seconds that the hub has for an answer to a holder."""


class About(Struct, frozen=True):
    """Report of an agent on itself: memtopo's version, its process, its host, and the number of its mount namespace."""

    version: str
    pid: int
    host: str
    files: int = 0


class MachineOfNode(Struct, frozen=True):
    """Record of the machine of a node, or why there is none."""

    record: str = ""
    error: str = ""
    hint: str | None = None


class NodeTask(Struct, frozen=True):
    """The part of one node in a run: the spec and the machines of all nodes, from which each agent makes the same plan.

    `machines` has a record for each node, `names` what it is called. With `simulated`, the processes get simulators of
    it, else the node's GPUs. `run` identifies the run, and `worker` replaces memtopo's own worker.
    """

    node: str
    run: str
    spec: SpecText
    machines: Mapping[str, str]
    names: Mapping[str, str]
    simulated: bool
    check: Check
    seed: int
    timeout: float
    rehearse: bool = False
    holding: Holding | None = None
    worker: Sequence[str] = ()

    def ensemble(self) -> processes.Ensemble:
        """Plan the layout, and return the part of this node. Raises `MemtopoError`."""
        nodes = {node: self._target(node) for node in self.machines}
        own, every = nodes[self.node], target.of_nodes(nodes)
        request = Composition.of(self.spec.read(), every).request(
            machine=own.line,
            machine_facts=own.machine,
            check=self.check,
            seed=self.seed,
            timeout=self.timeout,
            rehearse=self.rehearse,
        )
        return processes.Ensemble(
            request,
            self.spec,
            own.machine,
            self.timeout,
            worker=self.worker,
            variables={RUN_VARIABLE: f"{self.run}/{self.node}"},
            labels=frozenset(request.geometry.nodes[self.node]),
            cluster=Cluster({node: each.machine for node, each in nodes.items()}),
        )

    @property
    def source(self) -> str:
        """Text from which the layout can be drawn on this node's machine."""
        return layout_source(self.spec.read(), self._target(self.node).machine)

    def _target(self, node: str) -> Target:
        machine = parse(self.machines[node].encode(), self.names[node])
        return target.of_another_host(self.names[node], machine, simulated=self.simulated)


class NodeResult(Struct, frozen=True):
    """Result of an agent: its report as JSON, or the error because of which there is none.

    `cause` is why the processes took down, if that was found elsewhere.
    """

    report: str = ""
    cause: str = ""
    error: str = ""
    hint: str | None = None
    exit_code: int = Exit.FAILED


class Agent:
    """One node of a run. `run` stays in the thread that calls it; the other methods may be called meanwhile."""

    def __init__(self) -> None:
        self._peers: NodePeers | None = None
        self._signal = 0
        self._result: NodeResult | None = None
        self._progress = CountedProgress()

    def about(self) -> About:
        """Return what the driver has to know of this agent."""
        return About(__version__, os.getpid(), platform.node(), Path("/proc/self/ns/mnt").stat().st_ino)

    def machine(self, spec: SpecText) -> MachineOfNode:
        """Record of this node's GPUs, with the trials that a spec needs; the driver validates it with that."""
        try:
            found = with_needed_trials(target.resolve(target.LOCAL), spec.read())
            return MachineOfNode(dump(found.machine))
        except MemtopoError as error:
            return MachineOfNode(error=error.message, hint=error.hint)

    def run(self, task: NodeTask, hub: Call, agents: Mapping[str, Call]) -> NodeResult:
        """Build, check and take down the processes of the node together with the other agents'."""
        try:
            ensemble = task.ensemble()
            request = ensemble.request
            homes = {label: node for node, labels in request.geometry.nodes.items() for label in labels}
            self._peers = peers = NodePeers(task.node, homes, hub, agents)
            with holder(task.node, task.holding, request, task.source, peers, hub) as holding:
                hold = holding.hold if holding else None
                report = processes.apply(
                    ensemble, progress=self._progress, stop=lambda: self._signal, hold=hold, peers=peers
                )
                if holding:
                    holding.claim.report_end(report)
            self._result = NodeResult(encode(report).decode(), peers.cause)
        except MemtopoError as error:
            if self._peers:
                self._peers.leave(error.message)
            else:
                hub("end", task.node, error.message)
            self._result = NodeResult(error=error.message, hint=error.hint, exit_code=error.exit_code)
        finally:
            if self._peers:
                self._peers.close()
            hub("finish", task.node)
        return self._result

    def progress(self) -> PhaseState | None:
        """Return at once the state of the phase that the node's processes are in, as a sign of life."""
        return self._progress.state

    def result(self) -> NodeResult | None:
        """Return the result of `run` once more, for a driver that lost the first; None as long as there is none."""
        return self._result

    def ask(self, request: HandleRequest) -> None:
        """Take another agent's request for fabric handles of a process here; the answer is a call of its own."""
        if self._peers is None:
            raise InternalError("an agent was asked for handles before it started")
        self._peers.deliver(request)

    def answer(self, answer: HandleAnswer, handles: HandleBytes) -> None:
        """Take another agent's answer to a request of a process here."""
        if self._peers:
            self._peers.deliver(Received(answer, [Handle.of(bytes(secret)) for secret, _ in handles]))

    def stop(self, number: int) -> None:
        """End the run as a signal of this number does."""
        self._signal = number
        if self._peers:
            self._peers.wake()


def left_behind(run: str, node: str, seconds: float) -> list[int]:
    """Wait until no worker of a node's part of a run is left there; return the processes that are after so long."""
    deadline = time.monotonic() + seconds
    while (left := list(_workers(f"{RUN_VARIABLE}={run}/{node}"))) and time.monotonic() < deadline:
        time.sleep(_PAUSE)
    return left


def _workers(variable: str) -> Iterator[int]:
    """Processes of this user that have a variable in their environment, and have not ended."""
    for entry in os.listdir("/proc"):
        with suppress(OSError, ValueError):
            if variable.encode() in Path("/proc", str(int(entry)), "environ").read_bytes().split(b"\0"):
                yield int(entry)


def held_nodes(hub: Call, nodes: Iterable[str], own: str = "") -> HeldNodes:
    """Return the nodes of a layout from the reports to the hub; the holder of the `own` one reports to it."""
    names = tuple(nodes)

    def statuses() -> Sequence[NodeStatus]:
        try:
            found: Sequence[NodeStatus] = hub("statuses").result(_HOLDER_PATIENCE)
        except Exception:  # noqa: BLE001 errors of Ray have no common class here, and the layout is there without the hub
            return unreachable(names)
        return found

    def report(status: Status) -> None:
        hub("report", status.of_node(own, platform.node()))

    return HeldNodes(names, statuses, report, own) if own else HeldNodes(names, statuses)


@contextmanager
def holder(
    node: str, holding: Holding | None, request: RunRequest, source: str, peers: NodePeers, hub: Call
) -> Iterator[Holder | None]:
    """Claim a layout's endpoint on a node, before anything is built, until it is taken down. Raises `ExchangeError`.

    The holder serves the exports of the node's processes, until any node is released.
    """
    if holding is None:
        yield None
        return
    name = request.plan.name
    place = endpoint(name, holding.socket.replace(NODE, node) if holding.socket else None)
    with claim(place, holding.allow_uids) as claimed:

        def report_ready() -> None:
            hub("serve", node, claimed.endpoint.path)

        def refuse(_source: str, _before: RunRequest) -> Revision:
            raise InternalError("a layout of several nodes is not changed while it is held")

        yield Holder(
            claimed,
            HolderInfo(name, request.spec, request.machine, source),
            refuse,
            holding,
            ready=report_ready,
            supervised=lambda: nullcontext(Supervision(nodes=held_nodes(hub, request.geometry.nodes, node))),
            released=lambda: peers.released,
        )
