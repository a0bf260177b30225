"""Stories of a layout on several nodes: agents that conduct workers, the hub of the run, and what befalls them.

Each node has a machine of its own. Handles cross between the agents as in production, by calls that a network delivers
late. A story is one run: it is built, checked, held, released by one node and taken down, or it fails.
"""

from __future__ import annotations

import asyncio
import json
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache, partial
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from msgspec.structs import replace

from memtopo.common.decoding import encode
from memtopo.common.errors import MemtopoError
from memtopo.driver.handles import Handle
from memtopo.driver.types import gpu
from memtopo.drivers.sim.devices import SimMemoryBudget
from memtopo.machine import Cluster
from memtopo.plans.progress import Progress, SafeProgress
from memtopo.plans.report import Check, Report
from memtopo.run.conductor import conduct
from memtopo.run.nodes.agent import NodeResult
from memtopo.run.nodes.hub import Hub, NodePeers, RunEnd
from memtopo.run.nodes.reports import NodeEnd, merged_nodes
from memtopo.run.processes.ensemble import Ensemble
from memtopo.run.processes.workers import Workers
from memtopo.session.composition import HoldResult, RunRequest
from memtopo.sharing.channel import Received
from memtopo.sharing.endpoints import endpoint
from tests.helpers.machines import with_fabric
from tests.helpers.nodes import node_request, node_tasks
from tests.story.programs import SIGTERM, Event
from tests.story.workers import StorySource, WorkerProgram
from tests.story.world import ERRORS, Actor, Broken, Fault, World

_TIMEOUT = 30.0
_SETTLING = 400.0
"""Simulated seconds within which a run has ended after the last event."""

_STEPS = 10_000
"""Most steps of the scheduler for each agent and worker."""

_RUN = 80
"""Steps for each agent and worker that a run takes, about, when nothing befalls it."""

_LATENCIES = (0.0, 0.0, 0.002, 0.05)


@dataclass(frozen=True, slots=True)
class Setting:
    """Number of GPUs of each node of a cluster, a spec for it, and the check of the run.

    In the spec, `ranks` processes of each node map the chunks of all of them, or those of a `server` on the first node,
    which has no ranks unless it is the only one.
    """

    gpus: tuple[int, ...]
    ranks: int
    server: bool
    check: Check

    @property
    def cluster(self) -> Cluster:
        """The machines of the nodes."""
        return Cluster({node: with_fabric(gpus) for node, gpus in zip("abcd", self.gpus, strict=False)})

    @property
    def text(self) -> str:
        """The spec, as JSON."""
        nodes = [*self.cluster.nodes]
        of_ranks, source = (nodes[1:] or nodes, "server") if self.server else (nodes, "rank")
        handles, mine = "fd else fabric", "gpus" if min(self.gpus) >= self.ranks else "gpu0"
        own = {"location": "mine", "size": "2MiB", "count": 1 + self.server, "handles": handles}
        owned = {"chunks": {"own": own}, "exports": {"own": {"chunk": "own", "via": handles}}}
        heap = {"ranges": {"heap": {"size": "fill", "same_address": True}}, "access": {"heap": {"mine": "rw"}}}
        mapped = {**heap, "imports": {"all": {"from": f"{source}.own"}}, "map": {"heap": "all"}}
        rank = {"count": self.ranks * len(of_ranks), "nodes": of_ranks, "devices": {"mine": mine}, **mapped}
        server = {"count": 1, "node": "a", "devices": {"mine": "gpu0"}, **owned, **heap, "map": {"heap": "own"}}
        processes = {"server": server, "rank": rank} if self.server else {"rank": rank | owned}
        return json.dumps({"memtopo": 1, "name": "story", "processes": processes})


def _drawn_setting(draw: Random) -> Setting:
    gpus = tuple(draw.choice((1, 2, 2)) for _ in range(draw.choice((1, 2, 2, 3, 4))))
    return Setting(gpus, draw.randint(1, 2), draw.random() < 0.4, draw.choice(("fast", "full")))


@cache
def _planned(setting: Setting) -> tuple[RunRequest, Mapping[str, Ensemble]]:
    request, document = node_request(setting.text, setting.cluster, setting.check)
    tasks = node_tasks(request, document, setting.cluster, _TIMEOUT)
    return request, {node: task.ensemble() for node, task in tasks.items()}


