"""`memtopo.applied`: a context manager that builds a spec in this process."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from memtopo.api.errors import Unsuitable, require_tried
from memtopo.api.live import Live, LiveContext
from memtopo.api.session import Session, uuids
from memtopo.api.specs import MachineLike, Params, SpecLike, plan_new
from memtopo.driver.protocol import Driver
from memtopo.geometry import Geometry
from memtopo.plans.report import Report
from memtopo.session.composition import Composition
from memtopo.sharing.imports import HolderHandles
from memtopo.sharing.producers import Bound, Producers, start_producers, unused

BoundLike = str | os.PathLike[str] | Sequence[str]
"""Path of a socket, or a command as a list of words."""


class Applied(LiveContext[Live]):
    """Layout that exists for the duration of a `with`."""

    def __init__(
        self,
        spec: SpecLike,
        machine: MachineLike,
        bind: Mapping[str, Bound],
        allow_uids: Collection[int],
        params: Params | None,
    ) -> None:
        super().__init__()
        self._spec, self._machine, self._bind, self._allowed = spec, machine, bind, allow_uids
        self._params = params
        self._producers = Producers({})

    def _build(self) -> Live:
        planned = plan_new(self._spec, self._machine, self._params)
        if planned.geometry.processes:
            message = f"{planned.document.name} is a multi-process spec, and 'applied' builds in this process only"
            raise Unsuitable(message, hint="'memtopo apply' starts a process for each")
        require_tried(planned)
        running = self._producers = self._resources.enter_context(producers_of(planned, self._bind))
        driver = planned.target.open()

        def handles_for(geometry: Geometry) -> HolderHandles | None:
            return self._handles(geometry, driver, running)

        handles = handles_for(planned.geometry)
        session = Session(planned, driver, handles, running.with_notes, handles_for)
        live = Live(session, handles)
        session.begin(verify=True)
        return live

    def _completed(self, report: Report) -> Report:
        return self._producers.with_survivors(report)

    def _handles(self, geometry: Geometry, driver: Driver, running: Producers) -> HolderHandles | None:
        if not any(group.origin for group in geometry.every):
            return None
        return HolderHandles(geometry, uuids(driver), running.sockets, self._allowed)


def applied(
    spec: SpecLike,
    machine: MachineLike = "local",
    bind: Mapping[str, BoundLike] | None = None,
    *,
    allow_uids: Collection[int] = (),
    params: Params | None = None,
) -> Applied:
    """Build and check a spec, for the duration of a `with`; at its end, wait for the GPUs and take everything down.

    `bind` maps the names of external holders in the spec to the path of a socket, or to a command as a list of words,
    which runs until the end and serves at the path in its MEMTOPO_SOCKET. `allow_uids` are other users whose layouts
    may be imported. `params` are values of the spec's parameters, in place of those that it declares. The initial
    contents of the memory are undefined.

    Entering raises `InvalidSpec` with all diagnostics, `Unavailable` if there is no such machine, `Unsuitable` if the
    spec imports nothing from a name in `bind`, `ProducerFailed` if a command does not serve, and `NotApplied` with the
    report after everything was undone. Views that are still in use at the end are named in a `ViewOutlived` warning.
    """
    return Applied(spec, machine, bound_holders(bind), allow_uids, params)


def bound_holders(bind: Mapping[str, BoundLike] | None) -> dict[str, Bound]:
    """Return the sockets and commands of holders by name."""
    return {name: _bound(given) for name, given in (bind or {}).items()}


def producers_of(found: Composition, bind: Mapping[str, Bound], **limits: Any) -> AbstractContextManager[Producers]:
    """Return the producers of a layout, to be entered. Raises `Unsuitable` for a name that it imports nothing from."""
    if wrong := unused(bind, found.geometry):
        raise Unsuitable(f"bind: {wrong[0]}", hint=wrong[1])
    machine = found.target.machine if found.target.simulated else None
    return start_producers(found.geometry, bind, machine, name=found.target.name, **limits)


def _bound(given: BoundLike) -> Bound:
    return os.fspath(given) if isinstance(given, str | os.PathLike) else tuple(given)
