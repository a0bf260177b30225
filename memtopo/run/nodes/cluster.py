"""The Ray cluster of a run: connection, one agent on each node, and calls of actors. Only this module imports Ray."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, redirect_stdout, suppress
from importlib.util import find_spec
from typing import Any

from msgspec import Struct

from memtopo.common.errors import Unavailable, UsageError
from memtopo.common.signals import ENDING
from memtopo.run.nodes.agent import Agent, left_behind
from memtopo.run.nodes.hub import Hub

NAMESPACE = "memtopo"
_GPU_DOMAIN = "ray.io/gpu-domain"
"""Label that Ray gives to nodes whose GPUs one NVLink domain connects."""
_NODE_ID = "ray.io/node-id"
_THREADS = 16
"""Calls that an agent serves at a time; its run is one of them."""
_INTERVAL = 2.0
_SURVEY = 30.0
"""Seconds that the survey of a node may take, the start of a Ray worker included."""


class ActorCall:
    """Call of a method of an actor by its name; the future has the result or an error. Nothing blocks."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor

    def __call__(self, method: str, *arguments: object) -> Future[Any]:
        called: Future[Any] = getattr(self.actor, method).remote(*arguments).future()
        return called


class PlacedNode(Struct, frozen=True):
    """A node of a run on the cluster: its agent, and Ray's id of the node."""

    agent: ActorCall
    ray_node: str


class PlacedAgents(Struct, frozen=True):
    """Agents of the nodes of a run by name, and their hub."""

    nodes: Mapping[str, PlacedNode]
    hub: ActorCall


class RayCluster:
    """A connection to a Ray cluster."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray

    @contextmanager
    def place(
        self, nodes: Sequence[str], *, gpus: int, patience: float, stop: Callable[[], int] = lambda: 0
    ) -> Iterator[PlacedAgents]:
        """Place an agent with so many GPUs on a node each, and a hub beside the driver; all end with the block.

        With GPUs, all nodes are of one NVLink domain if the cluster has any. Raises `Unavailable`, also if `stop`
        returns the number of a signal meanwhile.
        """
        from ray.util.placement_group import placement_group, remove_placement_group  # noqa: PLC0415 slow to import
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415 slow to import

        bundle = {"CPU": 1.0} | ({"GPU": float(gpus)} if gpus else {})
        group = placement_group([bundle] * len(nodes), **self._strategy(one_domain=gpus > 0))
        actors: list[Any] = []
        try:
            deadline = time.monotonic() + patience
            while not (placed := group.wait(_INTERVAL)) and time.monotonic() < deadline and not stop():
                pass
            if not placed:
                raise Unavailable(self._too_few(len(nodes), gpus), hint="look at 'ray status'")
            here = NodeAffinitySchedulingStrategy(self._ray.get_runtime_context().get_node_id(), soft=False)
            options = {"num_cpus": 0, "max_restarts": 0, "scheduling_strategy": here}
            hub = self._ray.remote(Hub).options(**options).remote(list(nodes))
            actors = [hub, *(self._agent(group, index, gpus) for index in range(len(nodes)))]
            ids = self._ray.get([actor.node_id.remote() for actor in actors[1:]], timeout=patience)
            pairs = zip(nodes, actors[1:], ids, strict=True)
            yield PlacedAgents({name: PlacedNode(ActorCall(agent), at) for name, agent, at in pairs}, ActorCall(hub))
        except (self._ray.exceptions.RayActorError, self._ray.exceptions.GetTimeoutError) as error:
            raise Unavailable(f"an agent did not start: {_first_line(error)}", hint="look at Ray's logs") from error
        finally:
            for actor in actors:
                with suppress(Exception):
                    self._ray.kill(actor)
            remove_placement_group(group)

    def loss(self, error: BaseException) -> str | None:
        """Return the cause of the loss of an actor that an error of a call reports; None if it may be there still."""
        exceptions = self._ray.exceptions
        if isinstance(error, exceptions.ActorUnavailableError) or not isinstance(error, exceptions.RayActorError):
            return None
        return _first_line(error)

    def unavailable(self, error: BaseException) -> bool:
        """Return whether an error of a call says that an actor cannot be reached at the moment."""
        return isinstance(error, self._ray.exceptions.ActorUnavailableError)

    def lost_processes(self, node: PlacedNode, name: str, run: str, seconds: float) -> list[int] | None:
        """Workers of a run that a lost agent left on its node after so long; None if the node does not answer."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415 slow to import

        there = NodeAffinitySchedulingStrategy(node.ray_node, soft=False)
        survey = self._ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=there)(left_behind)
        try:
            found: list[int] = self._ray.get(survey.remote(run, name, seconds), timeout=seconds + _SURVEY)
        except self._ray.exceptions.RayError:
            return None
        return found

    def kill(self, node: PlacedNode) -> None:
        """End an agent that does not answer."""
        with suppress(Exception):
            self._ray.kill(node.agent.actor)

    def gpus_per_node(self) -> int:
        """GPUs that each node with GPUs has at least; 0 if there are none."""
        counts = [int(node["Resources"].get("GPU", 0)) for node in self._ray.nodes() if node["Alive"]]
        return min((count for count in counts if count), default=0)

    def _strategy(self, *, one_domain: bool) -> dict[str, Any]:
        domains = [node.get("Labels", {}).get(_GPU_DOMAIN) for node in self._ray.nodes() if node["Alive"]]
        if one_domain and any(domains):
            return {"topology_strategy": {_NODE_ID: "STRICT_SPREAD", _GPU_DOMAIN: "STRICT_PACK"}}
        return {"strategy": "STRICT_SPREAD"}

    def _agent(self, group: Any, index: int, gpus: int) -> Any:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy  # noqa: PLC0415 slow to import

        options: dict[str, Any] = {
            "num_cpus": 1,
            "num_gpus": gpus,
            "max_restarts": 0,
            "max_concurrency": _THREADS,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index),
        }
        return self._ray.remote(RayAgent).options(**options).remote()

    def _too_few(self, nodes: int, gpus: int) -> str:
        alive = sum(node["Alive"] for node in self._ray.nodes())
        each = f"a CPU and {gpus} GPUs" if gpus else "a CPU"
        return f"the Ray cluster of {alive} nodes does not have {nodes} nodes of {each} each that are free"


