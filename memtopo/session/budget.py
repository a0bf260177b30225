"""Budgets: the memory of several layouts that share a machine, in each combination of their states, and of switches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, permutations, product
from math import prod
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from memtopo.common.units import rounded, summed
from memtopo.diagnostics.model import Diagnostic, Path
from memtopo.kinds.views import in_state, state_names
from memtopo.language.names import AWAKE
from memtopo.machine import CONTEXT_BYTES, Machine, MachineLine
from memtopo.plans.report import MemoryChange
from memtopo.rules.whole_layout import Balance, Needs, balances, lacking, needed, together
from memtopo.session.composition import Composition

T = TypeVar("T")

MOST_COMBINATIONS = 4096
"""Largest number of combinations of states that a budget has; of more, only those with one layout not awake."""

MOST_BESIDE = 64
"""The same for the states of the other layouts during a switch."""

PAGE_LOCKED = "page-locked"
"""Location of what is page-locked of the host's memory, where a machine limits that."""

Bytes = dict[str, int]
"""Bytes by location: GPUs, NUMA nodes, the whole `host`, and what of it is `page-locked`."""

States = dict[str, str]
"""State of each layout by its name."""


class LayoutMemory(Struct, frozen=True):
    """Memory of one layout: its contexts, and without these each of its states, `awake` first.

    Its name is that of its spec, with a number if several are named so.
    """

    name: str
    spec: str
    params: dict[str, str]
    contexts: Bytes
    states: dict[str, Bytes]


class Shortfall(Struct, frozen=True):
    """Memory that is missing at a location: layouts need `needs` bytes, and it has `has`.

    The `entry` of `layout` asks for the most there, `size` bytes, at the path and the place `file:line:col`. It is
    empty if there are contexts alone.
    """

    location: str
    needs: int
    has: int
    lacks: int
    layout: str
    entry: str
    size: int
    path: Path
    place: str | None


class Combination(Struct, frozen=True):
    """States of the layouts at one time, the memory of all with their contexts, and what is missing."""

    states: States
    memory: Bytes
    shortfalls: tuple[Shortfall, ...]

    @property
    def fits(self) -> bool:
        """True if nothing is missing."""
        return not self.shortfalls


class Beside(Struct, frozen=True):
    """States of the other layouts during a switch, and the bytes that are missing at its peak."""

    states: States
    lacks: Bytes


class SwitchPeak(Struct, frozen=True):
    """Switch of a layout, with its memory before, after, and at most during it, without contexts."""

    layout: str
    before: str
    after: str
    memory: dict[str, MemoryChange]
    beside: tuple[Beside, ...]

    @property
    def fitting(self) -> list[States]:
        """States of the others beside which there is room for the switch."""
        return [each.states for each in self.beside if not each.lacks]


class ElasticMemory(Struct, frozen=True):
    """Memory of all layouts awake, with their contexts, at a location where some of them have elastic memory.

    They need `least` bytes while elastic memory is at its min, and `most` while all of it is at its max. The location
    has `has` bytes; `shared` of them are left above `least`, for the one that asks first.
    """

    location: str
    has: int
    least: int
    most: int
    shared: int


class Budget(Struct, frozen=True):
    """Layouts that share a machine: whether all combinations of their states fit, that of all awake first.

    `memory` is what the machine has; a context takes `context` bytes. Without `complete`, there are too many
    combinations, and these are those with at most one layout that is not awake.
    """

    machine: MachineLine
    fits: bool
    complete: bool
    context: int
    memory: Bytes
    layouts: tuple[LayoutMemory, ...]
    combinations: tuple[Combination, ...]
    switches: tuple[SwitchPeak, ...]
    notes: tuple[str, ...]
    elastic: tuple[ElasticMemory, ...] = ()

    @property
    def shareable(self) -> bool:
        """True if some layouts have elastic memory, and all of them fit while it is at its min."""
        return bool(self.elastic) and all(each.least <= each.has for each in self.elastic)

    @property
    def awake(self) -> Combination:
        """All layouts awake."""
        return self.combinations[0]

    @property
    def fitting(self) -> list[Combination]:
        """Combinations that fit."""
        return [each for each in self.combinations if each.fits]

    @property
    def closest(self) -> Combination:
        """The combination of which least is missing."""
        return min(self.combinations, key=lambda each: sum(one.lacks for one in each.shortfalls))


