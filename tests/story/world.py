"""Many processes in one: greenlets that a seeded scheduler resumes, one at a time, with a clock of their own.

Production code runs in them unchanged. What it waits for goes through the `System` of its actor, and its driver calls
through a `StoryDriver`: at each of them another actor may go on, or the actor may die.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import sys
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial, wraps
from random import Random
from typing import Any

from greenlet import getcurrent, greenlet

from memtopo.driver.protocol import call_name
from memtopo.driver.types import DriverError
from memtopo.driver.wrappers import Call, Forwarder
from memtopo.drivers.sim import SimDriver
from memtopo.drivers.sim.devices import SimMemoryBudget
from memtopo.machine import Machine
from memtopo.sharing import sockets
from memtopo.sharing.claims import Claim
from memtopo.sharing.endpoints import Endpoint
from memtopo.sharing.holder.clients import ClientConnection
from memtopo.sharing.holder.loop import ServerLoop
from memtopo.sharing.sockets import Descriptor, PeerProcess, System, wait_readable
from tests.story.coverage import Reached

EPOCH = 1_700_000_000.0
_FIRST_PID = 5_000_000
"""Above the kernel's limit of process numbers: production code finds no process there."""

_CALLS_A_TURN = 24
"""Driver calls, on average, after which another actor may go on."""

HEAPS = "memtopo.native.heaps"
"""Module whose driver calls come from C code, beneath wrappers: it has a lock, so that no other actor may go on."""

_DURATIONS = (0.0, 0.0, 0.0, 0.0005, 0.002, 0.03)
"""Seconds that pass while an actor runs."""

_ANY = frozenset({"mem_get_info", "ctx_push_current", "ctx_pop_current"})
ERRORS = ("CUDA_ERROR_UNKNOWN", "CUDA_ERROR_OUT_OF_MEMORY", "CUDA_ERROR_OPERATING_SYSTEM")


USER = os.geteuid()
OTHER_USER, STRANGER = USER + 1, USER + 2
"""Users whom a holder allows to import, and not."""


class Died(BaseException):
    """End of an actor, whose descriptors are closed already: what it does while it unwinds reaches nobody."""


class Broken(BaseException):
    """A promise that was not kept. Production code catches no such error."""


@dataclass(slots=True)
class Fault:
    """Failure of a driver call after some others; 0 for none. `every` later call fails as well."""

    after: int = 0
    error: str = ERRORS[0]
    every: bool = False


