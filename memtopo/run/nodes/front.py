"""The front of a held layout of several nodes: a holder on the driver's host, which answers for all nodes.

It has no exports: processes attach on their node. Where an agent of the layout has the layout's name on the driver's
host, that agent answers for all nodes itself, and there is no front.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Thread

from memtopo.driver.handles import Handle
from memtopo.plans.report import Checks, Report
from memtopo.session.request import Holding
from memtopo.sharing.claims import Claim, claim
from memtopo.sharing.endpoints import endpoint
from memtopo.sharing.errors import ExchangeError
from memtopo.sharing.holder import HeldNodes, HolderInfo, Supervision, hold
from memtopo.sharing.offers import Offer

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
    front = Front(claimed, info, holding, nodes, release)
    try:
        yield front
    finally:
        front.close()