class Network:
    """The hub of a run and the calls between its agents, which an actor delivers late."""

    def __init__(self, nodes: Sequence[str]) -> None:
        self.hub = Hub(nodes)
        self.peers: dict[str, NodePeers] = {}
        self.lost = False
        self._calls: deque[Callable[[], None]] = deque()
        self._waiting: set[Future[Any]] = set()
        self._loop = asyncio.new_event_loop()

    def __call__(self, actor: Actor) -> None:
        actor.doing = ""
        while True:
            actor.pause(actor.world.random.choice(_LATENCIES))
            while self._calls:
                self._calls.popleft()()
            self.turn()

    def call_hub(self, method: str, *args: Any) -> Future[Any]:
        """Call a method of the hub."""
        answer: Future[Any] = Future()
        self._waiting.add(answer)
        self._calls.append(partial(self._call_hub, answer, method, args))
        return answer

    def call_agent(self, node: str, method: str, *args: Any) -> Future[Any]:
        """Call `ask` or `answer` of an agent; the call fails if it has ended."""
        answer: Future[Any] = Future()
        self._calls.append(partial(self._call_agent, answer, node, method, args))
        return answer

    def lose(self) -> None:
        """End the hub: calls that wait fail."""
        self.lost = True
        for answer in self._waiting:
            if not answer.done():
                answer.set_exception(ConnectionError("the hub has ended"))

    def turn(self) -> None:
        """Let the hub do all that it can."""
        for _ in range(4):
            self._loop.call_soon(self._loop.stop)
            self._loop.run_forever()

    def close(self) -> None:
        """End all calls."""
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self.turn()
        self._loop.close()

    def _call_hub(self, answer: Future[Any], method: str, args: Sequence[Any]) -> None:
        if self.lost:
            if not answer.done():
                answer.set_exception(ConnectionError("the hub has ended"))
            return
        task = self._loop.create_task(getattr(self.hub, method)(*args))

        def pass_on(done: asyncio.Task[Any]) -> None:
            if not answer.done() and not done.cancelled():
                answer.set_result(done.result())

        task.add_done_callback(pass_on)

    def _call_agent(self, answer: Future[Any], node: str, method: str, args: Sequence[Any]) -> None:
        peers = self.peers.get(node)
        if peers is None:
            answer.set_exception(ConnectionError(f"the agent of {node} has ended"))
            return
        if method == "ask":
            peers.deliver(args[0])
        else:
            message, handles = args
            peers.deliver(Received(message, [Handle.of(bytes(secret)) for secret, _ in handles]))
        answer.set_result(None)


@dataclass(slots=True)
class _Faults:
    faults: int = 0


@dataclass(slots=True)
class AgentProgram:
    """The agent of a node, which holds its part of the layout until it or another node is released."""

    node: str
    ensemble: Ensemble
    network: Network
    faults: _Faults
    stopped: int = 0
    releases: bool = False
    serves: bool = False
    result: NodeResult | None = None

    def __call__(self, actor: Actor) -> None:
        actor.doing = ""
        network, nodes = self.network, self.ensemble.request.geometry.nodes
        homes = {label: node for node, labels in nodes.items() for label in labels}
        agents = {node: partial(network.call_agent, node) for node in nodes}
        peers = network.peers[self.node] = NodePeers(self.node, homes, network.call_hub, agents)
        try:
            report = self._run(actor, replace(self.ensemble, system=actor.system), peers)
            self.result = NodeResult(encode(report).decode(), peers.cause)
        except MemtopoError as error:
            peers.leave(error.message)
            self.result = NodeResult(error=error.message, exit_code=error.exit_code)
        finally:
            del network.peers[self.node]
            peers.close()
        network.call_hub("finish", self.node)

    def _run(self, actor: Actor, ensemble: Ensemble, peers: NodePeers) -> Report:
        source = StorySource(ensemble, actor, self.faults)
        with Workers(ensemble, SafeProgress(Progress()), lambda: self.stopped, peers, source) as workers:
            return conduct(workers, partial(self._hold, actor, peers))

    def _hold(self, actor: Actor, peers: NodePeers, workers: Workers) -> HoldResult:
        workers.release_contexts()
        actor.world.note(actor.name, "serves")
        self.serves = True
        while not (self.releases or peers.released or workers.watch()):
            actor.pause(0.05)
        return HoldResult()