class Actor:
    """A process: a program in a greenlet, its sockets and drivers, and what it waits for.

    `user` is that of its next connections, `late` the time before which it is not resumed, `doom` the number of steps
    after which it dies; 0 for none. `failed` counts the driver calls that a fault has made fail; `keeps_contexts` is
    true if one released a context, and `keeps_chunks` if one released a chunk.
    """

    def __init__(self, world: World, name: str, program: Any) -> None:
        self.world, self.name, self.pid, self.program = world, name, _FIRST_PID + len(world.every), program
        self.user = USER
        self.alive, self.dying = True, False
        self.until: float | None = world.now
        self.waits: Sequence[Descriptor] = ()
        self.idle = False
        self.late = world.now
        self.doom = 0
        self.fault, self.failed = Fault(), 0
        self.keeps_contexts = self.keeps_chunks = False
        self.inbox: deque[Any] = deque()
        self.sockets: list[socket.socket] = []
        self.drivers: list[StoryDriver] = []
        self.children: list[Actor] = []
        self.doing = "start"
        self.machine, self.budget = world.machine, world.budget
        """Machine that the process is on, and its memory."""
        self.greenlet = greenlet(partial(self._run, program), world.main)
        self.system = System(
            now=lambda: world.now,
            epoch=lambda: EPOCH + world.now,
            pause=lambda seconds: self.pause(seconds),
            wait=self.wait,
            selector=lambda: StorySelector(self),
            peer=self._peer,
        )

    def _run(self, program: Callable[[Actor], None]) -> None:
        try:
            program(self)
        except Died:
            pass
        except BaseException as error:
            if not self.dying or isinstance(error, AssertionError):
                self.world.failure = self.world.failure or error
        finally:
            self.alive = False

    def ready(self) -> bool:
        """Return whether the actor can go on now."""
        if self.dying:
            return True
        if self.late > self.world.now:
            return False
        if self.idle and self.inbox:
            return True
        if self.until is not None and self.until <= self.world.now:
            return True
        return bool(self.waits) and wait_readable(self.waits, 0.0)

    @property
    def busy(self) -> bool:
        """True while the actor does something, or has events that wait."""
        return self.alive and (bool(self.inbox) or self.doing not in ("", "serve"))

    def cut(self) -> None:
        """Lose all connections."""
        for sock in self.sockets:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def take(self) -> Any:
        """Return the next event of the inbox, and wait for it."""
        self.doing = ""
        while not self.inbox:
            self.idle = True
            self._wait(None)
        self.idle = False
        return self.inbox.popleft()

    def pause(self, seconds: float) -> None:
        """Let other actors go on for some seconds."""
        self._wait(self.world.now + seconds)

    def wait(
        self, any_of: Collection[Descriptor], seconds: float | None, writable: Collection[Descriptor] = ()
    ) -> bool:
        """Wait as `System.wait`; what is sent in a story is always taken."""
        assert seconds is not None
        self.waits = [each for each in (*any_of, *writable) if each.fileno() >= 0]
        self._wait(self.world.now + seconds)
        waited, self.waits = self.waits, ()
        return wait_readable(waited, 0.0)

    def _wait(self, until: float | None) -> None:
        self.step()
        self.until = until
        self.world.main.switch()
        if self.dying:
            raise Died

    def step(self) -> None:
        """Take one of the steps after which the actor may die."""
        if self.dying:
            raise Died
        if self.doom:
            self.doom -= 1
            if not self.doom:
                self.world.note(self.name, "dies")
                self.release()
                raise Died

    def open_driver(self) -> StoryDriver:
        """Return a new simulator of the machine, whose memory all actors share."""
        driver = SimDriver(self.machine, SimMemoryBudget(self.machine, of=self.budget), pid=None)
        driver.init()
        self.drivers.append(StoryDriver(driver, self))
        return self.drivers[-1]

    def kill(self) -> None:
        """End the actor at once, as the kernel does."""
        if not self.alive:
            return
        self.release()
        if self.greenlet:
            self.greenlet.throw(Died)
        self.alive = False

    def end_soon(self) -> None:
        """End the actor, by another one: it loses its descriptors and memory at once, and does nothing more."""
        if self.alive and not self.dying:
            self.world.note(self.name, "is killed")
            self.release()

    def release(self) -> None:
        """Close all descriptors, and give back the memory of the GPUs, as the end of a process does."""
        self.dying = True
        for each in tuple(sockets._INHERITABLE):
            own_loop = isinstance(each, ServerLoop) and each._terms.system is self.system
            own_claim = isinstance(each, Claim) and self is self.world.holder
            if own_loop or own_claim:
                each.abandon()
        for sock in self.sockets:
            sock.close()
        for driver in self.drivers:
            driver.end()
        for child in self.children:
            child.program.lose_parent()
        if self is self.world.holder:
            self.world.connecting.clear()

    def _peer(self, sock: socket.socket) -> PeerProcess:
        self.sockets.append(sock)
        world = self.world
        if self is world.holder:
            return world.connecting.popleft() if world.connecting else PeerProcess(0, USER)
        world.connecting.append(PeerProcess(self.pid, self.user))
        return PeerProcess(world.holder.pid if world.holder else 0, USER)


class StorySelector(selectors.EpollSelector):
    """A selector whose waits are those of an actor."""

    def __init__(self, actor: Actor) -> None:
        super().__init__()
        self._actor = actor

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout:
            self._actor.doing = "serve"
            self._actor.wait((self,), timeout)
            self._actor.doing = "work"
        return super().select(0)


