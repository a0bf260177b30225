"""Imports of a run from holders outside of its spec: they go and come back as these holders change their layouts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from memtopo.common.errors import ExchangeError, MemtopoError, Stopped, message_of
from memtopo.executor import StepFailed, failing
from memtopo.geometry import Geometry
from memtopo.geometry.groups import Group, from_outside
from memtopo.kinds.exportable import pool_resource
from memtopo.run.conductor import Conductor
from memtopo.run.layout_plans import Absent
from memtopo.run.transition import RollbackFailed
from memtopo.session.composition import RunRequest
from memtopo.sharing.imports import NOT_NOW, HolderHandles, ImportMismatch, Version
from memtopo.sharing.status import Notice

ExportKey = tuple[str, str]
"""Name of a holder and of one of its exports."""


class OutsideImports:
    """Imports of a built layout, whose handle source is `handles`. Addresses stay while the memory is gone.

    `moved` is called whenever mappings were undone or made, before the holder is notified.
    """

    def __init__(self, conductor: Conductor, handles: HolderHandles, moved: Callable[[], None] = lambda: None) -> None:
        self._conductor, self._handles, self._moved = conductor, handles, moved
        resources = _imported_resources(conductor.request.geometry)
        self._absent = {key for key, resource in resources if ("", resource) in conductor.absent}
        self._made: dict[ExportKey, Version] = {}
        """Version of what is imported, by export."""
        self._unfollowed: dict[str, Notice] = {}
        """Notice of changes that are not followed yet, by the holder."""

    @property
    def absent(self) -> Mapping[str, str]:
        """Names of the imports whose objects are gone, each with the name of its export."""
        groups = _imports(self._conductor.request.geometry)
        return {each.name: key[1] for each in groups for key in _sources(each) if key in self._absent}

    def next(self, timeout: float) -> tuple[str, Notice] | None:
        """Return the next notice of a holder, with the holder's name, if one arrives within some seconds.

        One of a change that could not be followed comes again, with the next one of its holder if there is one.
        """
        found = self._handles.notice(0.0 if self._unfollowed else timeout)
        if found is None:
            return next(iter(self._unfollowed.items()), None)
        holder, notice = found
        if notice.kind == "changed":
            if late := self._unfollowed.get(holder):
                notice = notice.after(late)
            self._unfollowed[holder] = notice
        return holder, notice

    def concerned(self, holder: str, notice: Notice) -> frozenset[str]:
        """Return the exports that a notice is about and that this run imports."""
        return self._imported(holder).intersection(notice.exports)

    def follow(self, holder: str, notice: Notice) -> None:
        """Let go of what a holder takes back, or import again what it has changed.

        What cannot be had yet stays away until the next notice. Raises `StepFailed` with everything as it was before,
        `RollbackFailed`, `ExchangeError` if the holder fails or is gone, and `ImportMismatch` once the exports that
        still match their imports were imported; the notice comes again for these.
        """
        self.note_made()
        if notice.kind == "changing":
            self._let_go(holder, notice.exports)
        elif notice.kind == "changed":
            late = self._unfollowed.pop(holder, notice)
            try:
                mismatches = self._follow_change(holder, sorted(self.concerned(holder, notice)))
            except RollbackFailed:
                raise
            except BaseException:
                self._follow_later(holder, late)
                raise
            if mismatches:
                fitting = tuple(export for export in late.exports if export not in mismatches)
                self._follow_later(holder, replace(late, exports=fitting))
                raise next(iter(mismatches.values()))

    def _follow_later(self, holder: str, notice: Notice) -> None:
        if notice.exports and not self._handles.gone(holder):
            self._unfollowed[holder] = notice

    def _follow_change(self, holder: str, exports: Sequence[str]) -> dict[str, ImportMismatch]:
        """Import exports again as far as they match their imports; return the errors of the others, which stay."""
        available, mismatches = set(), {}
        for export in exports:
            imported = None if (holder, export) in self._absent else self._made[holder, export]
            try:
                if self._handles.available(holder, export, imported):
                    available.add(export)
            except ImportMismatch as mismatch:
                mismatches[export] = mismatch
        present = {export for export in exports if (holder, export) not in self._absent} - mismatches.keys()
        made = {export for export in present if self._handles.version(holder, export) != self._made[holder, export]}
        old = present - available | made
        self._let_go(holder, old)
        self._import(holder, available - (present - old))
        return mismatches

    def version(self, holder: str, export: str) -> Version:
        """Return the version of what is imported of an export, or was before it became absent."""
        return self._made[holder, export]

    def change(self, request: RunRequest) -> None:
        """Bring the layout to a request with other imports; absent exports stay so. Raises as `Conductor.change`."""
        self.note_made()  # what an export has gained may be of a later generation than the rest
        self._conductor.change(request, absent=imported_resources(request.geometry, self._absent))

    def note_made(self) -> None:
        """Note the version of what is imported at first, before more is received, and of what a change has added."""
        for key in self._keys() - self._made.keys():
            self._made[key] = self._handles.version(*key)

    def _let_go(self, holder: str, exports: Iterable[str]) -> None:
        own = {(holder, export) for export in self._imported(holder).intersection(exports)}
        with self._handles.requiring({key: self._made[key] for key in own - self._absent}):  # in a rollback
            self._change(self._absent | own)
        self._handles.let_go(holder, sorted(exports))

    def _import(self, holder: str, exports: Collection[str]) -> None:
        if not exports:
            return
        try:
            self._change(self._absent - {(holder, export) for export in exports})
            self._made.update({(holder, export): self._handles.version(holder, export) for export in exports})
            self._require_declared()
        except RollbackFailed:
            raise
        except StepFailed as failed:
            self._let_go(holder, exports)
            if not isinstance(failed.error, ExchangeError) or failed.error.code not in NOT_NOW:
                raise

    def _require_declared(self) -> None:
        """Raise `StepFailed` if the layout is not as declared."""
        action = "check of repeated imports"
        with failing(action):
            found = self._conductor.recheck().differences
        for each in found:
            message = f"{each.aspect} of {each.subject} is {each.seen}, not {each.wanted}"
            raise StepFailed(None, action, MemtopoError(message))

    def _change(self, absent: set[ExportKey]) -> None:
        """Bring the layout to its state without the objects of absent exports."""
        if absent == self._absent:
            return
        try:
            self._conductor.set_absent(imported_resources(self._conductor.request.geometry, absent))
            self._absent = absent
        finally:
            self._moved()

    def _imported(self, holder: str) -> frozenset[str]:
        return frozenset(export for name, export in self._keys() if name == holder)

    def _keys(self) -> set[ExportKey]:
        return {key for each in _imports(self._conductor.request.geometry) for key in _sources(each)}


class Follower:
    """Follows the holders that a held layout imports from, whenever `stop` is called, and watches its processes.

    `notes` are failures after which the imports are as before; `stop` raises `RollbackFailed` if they are not.
    """

    def __init__(self, conductor: Conductor) -> None:
        source = conductor.handle_source
        self._imports = OutsideImports(conductor, source) if isinstance(source, HolderHandles) else None
        self._watch = conductor.watch
        self.notes: list[str] = []

    def stop(self) -> int:
        try:
            while self._imports and (found := self._imports.next(0.0)):
                self._imports.follow(*found)
        except (RollbackFailed, Stopped):
            raise
        except Exception as error:  # noqa: BLE001 an error of memtopo itself leaves the layout as it is, too
            if message_of(error) not in self.notes:
                self.notes.append(message_of(error))
        return self._watch()


def imported_resources(geometry: Geometry, exports: Collection[ExportKey]) -> Absent:
    """Return the objects that the geometry of one process imports of some exports."""
    return frozenset(("", resource) for key, resource in _imported_resources(geometry) if key in exports)


def _imported_resources(geometry: Geometry) -> Iterator[tuple[ExportKey, Hashable]]:
    """Yield each object that a geometry imports, after its export."""
    for group in _imports(geometry):
        sources, each = _sources(group), group.origin.each if group.origin else 1
        for index in range(group.count):
            for resource in ((group.noun, group.label(index)), *group.imported_with(index)):
                yield sources[index // each], resource
        if group.growing:
            yield sources[0], pool_resource(group.name)


def _imports(geometry: Geometry) -> Iterator[Group]:
    """Imports without memory of other APIs, which no holder takes back."""
    return (each for each in geometry.every if from_outside(each) and not each.produced)


def _sources(group: Group) -> tuple[ExportKey, ...]:
    return group.origin.sources if group.origin else ()