@dataclass(slots=True)
class DriverProgram:
    """The driver of a run, which tells the hub which agents are lost, and kills those that give no sign of life."""

    network: Network
    agents: Mapping[str, Actor]
    silent: dict[str, float] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)

    def __call__(self, actor: Actor) -> None:
        actor.doing = ""
        while True:
            actor.pause(0.1)
            for node, agent in self.agents.items():
                self._look_at(actor.world, node, agent)

    def _look_at(self, world: World, node: str, agent: Actor) -> None:
        if node in self.lost or agent.program.result:
            return
        if agent.late <= world.now:
            self.silent[node] = world.now
        elif world.now - self.silent.setdefault(node, world.now) > _TIMEOUT:
            agent.end_soon()
        if not agent.alive or agent.dying:
            self.lost.add(node)
            self.network.call_hub("lose", node, "its agent is lost")


@dataclass(frozen=True, slots=True)
class ToldRun:
    """A run that was told: what has happened, and the promise that was broken."""

    seed: int
    events: tuple[tuple[int, Event], ...]
    trace: tuple[str, ...]
    failure: str
    steps: int
    outcome: str


def tell_run(seed: int, events: Sequence[tuple[int, Event]] | None = None) -> ToldRun:
    """Tell the run of a seed, with its own events by step or the given ones, in a thread that is not the main one."""
    with TemporaryDirectory(prefix="nodes-") as folder:
        telling = _Telling(seed, folder, events)
        failure = outcome = ""
        try:
            outcome = telling.tell()
        except (Exception, Broken) as error:
            failure = "".join(traceback.format_exception(error))
        telling.end()
        return ToldRun(seed, (*telling.events,), (*telling.world.trace,), failure, telling.world.steps, outcome)


