"""A story: a seed and events, told by production code in a world, until everything has ended and nothing is left."""

from __future__ import annotations

import gc
import os
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from msgspec.structs import replace

from memtopo.api.attachment import Attached
from memtopo.driver.types import gpu
from memtopo.sharing.endpoints import endpoint
from tests.story.coverage import Reached, listening
from tests.story.director import GUEST, HOLDER, OPERATORS, Director, Situation
from tests.story.files import LOG, HolderFiles
from tests.story.heaps import VERBS as HEAP_VERBS
from tests.story.layouts import CHUNK, HEAP_USERS, POOL, Pool, drawn_machine, drawn_shape
from tests.story.lending import LentMemory, leases_of, lending_export, lent_entry
from tests.story.oracle import Oracle, memory_of
from tests.story.programs import SIGTERM, EngineProgram, Event, HolderProgram, OperatorProgram
from tests.story.workers import MemberProgram, WorkerProgram
from tests.story.world import OTHER_USER, USER, Actor, Broken, Fault, World, crowding

LENGTH = 200
"""Events of a story."""

_SETTLING = 400.0
"""Simulated seconds within which everything goes on or has ended, once there are no more faults."""

_STEPS = 60_000
_ADOPTER = "e9"
"""Engine that takes everything that processes have left, once there are no more faults."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Told:
    """A story that was told: what has happened, and the promise that was broken."""

    seed: int
    events: tuple[Event, ...]
    trace: tuple[str, ...]
    failure: str
    reason: str
    seen: Counter[Situation]
    reached: Reached
    steps: int
    reads: int


def tell(seed: int, events: Sequence[Event] | None = None, length: int = LENGTH) -> Told:
    """Tell the story of a seed, with its own events or the given ones. The caller's thread is not the main one."""
    with TemporaryDirectory(prefix="story-") as folder:
        telling = _Telling(seed, folder)
        failure = reason = ""
        try:
            with listening(telling.world.reached), crowding(telling.world):
                telling.tell(events, length)
        except (Exception, Broken) as error:
            failure = "".join(traceback.format_exception(error))
            reason = f"{type(error).__name__}: {error}"
        telling.end()
        told = tuple(telling.events), tuple(telling.world.trace)
        world, seen = telling.world, telling.director.seen
        return Told(seed, *told, failure, reason, seen, world.reached, world.steps, telling.oracle.checked)