def budget(compositions: Sequence[Composition], context: int = CONTEXT_BYTES, *, least: bool = False) -> Budget:
    """Budget of valid specs on the machine of the first one, for contexts of so many bytes. No driver is used.

    With `least`, elastic memory counts as its min, in place of its max.
    """
    target = compositions[0].target
    names = _names(compositions)
    layouts = [_Layout(name, each, context, least) for name, each in zip(names, compositions, strict=True)]
    chosen, complete = _combinations([each.states for each in layouts], MOST_COMBINATIONS)
    combinations = tuple(_combination(layouts, states, target.machine) for states in chosen)
    used = {location for each in combinations for location, size in each.memory.items() if size}
    room = {_location(each): each.room for each in balances({}, {}, target.machine)}
    switches = _switches(layouts, room)
    return Budget(
        target.line,
        combinations[0].fits,
        complete,
        context,
        _at(used, room),
        tuple(each.memory(used) for each in layouts),
        tuple(replace(each, memory=_at(used, each.memory)) for each in combinations),
        tuple(replace(each, memory=_at(used, each.memory)) for each in switches),
        tuple(_notes(layouts, used, target.machine)),
        tuple(_elastic(layouts, target.machine)),
    )


def _elastic(layouts: Sequence[_Layout], machine: Machine) -> Iterator[ElasticMemory]:
    """Locations where elastic memory of layouts that are awake makes a difference."""
    contexts: Counter[int] = sum((each.contexts for each in layouts), Counter())
    least, most = (
        balances(together(each.awake(least=at_least) for each in layouts), contexts, machine)
        for at_least in (True, False)
    )
    for small, large in zip(least, most, strict=True):
        if small.taken != large.taken:
            shared = max(0, small.room - small.taken)
            yield ElasticMemory(_location(small), small.room, small.taken, large.taken, shared)


def errors(found: Budget) -> Iterator[tuple[str, Diagnostic]]:
    """Name of a layout, and the diagnostic of each shortfall of all awake, at the entry that asks for the most."""
    names = ", ".join(each.name for each in found.layouts)
    for each in found.awake.shortfalls:
        lacks = f"{rounded(each.lacks)} too much"
        message = f"{names} need {rounded(each.needs)} on {each.location}, which has {rounded(each.has)}: {lacks}"
        asks = f"{each.entry!r} of {each.layout} takes {rounded(each.size)} of it" if each.entry else "contexts alone"
        notes = asks, f"exactly {each.lacks:,} bytes are missing while all are awake"
        help = "lower a size or a limit" + ", or let one of them sleep" * (len(found.combinations) > 1)
        shared = next((one.shared for one in found.elastic if one.location == each.location and found.shareable), 0)
        if shared:
            help = f"{help}; with elastic memory at its min they fit, and share {rounded(shared)}: --elastic min"
        yield each.layout, Diagnostic("MT402", message, each.path, "key", notes=notes, help=help)


def _names(compositions: Sequence[Composition]) -> Iterator[str]:
    """Names of layouts; those of one name have numbers."""
    names = [each.geometry.name for each in compositions]
    taken, seen = Counter(names), Counter[str]()
    for name in names:
        yield f"{name}.{seen[name]}" if taken[name] > 1 else name
        seen[name] += 1


def _location(each: Balance) -> str:
    return PAGE_LOCKED if each.locked else str(each.location)


class _Layout(Struct, frozen=True, dict=True):
    """A layout with what its entries need in each state, and the bytes of its contexts by GPU."""

    name: str
    composition: Composition
    context: int
    least: bool

    @cached_property
    def needs(self) -> Mapping[str, Needs]:
        geometry = self.composition.geometry
        states = {state: in_state(geometry, state) for state in state_names(geometry)}
        return {state: needed(each, self.name, least=self.least) for state, each in states.items()}

    def awake(self, *, least: bool) -> Needs:
        """Return the memory that the entries of the layout need as it is written."""
        return needed(in_state(self.composition.geometry, AWAKE), self.name, least=least)

    @property
    def states(self) -> tuple[str, ...]:
        return tuple(self.needs)

    @cached_property
    def contexts(self) -> Counter[int]:
        members = self.composition.geometry.members.values()
        return Counter({gpu: n * self.context for gpu, n in Counter(g for each in members for g in each.gpus).items()})

    @cached_property
    def bytes(self) -> dict[str, Bytes]:
        """Bytes by location in each state, without contexts."""
        machine = self.composition.target.machine
        return {
            state: {_location(each): each.taken for each in balances(needs, {}, machine)}
            for state, needs in self.needs.items()
        }

    def memory(self, used: Iterable[str]) -> LayoutMemory:
        """The layout as data, at the locations that any layout uses."""
        document = self.composition.document
        contexts = {f"gpu{gpu}": size for gpu, size in sorted(self.contexts.items())}
        states = {state: _at(used, each) for state, each in self.bytes.items()}
        return LayoutMemory(self.name, document.name, dict(document.values), contexts, states)


