"""Holder of a layout: its exports and changes, which it serves until a stop, a release or a deadline."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress

from msgspec import Struct, field
from msgspec.structs import replace

from memtopo.common.errors import ExchangeError, Stopped
from memtopo.common.text import plural, process_name
from memtopo.diagnostics.messages import not_awake
from memtopo.driver.types import Location, LocationKind
from memtopo.executor import StepFailed
from memtopo.language.names import AWAKE
from memtopo.native.tables import tables_of
from memtopo.planner import Plan
from memtopo.plans.report import Check, Checks
from memtopo.plans.transition import Transition
from memtopo.run.conductor import Aborted, Conductor
from memtopo.run.imports import Follower
from memtopo.run.layout_plans import WHOLE, Goal, kept, provided, transitions_between
from memtopo.run.transition import RollbackFailed
from memtopo.session.composition import Composition, Holding, HoldResult, Revise, RunRequest
from memtopo.sharing.claims import Claim
from memtopo.sharing.holder import hold
from memtopo.sharing.holder.loop import INTERVAL
from memtopo.sharing.holder.state import HolderInfo, HoldSummary, ProgressNotices, Supervision
from memtopo.sharing.offers import ChangeFailed, Offer
from memtopo.sharing.sockets import SYSTEM, System
from memtopo.sharing.status import HeapUse, Importer, LocationMemory
from memtopo.storage.saved import Saved

_ENDED = -1
"""Reason to stop holding that is no signal."""


class Holder(Struct, frozen=True):
    """Serves a layout that was built and checked, at a claimed endpoint, and returns notes for the report.

    The conductor's stop ends the hold, and is asked at once when `wake` can be read; the notes name that end as
    `stopped_by`. `revise` validates a changed spec, and `ready` is called when clients can connect. `supervised` is
    entered while the layout is served, for the log, the metrics and reloads. `log` is the descriptor for the output of
    the layout's processes.
    """

    claim: Claim
    about: HolderInfo
    revise: Revise
    terms: Holding = field(default_factory=Holding)
    gpus: Sequence[str | None] = ()
    ready: Callable[[], None] = lambda: None
    supervised: Callable[[], AbstractContextManager[Supervision]] = lambda: nullcontext(Supervision())
    wake: socket.socket | None = None
    stopped_by: str = "a signal"
    log: int | None = None
    progress: ProgressNotices = field(default_factory=ProgressNotices)
    """Hooks for the work on the layout, whose clients get notices of it."""
    released: Callable[[], bool] = lambda: False
    """Returns true once another node of the layout is released, which ends the hold."""
    system: System = SYSTEM

    def hold(self, conductor: Conductor) -> HoldResult:
        """Serve the exports of a layout, until one of its processes ends."""
        conductor.release_contexts()
        layout, follower = HeldLayout(conductor, self.about.source, self.revise), Follower(conductor)

        def stop() -> int:
            return follower.stop() or (_ENDED if self.released() else 0)

        with self.supervised() as supervision:
            held = hold(
                layout,
                self.claim,
                replace(self.about, committed=conductor.committed),
                stop=stop,
                lasting=self.terms.lasting,
                grace=self.terms.grace,
                allow_uids=self.terms.allow_uids,
                ready=self.ready,
                wake=self.wake,
                interval=min(INTERVAL, conductor.interval),
                changeable=None if supervision.nodes else layout,
                supervision=self._reporting(layout, supervision),
                system=self.system,
            )
        node = supervision.nodes.own if supervision.nodes else ""
        return HoldResult([*_notes(held, self.stopped_by, node), *follower.notes], self.claim.kept_open)

    def await_end(self, conductor: Conductor, ended: Callable[[], bool]) -> None:
        """Answer clients while a layout is taken down, until `ended` returns true. Raises `ExchangeError`."""
        layout = HeldLayout(conductor, self.about.source, self.revise)
        hold(
            layout,
            self.claim,
            self.about,
            stop=lambda: _ENDED,
            grace=0.0,
            interval=min(INTERVAL, conductor.interval),
            changeable=layout,
            supervision=self._reporting(layout, Supervision()),
            finished=ended,
            system=self.system,
        )

    def _reporting(self, layout: HeldLayout, supervision: Supervision) -> Supervision:
        """Return the supervision of a layout, with what its conductor knows."""
        conductor = layout.conductor
        return replace(
            supervision,
            memory=lambda: _location_memory(layout.plans, self.gpus),
            contexts=lambda: layout.contexts,
            processes=lambda: conductor.pids,
            heaps=lambda: tuple(_heaps(conductor)),
            progress=self.progress,
            reports_end=True,
            end=lambda: conductor.layout_end,
        )


def about_holder(composition: Composition, request: RunRequest) -> HolderInfo:
    """Return what a holder tells its clients of a layout."""
    return HolderInfo(request.plan.name, request.spec, request.machine, composition.source)


def _location_memory(plans: Iterable[Plan], gpus: Sequence[str | None]) -> tuple[LocationMemory, ...]:
    """Memory that the steps of plans allocate by location; `gpus` are UUIDs by ordinal."""
    sizes: dict[Location, list[int]] = {}
    allocated = (step.allocates for plan in plans for step in plan.steps)
    for location, size in (each for each in allocated if each):
        sizes.setdefault(location, []).append(size)
    return tuple(
        LocationMemory(
            str(location),
            gpus[location.id] if location.kind is LocationKind.GPU and location.id < len(gpus) else None,
            sum(found),
            len(found),
        )
        for location, found in sorted(sizes.items())
    )


def _heaps(conductor: Conductor) -> Iterator[HeapUse]:
    """Read the tables of the heaps of a layout's processes, and yield the use of each heap."""
    for process, pid in conductor.pids.items():
        geometry = conductor.request.geometry.processes.get(process, conductor.request.geometry)
        growing = [group for group in geometry.every if group.growing and group.addressed]
        locations = {group.name: str(group.location_of(0)) for group in growing}
        for label, table in tables_of(pid, conductor.plans.name_of(process)):
            sizes = [each.size for each in table.allocations()]
            where = locations.get(label, "")
            yield HeapUse(process, label, len(sizes), sum(sizes), table.mapped, where, table.backed)
            table.close()


