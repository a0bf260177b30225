"""Imports from outside of the spec, whose properties are declared."""

from __future__ import annotations

from collections.abc import Sequence

from memtopo.common.units import Size
from memtopo.diagnostics.model import Diagnostic, Path
from memtopo.driver.handles import Via
from memtopo.geometry.groups import Group, Origin
from memtopo.kinds.alternatives import Support, chosen
from memtopo.kinds.device_sets import has_set
from memtopo.kinds.exportable import ExportKind, Imported
from memtopo.kinds.exports.entry import EXPORTABLE
from memtopo.kinds.imports.entry import FORMS, LOCATIONS, Import, declared_access, no_granules
from memtopo.kinds.kind import Scope
from memtopo.kinds.resolution import Resolution, requires_gpu


def from_outside(scope: Scope, path: Path, entry: Import) -> Resolution[Group | None]:
    """Group of an import from outside of the spec, as declared."""
    form = _form(entry)
    kind = next((each for each in _kinds(form) if set(entry.transports) <= set(each.transports)), None)
    if kind is None or set(form) != set(entry.declared):
        yield _undeclared_properties(path, entry, form)
        return None
    key = next(key for key in form if key in LOCATIONS)
    listed = yield from scope.devices.resolve_all(entry.locations(key), path, key, anywhere=kind.anywhere)
    if listed is None:
        return None
    each = entry.count is None and has_set(entry.locations(key))  # one handle for each device of a set
    count = entry.count or (len(listed) if each else 1)
    locations = yield from scope.devices.distributed(listed, count, path, key)
    if wrong := no_granules(path, entry, kind) or _no_parts(path, entry, kind):
        yield wrong
        return None
    on_gpus = not (kind.anywhere or kind.takes_access)
    if on_gpus and (yield from requires_gpu(f"import {path[-1]!r}", locations, (*path, key))):
        return None
    via = yield from _via(scope, path, entry, kind, key)
    access = yield from declared_access(scope, path, entry, kind)
    if via is None or access is None:
        return None
    origin = Origin((entry.source.holder,), entry.source.export, count, via, siblings=False)
    imported = Imported(path, count, entry.count is not None or each, locations, origin, entry.parts, *access)
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
    first, *others = FORMS
    own = (keys for keys in reversed(others) if any(key in entry.declared for key in keys if key not in first))
    return next(own, first)


def _kinds(form: tuple[str, ...]) -> list[ExportKind]:
    return [kind for kind in EXPORTABLE.values() if kind.outside and kind.import_keys == form]


def _objects(form: tuple[str, ...]) -> str:
    """Objects that an import declares by some keys: `memory`, `an event` or `an allocation`."""
    return "memory" if form == FORMS[0] else _kinds(form)[0].article


def _undeclared_properties(path: Path, entry: Import, form: tuple[str, ...]) -> Diagnostic:
    """Return MT603 for an import from outside that does not declare exactly the keys of one form."""
    own = next((key for key in form if key not in FORMS[0]), form[0])
    message = f"import {path[-1]!r} declares a {own} like {_objects(form)}, and "
    if several := [key for key in entry.declared if key not in form]:
        other = _objects(next(each for each in FORMS if several[0] in each))
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
    others = [f"for {_objects(each)}, add its {' and '.join(each)}" for each in FORMS if each != form]
    keys = " and ".join(f"'{key}: …'" for key in missing)
    help = "; ".join([f"add {keys}", *others])
    return Diagnostic("MT603", message, path, "key", notes=(note,), help=help)
