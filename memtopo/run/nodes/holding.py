"""Holding of a layout of several nodes: each agent serves the exports of its node at a socket there."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from memtopo.run.conductor import Conductor
from memtopo.run.held import HeldLayout, Revision
from memtopo.run.nodes.peers import Call, NodePeers
from memtopo.run.request import HoldResult, RunRequest
from memtopo.sharing.claims import Claim, claim
from memtopo.sharing.endpoints import endpoint
from memtopo.sharing.errors import ExchangeError
from memtopo.sharing.holder import INTERVAL, HeldNodes, HolderInfo, Supervision, hold, node_status, unreachable
from memtopo.sharing.status import NodeStatus, Status

NODE = "{node}"
"""Stands for the name of a node in the path of its socket."""

_PATIENCE = 2.0
"""Seconds that the hub has for an answer to a holder."""

_RELEASED = -2
"""Reason to stop holding that is no signal: another node was released."""


@dataclass(frozen=True, slots=True)
class Holding:
    """Options of a held layout, on each node: socket, seconds until its deadline, grace, and trusted users."""

    socket: str | None = None
    lasting: float | None = None
    grace: float = 5.0
    allow_uids: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class NodeHolder:
    """Serves the exports of a node's processes at a claimed endpoint, until any node is released."""

    node: str
    holding: Holding
    claim: Claim
    source: str
    peers: NodePeers
    hub: Call

    def hold(self, conductor: Conductor) -> HoldResult:
        """Serve, and return notes for the report."""
        conductor.release_contexts()
        request = conductor.request
        layout = HeldLayout(conductor, self.source, _refuse)
        held = hold(
            layout,
            self.claim,
            HolderInfo(request.plan.name, request.spec, request.machine, self.source),
            stop=lambda: conductor.watch() or (_RELEASED if self.peers.released else 0),
            lasting=self.holding.lasting,
            grace=self.holding.grace,
            allow_uids=self.holding.allow_uids,
            ready=self._report_ready,
            interval=min(INTERVAL, conductor.interval),
            supervision=Supervision(
                contexts=lambda: layout.contexts,
                nodes=held_nodes(self.hub, request.geometry.nodes, self.node),
                reports_end=True,
            ),
        )
        ends = {"release": "a release here", "deadline": "its deadline", "failure": "a failure"}
        why = ends.get(held.why, "a signal") if held.signal >= 0 else "the end of another node"
        served = f"{held.handles:,} handles to {held.clients:,} client{'s' * (held.clients != 1)}"
        return HoldResult(
            [f"node {self.node}: held for {held.seconds:.1f} s, until {why}; served {served}", *held.notes]
        )

    def _report_ready(self) -> None:
        self.hub("serve", self.node, self.claim.endpoint.path)


def held_nodes(hub: Call, nodes: Iterable[str], own: str = "") -> HeldNodes:
    """Return the nodes of a layout from the reports to the hub; the holder of the `own` one reports to it."""
    names = tuple(nodes)

    def statuses() -> Sequence[NodeStatus]:
        try:
            found: Sequence[NodeStatus] = hub("statuses").result(_PATIENCE)
        except Exception:  # noqa: BLE001 errors of Ray have no common class here, and the layout is there without the hub
            return tuple(unreachable(names))
        return found

    def report(status: Status) -> None:
        hub("report", node_status(own, platform.node(), status))

    return HeldNodes(names, statuses, report, own) if own else HeldNodes(names, statuses)


@contextmanager
def holder(
    node: str, holding: Holding | None, name: str, source: str, peers: NodePeers, hub: Call
) -> Iterator[NodeHolder | None]:
    """Claim a layout's endpoint on a node, before anything is built, until it is taken down. Raises `ExchangeError`."""
    if holding is None:
        yield None
        return
    place = endpoint(name, holding.socket.replace(NODE, node) if holding.socket else None)
    with claim(place, holding.allow_uids) as claimed:
        yield NodeHolder(node, holding, claimed, source, peers, hub)


def _refuse(_source: str, _before: RunRequest) -> Revision:
    raise ExchangeError("invalid", "a layout of several nodes is not changed while it is held", hint="release it")
