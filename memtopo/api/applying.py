"""`memtopo.applied`: a spec, built in this process for as long as a `with` lasts."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

from memtopo.api.errors import Unsuitable
from memtopo.api.holding import Standing
from memtopo.api.live import Live
from memtopo.api.loading import MachineLike, SpecLike, judge, targeted
from memtopo.api.session import Session, uuids
from memtopo.attaching import Holders
from memtopo.driver.protocol import Driver
from memtopo.geometry import Geometry


class Applied(Standing[Live]):
    """A layout that stands while its `with` does."""

    def __init__(
        self, spec: SpecLike, machine: MachineLike, bind: Mapping[str, str], allow_uids: Collection[int]
    ) -> None:
        super().__init__()
        self._spec, self._machine, self._bind, self._allowed = spec, machine, bind, allow_uids

    def _build(self) -> Live:
        judged = judge(self._spec, targeted(self._machine))
        if judged.geometry.processes:
            told = f"{judged.document.name} is of several processes, and 'applied' builds in this one alone"
            raise Unsuitable(told, hint="'memtopo apply' starts a process for each")
        driver = judged.target.open()
        session = Session(judged, driver, self._deliveries(judged.geometry, driver))
        live = Live(session)
        session.begin(prove=True)
        return live

    def _deliveries(self, geometry: Geometry, driver: Driver) -> Holders | None:
        if not any(run.origin for run in geometry.runs):
            return None
        return Holders(geometry, uuids(driver), self._bind, self._allowed)


def applied(
    spec: SpecLike,
    machine: MachineLike = "local",
    bind: Mapping[str, str | os.PathLike[str]] | None = None,
    *,
    allow_uids: Collection[int] = (),
) -> Applied:
    """Build a spec, check it, and have its memory within a `with`; then the GPUs are waited for, and all is taken down.

    `bind` gives the socket of each holder that the spec imports from by a name of its own, and `allow_uids` are other
    users whose layouts may be imported. What the memory holds at first is not said. On entering it raises
    `InvalidSpec` with every fault, `Unavailable` where there is no such machine, and `NotApplied` with its report, once
    everything was undone. A view that is in use when it ends is named in a `ViewOutlived` warning.
    """
    return Applied(spec, machine, {name: os.fspath(path) for name, path in (bind or {}).items()}, allow_uids)