class _Telling:
    def __init__(self, seed: int, folder: str, events: Sequence[tuple[int, Event]] | None) -> None:
        draw = self._draw = Random(f"run {seed}")
        setting = _drawn_setting(draw)
        self.request, planned = _planned(setting)
        self.world = World(planned["a"].machine, Random(f"schedule {seed}"), endpoint(socket=f"{folder}/x.sock"))
        self.world.note("", str(setting))
        self.network, self.faults = Network([*planned]), _Faults()
        self.world.start("net", self.network)
        self.agents: dict[str, Actor] = {}
        for node, ensemble in planned.items():
            agent = self.world.start(node, AgentProgram(node, ensemble, self.network, self.faults))
            agent.machine, agent.budget = ensemble.machine, SimMemoryBudget(ensemble.machine)
            self.agents[node] = agent
        self.world.start("driver", DriverProgram(self.network, self.agents))
        self.processes = len(self.agents) + len(self.request.geometry.processes)
        self.releases = draw.choice([*self.agents])
        drawn = (self._drawn() for _ in range(draw.choice((0, 1, 1, 1, 2, 2, 3))))
        self.events = sorted(events if events is not None else drawn, key=lambda each: each[0])
        self._owned: dict[str, set[str]] = {}

    def _drawn(self) -> tuple[int, Event]:
        draw, nodes, workers = self._draw, [*self.agents], [*self.request.geometry.processes]
        one, node, worker = draw.choice((*nodes, *workers)), draw.choice(nodes), draw.choice(workers)
        event = draw.choice(
            (
                Event(one, "kill"),
                Event(one, "doom", (draw.randint(1, 60),)),
                Event(worker, "fail", (draw.randint(1, 40), draw.choice(ERRORS))),
                Event(one, "late", (draw.choice((0.3, 3.0, 12.0, 50.0)),)),
                Event(node, "stop"),
                Event(node, "hog", (draw.randrange(len(self.agents[node].machine.devices)),)),
                Event("net", "lose"),
            )
        )
        return draw.randrange(_RUN * self.processes), event

    def tell(self) -> str:
        """Let the run happen, and return its outcome."""
        upcoming, until = deque(self.events), self.world.now + _SETTLING
        while any(each.alive for each in self._taking_part()):
            while upcoming and upcoming[0][0] <= self.world.steps:
                self._befall(upcoming.popleft()[1])
                until = self.world.now + _SETTLING
            self._step()
            if all(each.program.serves or not each.alive for each in self.agents.values()):
                self.agents[self.releases].program.releases = True
            if self.world.now > until or self.world.steps > _STEPS * self.processes:
                raise Broken(f"these do not end: {[each.name for each in self._taking_part() if each.alive]}")
        for _ in range(20):  # the last calls
            self._step()
        return self._require_end()

    def _taking_part(self) -> Sequence[Actor]:
        return [each for each in self.world.every if isinstance(each.program, AgentProgram | WorkerProgram)]

    def _step(self) -> None:
        self.world.step()
        if self.world.failure:
            raise self.world.failure
        last = self.world.last
        if last and isinstance(last.program, WorkerProgram):
            self._require_owned()

    def _befall(self, event: Event) -> None:
        self.world.note("", str(event))
        self.faults.faults += 1
        actor = self.world.actors.get(event.actor)
        match event.verb, event.args:
            case "lose", ():
                self.network.lose()
            case "hog", (ordinal,):
                budget = self.agents[event.actor].budget
                budget.take(gpu(ordinal), budget.free(gpu(ordinal)))
            case "stop", ():
                self.agents[event.actor].program.stopped = SIGTERM
            case _ if actor is None or not actor.alive:
                pass
            case "kill", ():
                actor.end_soon()
            case "doom", (after,):
                actor.doom = after
            case "fail", (after, error):
                actor.fault = Fault(after, error)
            case "late", (seconds,):
                actor.late = self.world.now + seconds

    def _require_owned(self) -> None:
        """Require that no process has released memory that another one maps, unless it waited for that in vain."""
        if self.network.lost or any(event.verb == "late" for _, event in self.events):
            return
        workers = [each for each in self.world.every if isinstance(each.program, WorkerProgram) and each.drivers]
        live = [each for each in workers if each.alive and not each.dying and not each.drivers[-1].closed]
        for actor in live:
            simulator = actor.drivers[-1].simulator
            mapped = [each.chunk for each in simulator.mappings._at.values()]
            own = {_tag(each) for each in (*simulator.chunks._open.values(), *mapped) if not each.imported}
            released = self._owned.setdefault(actor.name, set()) - own - {""}
            self._owned[actor.name] |= own
            for other in live if released else ():
                if other is actor or other.failed:  # whose unmapping may have failed
                    continue
                if released & {*map(_tag, other.drivers[-1].simulator.mappings._at.values())}:
                    raise Broken(f"{actor.name} has released memory that {other.name} maps")

    def _require_end(self) -> str:
        """Require that nothing is left, and that the report of all nodes says how it was."""
        for node, agent in self.agents.items():
            if left := {
                str(place): size for place, size in agent.budget.used.items() if size and not self._hogged(node)
            }:
                raise Broken(f"memory of {node} is left: {left}")
        ends = {
            node: NodeEnd(result=agent.program.result) if agent.program.result else NodeEnd(cause="it died")
            for node, agent in self.agents.items()
        }
        order = [] if self.network.lost else [RunEnd(*each) for each in self.network.hub._ends]
        stopped = max(each.program.stopped for each in self.agents.values())
        report = merged_nodes(self.request, ends, order, {}, stopped)
        workers = [each for each in self.world.every if isinstance(each.program, WorkerProgram)]
        died = [each.name for each in workers if each.program.status]
        if report.exit_code == 0 and died:
            raise Broken(f"{died} died in a run that is ok")
        # Descriptors are those of this process, which all actors share.
        leaks = [each for each in report.leaks if "file descriptor" not in each.what]
        lost = died or not all(each.program.result for each in self.agents.values())
        if leaks and not lost and not any(each.failed for each in workers):
            raise Broken(f"leaks without a cause: {leaks}")
        if not self.faults.faults and report.exit_code:
            raise Broken(f"a run that nothing befell is {report.outcome}: {report.failure}")
        return report.outcome

    def _hogged(self, node: str) -> bool:
        return any(event.verb == "hog" and event.actor == node for _, event in self.events)

    def end(self) -> None:
        """End all processes."""
        for actor in self.world.every:
            actor.kill()
        self.network.close()


def _tag(part: Any) -> str:
    """Return what names the memory of a chunk or a mapping in all processes; empty if no other one has it."""
    return part.physical.tag.nonce if part.physical.tag else ""
