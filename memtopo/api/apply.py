"""`memtopo.applied`: a spec, built in this process for as long as a `with` lasts."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager

from memtopo.api.errors import Unsuitable
from memtopo.api.live import Live, Standing
from memtopo.api.session import Session, uuids
from memtopo.api.specs import Judged, MachineLike, SpecLike, judge, targeted
from memtopo.driver.protocol import Driver
from memtopo.plans.report import Report
from memtopo.sharing.attaching import Holders
from memtopo.sharing.producers import Bound, Producers, producers, unused

BoundLike = str | os.PathLike[str] | Sequence[str]
"""The path of a socket, or the words of a command."""


class Applied(Standing[Live]):
    """A layout that stands while its `with` does."""

    def __init__(
        self, spec: SpecLike, machine: MachineLike, bind: Mapping[str, Bound], allow_uids: Collection[int]
    ) -> None:
        super().__init__()
        self._spec, self._machine, self._bind, self._allowed = spec, machine, bind, allow_uids
        self._others = Producers({})

    def _build(self) -> Live:
        judged = judge(self._spec, targeted(self._machine))
        if judged.geometry.processes:
            told = f"{judged.document.name} is of several processes, and 'applied' builds in this one alone"
            raise Unsuitable(told, hint="'memtopo apply' starts a process for each")
        if wrong := unused(self._bind, judged.geometry):
            raise Unsuitable(f"bind: {wrong[0]}", hint=wrong[1])
        others = self._others = self._around.enter_context(self._producers(judged))
        driver = judged.target.open()
        session = Session(judged, driver, self._deliveries(judged, driver, others), others.noted)
        live = Live(session)
        session.begin(prove=True)
        return live

    def _over(self, report: Report) -> Report:
        return self._others.over(report)

    def _producers(self, judged: Judged) -> AbstractContextManager[Producers]:
        machine = judged.target.machine if judged.target.simulated else None
        return producers(judged.geometry, self._bind, machine, name=judged.target.name)

    def _deliveries(self, judged: Judged, driver: Driver, others: Producers) -> Holders | None:
        geometry = judged.geometry
        if not geometry.foreign and not any(run.origin for run in geometry.runs):
            return None
        return Holders(geometry, uuids(driver), others.sockets, self._allowed)


def applied(
    spec: SpecLike,
    machine: MachineLike = "local",
    bind: Mapping[str, BoundLike] | None = None,
    *,
    allow_uids: Collection[int] = (),
) -> Applied:
    """Build a spec, check it, and have its memory within a `with`; then the GPUs are waited for, and all is taken down.

    `bind` says who the holders are that the spec imports from by a name of its own: the path of a socket, or a command
    as a list of words, which runs until the end and serves at the path that it finds in MEMTOPO_SOCKET. `allow_uids`
    are other users whose layouts may be imported. What the memory holds at first is not said. On entering it raises
    `InvalidSpec` with every fault, `Unavailable` where there is no such machine, `Unsuitable` where the spec takes
    nothing from a name in `bind`, `ProducerFailed` where a command does not serve, and `NotApplied` with its report,
    once everything was undone. A view that is in use when it ends is named in a `ViewOutlived` warning.
    """
    return Applied(spec, machine, {name: _bound(given) for name, given in (bind or {}).items()}, allow_uids)


def _bound(given: BoundLike) -> Bound:
    return os.fspath(given) if isinstance(given, str | os.PathLike) else tuple(given)