def _notes(held: HoldSummary, stopped_by: str, node: str) -> Iterator[str]:
    """Notes on the end of a hold; `node` is that of the holder if the layout has several."""
    ends = {
        "signal": stopped_by,
        "release": "a release here" if node else "a release",
        "deadline": "its deadline",
        "failure": "a failed change",
        "ended": "the end of another node" if node else "one of its processes ended",
    }
    served = f"{plural(held.handles, 'handle')} to {plural(held.clients, 'client')}"
    yield f"{f'node {node}: ' * bool(node)}held for {held.seconds:.1f} s, until {ends[held.why]}; served {served}"
    for importer in held.lost:
        yield _note_on(importer, "lost the memory that it used over ipc or from pools")
    for importer in held.kept:
        yield _note_on(importer, "keeps memory alive that it imported")
    yield from held.notes


def _note_on(importer: Importer, what: str) -> str:
    exports = ", ".join(f"{taken.handles:,} of {taken.export}" for taken in importer.taken)
    return f"{process_name(importer.pid)} of user {importer.uid} {what}: {exports}"


class HeldLayout:
    """A layout that is held. Exports of several processes are named by process: `server.weights`, `pe.3.heap`."""

    def __init__(self, conductor: Conductor, source: str, revise: Revise) -> None:
        self.conductor, self.source, self._revise = conductor, source, revise
        self.handle, self.lend = conductor.handle, conductor.lend
        self.take_back, self.lent = conductor.take_back, conductor.lent

    def offers(self) -> Sequence[Offer]:
        exports = self.conductor.exports().items()
        return [offer.of_process(label, name) if label else offer for name, (label, offer) in exports]

    def check(self) -> Checks:
        with self.conductor.announced("check"):
            return self.conductor.recheck()

    @property
    def plans(self) -> Sequence[Plan]:
        """Plans of all processes of the layout that run here as it is now."""
        conductor = self.conductor
        every = conductor.plans.of(conductor.variant).items()
        return tuple(plan for label, plan in every if label in self.conductor.labels)

    @property
    def contexts(self) -> Sequence[str]:
        """GPU of each context that a process keeps."""
        return self.conductor.contexts

    @property
    def spec(self) -> str | None:
        return self.conductor.request.spec

    @property
    def generation(self) -> int:
        return self.conductor.generation

    @property
    def state(self) -> str:
        return self.conductor.state

    @property
    def states(self) -> Sequence[str]:
        return tuple(self.conductor.plans.states)

    def switch(self, state: str) -> HeldLayoutChange:
        conductor, plans = self.conductor, self.conductor.plans
        now, after = conductor.variant, (state, conductor.absent)
        undone = _undone(plans.transitions(now, after))
        lost = {label: _lost(plans.of(now)[label], plans.of(after)[label], each) for label, each in undone.items()}

        def act(in_use: Collection[str], check: Check) -> Checks:
            return conductor.switch(state, in_use, check=check)

        touched, emptied = plans.touched(undone, plans), plans.touched(lost, plans)
        return HeldLayoutChange(self, touched, emptied, act, reused=plans.reused(emptied, lost))

    def save(self, folder: str, committed: Collection[str]) -> Saved:
        with self.conductor.announced("save"):
            return self.conductor.save(folder, committed)

    def change(self, source: str, generation: int | None) -> HeldLayoutChange:
        conductor, before = self.conductor, self.conductor.request
        name = self.conductor.request.plan.name
        if generation not in (None, self.generation):
            message = f"the layout has generation {self.generation}, but the change was planned for {generation}"
            raise ExchangeError("stale", message, hint="plan it again")
        if self.state != AWAKE:
            message, hint = not_awake(name, self.state)
            raise ExchangeError("state", message, hint=hint)
        if self.conductor.absent:
            message = f"layout {name!r} has lost imports that their holder has released"
            raise ExchangeError("state", message, hint="try again when they are imported again")
        revision = self._revise(source, before)
        for label, geometry in before.geometry.processes.items():
            if geometry.visible != revision.request.geometry.processes[label].visible:
                message = f"process {label!r} sees other GPUs in the spec, and a change keeps its 'visible'"
                raise ExchangeError("invalid", message, hint="release the layout, and apply the spec")
        try:
            after = conductor.plan(Goal(WHOLE, revision.request.check, request=revision.request, source=source))
        except StepFailed as failed:
            raise ExchangeError("failed", f"{failed}; the layout is {self.state}, as before") from failed
        undone = _undone(transitions_between(conductor.plans.of(conductor.variant), after.of(WHOLE)))
        touched = conductor.plans.touched(undone, after)

        def act(in_use: Collection[str], check: Check) -> Checks:
            conductor.change(replace(revision.request, check=check), source, in_use)
            self.source = revision.source
            return conductor.checks()

        return HeldLayoutChange(self, touched, touched, act, reused=conductor.plans.reused(touched, undone))

    def renewal(self, exports: frozenset[str]) -> HeldLayoutChange:
        resources = self.conductor.plans.resources_of(exports)
        after = f"the memory of {', '.join(sorted(exports))} is created for the next writer"
        plans, now = self.conductor.plans, self.conductor.plans.of(self.conductor.variant)
        offloaded = {(label, resource) for label, plan in now.items() for resource in kept(plan)}
        lost = frozenset(name for name in exports if offloaded.isdisjoint(plans.resources_of((name,))))
        return HeldLayoutChange(self, exports, lost, lambda _in_use, _check: self.conductor.recreate(resources), after)


