"""A process that joins a held layout by itself: its part is built beside the held processes, and ends alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from memtopo.api.errors import NotJoined, Unsuitable, require_tried, valid
from memtopo.api.imports import Lease
from memtopo.api.joined_member import JoinedLayout, OnLost
from memtopo.api.session import OwnSession, uuids
from memtopo.api.specs import Loaded, Params, SpecLike
from memtopo.common.arguments import checked
from memtopo.common.errors import ExchangeError
from memtopo.common.text import process_name
from memtopo.drivers import target as targets
from memtopo.drivers.target import Target
from memtopo.geometry import Geometry
from memtopo.machine import Machine, dump
from memtopo.plans.report import Check, Checks
from memtopo.run.processes.member import ProcessLost
from memtopo.session.composition import Composition
from memtopo.session.saved import spec_digest
from memtopo.sharing.claims import claim, lock_owner
from memtopo.sharing.client import Client
from memtopo.sharing.endpoints import Endpoint
from memtopo.sharing.held import held_source
from memtopo.sharing.status import Notice


class HeldSession(OwnSession):
    """Part of a layout that this process has beside the held processes. Its states are those of this part."""

    def change(self, spec: SpecLike, check: Check, params: Params | None = None) -> Checks:
        del spec, check, params
        message = "the spec belongs to the held layout; use 'memtopo change' to change it"
        raise Unsuitable(message, hint="change it, leave, and join again")


class HeldLayoutPart(JoinedLayout):
    """One process's part of a layout whose other processes are held: `poll` follows their changes.

    A switch is that of this part alone. Without the holder, the imports stay valid until the end of the `with`.
    """

    def __init__(self, session: HeldSession, process: str, layout: str, lease: Lease, on_lost: OnLost) -> None:
        super().__init__(session, process, on_lost)
        self._layout, self._lease = layout, lease

    @property
    def over(self) -> str | None:
        client = self._lease.client
        return f"the holder of layout {self._layout!r} has ended" if client and client.gone() else None

    def _loss(self) -> ProcessLost:
        client = self._lease.client
        return ProcessLost(str(self.over), "holder", (client.pid or None) if client else None)

    @checked()
    def poll(self, timeout: float = 0.0) -> Notice | None:
        try:
            return super().poll(timeout)
        except ExchangeError:
            if not self.over:
                raise
        self._note_lost()
        return None


class HeldPart(Struct, frozen=True):
    """Process of a spec that joins the held ones of its layout, which is at the endpoint `where`."""

    loaded: Loaded
    process: str
    target: Target
    where: Endpoint
    on_lost: OnLost

    def build(self, client: Client, resources: ExitStack, wait: float) -> HeldLayoutPart:
        """Build the part of this process, `wait` for seconds until a writer has committed what it imports.

        Raises `NotJoined`, `ExchangeError`, and what `applied` raises.
        """
        name, machine = self.loaded.name, self._machine(client)
        self._claim(resources)
        found = self._on(machine)
        planned = valid(Composition.of(self.loaded.document, found, joining=True)).of_process(self.process)
        require_tried(planned)
        exports = [*_exports(planned.geometry, name)]
        if any(client.offers()[each].commit not in (None, "committed") for each in exports):
            client.await_commit([each for each in exports if client.offers()[each].commit], wait=wait)
        lease = Lease(planned, targets.uuids(machine), client, name)
        absent = lease.absent(exports, client.status().layout_state)
        session = HeldSession(planned, found.open(), lease, absent=absent)
        layout = HeldLayoutPart(session, self.process, name, lease, self.on_lost)
        layout.begin()
        return layout

    def _machine(self, client: Client) -> Machine:
        """Return the machine that the layout is held on. Raises `NotJoined` for another layout or another machine."""
        source, line = held_source(client), client.status().machine
        if source is None:
            raise NotJoined(f"layout {self.loaded.name!r} does not send its spec")
        document, machine = source
        if (digest := spec_digest(document)) != self.loaded.digest:
            message = f"layout {self.loaded.name!r} has another spec, {digest}, than this process, {self.loaded.digest}"
            raise NotJoined(message, hint="'memtopo show' prints the one that is held")
        own = self.target
        if line.simulated != own.simulated or (own.simulated and dump(machine) != dump(own.machine)):
            raise NotJoined(f"layout {self.loaded.name!r} is held on machine {line.name!r}, and not on {own.name!r}")
        return machine

    def _claim(self, resources: ExitStack) -> None:
        """Be the one process of this label for as long as the layout exists. Raises `NotJoined`."""
        own = replace(self.where, file=f"{self.where.file.removesuffix('.sock')}.{self.process}.sock")
        try:
            resources.enter_context(claim(own))
        except ExchangeError as error:
            if error.code != "held":
                raise
            folder = own.open_folder()
            owner = lock_owner(folder, own.lock)
            os.close(folder)
            raise NotJoined(f"{self.process} has joined already, as {process_name(owner)}") from None

    def _on(self, machine: Machine) -> Target:
        """Return the machine of the layout with the driver of this process, which may see some of its GPUs only."""
        if self.target.simulated:
            return self.target
        visible = targets.ordinals(uuids(self.target.open()), targets.uuids(machine))
        opener = partial(targets.open_in_worker, machine, simulated=False, visible=visible)
        return Target(self.target.name, machine, simulated=False, _opener=opener)


def _exports(geometry: Geometry, layout: str) -> Iterator[str]:
    """Yield the exports of a held layout that a process imports from."""
    sources = (source for group in geometry.every if group.origin for source in group.origin.sources)
    return (export for holder, export in dict.fromkeys(sources) if holder == layout)