class StoryDriver(Forwarder):
    """A driver of an actor: at each call others may go on, the actor may die, or the call may fail."""

    def __init__(self, driver: SimDriver, actor: Actor) -> None:
        super().__init__(driver)
        self.simulator, self._actor = driver, actor
        self.closed = False

    def _wrap(self, method: str, call: Call) -> Call:
        actor = self._actor

        @wraps(call)
        def made(*args: Any, **kwargs: Any) -> Any:
            in_heap = any(sys._getframe(depth).f_globals["__name__"] == HEAPS for depth in (1, 2, 3))
            if actor.dying:
                raise DriverError(call_name(method), ERRORS[0], "its process has ended") if in_heap else Died
            if not in_heap:
                if not actor.world.random.randrange(_CALLS_A_TURN):
                    actor.pause(0.0)
                actor.step()
            fault = actor.fault
            if fault.after and method not in _ANY:
                fault.after -= 1
                if not fault.after:
                    fault.after = int(fault.every)
                    actor.failed += 1
                    actor.keeps_contexts |= method in ("device_primary_ctx_release", "module_unload")
                    actor.keeps_chunks |= method == "mem_release"
                    actor.world.note(actor.name, f"{call_name(method)} fails: {fault.error}")
                    raise DriverError(call_name(method), fault.error, "the story has it")
            return call(*args, **kwargs)

        return made

    def close(self) -> None:
        """Close the simulator."""
        self.closed = True
        self.simulator.close()

    def lend(self, address: int, *, writable: bool) -> tuple[int, int]:
        """As the simulator."""
        return self.simulator.lend(address, writable=writable)

    def end(self) -> None:
        """End with the process."""
        self.close()
        self.simulator.process.budget.end()

    @property
    def taken(self) -> dict[str, int]:
        """Bytes that this process has taken of each location, where there are any."""
        return {str(each): size for each, size in self.simulator.process.budget._own.items() if size}


@dataclass(slots=True)
class World:
    """Machine, clock, actors and trace of a story."""

    machine: Machine
    random: Random
    endpoint: Endpoint
    now: float = 1000.0
    steps: int = 0
    actors: dict[str, Actor] = field(default_factory=dict)
    every: list[Actor] = field(default_factory=list)
    holder: Actor | None = None
    last: Actor | None = None
    connecting: deque[PeerProcess] = field(default_factory=deque)
    trace: list[str] = field(default_factory=list)
    reached: Reached = field(default_factory=Counter)
    failure: BaseException | None = None
    crowded_until: float = 0.0
    """Time until which the system takes no more descriptors of the holder into queues."""
    main: Any = field(default_factory=getcurrent)
    budget: SimMemoryBudget = field(init=False)

    def __post_init__(self) -> None:
        self.budget = SimMemoryBudget(self.machine)

    def note(self, name: str, text: str) -> None:
        """Add a line to the trace."""
        self.trace.append(f"{self.now:9.3f} {name:3} {text}")

    def start(self, name: str, program: Any, *, holds: bool = False) -> Actor:
        """Start a process, which runs when it is its turn."""
        actor = Actor(self, name, program)
        self.actors[name] = actor
        self.every.append(actor)
        if holds:
            self.holder = actor
        return actor

    def step(self) -> bool:
        """Let one actor go on, or time if none can. Return false if nothing will ever happen."""
        self.steps += 1
        alive = [each for each in self.every if each.alive]
        ready = [each for each in alive if each.ready()]
        self.last = None
        if not ready:
            times = [max(each.until, each.late) for each in alive if each.until is not None]
            times += [each.late for each in alive if each.late > self.now]
            later = [time for time in times if time > self.now]
            if not later:
                return False
            self.now = min(later)
            return True
        self.last = actor = self.random.choice(ready)
        self.now += self.random.choice(_DURATIONS)
        actor.greenlet.switch()
        return True


@contextmanager
def crowding(world: World) -> Iterator[None]:
    """Refuse descriptors of holders while a world is crowded."""
    send = ClientConnection.send_descriptors

    def refused(self: ClientConnection, message: Mapping[str, Any], fds: Sequence[int]) -> None:
        if fds and world.now < world.crowded_until:
            raise OSError(errno.ETOOMANYREFS, "the story has it")
        send(self, message, fds)

    ClientConnection.send_descriptors = refused  # type: ignore[method-assign]
    try:
        yield
    finally:
        ClientConnection.send_descriptors = send  # type: ignore[method-assign]
