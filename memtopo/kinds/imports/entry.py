"""Entry of an import: the objects that it declares, the order of their processes, imports from outside of the spec."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Annotated, TypeVar

from pydantic import AfterValidator, Field, WrapValidator

from memtopo.common.text import enumerated
from memtopo.common.units import Size
from memtopo.diagnostics.model import Diagnostic, InvalidValue, Label, Path
from memtopo.driver.handles import Via
from memtopo.driver.types import Location, LocationKind
from memtopo.geometry.groups import Group, Origin
from memtopo.kinds.chunks.entry import Parts
from memtopo.kinds.chunks.support import Support, chosen, supported_at
from memtopo.kinds.device_names import has_set
from memtopo.kinds.exportable import ExportKind, Imported
from memtopo.kinds.exports import EXPORTABLE
from memtopo.kinds.kind import Scope
from memtopo.kinds.resolution import Refused, require_on_gpu, together
from memtopo.language.entries import Entry, Spec
from memtopo.language.fields import (
    OWN_FIRST,
    OWN_NODE,
    WHOLE_ORDERS,
    Alternatives,
    Count,
    DeviceName,
    Devices,
    PositiveAmount,
    ProcessOrder,
    SourceText,
    Transport,
)
from memtopo.language.names import NamedDevice
from memtopo.language.scalars import count

T = TypeVar("T")

_DISTANCES = {"own": 0, "next": 1, "previous": -1}
"""Distance in a ring to the process that a word of an order names."""


def _naming_each_once(order: list[str]) -> list[str]:
    if len(order) > 1 and (whole := next((each for each in WHOLE_ORDERS if each in order), None)):
        message = f"{whole!r} is an order of all processes, and cannot be part of a list"
        raise InvalidValue("MT103", message, help=f"write 'order: {whole}', or own, next and previous")
    if repeated := next((each for each in order if order.count(each) > 1), None):
        raise InvalidValue("MT204", f"{repeated!r} is listed twice", help="list it once")
    return order


Order = Annotated[ProcessOrder, AfterValidator(_naming_each_once)]


def in_order(order: Sequence[str] | None, index: int, instances: Sequence[T]) -> tuple[T, ...]:
    """Return the instances of a process that an import is from; `index` is the number of the importing process.

    For `own-node`, the instances are those of the node.
    """
    if order is None or OWN_NODE in order:
        return tuple(instances)
    count = len(instances)
    distances = range(count) if OWN_FIRST in order else [_DISTANCES[each] for each in order]
    return tuple(instances[(index + distance) % count] for distance in distances)


def require_order(
    scope: Scope, path: Path, order: Sequence[str] | None, other: Spec, instances: Sequence[object]
) -> None:
    """Raise `Refused` with MT608 for an order of processes that do not have the same number of instances.

    It is refused for an import from the own node, too, where the other process has none of the `instances`.
    """
    own, where = scope.spec, (*path, "order")
    same = own.instances == other.instances is not None or own.countless or other.countless
    if order is None or same or (OWN_NODE in order and other.instances is not None):
        if instances or scope.node is None:
            return
        message = f"import {path[-1]!r} is from the own node, and process {other.path[-1]!r} is not on {scope.node!r}"
        label = Label("its nodes", other.at(other.node_key))
        help = "omit 'order', and export via fabric; or have both processes on the same nodes"
    elif uncounted := next((each for each in (own, other) if each.instances is None), None):
        message = f"import {path[-1]!r} has an order, and process {uncounted.path[-1]!r} is not counted"
        label = Label("the process", uncounted.path, "key")
        help = "omit 'order', and the handles are in the order of the processes"
    else:
        message = f"import {path[-1]!r} has an order, and {own.path[-1]!r} and {other.path[-1]!r} have different counts"
        label = Label(f"{other.instances} of them", other.at("count"))
        help = f"write 'count: {other.instances}' for {own.path[-1]!r}, or omit 'order', "
        help += "and the handles are in the order of the processes"
    raise Refused(Diagnostic("MT608", message, where, labels=(label,), help=help))


LOCATIONS = ("location", "device", "pool")
"""Keys that declare locations."""

FORMS = tuple(dict.fromkeys(kind.import_keys.required for kind in EXPORTABLE.values() if not kind.refusals.outside))
"""Keys by which imports declare their objects, each for some of the kinds."""

_KEYS = tuple(dict.fromkeys(chain(LOCATIONS, *FORMS)))


class LentCount(Entry):
    """Number of elastic chunks that a holder lends."""

    max: Count = Field(description="Maximum number of chunks lent to this process at the same time.")


def _count(value: object, lent: Callable[[object], LentCount]) -> int | LentCount:
    return count(value) if isinstance(value, str) else lent(value)


if TYPE_CHECKING:
    Counts = int | LentCount
else:  # not a union, which would report the errors of each member
    Counts = Annotated[LentCount, WrapValidator(_count, json_schema_input_type=Count | LentCount)]


class Import(Entry):
    """Objects exported by another process. Properties of imports from outside of the spec are declared, and checked."""

    source: SourceText = Field(
        alias="from", description="server.weights of a process, weights-server/w of a held layout, /path/to/socket/w."
    )
    via: Transport | None = Field(
        default=None,
        description="Transport from a source outside of the spec: fd, fabric or ipc; by default fd, and ipc for an "
        "event.",
    )
    location: Devices | None = Field(
        default=None, description="Location of memory from outside of the spec: one or more devices, as for a chunk."
    )
    size: PositiveAmount | None = Field(
        default=None, description="Bytes of each chunk, buffer or allocation from outside of the spec."
    )
    count: Counts | None = Field(
        default=None,
        description="Number of handles of a counted export from outside of the spec; or {max: 64} elastic chunks, "
        "which the holder lends.",
    )
    device: DeviceName | None = Field(default=None, description="GPU of an event from outside of the spec.")
    pool: Devices | None = Field(
        default=None, description="Location of the pool of an allocation from outside of the spec."
    )
    accessed_by: Devices | None = Field(
        default=None,
        description="GPUs with access to the pool of an allocation in this process, in addition to the GPU of the "
        "pool.",
    )
    parts: Parts | None = Field(
        default=None, description="Named parts of each chunk from outside of the spec, as its holder declares them."
    )
    order: Order | None = Field(
        default=None,
        description="own-first: from the instance with the same number, then from the next ones, with wrap-around; "
        "own-node: from the instances on the same node; or the neighbours in a ring.",
    )

    @property
    def transports(self) -> tuple[Via, ...]:
        """Transport that an import declares, or the alternatives; none by default."""
        if isinstance(self.via, Alternatives):
            return self.via.options
        return () if self.via is None else (self.via,)

    @property
    def number(self) -> int | None:
        """Declared number of handles, which is the largest one of elastic chunks."""
        return self.count.max if isinstance(self.count, LentCount) else self.count

    @property
    def lent(self) -> bool:
        """True if elastic chunks are declared."""
        return isinstance(self.count, LentCount)

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
        return next((getattr(self, key) for key in keys if key not in LOCATIONS), None)


def refuse_granules(path: Path, entry: Import, kind: ExportKind) -> None:
    """Raise `Refused` with MT105 for an amount in granules of a kind without granules."""
    for key in kind.import_keys.required:
        if kind.refusals.granules and (amount := entry.amount([key])) and amount.in_granules:
            noun = kind.group.noun
            message = f"import {path[-1]!r} is {kind.words.article}, and a {noun} {kind.refusals.granules}"
            raise Refused(Diagnostic("MT105", message, (*path, key), help="write bytes: 2MiB"))


def declared_access(scope: Scope, path: Path, entry: Import, kind: ExportKind) -> tuple[tuple[Location, ...], int]:
    """Devices that an import declares to have access, and the ordinal of a GPU to import with. Raises `Refused`."""
    if entry.accessed_by and "accessed_by" not in kind.import_keys.optional:
        message = f"import {path[-1]!r} declares 'accessed_by', and is {kind.words.article}"
        takers = enumerated(
            kind.words.plural for kind in EXPORTABLE.values() if "accessed_by" in kind.import_keys.optional
        )
        help = f"omit it: only {takers} accept it; access to a range is declared in 'access'"
        if entry.location:
            help += "; for an allocation, write 'pool: …' in place of 'location: …'"
        raise Refused(Diagnostic("MT603", message, (*path, "accessed_by"), help=help))
    listed = scope.devices.resolve_all(entry.accessed_by or [], path, "accessed_by")
    users = [each.id for each in (*listed, *scope.devices.gpus) if each.kind is LocationKind.GPU]
    return tuple(dict.fromkeys(listed)), users[0] if users else 0


def from_outside(scope: Scope, path: Path, entry: Import) -> Group:
    """Group of an import from outside of the spec, as declared. Raises `Refused`."""
    if entry.order is not None:
        message = f"import {path[-1]!r} has an order, and {entry.source} is outside of this spec"
        help = "omit 'order': only imports from a counted process of the spec have one"
        raise Refused(Diagnostic("MT608", message, (*path, "order"), help=help))
    form = _form(entry)
    kind = next((each for each in _kinds(form) if set(entry.transports) <= set(each.transports)), None)
    if kind is None or set(form) != set(entry.declared):
        raise Refused(_undeclared_properties(path, entry, form))
    key = next(key for key in form if key in LOCATIONS)
    listed = scope.devices.resolve_all(entry.locations(key), path, key, anywhere=not kind.refusals.unseen)
    each = entry.count is None and has_set(entry.locations(key))  # one handle for each device of a set
    count = entry.number or (len(listed) if each else 1)
    locations = scope.devices.distributed(listed, count, path, key)
    refuse_granules(path, entry, kind)
    if entry.parts and "parts" not in kind.import_keys.optional:
        message = f"import {path[-1]!r} declares parts, and {kind.words.article} has none"
        raise Refused(Diagnostic("MT603", message, (*path, "parts"), help="omit 'parts': only chunks have parts"))
    if entry.lent and "max" not in kind.import_keys.optional:
        message = f"import {path[-1]!r} declares elastic chunks, and is {kind.words.article}"
        raise Refused(Diagnostic("MT603", message, (*path, "count"), help="write a number, or omit it"))
    if kind.refusals.unseen and "accessed_by" not in kind.import_keys.optional:
        require_on_gpu(f"import {path[-1]!r}", locations, (*path, key))
    via, (accessed_by, home) = together(
        partial(_via, scope, path, entry, kind, key), partial(declared_access, scope, path, entry, kind)
    )
    origin = Origin((entry.source.holder,), entry.source.export, count, via, siblings=False)
    counted, limit = entry.count is not None or each, count if entry.lent else None
    number = 0 if entry.lent else count
    imported = Imported(path, number, counted, locations, origin, entry.parts, accessed_by, home, limit)
    return kind.import_declared(imported, entry.amount(form) or Size(0), scope.machine)


def _via(scope: Scope, path: Path, entry: Import, kind: ExportKind, key: str) -> Via:
    """Transport of an import from outside of the spec, whose holder chooses the same one among alternatives."""

    def support(via: Via) -> Support:
        return supported_at(scope, entry.locations(key), via)

    written = entry.via or kind.transports[0]
    via: Via = chosen(scope, written, f"import {path[-1]}: via", (*path, "via"), support)
    return via


def _form(entry: Import) -> tuple[str, ...]:
    """Keys that an import declares: those of the last form of which it has a key that the first does not have."""
    first, *others = FORMS
    own = (keys for keys in reversed(others) if any(key in entry.declared for key in keys if key not in first))
    return next(own, first)


def _kinds(form: tuple[str, ...]) -> list[ExportKind]:
    return [kind for kind in EXPORTABLE.values() if not kind.refusals.outside and kind.import_keys.required == form]


def _objects(form: tuple[str, ...]) -> str:
    """Objects that an import declares by some keys: `memory`, `an event` or `an allocation`."""
    return "memory" if form == FORMS[0] else _kinds(form)[0].words.article


def _undeclared_properties(path: Path, entry: Import, form: tuple[str, ...]) -> Diagnostic:
    """Return MT603 for an import from outside that does not declare exactly the keys of one form."""
    own = next((key for key in form if key not in FORMS[0]), form[0])
    message = f"import {path[-1]!r} declares a {own} like {_objects(form)}, and "
    if several := [key for key in entry.declared if key not in form]:
        other = _objects(next(each for each in FORMS if several[0] in each))
        help = f"omit {' and '.join(map(repr, several))} for {_objects(form)}, or {own!r} for {other}"
        message += f"a {several[0]} like {other}"
        return Diagnostic("MT603", message, (*path, several[0]), help=help)
    if missing := [key for key in form if key not in entry.declared]:
        undeclared = " and ".join(missing)
        message = f"import {path[-1]!r} is from outside of this spec, and its {undeclared} must be declared"
        note = "the plan is made from the declared properties, which are compared with the export when it is imported"
        others = [f"for {_objects(each)}, add its {' and '.join(each)}" for each in FORMS if each != form]
        keys = " and ".join(f"'{key}: …'" for key in missing)
        return Diagnostic("MT603", message, path, "key", notes=(note,), help="; ".join([f"add {keys}", *others]))
    like = next(kind for kind in EXPORTABLE.values() if set(entry.transports) <= set(kind.transports))
    help = f"omit 'via', or declare the {' and '.join(like.import_keys.required)} of {like.words.article}"
    return Diagnostic("MT603", f"{message}via {entry.via} like {like.words.article}", (*path, "via"), help=help)
