"""Holding of a layout of several nodes: each agent serves the exports of its node, and a front answers for all.

The front is a holder on the driver's host. It has no exports: processes attach on their node. Where an agent of the
layout has the layout's name on the driver's host, that agent answers for all nodes itself, and there is no front.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from threading import Event, Thread

from memtopo.common.errors import ExchangeError, InternalError
from memtopo.driver.handles import Handle
from memtopo.plans.report import Checks, Report
from memtopo.run.holder import Holder
from memtopo.run.nodes.hub import Call, NodePeers
from memtopo.session.request import Holding, Revision, RunRequest
from memtopo.sharing.claims import Claim, claim
from memtopo.sharing.endpoints import endpoint
from memtopo.sharing.holder import hold
from memtopo.sharing.holder.state import HeldNodes, HolderInfo, Supervision
from memtopo.sharing.offers import Offer
from memtopo.sharing.status import NodeStatus, Status, unreachable

NODE = "{node}"
"""Stands for the name of a node in the path of its socket."""

_PATIENCE = 2.0
"""Seconds that the hub has for an answer to a holder."""


def held_nodes(hub: Call, nodes: Iterable[str], own: str = "") -> HeldNodes:
    """Return the nodes of a layout from the reports to the hub; the holder of the `own` one reports to it."""
    names = tuple(nodes)

    def statuses() -> Sequence[NodeStatus]:
        try:
            found: Sequence[NodeStatus] = hub("statuses").result(_PATIENCE)
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

        yield Holder(
            claimed,
            HolderInfo(name, request.spec, request.machine, source),
            _refuse,
            holding,
            ready=report_ready,
            supervised=lambda: nullcontext(Supervision(nodes=held_nodes(hub, request.geometry.nodes, node))),
            released=lambda: peers.released,
        )


def _refuse(_source: str, _before: RunRequest) -> Revision:
    raise InternalError("a layout of several nodes is not changed while it is held")


_ENDED = -1


class _NoExports:
    """Exports of the front: none."""

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
