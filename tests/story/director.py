"""Choice of what happens next: plausible events, those first that a story has not had in its situation."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.story.borrowing import VERBS, Borrower
from tests.story.heaps import VERBS as HEAP_VERBS
from tests.story.layouts import POOL, STATES, Shape, changed_shape
from tests.story.lending import lending_export
from tests.story.oracle import Oracle
from tests.story.programs import MISTAKES, EngineProgram, Event
from tests.story.workers import MemberProgram
from tests.story.world import ERRORS, Actor, World

GUEST = "e5"
"""Engine of another user, who may import."""

ENGINES = ("e1", "e2", "e3", "e4", GUEST)
OPERATORS = ("o1", "o2")
HOLDER = "h"
FAULTS = ("kill", "doom", "fail", "late", "jump", "cut", "hog", "crowd", "full")
_KEYS = ("k1", "k2", "k3")
_PACES = (0, 1, 2, 4, 8, 16)
_BUILDING = 8
"""Multiple of a pace while the layout is built, when most requests are refused."""

_KEEPS = ("page-locked", "pageable", None)
_WAITS = (0.0, 0.0, 0.5, 2.0, 5.0)

Choice = tuple[str, str, tuple[Any, ...]]
Situation = tuple[str, str, str]
"""Of the holder, of the actor, and what the actor does or what befalls it."""


@dataclass(slots=True)
class Director:
    """Chooses events; its theme makes some of them more frequent in one story than in another."""

    world: World
    oracle: Oracle
    random: Random
    gpus: int
    shape: Shape
    faulty: bool
    seen: Counter[Situation] = field(default_factory=Counter)
    theme: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.shape.pool and self.random.random() < 0.5:
            self.theme = dict.fromkeys(sorted(VERBS), 4.0)
        if self.shape.heap and self.random.random() < 0.5:
            self.theme |= dict.fromkeys(sorted(HEAP_VERBS), 4.0)

    def choose(self) -> Event:
        """Return the next event."""
        choices = list(self._choices())
        weights = [self._weight(each) for each in choices]
        actor, verb, args = self.random.choices(choices, weights)[0]
        pace = self.random.choice(_PACES)
        return Event(actor, verb, args, pace * _BUILDING if self.holder_now() == "building" else pace)

    def record(self, event: Event) -> None:
        """Count an event in the situation in which it happens."""
        self.seen[self.situation(event.actor, event.verb)] += 1

    def situation(self, name: str, verb: str) -> Situation:
        """Return the situation of an actor."""
        actor = self.world.actors.get(name)
        return (self.holder_now(), self._now(actor) if name != HOLDER else "", verb)

    def holder_now(self) -> str:
        """Return the situation of the holder."""
        holder, held = self.world.holder, self.oracle.held
        if holder is None or not holder.alive or held is None or held.actor is not holder:
            return "none"
        if not held.served or held.conductor is None:
            return "building"
        return f"{held.conductor.state}{'' if holder.doing == 'serve' else '+'}"

    def _now(self, actor: Actor | None) -> str:
        program = actor.program if actor else None
        if actor is None or not actor.alive or not isinstance(program, EngineProgram):
            return actor.doing if actor and actor.alive else ""
        attached = program.attached
        if attached is None:
            return actor.doing or "away"
        role = "writer" if program.writes else "reader"
        return f"{role}{'-absent' * bool(attached.absent)}{'*' * bool(actor.doing)}"

    def _weight(self, choice: Choice) -> float:
        name, verb, _ = choice
        if verb not in self.theme:
            self.theme[verb] = self.random.choice((0.2, 1.0, 1.0, 3.0))
        return self.theme[verb] * _USUAL.get(verb, 1.0) / math.sqrt(1 + self.seen[self.situation(name, verb)])

    def _choices(self) -> Iterator[Choice]:
        draw = self.random
        if self.holder_now() == "none":
            yield HOLDER, "start", (self.shape, draw.random() < 0.2, draw.random() < 0.125)
        else:
            self.shape = self.oracle.held.shape if self.oracle.held else self.shape
            yield HOLDER, "stop", ()
            yield HOLDER, "reload", (changed_shape(draw, self.shape, self.gpus),)
        for name in ENGINES:
            yield from self._of_engine(name)
        for name in OPERATORS:
            full = draw.random() < 0.2
            yield name, "switch", (draw.choice(STATES), draw.choice(_WAITS), draw.random() < 0.2, full)
            shape = changed_shape(draw, self.shape, self.gpus)
            yield name, "change", (shape, draw.choice(_WAITS), draw.random() < 0.2, full)
            yield name, "release", (draw.random() < 0.5, draw.choice((0.0, 2.0)))
            yield name, "check", ()
            yield name, "status", ()
            yield name, "mistake", (draw.choice(MISTAKES if self.shape.cell else MISTAKES[:-1]),)
            yield name, "borrow", (self.shape.public(draw.choice(("w", "page"))),)
            if self.shape.pool:
                yield name, "take_lent", (draw.randint(0, 3),)
            yield name, "restore", ()
        for name, actor in self.world.actors.items():
            if actor.alive and isinstance(actor.program, MemberProgram):
                yield name, "quit", ()
                yield name, "compute", (draw.choice((0.1, 0.5, 3.0, 40.0)),)
                yield from self._of_heap(name, actor.program)
        if self.faulty:
            yield from self._faults()

    def _of_heap(self, name: str, program: MemberProgram) -> Iterator[Choice]:
        draw = self.random
        if program.heap.content is None:
            return
        yield name, "allocate", (draw.choice((1, 1, 2, 3, 7)),)
        yield name, "free", (draw.randrange(8),)
        yield name, "fill", ()
        yield name, "read", ()
        yield name, "rouse" if program.heap.dozing else "doze", () if program.heap.dozing else (draw.choice(_KEEPS),)
        yield name, "drop_backup", ()

    def _of_engine(self, name: str) -> Iterator[Choice]:
        draw, actor = self.random, self.world.actors.get(name)
        program = actor.program if actor and actor.alive else None
        attached = program.attached if isinstance(program, EngineProgram) else None
        if attached is None:
            some = draw.choice(((), (), ("page",), ("w",), *[(POOL,)] * (2 if self.shape.pool else 0)))
            public = tuple(map(self.shape.public, some))
            for role in ("reader", "writer") if some != (POOL,) else ("reader",):
                room = draw.choice((0, 0, 3)) if some in ((), ("page",)) else 0
                yield name, "attach", (role, public, draw.choice(_WAITS), draw.random() < 0.3, room)
            return
        yield name, "poll", (draw.choice(_WAITS),)
        yield name, "look", ()
        yield name, "write", (True,)
        yield name, "leave", ()
        if isinstance(program, EngineProgram) and program.writes:
            yield name, "write", (False,)
            yield name, "commit", ()
        if isinstance(program, EngineProgram) and (pool := lending_export(attached)):
            yield from self._of_borrower(name, program.borrower, absent=pool in attached.absent)

    def _of_borrower(self, name: str, borrower: Borrower, *, absent: bool) -> Iterator[Choice]:
        draw = self.random
        yield name, "grow", (draw.choice((1, 1, 2, 4)),)
        if absent:
            return
        if borrower.keys:  # for a successor
            yield name, "leave", ()
            yield name, "kill" if self.faulty else "leave", ()
        yield name, "shrink", (draw.randint(1, 4), draw.random() < 0.7)
        yield name, "trim", ()
        yield name, "stamp", ()
        yield name, "seal", (draw.choice(_KEYS), draw.randint(1, 3))
        yield name, "unseal", ()
        yield name, "adopt", (draw.choice(sorted(self.oracle.lent.seals) or _KEYS),)

    def _faults(self) -> Iterator[Choice]:
        draw = self.random
        names = [name for name, each in self.world.actors.items() if each.alive]
        if not names:
            return
        one = draw.choice(names)
        yield one, "kill", ()
        yield one, "doom", (draw.randint(1, 60),)
        yield one, "fail", (draw.randint(1, 40), draw.choice(ERRORS), draw.random() < 0.1)
        yield one, "late", (draw.choice((0.01, 0.3, 3.0, 12.0)),)
        yield one, "crowd", (draw.choice((0.5, 5.0, 30.0)),)
        yield one, "full", (draw.choice((0.5, 5.0, 30.0)), draw.choice((0, 0, 1, 40, 300)))
        yield one, "jump", (draw.choice((0.1, 1.0, 40.0)),)
        if (other := draw.choice(names)) in (*ENGINES, *OPERATORS):
            yield other, "cut", ()
        yield one, "hog", (draw.randrange(self.gpus), draw.choice((-1, 0, 1, 3)))


_USUAL = {
    "start": 40.0,
    "mistake": 0.3,
    "stop": 0.1,
    "quit": 0.1,
    "compute": 0.3,
    "reload": 0.7,
    "release": 0.1,
    "attach": 2.0,
    "poll": 5.0,
    "leave": 0.7,
    "commit": 3.0,
    "grow": 3.0,
    "stamp": 2.0,
    "trim": 0.5,
    "unseal": 0.5,
    "allocate": 2.0,
    "drop_backup": 0.5,
    "adopt": 2.0,
    "take_lent": 0.5,
    "switch": 1.5,
    "kill": 0.3,
    "doom": 0.3,
    "fail": 0.5,
    "late": 0.3,
    "jump": 0.3,
    "cut": 0.2,
    "hog": 0.3,
    "crowd": 0.2,
    "full": 0.3,
}
