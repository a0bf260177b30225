"""Interface between the engine and the kinds of entries. The engine names no kind itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from enum import Enum, IntEnum
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias, TypeVar

from msgspec import Struct

from memtopo.diagnostics.model import At, Diagnostic, Label, Path
from memtopo.geometry.groups import ChunkGroup, Group, RangeGroup
from memtopo.geometry.model import Geometry, Instance, MemoryBudgets, Part, Placement, Slice
from memtopo.kinds.device_names import DeviceNames
from memtopo.kinds.resolution import NameErrors, Refused, Resolution, attempt
from memtopo.language.entries import Spec, rank
from memtopo.language.names import parse_reference
from memtopo.language.scalars import LARGEST_COUNT
from memtopo.machine import Choice, Machine, Machines

if TYPE_CHECKING:
    from memtopo.kinds.runs import StepRun
    from memtopo.kinds.step import Step

G = TypeVar("G", bound=Group)

Steps: TypeAlias = "Iterator[Step]"
"""Steps of a plan, in order. Their modules are imported when a plan needs them."""

Items: TypeAlias = "Iterator[Step | StepRun]"
"""Steps of a plan, in order, with equal ones as runs."""

MakeStep: TypeAlias = "Callable[..., Step]"
"""Class of a step."""

Rule = Callable[[Geometry, Machine], Iterator[Diagnostic]]
"""A rule about the geometry of one process, or of all processes, on a machine."""


class ResolutionStage(IntEnum):
    """Stages of the resolution of a spec, in order. The exports of all processes are resolved before any import."""

    OWN = 0
    EXPORTED = 1
    IMPORTED = 2
    RESERVED = 3
    MAPPED = 4
    GRANTED = 5
    STATES = 6


class Words(Struct, frozen=True):
    """Words for a section: the noun for one entry, and its objects in the plural.

    `form` is an entry as a spec writes it, and `referred` the end of the message about an entry that the section cannot
    refer to. `drawn` is the word for an entry in the data of a diagram, empty if it is not drawn separately from
    ranges. A noun that is not `counted` has no article.
    """

    noun: str
    plural: str
    form: str = ""
    referred: str = ""
    drawn: str = ""
    counted: bool = True

    @property
    def article(self) -> str:
        """One entry with its article: `a buffer`."""
        return f"{'an' if self.noun[0] in 'aei' else 'a'} {self.noun}" if self.counted else self.noun


class Keys(Enum):
    """Keys of a section: names that no other such section has, names of its own, or references to other entries."""

    UNIQUE = "unique"
    OWN = "own"
    REFERENCES = "references"


class Kind:
    """One section of the spec: its entries, their resolution to groups, their rules and their steps."""

    section: ClassVar[str]
    description: ClassVar[str]
    """Description of the section in a JSON Schema."""
    words: ClassVar[Words]
    entry: ClassVar[Any]
    """Type of one entry, for pydantic."""
    keys: ClassVar[Keys] = Keys.UNIQUE
    group: ClassVar[type[Group]] = Group
    """Class of the groups that its entries are resolved to."""
    stage: ClassVar[ResolutionStage] = ResolutionStage.OWN
    unusable: ClassVar[Mapping[str, tuple[str, str]]] = {}
    """Sections that cannot refer to its entries, each with a note and a help text."""

    def __init__(self, rules: tuple[Rule, ...] = (), joint_rules: tuple[Rule, ...] = ()) -> None:
        """`rules` must be satisfied by each process, `joint_rules` by all processes together."""
        self.rules, self.joint_rules = rules, joint_rules

    def resolve(self, scope: Scope) -> Iterator[Diagnostic]:
        """Resolve the entries of the section to groups, and add them to the scope."""
        for name, entry in scope.spec.section(self.section).items():
            group = yield from attempt(self.resolve_entry, scope, entry, scope.spec.at(self.section, name))
            yield from scope.add(self, name, group)

    def resolve_entry(self, scope: Scope, entry: Any, path: Path) -> Group:
        """Resolve the entry at `path` to a group. Raises `Refused`."""
        raise NotImplementedError

    def refused_changes(self, before: Geometry, after: Geometry) -> Iterator[Diagnostic]:
        """Diagnostics of entries of a process that a change from one geometry to another cannot make."""
        yield from ()

    def steps(self, geometry: Geometry, machine: Machine) -> Items:
        """Steps that build the entries, in order within each phase."""
        if groups := tuple(geometry.of(self.group).values()):
            yield from self.group_steps(groups)

    def group_steps(self, groups: Sequence[Any]) -> Steps:
        """Steps that build the groups of its entries. The module with steps is imported here, for there are some."""
        yield from ()

    def changes(self, difference: StepDifference) -> Steps:
        """Steps that change what no step creates, such as the access of mappings."""
        yield from ()

    def notes(self, geometry: Geometry) -> Iterator[str]:
        """Notes of a plan about effects that the spec does not show, such as rounded sizes."""
        yield from ()


class StepDifference(NamedTuple):
    """Steps of a layout before and after a change, and the old ones that stay, all by their effect."""

    before: Mapping[Hashable, Step]
    kept: Mapping[Hashable, Step]
    after: Mapping[Hashable, Step]


class Scope:
    """Names of one process during resolution; `kinds` has all kinds, in the order of the registry."""

    def __init__(
        self,
        spec: Spec,
        machines: Machines,
        kinds: Sequence[Kind],
        index: int = 0,
        siblings: Siblings | None = None,
        budgets: MemoryBudgets | None = None,
    ) -> None:
        """`index` is the number of the process within a counted process.

        `budgets` is None while the memory that shares are of is not known; then they are as small as possible.
        """
        self.budgets = budgets
        self.spec, self.machines, self.kinds, self.index = spec, machines, kinds, index
        self.node = rank(spec, index).node
        self.machine = machines.of(self.node)
        self.siblings = siblings or Siblings(spec)
        self.errors = NameErrors()
        self.devices = DeviceNames(spec, machines, self.errors, index)
        self.placements: dict[Instance, tuple[Placement, ...]] = {}
        self.parts: dict[str, tuple[Part, ...]] = {}
        self._unresolved: dict[str, set[str]] = {}
        for section, name in spec.left_out:
            self.leave_unresolved(section, name)
        self.totals: dict[str, int] = {}
        """Number of objects in each section."""
        self.slices: dict[str, list[Slice]] = {}
        """Chunks of each entry of `map`, by the keys of the section."""
        self.choices: dict[Path, Choice] = {}
        """Alternatives that fields take, by the path of the field."""
        self._groups: dict[type[Group], dict[str, Any]] = {}

    @property
    def unresolved(self) -> frozenset[tuple[str, str]]:
        """Section and name of each entry that was left out or depends on such an entry."""
        return frozenset((section, name) for section, names in self._unresolved.items() for name in names)

    def leave_unresolved(self, section: str, *names: str) -> None:
        """Mark entries of a section as left out."""
        if names:
            self._unresolved.setdefault(section, set()).update(names)

    def has_unresolved(self, section: str) -> bool:
        """Return true if an entry of a section was left out or depends on such an entry."""
        return section in self._unresolved

    def geometry(self) -> Geometry:
        """Geometry of everything that is resolved so far."""
        return Geometry(
            self.spec.name,
            self.devices.declared,
            {kind: dict(groups) for kind, groups in self._groups.items()},
            dict(self.placements),
            dict(self.parts),
            self.unresolved,
            self.spec.path,
            self.devices.visible,
            choices=tuple(self.choices.values()),
            node=self.node,
        )

    def of(self, kind: type[G]) -> Mapping[str, G]:
        """Groups of one class by name, including imported ones."""
        return self._groups.get(kind, {})

    def mappable(self, name: str) -> ChunkGroup | None:
        """Chunks, or another object that is mapped as a chunk is, with a name; None if there are none."""
        if (plain := self.of(ChunkGroup).get(name)) is not None:
            return plain
        found = (self._groups.get(kind.group, {}).get(name) for kind in self._mapped_as_chunks)
        return next((each for each in found if each is not None), None)

    def placements_of(self, group: Group) -> tuple[Placement, ...]:
        """Placements in ranges, or the first one of each chunk of a group, in order of their places."""
        return tuple(self._placements_by_group.get(group.name if isinstance(group, RangeGroup) else id(group), ()))

    @cached_property
    def _placements_by_group(self) -> Mapping[Hashable, Sequence[Placement]]:
        """Placements by the name of the range, and by the identity of the chunks; all of `map` is resolved before."""
        found, mapped = dict[Hashable, list[Placement]](), dict[int, set[int]]()
        for where in sorted(self.placements):
            for placement in self.placements[where]:
                found.setdefault(where[0], []).append(placement)
                before = mapped.setdefault(id(placement.chunk), set())
                if not before.issuperset(placement.indices):
                    before.update(placement.indices)
                    found.setdefault(id(placement.chunk), []).append(placement)
        return found

    def may_be_mapped(self, name: str) -> bool:
        """Return true if an entry that is mapped as chunks are has a name, or may have it: it has an error."""
        sections = ("imports", *(kind.section for kind in self._mapped_as_chunks))
        return any(self.spec.may_have(section, name) for section in sections)

    @property
    def _mapped_as_chunks(self) -> Iterator[Kind]:
        """Kinds whose objects a spec maps in ranges."""
        return (kind for kind in self.kinds if issubclass(kind.group, ChunkGroup) and "map" not in kind.unusable)

    def named(self, group: type[G], name: str, path: Path, *sections: str) -> G:
        """Group of one class with a name. Raises `Refused`, with MT201 unless an entry of some sections may have it."""
        if (found := self.of(group).get(name)) is not None:
            return found
        reported = any(self.spec.may_have(section, name) for section in sections)
        raise self.errors.undeclared(group.noun, name, path, self.spec.names(sections[0]), reported=reported)

    def referenced(self, key: str, kind: Kind, group: type[G]) -> G:
        """Group of one class that a key of a section refers to. Raises `Refused`."""
        groups = self.of(group)
        if (found := groups.get(key)) is not None:  # as almost all keys, which have no index
            return found
        name = parse_reference(key).name
        if (found := groups.get(name)) is not None:
            return found
        path = self.spec.at(kind.section, key)
        section = next(other.section for other in self.kinds if other.group is group)
        failed = any(name in names for names in self._unresolved.values())  # of any section, such as a heap
        reported = failed or self.spec.may_have(section, name) or self.may_be_unusable(name, kind, path, "key")
        raise self.errors.undeclared(group.noun, name, path, self.spec.names(section), "key", reported=reported)

    def exports(self, key: str, name: str) -> bool:
        """Return true if an export names an object, under the key of its kind."""
        return (key, name) in self._exported

    @cached_property
    def _exported(self) -> frozenset[tuple[str, str]]:
        return frozenset((key, each.name) for _, entry in self._exports() for key, each in entry.what)

    def _exports(self) -> Iterator[tuple[str, Any]]:
        sections = [kind.section for kind in self.kinds if kind.stage is ResolutionStage.EXPORTED]
        return chain.from_iterable(self.spec.section(each).items() for each in sections)

    def importer_elsewhere(self, export: str) -> str | None:
        """Return the process that imports an export on another node; None if none does."""
        return self.siblings.crossing.get((self.spec.name, export))

    def user_elsewhere(self, name: str) -> str | None:
        """Return the process that imports an object on another node, by any export of it; None if none does."""
        exports = self._exports() if self.siblings.crossing else ()
        of_object = (export for export, entry in exports if any(each.name == name for _, each in entry.what))
        return next(filter(None, map(self.importer_elsewhere, of_object)), None)

    def add(self, kind: Kind, name: str, group: Group | None) -> Iterator[Diagnostic]:
        """Add the group of an entry unless its name is already used; None stands for an entry with an error."""
        yield from self.add_all(kind, {name: group})

    def add_all(self, kind: Kind, groups: Mapping[str, Group | None]) -> Iterator[Diagnostic]:
        """Add the groups of several entries by name, as `add` does for one."""
        repeated = self._repeated if kind.keys is Keys.UNIQUE else ()
        for name, group in groups.items():
            taken = name in repeated and (yield from self._taken(kind, name, group))
            if group is None or taken:
                self.leave_unresolved(kind.section, name)
            else:
                self._groups.setdefault(type(group), {})[name] = group

    def leave_out(self, kind: Kind) -> None:
        """Remove the groups of one kind; no entry of its section is resolved."""
        self._groups.pop(kind.group, None)
        self.leave_unresolved(kind.section, *self.spec.section(kind.section))

    def may_be_unusable(self, name: str, user: Kind, path: Path, at: At = "value") -> bool:
        """Return true if a name may be of a kind whose entries the section of `user` cannot refer to.

        Raises `Refused` with MT706 if it is.
        """
        others = [kind for kind in self.kinds if user.section in kind.unusable]
        for kind in others:
            if name in self.spec.section(kind.section) or (kind.section, name) in self.spec.left_out:
                note, help = kind.unusable[user.section]
                message = f"{name!r} is {kind.words.article}, {user.words.referred}"
                raise Refused(Diagnostic("MT706", message, path, at, notes=(note,), help=help))
        return any(self.spec.may_have(kind.section, name) for kind in others)

    def too_many(self, totals: Mapping[str, int]) -> Resolution[bool]:
        """Record the number of objects in some sections; yield MT109 and return true if there are too many."""
        self.totals.update(totals)
        if not totals or max(totals.values()) <= LARGEST_COUNT:
            return False
        over = [kind for kind in self.kinds if totals.get(kind.section, 0) > LARGEST_COUNT]
        for kind in over:
            count = f"{totals[kind.section]:,} {kind.words.plural}"
            message = f"{count} are more than the {LARGEST_COUNT:,} allowed in one spec"
            yield Diagnostic("MT109", message, self.spec.at(kind.section), "key")
        return True

    @cached_property
    def _repeated(self) -> frozenset[str]:
        """Names that more than one section has."""
        unique = {kind.section for kind in self.kinds if kind.keys is Keys.UNIQUE}
        sections = [found for section, found in self.spec.sections.items() if section in unique]
        if sum(map(len, sections)) == len(set().union(*sections)):
            return frozenset()
        counted = Counter(chain.from_iterable(sections))
        return frozenset(name for name, number in counted.items() if number > 1)

    def _taken(self, kind: Kind, name: str, group: Group | None) -> Resolution[bool]:
        """Yield MT203 and return true if an entry of an earlier section has the same name."""
        for other in self.kinds[: self.kinds.index(kind)]:
            if name not in self.spec.section(other.section) or other.keys is not Keys.UNIQUE:
                continue
            if other.group is RangeGroup and not (group and group.addressed):
                continue  # what has no address of its own may be named like the range that it is mapped into
            message = f"{kind.words.noun} {name!r} has the same name as {other.words.article}"
            label = Label(f"{name!r} is {other.words.article}", self.spec.at(other.section, name), "key")
            where = self.spec.at(kind.section, name)
            yield Diagnostic("MT203", message, where, "key", labels=(label,), help="choose another name")
            return True
        return False


class Sibling(NamedTuple):
    """Process of the spec as other processes refer to it: its entries, and the label and scope of each instance."""

    spec: Spec
    instances: tuple[tuple[str, Scope], ...]


class Siblings(NamedTuple):
    """Processes of the whole spec, including the own one, as they are written, and by name as they are resolved.

    `processes` is empty until every process has resolved its own entries.
    """

    spec: Spec
    processes: Mapping[str, Sibling] = {}
    crossing: Mapping[tuple[str, str], str] = {}
    """Process that imports an export on another node, by the exporting process and the export."""
    layout: str = ""
    """Name of the layout that is held, for processes that join it; empty if all processes are built together."""
