"""What has to hold in a story, apart from the code: bytes, generations, memory of the GPUs, and what was promised."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from memtopo.api.attachment import Attached
from memtopo.api.imports import HOLDER
from memtopo.driver.types import gpu
from memtopo.kinds.layout import current
from memtopo.machine import CONTEXT_BYTES
from memtopo.run.apply import ThisProcess
from memtopo.run.process_run import ProcessRun
from memtopo.run.processes.workers import Workers
from memtopo.sharing import sockets
from memtopo.sharing.holder.loop import ServerLoop
from memtopo.sharing.holder.state import HolderEvent
from memtopo.sharing.imports import Version
from tests.story.files import HolderFiles
from tests.story.layouts import CHUNK, COMMON, HEAP_USERS, Shape
from tests.story.lending import LentMemory, lent_beyond
from tests.story.world import Actor, Broken, StoryDriver, World

Part = tuple["ProcessRun | None", StoryDriver]
"""A process of a layout: its run once it has one, and its driver."""

_MAGIC = b"STORY"
STAMP = 16
"""Bytes of a chunk that are written and read."""

GRACE = 5.0
"""Seconds that importers over ipc have after a signal."""


@dataclass(slots=True)
class Content:
    """Bytes that a writer has put into an export, by the serial number in them."""

    export: str
    writer: int
    state: str = "written"


@dataclass(slots=True)
class Held:
    """A holder as the oracle knows it: its process, its conductor once it serves, and its spec."""

    actor: Actor
    shape: Shape
    conductor: ThisProcess | Workers | None = None
    before: Any = None
    proposed: Shape | None = None
    requested: float = 0.0
    idle: float = 0.0
    """Time at which it last waited for clients."""
    begun: float = 0.0
    """Time at which it last waited for clients before the change that was requested last."""
    ending: float | None = None
    grace: float = GRACE
    renewals: int = 0
    served: bool = False
    state: str = "awake"
    broken: bool = False
    found: ServerLoop | None = None

    @property
    def loop(self) -> ServerLoop | None:
        """The loop that serves the clients."""
        if self.found is None:
            loops = (each for each in sockets._INHERITABLE if isinstance(each, ServerLoop))
            self.found = next((each for each in loops if each._terms.system is self.actor.system), None)
        return self.found

    @property
    def serves(self) -> bool:
        """True while the holder waits for clients, and nothing is under way in it."""
        return self.actor.alive and not self.actor.dying and self.served and self.actor.doing == "serve"

    @property
    def provides(self) -> bool:
        """True while it serves a layout that is complete and not being released: clients get handles."""
        return self.serves and self.conductor is not None and not self.broken and self.ending is None

    def memory(self, name_of: Callable[[Any], Any] | None = None) -> Mapping[str, tuple[Any, ...]]:
        """Memory of each export that has some: what names the file of each chunk, or what a function returns."""
        found, name_of, parts = {}, name_of or named, self.parts
        for name, each in self.shape.published.items():
            if (mapped := self.mapped(name, each.count, parts)) and all(mapped):
                found[name] = tuple(map(name_of, mapped))
        return found

    def mapped(self, export: str, count: int, parts: Mapping[str, Part]) -> Sequence[Any]:
        """Mappings of the chunks of an export, in the process that has it; None where there is none."""
        label, _, name = export.rpartition(".")
        run, driver = parts.get(label, (None, None))
        reserved = run.execution.layout.ranges.get(f"{name}-range") if run else None
        if driver is None or reserved is None or reserved.size != count * CHUNK:
            return ()
        return [driver.simulator.mappings.find(reserved.address + index * CHUNK) for index in range(count)]

    @property
    def complete(self) -> bool:
        """False once a process of the layout has ended, and so will the layout."""
        return self.conductor is not None and {*self.parts} == {*self.conductor.labels}

    @property
    def whole(self) -> bool:
        """True while each process has its ranges."""
        return all(run and run.execution.layout.ranges for run, _ in self.parts.values())

    @property
    def parts(self) -> Mapping[str, Part]:
        """Runs and drivers of the processes of the layout that are there, by label."""
        if isinstance(self.conductor, ThisProcess):
            return {"": (self.conductor.run, self.actor.drivers[-1])}
        workers = {each.name: each for each in self.actor.children if each.alive and not each.dying}
        return {label: (each.program.run, each.drivers[-1]) for label, each in workers.items() if each.program.run}


@dataclass(slots=True)
class Oracle:
    """Model of a story. Each method raises `Broken` for what must not be."""

    world: World
    lent: LentMemory
    files: HolderFiles
    held: Held | None = None
    contents: dict[int, Content] = field(default_factory=dict)
    plain: dict[str, int] = field(default_factory=dict)
    known: dict[tuple[int, str, int], tuple[str, ...]] = field(default_factory=dict)
    committed: dict[tuple[str, ...], int] = field(default_factory=dict)
    proposals: dict[str, Shape] = field(default_factory=dict)
    """Specs that were requested last, by the requester."""
    releases: dict[str, tuple[bool, float]] = field(default_factory=dict)
    """Force and grace of the releases that were requested last, by the requester."""
    beneath: set[tuple[int, str]] = field(default_factory=set)
    """Processes without a lease, and memory that they have and that another one has written since."""
    faults: int = 0
    checked: int = 0
    written: float = 0.0
    """Time of the last write."""

    def new_content(self, actor: Actor, export: str) -> int:
        """Return the number of new bytes for an export."""
        number = len(self.contents) + 1
        self.contents[number] = Content(export, actor.pid)
        return number

    def wrote(self, actor: Actor, export: str, memory: str, number: int, *, plain: bool) -> None:
        """Remember that bytes are in a chunk now, of which no reader has a lease if they are to be committed."""
        self.plain[memory], self.written = number, self.world.now
        if plain:
            return
        self.committed = {whole: one for whole, one in self.committed.items() if memory not in whole}
        for other in self.world.actors.values():
            program: Any = other.program
            attached = getattr(program, "attached", None) if other.alive and other is not actor else None
            reads = attached and export in attached.exports and not program.writes and export not in attached.absent
            if not attached or not reads or memory not in memory_of(attached, export):
                continue
            if not has_lease(attached):
                self.beneath.add((other.pid, memory))
            else:
                raise Broken(f"{actor.name} writes {export} under {other.name}, which reads it")

    def read(self, actor: Actor, attached: Attached, export: str, memory: tuple[str, ...]) -> None:
        """Compare the bytes of an import, as its GPU reads them, with what may be there."""
        driver, start, who = attached._session.driver, attached.address(export), f"{actor.name} reads {export}"
        committed, numbers = bool(attached.exports[export].commit), []
        own = {(actor.pid, one) for one in memory}
        with current(driver, context_of(attached, export)):
            for index, one in enumerate(memory):
                numbers.append(number_of(driver.memcpy_dtoh(start + index * CHUNK, STAMP)))
                self.checked += 1
                if not committed and numbers[-1] != self.plain.get(one):
                    raise Broken(f"{who}: bytes {numbers[-1]}, and {self.plain.get(one)} were written there last")
        if has_lease(attached):
            self.beneath -= own
        if committed and self.beneath.isdisjoint(own):
            self._require_committed(who, export, memory, numbers)

    def read_new(self, actor: Actor, attached: Attached, export: str) -> None:
        """Require that the writer of an export finds nothing that another one has not committed."""
        driver, start = attached._session.driver, attached.address(export)
        with current(driver, context_of(attached, export)):
            number = number_of(driver.memcpy_dtoh(start, STAMP))
        content = self.contents.get(number or 0)
        if content and content.state == "written" and content.writer != actor.pid:
            raise Broken(f"{actor.name} writes {export}, and has bytes of another writer: {content}")

    def _require_committed(self, who: str, export: str, memory: tuple[str, ...], numbers: list[int | None]) -> None:
        """Require that bytes are those of one commit, and of the same as before."""
        if len({*numbers}) != 1 or numbers[0] is None:
            raise Broken(f"{who}, which is committed: bytes {numbers}")
        content = self.contents[numbers[0]]
        if content.state == "written" or content.export != export:
            raise Broken(f"{who}: bytes {numbers[0]} were never committed there: {content}")
        if self.committed.setdefault(memory, numbers[0]) != numbers[0]:
            raise Broken(f"{who}: committed bytes were {self.committed[memory]}, and are {numbers[0]}")

    def readable(self, export: str) -> bool:
        """Return whether the holder offers an export to readers."""
        loop = self.held.loop if self.held else None
        offer = loop._responder.offers.get(export) if loop else None
        return bool(loop and offer and loop._responder.described(offer).commit in (None, "committed"))

    def writers(self) -> Mapping[str, int]:
        """Return the process that has the lease to write each export."""
        loop = self.held.loop if self.held else None
        offers = [loop._responder.described(each) for each in loop._responder.offers.values()] if loop else []
        return {each.name: each.writer for each in offers if each.writer is not None}

    def learn(self, holder: int, export: str, generation: int, memory: tuple[str, ...]) -> None:
        """Require that handles of one generation are always of the same memory."""
        before = self.known.setdefault((holder, export, generation), memory)
        shared = min(len(before), len(memory))
        if before[:shared] != memory[:shared]:
            raise Broken(f"generation {generation} of {export} is of {before}, and of {memory}")

    def ended(self, actor: Actor, driver: StoryDriver) -> None:
        """Require that nothing is left of what a process has ended."""
        if driver.taken:
            raise Broken(f"{actor.name} has left {driver.taken}")
        driver.close()

    def note(self, event: HolderEvent) -> None:
        """Follow the log of the holder: what it says that it refused has changed nothing."""
        held = self.held
        assert held
        assert held.conductor
        words = " ".join(f"{key}={value}" for key, value in event.fields.items() if key != "socket")
        self.world.note(held.actor.name, f"log: {event.text} {words}")
        self._count(held, event)
        self._require_reasonable(event)
        self._require_patience(held, event)
        held.renewals += event.text.startswith(("writer ended", "writer attached", "memory not created"))
        held.broken |= event.text == "ending" and event.fields["why"] == "failure"
        if event.text in ("release requested", "ending", "ended"):
            self._note_end(held, event)
        elif event.text.endswith(" requested"):
            held.before, held.requested = (self._print(held), held.renewals), self.world.now
            held.begun = held.idle
            held.proposed = self.proposals.get(str(event.fields["by"]))
        elif event.text.endswith(" refused") and held.before and held.ending is None:
            going_on = held.complete and not getattr(held.conductor, "_over", False)
            if going_on and held.before[1] == held.renewals and held.before[0] != self._print(held):
                raise Broken(f"{event.text}: {held.before[0]} became {self._print(held)}")
            held.before = None
        elif event.text.endswith((" made", " rolled back")):
            held.before = None
            if event.text in ("change made", "reload made"):
                held.shape = held.proposed or held.shape
            self.lent.follow(held.shape.lends_in(held.conductor.state), made=event.text.endswith(" made"))
        if event.text.endswith(" made") and event.fields.get("different"):
            self.require_written(held.begun, f"{event.text}: {event.fields}")

    def require_written(self, since: float, difference: str) -> None:
        """Raise for a difference, unless a process has written since a time: a full check finds that, too."""
        if self.written < since:
            raise Broken(difference)

    def _count(self, held: Held, event: HolderEvent) -> None:
        """Count an event, and the transition of which it is the end."""
        assert held.conductor
        reached = self.world.reached
        reached["event", event.text] += 1
        if event.text == "ending":
            reached["end", str(event.fields["why"])] += 1
        if event.text == "switch made":
            reached["transition", f"{held.state} to {event.fields['state']}"] += 1
        held.state = held.conductor.state

    def _require_patience(self, held: Held, event: HolderEvent) -> None:
        """Require that importers had the time to let go that their notice promised."""
        promised = re.search(r"did not release imported memory within ([0-9.]+) s", str(event.fields.get("reason", "")))
        if promised and self.world.now < held.requested + float(promised[1]) - 0.001:
            raise Broken(f"importers had {self.world.now - held.requested} s of {promised[1]}")

    def _require_reasonable(self, event: HolderEvent) -> None:
        """Require that an event is no error of memtopo itself, and that a failure has a cause."""
        internal = event.text == "internal error" or "met an internal error" in event.text
        reason = str(event.fields.get("reason", "-"))
        late = "did not take part within" in reason  # a process of a user that was busy
        if event.text == "lent memory not released" and self.held:
            internal |= not (self.faults or late)
            self.held.actor.keeps_chunks |= late
        without = event.text == "memory not created for a writer" and not (self.faults or late)
        if internal or without or reason.startswith(";"):
            raise Broken(f"{event.text}: {event.fields}")

    def _note_end(self, held: Held, event: HolderEvent) -> None:
        """Require that a layout whose exports over ipc are in use ends by force alone, and after its grace."""
        now = self.world.now
        if event.text == "release requested":
            force, grace = self.releases[str(event.fields["by"])]
            held.grace = min(held.grace, grace) if held.ending is not None else grace
            if bound := [] if force else list(self._bound(held)):
                raise Broken(f"a release without force, while {bound} use it over ipc")
        elif event.text == "ending":
            held.ending = now
        elif event.fields["lost"] and held.ending is not None and now < held.ending + held.grace and not held.broken:
            raise Broken(f"importers over ipc had {now - held.ending} s of {held.grace}")

    def _bound(self, held: Held) -> Iterator[str]:
        """Names of the engines that use something of the holder over ipc."""
        for actor in self.world.actors.values():
            attached = getattr(actor.program, "attached", None) if actor.alive else None
            client = attached._lease.client if attached else None
            offers = attached.exports.items() if attached else ()
            had = client.generations if client else {}  # of which this holder, and not the one before, gave handles
            uses = attached and any(
                each.via == "ipc" and name in had and name not in attached.absent for name, each in offers
            )
            if uses and client and client.pid == held.actor.pid and not client.gone():
                yield actor.name

    def read_allocated(self, actor: Actor, attached: Attached, export: str) -> None:
        """Compare the bytes of a buffer, or of an allocation of a pool, while its holder exists."""
        driver, client = attached._session.driver, attached._lease.client
        if client is None or client.gone() or self.held is None or self.held.actor.pid != client.pid:
            return
        with current(driver, attached._session.layout.contexts[0]):
            number = number_of(driver.memcpy_dtoh(attached.address(export), STAMP))
            expected = self.plain.get(_allocation(attached, export))
        if number != expected and not client.gone():
            raise Broken(f"{actor.name} reads {export}: bytes {number}, and {expected} were written there last")

    def write_allocated(self, attached: Attached, export: str, number: int) -> None:
        """Write bytes into a buffer, or into an allocation of a pool."""
        driver = attached._session.driver
        with current(driver, attached._session.layout.contexts[0]):
            driver.memcpy_htod(attached.address(export), stamp(number, 0))
            self.plain[_allocation(attached, export)], self.written = number, self.world.now

    def _print(self, held: Held) -> Any:
        assert held.conductor
        return held.conductor.generation, held.conductor.state, held.memory(lambda part: part.chunk.handle)

    def observe(self) -> None:
        """Look at the holder between two turns of its loop: its bytes, and the memory that it takes."""
        held = self.held
        if not held or self.world.last is not held.actor or not held.serves or held.broken:
            return
        assert held.conductor
        held.idle = self.world.now
        self.files.require_current(held.conductor.generation, held.conductor.state)
        memory = held.memory()
        for name, each in held.shape.published.items():
            if each.committed and (number := self.committed.get(memory.get(name, ()))):
                found = {number_of(data) for data in _bytes(held, name, each.count)}
                if found != {number}:
                    raise Broken(f"committed bytes {number} of {name} are {found} now")
        if not held.conductor.absent and held.complete and held.whole:
            self.lent.observe(held)
            self._require_memory(held, held.conductor.state)
            self._require_common(held)

    def _require_common(self, held: Held) -> None:
        """Require that processes have a range at the same address where the spec requests it."""
        ranges = (run.execution.layout.ranges.get(COMMON) for run, _ in held.parts.values() if run)
        addresses = [each.address for each in ranges if each]
        if len(addresses) != 2 * held.shape.common or len({*addresses}) > 1:
            raise Broken(f"processes have {COMMON} at {addresses}")

    def _require_memory(self, held: Held, state: str) -> None:
        """Require that the processes of a layout have the memory of its state, and no more."""
        taken, lent = Counter[str](), lent_beyond(held)
        for _, driver in held.parts.values():
            taken.update(driver.taken)
        contexts = any(each.keeps_contexts for each in (held.actor, *held.actor.children))
        awaits = held.loop and held.loop._changes._awaited  # until the change is made, contexts are there
        for ordinal in range(len(self.world.machine.devices)):
            expected, found = held.shape.bytes_at(ordinal, state, lent), taken[str(gpu(ordinal))]
            if held.shape.heap and held.shape.heap.gpu == ordinal:
                if (allocated := self._heap_bytes(held, held.shape.heap.limit, state)) is None:
                    continue
                expected += allocated
            if contexts or awaits or held.shape.joined:  # programs need their contexts
                found, expected = found % CONTEXT_BYTES, expected % CONTEXT_BYTES
            if found != expected:
                raise Broken(f"the holder has {found} of gpu{ordinal} in {state}, not {expected}")

    def _heap_bytes(self, held: Held, limit: int, state: str) -> int | None:
        """Bytes that programs have allocated in their heaps of so many chunks; None if it is not certain."""
        users = [each for each in held.actor.children if each.name in HEAP_USERS]
        layouts = [(each.program.heap, each.program.run.execution.layout) for each in users]
        for heap, layout in layouts:
            heap.require_limit(layout, limit * CHUNK)
        if any(each.failed or each.doing in ("doze", "rouse") for each in users):
            return None
        return sum(int(heap.bytes_in(layout, state)) for heap, layout in layouts)


def named(mapping: Any) -> str:
    """Return what names the memory behind a mapping, in all processes."""
    tag = mapping.physical.tag
    return tag.nonce if tag else f"own {mapping.chunk.handle}"


def has_lease(attached: Attached) -> bool:
    """Return whether the connection of an importer, which is its lease, has not ended."""
    client = attached._lease.client
    return client is not None and not client.gone()


def memory_of(attached: Attached, export: str) -> tuple[str, ...]:
    """Return the memory that an importer has mapped for an export."""
    driver, start = simulator_of(attached), attached.address(export)
    parts = [driver.mappings.find(start + i * CHUNK) for i in range(attached.exports[export].count)]
    if not all(parts):
        raise Broken(f"{export} is not absent, and {parts.count(None)} of its chunks are not mapped")
    return tuple(named(part) for part in parts)


def _allocation(attached: Attached, export: str) -> str:
    """Return what names the memory of a buffer, or of an allocation of a pool, in all processes."""
    found = simulator_of(attached).allocations.find(attached.address(export))
    return f"{export} {found.physical.tag.nonce}"


def simulator_of(attached: Attached) -> Any:
    """Return the simulator of an importer."""
    opened: Any = attached._session._opened
    return opened.simulator


def version_of(attached: Attached, export: str) -> Version:
    """Return the version of what an importer has of an export."""
    assert attached._imports
    return attached._imports.version(HOLDER, export)


def context_of(attached: Attached, export: str) -> int:
    """Return the context of the GPU that has an export."""
    return attached._session.layout.contexts[int(attached.exports[export].location.removeprefix("gpu"))]


def stamp(number: int, index: int) -> bytes:
    """Return bytes of a content for one of its chunks."""
    return (_MAGIC + number.to_bytes(4, "big") + index.to_bytes(2, "big")).ljust(STAMP, b".")


def number_of(data: bytes) -> int | None:
    """Return the number of a content; None for bytes that no process of the story has written."""
    return int.from_bytes(data[5:9], "big") if data.startswith(_MAGIC) else None


def _bytes(held: Held, name: str, count: int) -> Iterator[bytes]:
    for mapping in held.mapped(name, count, held.parts):
        yield mapping.physical.read(0, STAMP)
