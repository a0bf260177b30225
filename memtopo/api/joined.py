"""`memtopo.join`: a context manager in which this process is one of the processes of a layout.

Beside held processes, it joins by itself: its part is built beside theirs, and ends alone.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from functools import partial
from typing import Self, get_args

from msgspec import Struct
from msgspec.structs import replace

from memtopo.api.apply import LiveContext
from memtopo.api.errors import NotJoined, Unsuitable, require_tried, valid
from memtopo.api.imports import AttachTerms, Lease
from memtopo.api.joined_member import JoinedLayout, JoinedSession, LayoutOfMembers, OnLost
from memtopo.api.session import OwnSession, uuids
from memtopo.api.specs import Loaded, MachineLike, Params, SpecLike, load, resolved
from memtopo.common import __version__
from memtopo.common.arguments import checked, refused, seconds
from memtopo.common.errors import ExchangeError, on_failure
from memtopo.common.signals import deferred
from memtopo.common.text import process_name
from memtopo.drivers import target as targets
from memtopo.drivers.target import Target
from memtopo.language import SpecText
from memtopo.language.entries import nodes_of
from memtopo.machine import Machine, dump
from memtopo.plans.report import Check, Checks
from memtopo.run.processes.gathering import Join, NotComplete, require_place
from memtopo.run.processes.member import JoinRefused, ProcessLost, joined, joining_endpoint
from memtopo.session.composition import Composition
from memtopo.session.saved import spec_digest
from memtopo.sharing.claims import Claim, claim, lock_owner
from memtopo.sharing.client import Client
from memtopo.sharing.endpoints import Endpoint, usual_endpoint
from memtopo.sharing.held import held_source
from memtopo.sharing.status import Notice


class Rank(str):
    """Label of a counted process, `rank.3`; `world` is the number of processes that its launcher started, if known."""

    __slots__ = ("world",)
    world: int | None

    def __new__(cls, name: str, index: int, world: int | None) -> Self:
        found = super().__new__(cls, f"{name}.{index}")
        found.world = world
        return found


_LAUNCHERS = (
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
"""Variables for the number of a process and of all processes: torchrun, Open MPI, MPICH, Slurm.

