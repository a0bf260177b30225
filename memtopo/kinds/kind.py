"""Interface between the engine and the kinds of entries. The engine names no kind itself."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar

from memtopo.diagnostics.model import At, Diagnostic, Label, Path
from memtopo.driver.handles import Handle, Via
from memtopo.driver.types import Location
from memtopo.geometry.groups import Group, RangeGroup
from memtopo.geometry.model import Geometry, Part, Placement
from memtopo.kinds.devices import Devices
from memtopo.kinds.resolution import NameErrors, Resolution
from memtopo.language.entries import Entry, Spec
from memtopo.language.fields import LARGEST_COUNT, parse_reference
from memtopo.machine import Machine

if TYPE_CHECKING:
    from memtopo.driver.protocol import Driver
    from memtopo.kinds.layout import Layout
    from memtopo.kinds.step import Step

G = TypeVar("G", bound=Group)

Rule = Callable[[Geometry, Machine], Iterator[Diagnostic]]
"""A rule about the geometry of one process, or of all processes, on a machine."""

Use = Literal["map", "access", "export"]
"""Uses of a name that some kinds do not support."""

_ONLY: dict[Use, str] = {
    "map": "and only chunks can be mapped into ranges",
    "access": "and access can be granted to ranges only",
    "export": "which cannot be exported to other processes",
}


class Stage(IntEnum):
    """Stages of the resolution of a spec, in order. The exports of all processes are resolved before any import."""

    OWN = 0
    EXPORTED = 1
    IMPORTED = 2
    RESERVED = 3
    MAPPED = 4
    GRANTED = 5


class Kind:
    """One section of the spec: its entries, their resolution to groups, their rules and their steps."""

    section: ClassVar[str]
    description: ClassVar[str]
    """Description of the section in a JSON Schema."""
    article: ClassVar[str]
    """Name of one entry in messages, with its article: `a buffer`."""
    entry: ClassVar[Any]
    """Type of one entry, for pydantic."""
    model: ClassVar[type[Entry] | None]
    """Model with the keys of an entry; None if an entry has no keys."""
    nested: ClassVar[tuple[str, type[Entry]] | None] = None
    """Key of an entry with nested entries by name, and their model."""
    referring: ClassVar[bool] = False
    """True if the keys of the section are references to entries of another section."""
    group: ClassVar[type[Group]] = Group
    """Class of the groups that its entries are resolved to."""
    unique: ClassVar[bool] = True
    """True if an entry cannot share its name with entries of other kinds."""
    stage: ClassVar[Stage] = Stage.OWN
    drawn: ClassVar[str | None] = None
    """Word for an entry in the data of a diagram, if it is drawn separately from ranges."""
    unusable: ClassVar[Mapping[Use, tuple[str, str]]] = {}
    """Uses that the driver does not support, each with a note and a help text."""

    def keys(self, loc: tuple[str | int, ...]) -> list[str]:
        """Keys allowed at a position in the section; `loc` begins with the name of an entry."""
        inside = self.nested is not None and loc[1:2] == (self.nested[0],) and len(loc) > 2  # noqa: PLR2004
        model = self.nested[1] if self.nested and inside else self.model
        return [field.alias or key for key, field in model.model_fields.items()] if model else []

    def resolve(self, scope: Scope) -> Iterator[Diagnostic]:
        """Resolve the entries of the section to groups, and add them to the scope."""
        for name, entry in scope.spec.section(self.section).items():
            group = yield from self.resolve_entry(scope, entry, scope.spec.at(self.section, name))
            yield from scope.add(self, name, group)

    def resolve_entry(self, scope: Scope, entry: Any, path: Path) -> Resolution[Group | None]:
        """Resolve the entry at `path` to a group; return None if it has an error."""
        raise NotImplementedError

    def rules(self) -> tuple[Rule, ...]:
        """Rules that each process must satisfy."""
        return ()

    def joint_rules(self) -> tuple[Rule, ...]:
        """Rules that all processes must satisfy together."""
        return ()

    def steps(self, geometry: Geometry, machine: Machine) -> Iterator[Step]:
        """Steps that build the entries, in order within each phase."""
        del geometry, machine
        yield from ()

    def last_steps(self, geometry: Geometry, steps: Sequence[Step]) -> Iterator[Step]:
        """Steps at the end of the plan, after `steps`."""
        del geometry, steps
        yield from ()

    def changes(self, kept: Mapping[Hashable, Step], after: Mapping[Hashable, Step]) -> Iterator[Step]:
        """Steps that change the state of a layout which belongs to other steps, such as the access of its mappings.

        `kept` are the steps that stay, as they were, and `after` all steps that the layout will have, by their effect.
        """
        del kept, after
        yield from ()

    def notes(self, geometry: Geometry) -> Iterator[str]:
        """Notes of a plan about effects that the spec does not show, such as rounded sizes."""
        del geometry
        yield from ()


class ExportKind(Kind):
    """Kind whose objects can be exported to other processes."""

    transports: ClassVar[tuple[Via, ...]]
    """Supported transports; messages suggest the first."""

    def handle_types(self, group: Group) -> tuple[str, ...]:
        """Transports that the objects of a group are created for."""
        del group
        return self.transports

    def properties(self, group: Group) -> tuple[str, ...]:
        """Properties that are reported to importers."""
        del group
        return ()

    def try_export(self, path: Path, export: Exported) -> Step:
        """Step that exports one handle as a test, so that a driver error occurs during building."""
        raise NotImplementedError

    def handle(self, driver: Driver, layout: Layout, export: Exported, index: int) -> Handle:
        """Export one handle, which the caller closes."""
        raise NotImplementedError


class Exported(Protocol):
    """Objects that are exported under one name, as `count` handles via one transport."""

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
    """Names of one process during resolution; `kinds` has all kinds, in the order of the registry."""

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
    """Number of objects in each section."""
    siblings: Mapping[str, Sibling] = field(default_factory=dict)
    unread: frozenset[str] = frozenset()
    """Names of processes with errors."""
    processes: frozenset[str] = frozenset()
    """Names of all processes of the spec."""
    slices: dict[str, list[Any]] = field(default_factory=dict)
    """Chunks of each entry of `map`, by the keys of the section."""

    exported: dict[str, frozenset[str]] = field(default_factory=dict)
    """Exported names by the key of an export, as far as they were needed."""

    def __post_init__(self) -> None:
        self.devices = Devices(self.spec, self.machine, self.errors, self.index)
        self.unresolved.update(self.spec.left_out)

    def of(self, kind: type[G]) -> dict[str, G]:
        """Groups of one class by name, including imported ones."""
        return self.groups.setdefault(kind, {})  # type: ignore[return-value]

    def range_of(self, key: str, kind: Kind) -> Resolution[RangeGroup | None]:
        """Range that a key of a section refers to."""
        name, path = parse_reference(key).name, self.spec.at(kind.section, key)
        use: Use = "map" if kind.section == "map" else "access"
        if not (self.spec.may_have("ranges", name) or (yield from self.unusable(name, use, path, "key"))):
            yield self.errors.undeclared("range", name, path, self.spec.section("ranges"), "key")
        return self.of(RangeGroup).get(name)

    def exports(self, key: str, name: str) -> bool:
        """Return true if an entry of `exports` names an object, under the key of its kind."""
        if key not in self.exported:
            entries = self.spec.section("exports").values()
            self.exported[key] = frozenset(each.name for entry in entries for kind, each in entry.what if kind == key)
        return name in self.exported[key]

    def unmappable_kind(self, name: str) -> str | None:
        """Kind of a name that cannot be mapped, with its article: `a buffer`; None for other names."""
        kinds = (kind for kind in self.kinds if kind.unique and "map" not in kind.unusable and kind.section != "ranges")
        return next((kind.article for kind in kinds if name in self.of(kind.group)), None)

    def add(self, kind: Kind, name: str, group: Group | None) -> Iterator[Diagnostic]:
        """Add the group of an entry unless its name is already used; None stands for an entry with an error."""
        taken = kind.unique and (yield from self._taken(kind, name, group))
        if group is None or taken:
            self.unresolved.add((kind.section, name))
        else:
            self.of(type(group))[name] = group

    def unusable(self, name: str, use: Use, path: Path, at: At = "value") -> Resolution[bool]:
        """Yield MT706 if a name is of a kind without this use; return true if it is, or may be, of such a kind."""
        for kind in self.kinds:
            if use not in kind.unusable:
                continue
            if name in self.spec.section(kind.section) or (kind.section, name) in self.spec.left_out:
                note, help = kind.unusable[use]
                message = f"{name!r} is {kind.article}, {_ONLY[use]}"
                yield Diagnostic("MT706", message, path, at, notes=(note,), help=help)
                return True
        return any(self.spec.may_have(kind.section, name) for kind in self.kinds if use in kind.unusable)

    def too_many(self, **totals: int) -> Resolution[bool]:
        """Record the number of objects in some sections; yield MT109 and return true if there are too many."""
        self.totals.update(totals)
        over = {section: total for section, total in totals.items() if total > LARGEST_COUNT}
        for section, total in over.items():
            message = f"{total:,} {plural_noun(section)} are more than the {LARGEST_COUNT:,} that one spec may declare"
            yield Diagnostic("MT109", message, self.spec.at(section), "key")
        return bool(over)

    def _taken(self, kind: Kind, name: str, group: Group | None) -> Resolution[bool]:
        """Yield MT203 and return true if an entry of an earlier section has the same name."""
        for other in self.kinds:
            if other is kind:
                return False
            if not other.unique or name not in self.spec.section(other.section):
                continue
            if other.section == "ranges" and not (group and group.addressed):
                continue
            what = kind.article.removeprefix("a ").removeprefix("an ")
            message = f"{what} {name!r} has the same name as {other.article}"
            label = Label(f"{name!r} is {other.article}", self.spec.at(other.section, name), "key")
            where = self.spec.at(kind.section, name)
            yield Diagnostic("MT203", message, where, "key", labels=(label,), help="choose another name")
            return True
        return False


@dataclass(frozen=True, slots=True)
class Sibling:
    """Process of the spec as other processes refer to it: its entries, and the label and scope of each instance."""

    spec: Spec
    instances: tuple[tuple[str, Scope], ...]


def plural_noun(section: str) -> str:
    """Plural noun for the objects of a section, for messages about their number."""
    handles = {"exports": "handles of exports", "imports": "handles of imports"}
    return {"map": "mappings", "access": "parts of access", **handles}.get(section, section)