class RayAgent(Agent):
    """An agent as an actor of Ray."""

    def node_id(self) -> str:
        """Ray's id of the node on which the agent runs."""
        import ray  # noqa: PLC0415 slow to import

        found: str = ray.get_runtime_context().get_node_id()
        return found


@contextmanager
def connected(address: str) -> Iterator[RayCluster]:
    """Connect to the cluster at `ray`, that of RAY_ADDRESS or of this host, or `ray://host:port`.

    Raises `UsageError` without the package, `Unavailable` without the cluster.
    """
    require_ray(address)
    import ray  # noqa: PLC0415 optional, and slow to import

    place = os.environ.get("RAY_ADDRESS", "auto") if address == "ray" else address
    handlers = {number: signal.getsignal(number) for number in ENDING}
    with redirect_stdout(sys.stderr):  # Ray prints messages of its own, until it is shut down
        try:
            ray.init(address=place, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise Unavailable(f"no Ray cluster answers at {place!r}: {_first_line(error)}", hint=_START) from error
        finally:
            for number, handler in handlers.items():  # Ray installs one that ends the process at once
                signal.signal(number, handler)
        try:
            yield RayCluster(ray)
        finally:
            ray.shutdown()


def require_ray(address: str) -> None:
    """Raise `UsageError` for an address that is none, or without the package."""
    if address != "ray" and not address.startswith("ray://"):
        raise UsageError(f"--on {address!r} is not a cluster", hint="write --on ray, or --on ray://HOST:PORT")
    if find_spec("ray") is None:
        raise UsageError("--on ray needs the package ray", hint="pip install 'ray>=2.55'")


_START = "start one with 'ray start --head', or name the address in RAY_ADDRESS"


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