class HeldLayoutChange(Struct, frozen=True):
    """Change of a held layout, the exports that it touches, and those whose bytes it does not keep.

    Of `reused` ones, which it empties, some memory stays. `act` makes it, while importers keep the memory of some
    exports, with such a check. `after_failure` is what a failure leaves, if that is not the layout as it was before.
    """

    held: HeldLayout
    touched: frozenset[str]
    lost: frozenset[str]
    act: Callable[[Collection[str], Check], Checks]
    after_failure: str = ""
    reused: frozenset[str] = frozenset()

    def give_up(self) -> None:
        with suppress(StepFailed, Aborted, ExchangeError):  # which the next command finds
            self.held.conductor.release_contexts()

    def make(self, *, full: bool, in_use: frozenset[str] = frozenset()) -> Checks:
        try:
            with self.held.conductor.announced("change"):
                return self.act(in_use, "full" if full else "fast")
        except RollbackFailed as failed:
            raise ChangeFailed(f"{failed}; the layout is taken down", broken=True) from failed
        except (StepFailed, Stopped) as failed:
            after = self.after_failure or f"the layout is {self.held.state}, as before"
            hint = failed.hint if isinstance(failed, StepFailed) else None
            raise ChangeFailed(f"{str(failed) or 'interrupted'}; {after}", broken=False, hint=hint) from failed


def _undone(steps: Mapping[str, Transition]) -> dict[str, set[Hashable]]:
    """Resources of each process that transitions release."""
    return {label: {step.provides for step in each.undo} for label, each in steps.items()}


def _lost(before: Plan, after: Plan, undone: Collection[Hashable]) -> set[Hashable]:
    """Resources whose bytes neither stay in their memory nor are offloaded in a switch that undoes some."""
    offloaded = kept(after)
    return ({*undone} - offloaded) | (kept(before) - provided(after) - offloaded)