Those of this host come first, since a layout is of one host.
"""


@checked()
def rank(name: str = "rank") -> Rank:
    """Return the process of a counted entry `name` that this one is by its launcher's numbers.

    They are those of torchrun, Open MPI, MPICH or Slurm, among the processes of this host. A Ray actor is the process
    that it is named as, such as `rank.3`, since Ray numbers none. Raises `Unsuitable` if there is no such number.
    """
    ray = sys.modules.get("ray")
    actor = ray.get_runtime_context().get_actor_name() if ray and ray.is_initialized() else None
    if actor is not None:
        entry, _, number = actor.rpartition(".")
        if entry == name and number.isdecimal():
            return Rank(name, int(number), None)
    for index, world in _LAUNCHERS:
        if index in os.environ and world in os.environ:
            return Rank(name, int(os.environ[index]), int(os.environ[world]))
    raise Unsuitable("no launcher has numbered this process", hint=f"name it: process='{name}.0'")


class Joined(LiveContext[JoinedLayout]):
    """Part of a layout that exists for the duration of a `with`."""


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


def _held_machine(client: Client, loaded: Loaded, own: Target) -> Machine:
    """Return the machine that the layout is held on. Raises `NotJoined` for another layout or another machine."""
    source, line = held_source(client), client.status().machine
    if source is None:
        raise NotJoined(f"layout {loaded.name!r} does not send its spec")
    document, machine = source
    if (digest := spec_digest(document)) != loaded.digest:
        message = f"layout {loaded.name!r} has another spec, {digest}, than this process, {loaded.digest}"
        raise NotJoined(message, hint="'memtopo show' prints the one that is held")
    if line.simulated != own.simulated or (own.simulated and dump(machine) != dump(own.machine)):
        raise NotJoined(f"layout {loaded.name!r} is held on machine {line.name!r}, and not on {own.name!r}")
    return machine


def _claim(process: str, held: Endpoint) -> Claim:
    """Be the one process of this label for as long as the layout exists. Raises `NotJoined`."""
    own = replace(held, file=f"{held.file.removesuffix('.sock')}.{process}.sock")
    try:
        return claim(own)
    except ExchangeError as error:
        if error.code != "held":
            raise
        folder = own.open_folder()
        owner = lock_owner(folder, own.lock)
        os.close(folder)
        raise NotJoined(f"{process} has joined already, as {process_name(owner)}") from None


def _visible(own: Target, machine: Machine) -> Target:
    """Return the machine of the layout with the driver of this process, which may see some of its GPUs only."""
    if own.simulated:
        return own
    visible = targets.ordinals(uuids(own.open()), targets.uuids(machine))
    opener = partial(targets.open_in_worker, machine, simulated=False, visible=visible)
    return Target(own.name, machine, simulated=False, _opener=opener)


class _Options(Struct, frozen=True):
    """Arguments of `join`; `timeout` in seconds."""

    spec: SpecLike
    process: str
    machine: MachineLike
    timeout: float
    params: Params | None
    check: Check
    socket: str | None
    on_lost: OnLost

    @property
    def _world(self) -> int | None:
        """Number of processes of the launcher that has numbered this one; None if none is known."""
        return self.process.world if isinstance(self.process, Rank) else None

    def build(self, resources: ExitStack) -> JoinedLayout:
        """Build the part of this process, together with all others, or beside the held ones."""
        loaded = load(self.spec, params=self.params)
        if not loaded.spec.processes:
            raise Unsuitable(f"{loaded.name} has no processes", hint="memtopo.applied builds it in this process")
        if nodes_of(loaded.spec):
            message = f"{loaded.name} is a spec of several nodes, but processes can join only on one host"
            raise Unsuitable(message, hint="'memtopo apply --on' starts it on a cluster")
        held = usual_endpoint(loaded.name, self.socket)
        return self._beside(loaded, held, resources) if loaded.spec.held_processes else self._together(loaded, held)

    def _beside(self, loaded: Loaded, held: Endpoint, resources: ExitStack) -> JoinedLayout:
        """Build it beside the processes that are held. Raises `NoLayout` if none are."""
        name = self.process.partition(".")[0]
        if name in loaded.spec.held_processes:
            raise NotJoined(f"process {name!r} is held", hint=f"'memtopo apply {loaded.document.name} --hold' has it")
        joining = [each for each in loaded.spec.labels if each.partition(".")[0] not in loaded.spec.held_processes]
        try:
            require_place(self.process, self.process, self._world, joining)
        except NotComplete as error:
            raise NotJoined(error.message, hint=error.hint) from None
        own, terms = resolved(self.machine), AttachTerms.within(self.timeout)
        client = terms.connect(held, ())
        with on_failure(client.close):
            layout = self._build_beside(client, loaded, own, held, resources, terms)
        resources.callback(client.close)
        return layout

    def _build_beside(
        self, client: Client, loaded: Loaded, own: Target, held: Endpoint, resources: ExitStack, terms: AttachTerms
    ) -> HeldLayoutPart:
        """Build the part of this process, once a writer has committed what it imports.

        Raises `NotJoined`, `ExchangeError`, and what `applied` raises.
        """
        machine = _held_machine(client, loaded, own)
        resources.enter_context(_claim(self.process, held))
        target = _visible(own, machine)
        composition = Composition.of(loaded.document, target, joining=True)
        planned = valid(composition).of_process(str(self.process))
        require_tried(planned)
        origins = (group.origin for group in planned.geometry.every if group.origin)
        sources = dict.fromkeys(source for origin in origins for source in origin.sources)
        exports = [export for holder, export in sources if holder == loaded.name]
        offers = client.offers()
        if any(offers[each].commit not in (None, "committed") for each in exports):
            client.await_commit([each for each in exports if offers[each].commit], wait=terms.left)
        lease = Lease(planned, targets.uuids(machine), client, loaded.name)
        absent = lease.absent(exports, client.status().layout_state)
        session = HeldSession(planned, target.open(), lease, absent=absent)
        layout = HeldLayoutPart(session, str(self.process), loaded.name, lease, self.on_lost)
        layout.begin()
        return layout

    def _together(self, loaded: Loaded, held: Endpoint) -> JoinedLayout:
        """Build it together with all others. Raises `NotJoined`."""
        target = resolved(self.machine)
        signals = deferred()

        def check_signals() -> int:
            signals.handle()
            return 0

        def request() -> Join:
            return Join(
                version=__version__,
                process=str(self.process),
                spec=SpecText.of(loaded.document),
                machine=target.name,
                record=dump(target.machine) if target.simulated else None,
                gpus=() if target.simulated else tuple(uuids(target.open())),
                check=self.check,
                timeout=self.timeout,
                world=self._world,
            )

        try:
            with signals:
                member = joined(joining_endpoint(held), request, self.timeout, check_signals)
        except JoinRefused as error:
            raise NotJoined(error.message, hint=error.hint, exit_code=error.exit_code) from None
        session = JoinedSession(member, target, held, signals)
        session.begin()
        return LayoutOfMembers(session, self.process, self.on_lost)


@checked(check=get_args(Check))
def join(
    spec: SpecLike,
    process: str,
    machine: MachineLike = "local",
    *,
    timeout: str | float = 60.0,
    params: Params | None = None,
    check: Check = "fast",
    socket: str | os.PathLike[str] | None = None,
    on_lost: OnLost = "raise",
) -> Joined:
    """Be one process of a multi-process spec for the duration of a `with`, together with all its other processes.

    `process` is the label of this process, such as `rank.0`, or `memtopo.rank()`. The processes of a layout meet by its
    name; the first one starts a small process that coordinates them, and holds the layout under its name for other
    programs. `timeout`, in seconds or as `60s`, is how long each waits for the others, and after which a process that
    is silent counts as lost. `socket` is a folder that the processes share, by default that of MEMTOPO_SOCKET or the
    user's own; `machine`, `params` and `check` have to be the same in all processes.

    Entering raises `InvalidSpec`, `Unavailable`, `NotJoined` if the processes do not make the layout of the spec,
    `NoLayout` if it joins held processes that nobody holds, `ExchangeError` if the folder cannot be used, and
    `NotApplied` with the report of all processes after everything was undone.
    """
    if on_lost != "raise" and not callable(on_lost):
        raise refused("on_lost", on_lost, "'raise' or a function", "pass a function of the reason")
    where = os.fspath(socket) if socket else None
    return Joined(_Options(spec, process, machine, seconds("timeout", timeout), params, check, where, on_lost).build)


__all__ = ["Joined", "JoinedLayout", "Rank", "join", "rank"]