class _Telling:
    """The world of one story while it is told."""

    def __init__(self, seed: int, folder: str) -> None:
        draw = Random(f"world {seed}")
        machine = drawn_machine(draw)
        self.gpus, self.folder = len(machine.devices), folder
        where = endpoint(socket=str(Path(folder, "kv.sock")))
        self.world = World(machine, Random(f"schedule {seed}"), where)
        self.oracle = Oracle(self.world, LentMemory(self.world), HolderFiles(self.world, folder))
        shape, faulty = drawn_shape(draw, self.gpus), draw.random() < 0.7
        self.director = Director(self.world, self.oracle, draw, self.gpus, shape, faulty)
        self.events: list[Event] = []
        self.hogged: dict[int, int] = {}

    def tell(self, events: Sequence[Event] | None, length: int) -> None:
        """Let everything happen, settle, and end. Raises what is broken."""
        for number in range(length if events is None else len(events)):
            event = self.director.choose() if events is None else events[number]
            self.events.append(event)
            self.director.record(event)
            self.world.note("", str(event))
            self._begin(event)
            for _ in range(event.pace):
                self._step()
        self._settle()
        self._end_all()

    def _begin(self, event: Event) -> None:
        if act := getattr(self, f"_{event.verb}", None):
            act(event.actor, *event.args)
            return
        actor = self.world.actors.get(event.actor)
        if event.verb in HEAP_VERBS and not self._member(event.actor):
            return
        if actor is None or not actor.alive:
            program: Any = EngineProgram if event.actor not in OPERATORS else OperatorProgram
            actor = self.world.start(event.actor, program(self.oracle, self.gpus))
            actor.user = OTHER_USER if event.actor == GUEST else USER
        if len(actor.inbox) < 3:
            actor.inbox.append(event)

    def _step(self) -> bool:
        going_on = self.world.step()
        if failure := self.world.failure:
            raise failure
        self.oracle.observe()
        return going_on

    def _start(self, name: str, shape: Any, rehearse: bool = False, full: bool = False) -> None:
        holder = self.world.holder
        if holder is None or not holder.alive:
            self.world.start(name, HolderProgram(self.oracle, shape, self.gpus, rehearse, full), holds=True)

    def _holder_program(self) -> HolderProgram | None:
        holder = self.world.holder
        return holder.program if holder and holder.alive else None

    def _stop(self, _name: str) -> None:
        if program := self._holder_program():
            program.stopped = SIGTERM
            self.oracle.faults += 1

    def _reload(self, _name: str, shape: Any) -> None:
        if program := self._holder_program():
            program.reload = shape

    def _kill(self, name: str) -> None:
        if actor := self.world.actors.get(name):
            self._count_fault(actor)
            actor.kill()

    def _count_fault(self, actor: Actor) -> None:
        """Count what befalls a process of the layout as a fault, after which the others may fail."""
        self.oracle.faults += isinstance(actor.program, WorkerProgram | MemberProgram)

    def _quit(self, name: str) -> None:
        """Have a process leave the layout that it has joined, which ends that."""
        if member := self._member(name):
            member.quits = True
            self.oracle.faults += 1

    def _compute(self, name: str, seconds: float) -> None:
        """Have a process that has joined the layout take part in nothing for some seconds."""
        if member := self._member(name):
            member.step = seconds

    def _member(self, name: str) -> MemberProgram | None:
        actor = self.world.actors.get(name)
        return actor.program if actor and actor.alive and isinstance(actor.program, MemberProgram) else None

    def _doom(self, name: str, after: int) -> None:
        if actor := self.world.actors.get(name):
            self._count_fault(actor)
            actor.doom = after

    def _fail(self, name: str, after: int, error: str, every: bool) -> None:
        if actor := self.world.actors.get(name):
            actor.fault = Fault(after, error, every)
            self.oracle.faults += 1

    def _late(self, name: str, seconds: float) -> None:
        if actor := self.world.actors.get(name):
            self._count_fault(actor)
            actor.late = self.world.now + seconds

    def _jump(self, _name: str, seconds: float) -> None:
        self.world.now += seconds

    def _cut(self, name: str) -> None:
        if (actor := self.world.actors.get(name)) and actor.alive:
            actor.cut()

    def _crowd(self, _name: str, seconds: float) -> None:
        """Have unread descriptors of other programs reach the limit of the holder's user for some seconds."""
        self.oracle.faults += 1
        self.world.crowded_until = self.world.now + seconds

    def _full(self, _name: str, seconds: float, room: int) -> None:
        """Have room for so many bytes on the disk of the holder's files for some seconds."""
        self.oracle.files.full_until, self.oracle.files.room = self.world.now + seconds, room

    def _hog(self, _name: str, ordinal: int, left: int) -> None:
        """Have another process take all memory of a GPU but for some chunks, or give it back."""
        place, budget = gpu(ordinal), self.world.budget
        budget.give(place, self.hogged.pop(ordinal, 0))
        if left >= 0:
            self.oracle.faults += 1
            self.hogged[ordinal] = max(budget.free(place) - left * CHUNK, 0)
            budget.take(place, self.hogged[ordinal])

    def _settle(self) -> None:
        """End all faults, and require that importers have what the holder has."""
        self.world.note("", "no more faults")
        for actor in self.world.actors.values():
            actor.doom, actor.fault, actor.late = 0, Fault(), self.world.now
        self.world.crowded_until = 0.0
        self._full("", 0.0, 0)
        for ordinal in tuple(self.hogged):
            self._hog("", ordinal, -1)
        self._go_on()
        self._ask(OPERATORS[0], "restore")
        self._ask(OPERATORS[1], "restore")
        self._go_on()
        self._adopt_all()
        for state in ("awake", "asleep", "awake"):
            self._ask(OPERATORS[0], "switch", state, 60.0, False)
            self._poll_all()
            self._rest(1.0)
            self._require_converged()
            for name in HEAP_USERS:
                self._ask(name, "read")

    def _lends(self) -> Pool | None:
        """Return the pool of which the holder lends now."""
        held = self.oracle.held
        if held is None or not held.provides or held.conductor is None:
            return None
        return held.shape.lends_in(held.conductor.state)

    def _adopt_all(self) -> None:
        """Require that another process can adopt what processes that have ended have sealed."""
        if not self._lends():
            return
        self._poll_all()
        self._rest(1.0)
        if not (pool := self._lends()) or not (keys := self.oracle.lent.free_keys(pool.quota)):
            return
        self._ask_adopter()
        for key in keys:
            self._ask(_ADOPTER, "adopt", key)
            self._go_on()
            program = self.world.actors[_ADOPTER].program
            if key not in program.borrower.keys.values():
                raise Broken(f"nobody can adopt what is sealed under {key}")
            self._ask(_ADOPTER, "shrink", pool.most, True)
            self._go_on()
        self._ask(_ADOPTER, "leave")
        self._go_on()

    def _ask_adopter(self) -> None:
        """Have an engine attach to what is lent."""
        held = self.oracle.held
        assert held
        self._ask(_ADOPTER, "attach", "reader", (held.shape.public(POOL),), 1.0, False)

    def _borrow_all(self) -> None:
        """Require that what is not sealed can be lent once no process has any of it."""
        self._rest(1.0)
        if not (pool := self._lends()):
            return
        free = min(pool.quota, pool.most - len(leases_of(self.oracle.held)))
        self._ask_adopter()
        self._ask(_ADOPTER, "grow", max(free, 1))
        self._go_on()
        if (has := len(self.world.actors[_ADOPTER].program.borrower.has)) != free:
            raise Broken(f"{has} of {pool.most} chunks can be lent, of which {free} are free")
        self._ask(_ADOPTER, "leave")
        self._go_on()

    def _ask(self, name: str, verb: str, *args: Any) -> None:
        self._begin(Event(name, verb, args))

    def _go_on(self) -> None:
        """Let time pass until nobody does anything but wait for events."""
        until, last = self.world.now + _SETTLING, self.world.steps + _STEPS
        while any(each.busy for each in self.world.actors.values()):
            if not self._step() or self.world.now > until or self.world.steps > last:
                busy = [f"{each.name} {each.doing}" for each in self.world.actors.values() if each.busy]
                raise Broken(f"these do not go on: {', '.join(busy)}")

    def _rest(self, seconds: float) -> None:
        """Let time pass, in which a holder finds that connections have ended."""
        until = self.world.now + seconds
        while self.world.now < until and self._step():
            pass

    def _poll_all(self) -> None:
        """Have all importers follow their notices until nothing is under way."""
        for _ in range(8):
            for name, actor in tuple(self.world.actors.items()):
                if actor.alive and isinstance(actor.program, EngineProgram) and actor.program.attached:
                    self._ask(name, "catch_up")
            self._go_on()

    def _require_converged(self) -> None:
        """Require that each importer has the memory that the holder has, and lacks what it lacks."""
        held = self.oracle.held
        if held is None or not held.provides or held.conductor is None:
            return
        memory, offers = held.memory(), held.conductor.exports()
        self._require_live_writers()
        self._require_lent(offers)
        for actor in self.world.actors.values():
            program = actor.program
            attached = program.attached if isinstance(program, EngineProgram) and actor.alive else None
            if attached is None or attached._lease.client is None or attached._lease.client.pid != held.actor.pid:
                continue
            if attached._lease.client.gone() and not self._can_attach_again(attached):
                continue
            for name, offer in attached.exports.items():
                if (
                    name in held.shape.published
                    and (now := offers.get(name))
                    and replace(now[1], count=offer.count, commit=None) == replace(offer, commit=None)
                ):
                    self._require_same(actor, attached, name, now[1].count, memory.get(name))

    def _can_attach_again(self, attached: Attached) -> bool:
        """Return whether a process that lost its connection has nothing to wait for."""
        return all(self.oracle.readable(name) for name, offer in attached.exports.items() if offer.commit)

    def _require_lent(self, offers: Mapping[str, Any]) -> None:
        """Require that the holder leases what processes have, who know how many there may be."""
        held, found = self.oracle.held, list[tuple[Actor, Attached]]()
        assert held
        for actor in self.world.actors.values():
            program = actor.program
            attached = program.attached if isinstance(program, EngineProgram) and actor.alive else None
            if attached and lending_export(attached):
                found.append((actor, attached))
        self.oracle.lent.require_leases(held, found)
        for actor, attached in found if self._lends() else ():
            if not (client := attached._lease.client) or client.pid != held.actor.pid or client.gone():
                continue
            name = lending_export(attached)
            own, now = attached.exports[name], offers[name][1]
            if replace(own, count=now.count, lends=now.lends) == now and (
                name in attached.absent or attached.chunks(lent_entry(attached)).limit != now.count
            ):
                raise Broken(f"{actor.name} cannot be lent what the holder lends: {own}, {now}")

    def _require_live_writers(self) -> None:
        """Require that a process with the lease to write an export exists, and has it."""
        for name, pid in self.oracle.writers().items():
            found = [each for each in self.world.actors.values() if each.pid == pid and each.alive]
            if not any(isinstance(each.program, EngineProgram) and each.program.attached for each in found):
                raise Broken(f"process {pid}, which has ended, has the lease to write {name}")

    def _require_same(
        self, actor: Actor, attached: Attached, name: str, count: int, held: tuple[str, ...] | None
    ) -> None:
        """Require that an import is what its holder has, of so many chunks, as far as there is room for them."""
        own, room = attached.exports[name].count, attached._importer.reserve.get(name, 0)
        if own != count and (count < own or room < count * CHUNK):
            return
        if name in attached.absent:
            if held and (self.oracle.readable(name) or self.oracle.writers().get(name) == actor.pid):
                raise Broken(f"{actor.name} lacks {name}, which has memory")
        elif held != (has := memory_of(attached, name)):
            raise Broken(f"{actor.name} has {has} of {name}, and the holder {held}")

    def _end_all(self) -> None:
        """Release the layout, end all processes, and require that nothing is left."""
        if self._lends():
            self._leave_all()
            self._go_on()
            self._borrow_all()
        self._ask(OPERATORS[0], "release", True, 1.0)
        self._poll_all()
        self._leave_all()
        self._go_on()
        self._rest(1.0)
        for name, actor in self.world.actors.items():
            if actor.alive and (name == HOLDER or isinstance(actor.program, MemberProgram)):
                raise Broken(f"{name} has not ended after the release of the layout")
        self.end()
        if left := {str(place): size for place, size in self.world.budget.used.items() if size}:
            raise Broken(f"memory is left: {left}")
        holder = self.world.holder
        if (
            holder
            and isinstance(holder.program, HolderProgram)
            and holder.program.report
            and (files := {*os.listdir(self.folder)} - {LOG})
        ):
            raise Broken(f"files are left: {files}")

    def _leave_all(self) -> None:
        for name, actor in tuple(self.world.actors.items()):
            if actor.alive and isinstance(actor.program, EngineProgram):
                self._ask(name, "leave")

    def end(self) -> None:
        """End all processes."""
        for actor in self.world.every:
            actor.kill()


def apart(work: Callable[[], T]) -> T:
    """Do work in a thread of its own: no handler of a signal is set there, as several processes would set them."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    gc.collect()
    if errors:
        raise errors[0]
    return results[0]