def _combinations(states: Sequence[Sequence[str]], most: int) -> tuple[list[tuple[str, ...]], bool]:
    """Combinations of states, that of the first ones first; without all of them, if there are more than `most`."""
    if prod(map(len, states)) <= most:
        return list(product(*states)), True
    first = tuple(each[0] for each in states)
    changed = ((*first[:n], state, *first[n + 1 :]) for n, each in enumerate(states) for state in each[1:])
    return [first, *changed], False


def _combination(layouts: Sequence[_Layout], states: Sequence[str], machine: Machine) -> Combination:
    needs = together(each.needs[state] for each, state in zip(layouts, states, strict=True))
    contexts: Counter[int] = sum((each.contexts for each in layouts), Counter())
    found = list(balances(needs, contexts, machine))
    return Combination(
        {each.name: state for each, state in zip(layouts, states, strict=True)},
        {_location(each): each.taken for each in found},
        tuple(_shortfall(each, layouts) for each in lacking(found)),
    )


def _shortfall(found: Balance, layouts: Sequence[_Layout]) -> Shortfall:
    numbers = _location(found), found.taken, found.room, found.over
    if not found.needs:
        most = max(layouts, key=lambda each: each.contexts[found.location.id])
        return Shortfall(*numbers, most.name, "", 0, ("name",), most.composition.document.position(("name",)))
    largest = found.needs[0]
    document = next(each for each in layouts if each.name == largest.owner).composition.document
    return Shortfall(*numbers, largest.owner, largest.name, largest.size, largest.path, document.position(largest.path))


def _at(used: Iterable[str], amounts: Mapping[str, T]) -> dict[str, T]:
    """Amounts at the locations that any layout uses."""
    return {location: amount for location, amount in amounts.items() if location in used}


def _switches(layouts: Sequence[_Layout], room: Mapping[str, int]) -> Iterator[SwitchPeak]:
    """Switches of all layouts between any two of their states: each gives memory back before it takes any."""
    for layout in layouts:
        others = list(_others(layouts, layout))
        for before, after in permutations(layout.states, 2):
            memory = {
                at: MemoryChange(first, last, max(first, last))
                for at, first in layout.bytes[before].items()
                for last in (layout.bytes[after][at],)
            }
            beside = tuple(Beside(states, _lacks(memory, taken, room)) for states, taken in others)
            yield SwitchPeak(layout.name, before, after, memory, beside)


def _lacks(memory: Mapping[str, MemoryChange], taken: Mapping[str, int], room: Mapping[str, int]) -> Bytes:
    """Bytes that are missing at the peak of a switch."""
    over = {at: change.peak + taken[at] - room[at] for at, change in memory.items()}
    return {at: size for at, size in over.items() if size > 0}


def _others(layouts: Sequence[_Layout], but: _Layout) -> Iterator[tuple[States, Counter[str]]]:
    """States of all layouts but one, with the bytes of these and of all contexts."""
    others = [each for each in layouts if each is not but]
    contexts = summed({f"gpu{gpu}": size for gpu, size in each.contexts.items()} for each in layouts)
    for states in _combinations([each.states for each in others], MOST_BESIDE)[0]:
        taken = summed([contexts, *(each.bytes[state] for each, state in zip(others, states, strict=True))])
        yield {each.name: state for each, state in zip(others, states, strict=True)}, taken


def _notes(layouts: Sequence[_Layout], used: Iterable[str], machine: Machine) -> Iterator[str]:
    for each in layouts:
        groups = list(dict.fromkeys(chain.from_iterable(m.every for m in each.composition.geometry.members.values())))
        for group in groups:
            if group.unlimited:
                yield f"{each.name}: {group.noun} {group.name} has no limit, and counts as empty"
            if group.share and len(layouts) > 1:
                share, location, left, _ = group.share
                alone = f"{share} of the {rounded(left)} on {location} left by its own spec"
                yield f"{each.name}: {group.noun} {group.name} has {alone}, as if it were alone there"
    if "host" in used and not machine.host_bytes:
        yield f"the machine's record does not have the memory of the host: {rounded(machine.host_room)} are assumed"
