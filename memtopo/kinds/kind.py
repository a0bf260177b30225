"""Kinds of entries: the interface between one section of a spec and the engine, which knows no kind by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, ClassVar, Literal, Protocol, TypeVar

from memtopo.diagnostics.model import At, Diagnostic, Label, Path
from memtopo.driver.protocol import Driver
from memtopo.driver.types import Location
from memtopo.geometry.groups import Group, RangeGroup, Via
from memtopo.geometry.model import Geometry, Part, Placement
from memtopo.kinds.devices import Devices
from memtopo.kinds.layout import Layout
from memtopo.kinds.resolution import NameErrors, Resolution
from memtopo.kinds.step import Step
from memtopo.language.entries import Entry, Spec
from memtopo.language.fields import LARGEST_COUNT, parse_reference
from memtopo.machine import Machine

G = TypeVar("G", bound=Group)

Rule = Callable[[Geometry, Machine], Iterator[Diagnostic]]
"""A rule about the geometry of one process, or of all processes, on a machine."""

Use = Literal["map", "access", "export"]
"""Uses of a name that not every kind has."""

_ONLY: dict[Use, str] = {
    "map": "and only chunks are mapped, into ranges",
    "access": "and access is granted to ranges",
    "export": "which no other process can be handed",
}


class Stage(IntEnum):
    """Order in which kinds are resolved: imports need the exports of all processes, mappings need all chunks."""

    OWN = 0
    IMPORTED = 1
    MAPPED = 2


class Kind:
    """One section of the spec: its entries, how they become groups, their rules and their steps."""

    section: ClassVar[str]
    description: ClassVar[str]
    """Description of the section in a JSON Schema."""
    article: ClassVar[str]
    """Name of one entry in messages, with its article: `a buffer`."""
    entry: ClassVar[Any]
    """Type of one entry, for pydantic."""
    model: ClassVar[type[Entry] | None]
    """Model whose keys an entry has; None where it has none of its own."""
    nested: ClassVar[tuple[str, type[Entry]] | None] = None
    """Key of an entry that holds further entries by name, and their model."""
    referring: ClassVar[bool] = False
    """True if the keys of the section refer to entries of another one."""
    group: ClassVar[type[Group]] = Group
    """Class of the groups that its entries become."""
    unique: ClassVar[bool] = True
    """True if an entry cannot share its name with entries of other kinds."""
    stage: ClassVar[Stage] = Stage.OWN
    drawn: ClassVar[str | None] = None
    """Word for an entry in the data of a diagram, if it is drawn apart from ranges."""
    unusable: ClassVar[Mapping[Use, tuple[str, str]]] = {}
    """Uses that the driver does not allow, each with a note and a help."""
    rules: ClassVar[tuple[Rule, ...]] = ()
    """Rules that each process must satisfy."""
    joint_rules: ClassVar[tuple[Rule, ...]] = ()
    """Rules that all processes must satisfy together."""

    def keys(self, loc: tuple[str | int, ...]) -> list[str]:
        """Keys that may be at a position in the section; `loc` begins with the name of an entry."""
        inside = self.nested is not None and loc[1:2] == (self.nested[0],) and len(loc) > 2  # noqa: PLR2004
        model = self.nested[1] if self.nested and inside else self.model
        return [field.alias or key for key, field in model.model_fields.items()] if model else []

    def resolve(self, scope: Scope) -> Iterator[Diagnostic]:
        """Turn the entries of the section into groups of the scope."""
        for name, entry in scope.spec.section(self.section).items():
            group = yield from self.resolve_entry(scope, entry, scope.spec.at(self.section, name))
            yield from scope.put(self, name, group)

    def resolve_entry(self, scope: Scope, entry: Any, path: Path) -> Resolution[Group | None]:
        """Turn one entry, the last of `path`, into a group."""
        raise NotImplementedError

    def steps(self, geometry: Geometry, machine: Machine) -> Iterator[Step]:
        """Steps that build the entries, phase by phase."""
        del geometry, machine
        yield from ()

    def last_steps(self, geometry: Geometry, steps: Sequence[Step]) -> Iterator[Step]:
        """Steps after all others, which are `steps`."""
        del geometry, steps
        yield from ()

    def notes(self, geometry: Geometry) -> Iterator[str]:
        """Notes of a plan: a sentence for each thing that a reader of the spec may not expect."""
        del geometry
        yield from ()


class ExportKind(Kind):
    """A kind whose things can be exported to other processes."""

    transports: ClassVar[tuple[Via, ...]]
    """Transports of its handles; the first is suggested."""

    def handle_types(self, group: Group) -> tuple[str, ...]:
        """Transports that the things of a group were created for."""
        del group
        return self.transports

    def properties(self, group: Group) -> tuple[str, ...]:
        """Properties that an importer is informed of."""
        del group
        return ()

    def try_export(self, path: Path, export: Exported) -> Step:
        """Step that exports one handle once, so that a refusal is found while building."""
        raise NotImplementedError

    def handle(self, driver: Driver, layout: Layout, export: Exported, index: int) -> int | bytes:
        """Export one handle: a file descriptor, or the bytes of a fabric or IPC handle."""
        raise NotImplementedError


class Exported(Protocol):
    """Things that are exported under a name, as `count` handles via one transport."""

    @property
    def name(self) -> str: ...
    @property
    def via(self) -> Via: ...
    @property
    def count(self) -> int: ...
    def label(self, index: int) -> str: ...
    def place_of(self, index: int) -> Location: ...


@dataclass(slots=True)
class Scope:
    """The names of one process while its entries are resolved; `kinds` are all, in order of declaration."""

    spec: Spec
    machine: Machine
    kinds: Sequence[Kind]
    index: int = 0
    errors: NameErrors = field(default_factory=NameErrors)
    devices: Devices = field(init=False)
    groups: dict[type[Group], dict[str, Group]] = field(default_factory=dict)
    placements: dict[tuple[str, int], tuple[Placement, ...]] = field(default_factory=dict)
    parts: dict[str, tuple[Part, ...]] = field(default_factory=dict)
    unresolved: set[tuple[str, str]] = field(default_factory=set)
    totals: dict[str, int] = field(default_factory=dict)
    """Number of things in each section."""
    siblings: Mapping[str, Sibling] = field(default_factory=dict)
    unread: frozenset[str] = frozenset()
    """Names of processes that could not be read."""
    processes: frozenset[str] = frozenset()
    """Names of all processes of the spec."""
    slices: dict[str, list[Any]] = field(default_factory=dict)
    """Chunks that each entry of `map` names, by the keys of the section."""

    def __post_init__(self) -> None:
        self.devices = Devices(self.spec, self.machine, self.errors, self.index)
        self.unresolved.update(self.spec.left_out)

    def of(self, kind: type[G]) -> dict[str, G]:
        """Groups of one class by name, imported ones too."""
        return self.groups.setdefault(kind, {})  # type: ignore[return-value]

    def range_of(self, key: str, kind: Kind) -> Resolution[RangeGroup | None]:
        """Range that a key of a section refers to."""
        name, path = parse_reference(key).name, self.spec.at(kind.section, key)
        use: Use = "map" if kind.section == "map" else "access"
        if not (self.spec.may_have("ranges", name) or (yield from self.unusable(name, use, path, "key"))):
            yield self.errors.undeclared("range", name, path, self.spec.section("ranges"), "key")
        return self.of(RangeGroup).get(name)

    def mistaken(self, name: str) -> str | None:
        """Name, with its article, of a kind that a name is of and that is not mapped: `a buffer`."""
        kinds = (kind for kind in self.kinds if kind.unique and "map" not in kind.unusable and kind.section != "ranges")
        return next((kind.article for kind in kinds if name in self.of(kind.group)), None)

    def put(self, kind: Kind, name: str, group: Group | None) -> Iterator[Diagnostic]:
        """Add what an entry became, unless its name is taken; None is an entry with an error."""
        taken = kind.unique and (yield from self._taken(kind, name, group))
        if group is None or taken:
            self.unresolved.add((kind.section, name))
        else:
            self.of(type(group))[name] = group

    def unusable(self, name: str, use: Use, path: Path, at: At = "value") -> Resolution[bool]:
        """MT706, if a name is of a kind that cannot be used so; true if it is, or may be, of such a kind."""
        for kind in self.kinds:
            if use not in kind.unusable:
                continue
            if name in self.spec.section(kind.section) or (kind.section, name) in self.spec.left_out:
                note, help = kind.unusable[use]
                message = f"{name!r} is {kind.article}, {_ONLY[use]}"
                yield Diagnostic("MT706", message, path, at, notes=(note,), help=help)
                return True
        return any(self.spec.may_have(kind.section, name) for kind in self.kinds if use in kind.unusable)

    def limited(self, **totals: int) -> Resolution[bool]:
        """Count the things of some sections; true, and MT109, if they are more than one spec may request."""
        self.totals.update(totals)
        over = {section: total for section, total in totals.items() if total > LARGEST_COUNT}
        for section, total in over.items():
            message = f"{total:,} {things(section)} are more than the {LARGEST_COUNT:,} that one spec may ask for"
            yield Diagnostic("MT109", message, self.spec.at(section), "key")
        return bool(over)

    def _taken(self, kind: Kind, name: str, group: Group | None) -> Resolution[bool]:
        """MT203, if an entry of another section has the same name; sections are checked in order of declaration."""
        for other in self.kinds:
            if other is kind:
                return False
            if not other.unique or name not in self.spec.section(other.section):
                continue
            if other.section == "ranges" and not (group and group.addressed):
                continue
            what = kind.article.removeprefix("a ").removeprefix("an ")
            message = f"{what} {name!r} has the name of {other.article}"
            label = Label(f"{name!r} is {other.article} here", self.spec.at(other.section, name), "key")
            where = self.spec.at(kind.section, name)
            yield Diagnostic("MT203", message, where, "key", labels=(label,), help="give it a name of its own")
            return True
        return False


@dataclass(frozen=True, slots=True)
class Sibling:
    """A process of the spec as the others see it: its entries, and a label and a scope for each of its instances."""

    spec: Spec
    instances: tuple[tuple[str, Scope], ...]


def things(section: str) -> str:
    """Things of a section in messages about too many of them."""
    handles = {"exports": "handles of exports", "imports": "handles of imports"}
    return {"map": "mappings", "access": "parts of access", **handles}.get(section, section)
