"""Imports: objects exported by other processes. The kinds of `EXPORTABLE` define how they are imported."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, cycle, islice

from pydantic import Field

from memtopo.common.units import Size, exact
from memtopo.diagnostics.model import Diagnostic, Label, Path
from memtopo.driver.handles import Via
from memtopo.driver.types import Location
from memtopo.geometry.groups import Group, Origin
from memtopo.kinds.alternatives import Support, chosen
from memtopo.kinds.chunks.parts import Parts
from memtopo.kinds.device_sets import has_set
from memtopo.kinds.exportable import ExportKind, Imported
from memtopo.kinds.exports import EXPORTABLE, EXPORTS, ExportGroup, enumerated
from memtopo.kinds.import_order import Order, in_order, outside_order, unequal_order
from memtopo.kinds.kind import Kind, Scope, Sibling, Stage
from memtopo.kinds.resolution import Resolution, requires_gpu
from memtopo.language.alternatives import Alternatives
from memtopo.language.entries import Entry, Spec
from memtopo.language.fields import (
    LARGEST_COUNT,
    Count,
    DeviceName,
    Devices,
    PositiveAmount,
    SourceText,
    Transport,
)
from memtopo.language.names import NamedDevice

_Declared = tuple[str, str, str]
"""Key of an import, its declared value, and the actual value."""

_LOCATIONS = ("location", "device")
"""Keys that declare locations."""

_FORMS = tuple(dict.fromkeys(kind.import_keys for kind in EXPORTABLE.values()))
"""Keys by which imports declare their objects, each for some of the kinds."""

_KEYS = tuple(dict.fromkeys(chain(_LOCATIONS, *_FORMS)))

_ELSEWHERE = ("ipc",)
"""Transports whose handles cannot be opened in the process that exports them (fact 31)."""

_LISTED = 8
"""Maximum number of locations in a message."""


class Import(Entry):
    """Objects exported by another process. Properties of imports from outside of the spec are declared, and checked."""

    source: SourceText = Field(
        alias="from",
        description="server.weights of a process, weights-server/w of a held layout, /path/to/socket/w.",
    )
    via: Transport | None = Field(default=None, description="fd, fabric or ipc; by default that of the export, or fd.")
    location: Devices | None = Field(default=None, description="Location of the memory, as for a chunk.")
    size: PositiveAmount | None = Field(default=None, description="Bytes of each chunk or buffer.")
    count: Count | None = Field(default=None, description="Number of handles of a counted export.")
    device: DeviceName | None = Field(default=None, description="GPU of an event.")
    parts: Parts | None = Field(default=None, description="Named parts of each chunk, as its holder declares them.")
    order: Order | None = Field(
        default=None,
        description="own-first: those of the same number, then of the next ones, around; or the neighbours of a ring.",
    )

    @property
    def transports(self) -> tuple[Via, ...]:
        """Transport that an import declares, or the alternatives; none by default."""
        if isinstance(self.via, Alternatives):
            return self.via.options
        return () if self.via is None else (self.via,)

    @property
    def declared(self) -> list[str]:
        """Declared keys of the objects."""
        return [key for key in _KEYS if getattr(self, key) is not None]

    def locations(self, key: str) -> list[NamedDevice]:
        """Locations that a key declares."""
        value = getattr(self, key)
        return value if isinstance(value, list) else [value]

    def amount(self, keys: Iterable[str]) -> Size | None:
        """Bytes that one of some keys declares; None if none of them declares bytes."""
        return next((getattr(self, key) for key in keys if key not in _LOCATIONS), None)


class Imports(Kind):
    """Section `imports`."""

    section = "imports"
    description = (
        "Objects exported by other processes, used like "
        f"{enumerated((kind.plural for kind in EXPORTABLE.values()), 'and')}: w: {{from: server.w}}."
    )
    plural = "handles of imports"
    article = "an import"
    form = "w: {from: server.w}"
    entry = model = Import
    stage = Stage.IMPORTED

    def numbered(self, spec: Spec) -> bool:
        """True if an import has an order, or is of handles that the process itself cannot open."""
        exports = spec.section(EXPORTS.section)
        imports = spec.section(self.section).values()
        own = (exports.get(each.source.export) for each in imports if _is_own(spec, each))
        return any(each.order for each in imports) or any(export and export.via in _ELSEWHERE for export in own)

    def resolve_entry(self, scope: Scope, entry: Import, path: Path) -> Resolution[Group | None]:
        if not entry.source.sibling:
            if wrong := _named_like_process(scope, path, entry) or outside_order(path, entry.order, entry.source):
                yield wrong
                return None
            return (yield from _from_outside(scope, path, entry))
        if {entry.source.holder, "", "<<"}.isdisjoint(scope.siblings.unread):
            return (yield from _from_sibling(scope, path, entry))
        return None


def _named_like_process(scope: Scope, path: Path, entry: Import) -> Diagnostic | None:
    """Return MT203 for a layout with the name of a process of the spec, which is probably intended."""
    holder, export = entry.source.holder, entry.source.export
    if holder not in scope.siblings.processes:
        return None
    message = f"import {path[-1]!r} is from a held layout {holder!r}, which is the name of a process of this spec"
    label = Label("the process", scope.siblings.processes[holder].spec.path, "key")
    help = f"write {holder}.{export} for the process, or choose another name for it"
    return Diagnostic("MT203", message, (*path, "from"), labels=(label,), help=help)


def _from_sibling(scope: Scope, path: Path, entry: Import) -> Resolution[Group | None]:
    source, where = entry.source, (*path, "from")
    sibling = scope.siblings.processes.get(source.holder)
    if sibling is None:
        yield _no_process(scope, source.holder, where)
        return None
    if wrong := unequal_order(scope.spec, path, entry.order, sibling.spec):
        yield wrong
        return None
    sibling = sibling._replace(instances=in_order(entry.order, scope.index, sibling.instances))
    exports = yield from _exports(scope, path, entry, sibling)
    if not exports:
        return None
    itself = exports[0].via in _ELSEWHERE and sibling.spec.path == scope.spec.path
    if itself and scope.spec.instances is None:
        yield _own_export(path, entry, exports[0])
        return None
    origin = _origin(exports[0], sibling, f"{source.holder}.{scope.index}" if itself else "")
    counted = exports[0].counted or sibling.spec.instances is not None
    imported = Imported(path, origin.each * len(exports), counted, _distributed(exports), origin)
    kind = exports[0].exporter
    group = kind.import_exported(imported, [export.group for export in exports])
    found = [*(yield from _contradictions(scope, entry, group, exports[0])), *_unseen(scope, where, kind, imported)]
    yield from found
    return None if found else group


def _origin(export: ExportGroup, sibling: Sibling, own: str) -> Origin:
    """Origin of what instances of a process export; `own` is the importing one if it cannot open its own handles."""
    labels = tuple(label for label, _ in sibling.instances)
    group, first = export.group, export.first
    return Origin(labels, export.name, export.count, export.via, siblings=True, exported=group, first=first, own=own)


def _is_own(spec: Spec, entry: Import) -> bool:
    """Return true for an import from the process itself, which is `spec`."""
    return entry.source.sibling and spec.path[-1:] == (entry.source.holder,)


def _no_process(scope: Scope, name: str, path: Path) -> Diagnostic:
    if scope.siblings.processes:
        return scope.errors.undeclared("process", name, path, scope.siblings.processes)
    message = f"process {name!r} is not declared: this spec has no processes"
    return Diagnostic("MT201", message, path, help="write LAYOUT/EXPORT for a held layout")


def _exports(scope: Scope, path: Path, entry: Import, sibling: Sibling) -> Resolution[list[ExportGroup]]:
    """Exports of one name by each instance of a process; empty if there is an error."""
    source, where = entry.source, (*path, "from")
    found = [each.of(ExportGroup).get(source.export) for _, each in sibling.instances]
    exports = [export for export in found if export]
    if sibling.spec.countless or len(exports) < len(found):
        if not sibling.spec.may_have("exports", source.export):
            yield scope.errors.undeclared("export", source.export, where, sibling.spec.section("exports"))
        return []
    sizes = {export.size: label for export, (label, _) in zip(exports, sibling.instances, strict=True)}
    total = sum(export.count for export in exports)
    label = Label("exported here", exports[0].path, "key")
    if total > LARGEST_COUNT:
        message = f"import {path[-1]!r} is {total:,} handles, more than the {LARGEST_COUNT:,} that one spec may declare"
        yield Diagnostic("MT109", message, where, labels=(label,))
        return []
    if len(sizes) > 1:
        each = " and ".join(f"{exact(size)} in {holder}" for size, holder in islice(sizes.items(), 2))
        message = f"import {path[-1]!r}: {source} has different sizes: {each}"
        note = "the granularities of the GPUs differ"
        help = "write the size of the exported entry in bytes, as a multiple of the larger granularity"
        yield Diagnostic("MT604", message, where, labels=(label,), notes=(note,), help=help)
        return []
    return exports


def _own_export(path: Path, entry: Import, export: ExportGroup) -> Diagnostic:
    message = f"import {path[-1]!r} would open {entry.source} in the process that exports it"
    note = "legacy IPC returns INVALID_CONTEXT (fact 31)"
    same = enumerated(key for key, kind in EXPORTABLE.items() if export.via in kind.transports)
    others = enumerated(kind.plural for kind in EXPORTABLE.values() if "fd" in kind.transports)
    help = f"use the {same} directly, or share {others} via fd, which a process can import from itself"
    label = Label("exported here", export.path, "key")
    return Diagnostic("MT605", message, (*path, "from"), labels=(label,), notes=(note,), help=help)


def _unseen(scope: Scope, path: Path, kind: ExportKind, imported: Imported) -> Iterator[Diagnostic]:
    """Yield MT606 for a GPU that is not visible, unless objects of the kind can be on any GPU (fact 43)."""
    if kind.anywhere:
        return
    if hidden := next((each for each in dict.fromkeys(imported.locations) if not scope.devices.sees(each)), None):
        note = f"legacy IPC opens {kind.article} on its own GPU"
        yield scope.devices.unseen(str(hidden), hidden, path, notes=(note,))


def _distributed(exports: Sequence[ExportGroup]) -> tuple[Location, ...]:
    """Locations of imported objects in the order of the holders, shortened to one period if they repeat."""
    rounds = [export.locations for export in exports]
    each = exports[0].count
    if len(rounds) == 1 or (len(set(rounds)) == 1 and each % len(rounds[0]) == 0):
        return rounds[0]
    return tuple(chain.from_iterable(islice(cycle(found), each) for found in rounds))


def _contradictions(scope: Scope, entry: Import, group: Group, export: ExportGroup) -> Resolution[list[Diagnostic]]:
    """Diagnostics of an import that declares other properties than its sibling exports; all of them are optional."""
    path, kind = group.path, export.exporter
    if wrong := _granules(path, entry, kind):
        return [wrong]
    if entry.parts:
        message = f"import {path[-1]!r} declares parts, and those of {entry.source} are known"
        return [Diagnostic("MT604", message, (*path, "parts"), help="leave 'parts' out: it is taken from the export")]
    label = Label("exported here", export.path, "key")
    found = []
    for key, declared, actual in (yield from _differences(scope, entry, group, export)):
        message = f"import {path[-1]!r} declares {key} {declared}, but {entry.source} {actual}"
        help = f"leave {key!r} out: it is taken from the export"
        found.append(Diagnostic("MT604", message, (*path, key), labels=(label,), help=help))
    return found


def _differences(scope: Scope, entry: Import, group: Group, export: ExportGroup) -> Resolution[list[_Declared]]:
    found: list[_Declared] = []
    if entry.via and export.via not in entry.transports:
        found.append(("via", str(entry.via), f"is exported via {export.via}"))
    if entry.count and entry.count != group.count:
        found.append(("count", f"{entry.count:,}", f"is {group.count:,} handle{'s' * (group.count != 1)}"))
    for key in entry.declared:
        if key not in export.exporter.import_keys:
            written = (
                ", ".join(map(str, entry.locations(key)[:_LISTED])) if key in _LOCATIONS else str(entry.amount([key]))
            )
            found.append((key, written, _not_of(export.exporter, key)))
        elif key in _LOCATIONS:
            locations = yield from scope.devices.resolve_all(entry.locations(key), group.path, key, anywhere=True)
            if locations and _on_other_locations(locations, group):
                found.append((key, _listed(locations), f"is on {_listed(group.locations)}"))
        elif (amount := entry.amount([key])) and not export.exporter.has_size(amount, group, export.group):
            size = f"has {exact(group.size)} each" if group.counted else f"has {exact(group.size)}"
            found.append((key, str(amount), size))
    return found


def _granules(path: Path, entry: Import, kind: ExportKind) -> Diagnostic | None:
    """Return MT105 for an amount in granules of a kind without granules."""
    amounts = {key: entry.amount([key]) for key in kind.import_keys}
    key = next((key for key, amount in amounts.items() if amount and amount.in_granules), None)
    if kind.in_granules or key is None:
        return None
    noun = kind.group.noun
    message = f"import {path[-1]!r} is {kind.article}, and a {noun} has no granules"
    return Diagnostic("MT105", message, (*path, key), help="write bytes: 2MiB")


def _not_of(kind: ExportKind, key: str) -> str:
    return f"is {kind.article}, which has {' and '.join(f'a {each}' for each in kind.import_keys)}, not a {key}"


def _on_other_locations(locations: Sequence[Location], group: Group) -> bool:
    """Return true if a round-robin distribution over `locations` differs from that of a group."""
    actual = group.locations
    period = min(group.count, max(len(locations) * len(actual), 1))
    return any(one != other for one, other in islice(zip(cycle(locations), cycle(actual), strict=False), period))


def _listed(locations: Sequence[Location]) -> str:
    return ", ".join(map(str, locations[:_LISTED])) + " …" * (len(locations) > _LISTED)


def _from_outside(scope: Scope, path: Path, entry: Import) -> Resolution[Group | None]:
    """Group of an import from outside of the spec, as declared."""
    form = _form(entry)
    kind = next((each for each in _kinds(form) if set(entry.transports) <= set(each.transports)), None)
    if kind is None or set(form) != set(entry.declared):
        yield _undeclared_properties(path, entry, form)
        return None
    key = next(key for key in form if key in _LOCATIONS)
    listed = yield from scope.devices.resolve_all(entry.locations(key), path, key, anywhere=kind.anywhere)
    if listed is None:
        return None
    each = entry.count is None and has_set(entry.locations(key))  # one handle for each device of a set
    count = entry.count or (len(listed) if each else 1)
    locations = yield from scope.devices.distributed(listed, count, path, key)
    if wrong := _granules(path, entry, kind) or _no_parts(path, entry, kind):
        yield wrong
        return None
    if not kind.anywhere and (yield from requires_gpu(f"import {path[-1]!r}", locations, (*path, key))):
        return None
    via = yield from _via(scope, path, entry, kind, key)
    if via is None:
        return None
    origin = Origin((entry.source.holder,), entry.source.export, count, via, siblings=False)
    imported = Imported(path, count, entry.count is not None or each, locations, origin, entry.parts)
    return (yield from kind.import_declared(imported, entry.amount(form) or Size(0), scope.machine))


def _no_parts(path: Path, entry: Import, kind: ExportKind) -> Diagnostic | None:
    """Return MT603 for parts of objects that have none."""
    if kind.has_parts or not entry.parts:
        return None
    message = f"import {path[-1]!r} declares parts, and {kind.article} has none"
    return Diagnostic("MT603", message, (*path, "parts"), help="leave 'parts' out: only chunks have parts")


def _via(scope: Scope, path: Path, entry: Import, kind: ExportKind, key: str) -> Resolution[Via | None]:
    """Transport of an import from outside of the spec, whose holder chooses among alternatives alike."""

    def support(via: Via) -> Support:
        return kind.supports(scope, entry.locations(key), via)

    written = entry.via or kind.transports[0]
    via: Via | None = yield from chosen(scope, written, f"import {path[-1]}: via", (*path, "via"), support)
    return via


def _form(entry: Import) -> tuple[str, ...]:
    """Keys that an import declares: those of the last form of which it has a key that the first does not have."""
    first, *others = _FORMS
    own = (keys for keys in reversed(others) if any(key in entry.declared for key in keys if key not in first))
    return next(own, first)


def _kinds(form: tuple[str, ...]) -> list[ExportKind]:
    return [kind for kind in EXPORTABLE.values() if kind.import_keys == form]


def _objects(form: tuple[str, ...]) -> str:
    """Objects that an import declares by some keys: `memory`, or `an event`."""
    kind = _kinds(form)[0]
    return "memory" if kind.group.memory else kind.article


def _undeclared_properties(path: Path, entry: Import, form: tuple[str, ...]) -> Diagnostic:
    """Return MT603 for an import from outside that does not declare exactly the keys of one form."""
    own = next((key for key in form if key not in _FORMS[0]), form[0])
    message = f"import {path[-1]!r} declares a {own} like {_objects(form)}, and "
    if several := [key for key in entry.declared if key not in form]:
        other = _objects(next(each for each in _FORMS if several[0] in each))
        help = f"leave {' and '.join(map(repr, several))} out for {_objects(form)}, or {own!r} for {other}"
        message += f"a {several[0]} like {other}"
        return Diagnostic("MT603", message, (*path, several[0]), help=help)
    if missing := [key for key in form if key not in entry.declared]:
        return _missing(path, form, missing)
    like = next(kind for kind in EXPORTABLE.values() if set(entry.transports) <= set(kind.transports))
    help = f"leave 'via' out, or declare the {' and '.join(like.import_keys)} of {like.article}"
    return Diagnostic("MT603", f"{message}via {entry.via} like {like.article}", (*path, "via"), help=help)


def _missing(path: Path, form: tuple[str, ...], missing: Sequence[str]) -> Diagnostic:
    message = f"import {path[-1]!r} is from outside of this spec, and its {' and '.join(missing)} must be declared"
    note = "the plan is made from the declared properties, which are compared with the export when it is imported"
    others = [f"for {_objects(each)}, add its {' and '.join(each)}" for each in _FORMS if each != form]
    keys = " and ".join(f"'{key}: …'" for key in missing)
    help = "; ".join([f"add {keys}", *others])
    return Diagnostic("MT603", message, path, "key", notes=(note,), help=help)


IMPORTS = Imports()
