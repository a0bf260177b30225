"""From a spec and a machine to a request for a run: validate, require what was tried, plan, request."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from memtopo import language, planner
from memtopo.common.errors import ExchangeError, Exit, MemtopoError
from memtopo.diagnostics.model import Diagnostic
from memtopo.drivers.target import Target
from memtopo.geometry import Geometry
from memtopo.language import Document
from memtopo.language.located import located
from memtopo.machine import dump
from memtopo.planner import Plan
from memtopo.rules.validation import NeverTried, Validated, diagnose_change, require_tried, validate
from memtopo.session import saved
from memtopo.session.machines import warned
from memtopo.session.request import Revision, RunRequest
from memtopo.session.saved import SavedPlan
from memtopo.sharing.wire import layout_source, parsed_source


class InvalidOnMachine(MemtopoError):
    """A spec with errors on a machine; the message has the first one, and `composition` all of them."""

    exit_code = Exit.INVALID

    def __init__(self, composition: Composition) -> None:
        errors = (each for each in composition.diagnostics if each.severity == "error")
        first, *more = located(errors, composition.document)
        super().__init__(first.headline() + (f" (and {len(more)} more)" if more else ""))
        self.composition = composition


_PATIENCE = 0.1
"""Seconds that a pipe has when a spec is read again: meanwhile the holder answers nobody."""


class Composition(Struct, frozen=True, dict=True):
    """A spec on a machine, or on those of its nodes: its diagnostics, and without errors its geometry and its plan.

    `saved` is the saved plan that contains the spec, if there is one, and `origin` the name of its file.
    """

    validated: Validated
    target: Target
    origin: str
    saved: SavedPlan | None = None
    whole: Composition | None = None
    """The layout that this is a part of; None for a whole one."""

    @classmethod
    def of(
        cls,
        document: Document,
        target: Target,
        origin: str = "",
        plan: SavedPlan | None = None,
        *,
        joining: bool = False,
    ) -> Composition:
        """Validate a spec, for a process that is `joining` the held ones if it is. No driver is used."""
        validated = validate(warned(document, target), target.machines, joining=joining)
        return cls(validated, target, origin or document.name, plan)

    @property
    def document(self) -> Document:
        """The text of the spec."""
        return self.validated.document

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """All diagnostics of the spec."""
        return self.validated.diagnostics

    @property
    def warnings(self) -> tuple[str, ...]:
        """The diagnostics of the spec, one line each."""
        return tuple(each.headline() for each in located(self.diagnostics, self.document))

    @property
    def valid(self) -> bool:
        """True if there is no error."""
        return self.validated.geometry is not None

    @property
    def geometry(self) -> Geometry:
        """Geometry of the layout. Raises `InvalidOnMachine`."""
        if self.validated.geometry is None:
            raise InvalidOnMachine(self)
        return self.validated.geometry

    @cached_property
    def plan(self) -> Plan:
        """Plan of the layout. Raises `InvalidOnMachine`."""
        return planner.plan(self.geometry, self.target.machines)

    @property
    def source(self) -> str:
        """Text of the spec and its machine, as holders and their clients exchange it."""
        return layout_source(self.document, self.target.machine)

    def with_errors(self, errors: Iterable[Diagnostic]) -> Composition:
        """Return it with errors that make it invalid, if there are any."""
        if not (found := tuple(errors)):
            return self
        validated = self.validated._replace(diagnostics=(*self.diagnostics, *found), geometry=None)
        return replace(self, validated=validated)

    def after(self, before: Geometry) -> Composition:
        """Return it as a spec that a layout is to be changed to, with the errors of such a change."""
        return self.with_errors(diagnose_change(before, self.geometry)) if self.valid else self

    @property
    def held_part(self) -> Composition:
        """The processes that are held, which are all of them if none joins."""
        return self._part(self.geometry.held_part)

    def of_process(self, label: str) -> Composition:
        """Return one process of the layout as a layout by itself."""
        return self._part(replace(self.geometry.processes[label], name=label))

    def _part(self, geometry: Geometry) -> Composition:
        return replace(self, validated=self.validated._replace(geometry=geometry), whole=self)

    def require_tried(self) -> None:
        """Raise `NeverTried` for a layout that may be planned, but not built. Raises `InvalidOnMachine`."""
        require_tried(self.geometry, self.target.machines)

    def request(self, before: RunRequest | None = None, **options: Any) -> RunRequest:
        """Return the request to apply the spec, or to change the layout of a request to it; `options` are its fields.

        Raises `InvalidOnMachine`, `NeverTried`, `StalePlan` if a saved plan no longer agrees with the spec, and
        `FolderRefused` for a `source` without saved bytes of one of its processes.
        """
        self.require_tried()
        if options.get("source"):
            from memtopo.storage.saved import require_saved  # noqa: PLC0415 few layouts start from a folder

            require_saved(options["source"], self.geometry.processes or ("",))
        if self.saved:
            whole = self.whole or self
            saved.compare(self.saved, self.origin, whole.geometry, whole.plan)
        document = self.document
        of_spec: dict[str, Any] = {
            "plan": self.plan, "geometry": self.geometry, "spec": document.name, "position_of": document.position,
            "warnings": self.warnings, "params": document.values, "digest": saved.spec_digest(document), **options,
        }  # fmt: skip
        if before:
            return replace(before, **of_spec)
        return RunRequest(**{"machine": self.target.line, "machine_facts": self.target.machine, **of_spec})

    def reread(self) -> str:
        """Source of the spec as it is in its file now. Raises `ExchangeError` if it cannot be read again."""
        if self.origin == "-" or self.saved:
            what = "a saved plan" if self.saved else "standard input"
            message = f"the layout is from {what}, which is not read again"
            raise ExchangeError("invalid", message, hint="use memtopo change")
        document = language.read_file(self.origin, patience=_PATIENCE, settings=self.document.settings)
        if errors := located((each for each in document.diagnostics if each.severity == "error"), document):
            raise ExchangeError("invalid", f"the spec cannot be changed to: {errors[0].headline()}")
        return layout_source(document, self.target.machine)


def revision(source: str, before: RunRequest, target: Target) -> Revision:
    """Revision of a held layout, from the source that a client sends. Raises `ExchangeError`."""
    found = parsed_source(source)
    if found.machine not in ("", dump(target.machine)):
        raise ExchangeError("invalid", f"the change is for another machine than {target.name!r}", hint="plan it again")
    try:
        after = Composition.of(found.document, target)
        after = (after.held_part if before.geometry.is_held_part else after).after(before.geometry)
        return Revision(after.request(before), after.source)
    except InvalidOnMachine as error:
        raise ExchangeError("invalid", f"the spec cannot be changed to: {error.message}") from error
    except NeverTried as refused:
        raise ExchangeError("invalid", refused.message, hint=refused.hint) from refused
