"""From a spec and a machine to a request for a run: validate, require what was tried, plan, request.

A request says what to build, how to check it, and how to report it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from memtopo import language, planner
from memtopo.common.errors import ExchangeError, Exit, MemtopoError
from memtopo.diagnostics.model import Diagnostic, Path
from memtopo.drivers.target import Target
from memtopo.geometry import Geometry
from memtopo.geometry.diagram import Diagram
from memtopo.language import Document
from memtopo.language.located import located
from memtopo.machine import Machine, MachineLine, dump
from memtopo.planner import Plan, memory_by_state
from memtopo.plans.report import Check, PlanSummary
from memtopo.rules import NeverTried, Validated, diagnose_change, require_tried, validate
from memtopo.session import saved
from memtopo.session.machines import warned
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


class RunRequest(Struct, frozen=True):
    """Plan to apply, with the geometry that it was made from.

    `spec` is the name of the file, `position_of` returns the `file:line:col` of a path in it; these, `machine`,
    `picture`, `warnings` and `params`, the values of the spec's parameters, go into the report.

    For one process of a multi-process layout, `process` is its label, `layout` the name of the layout, and `siblings`
    has the geometry of every process, its own included; `node` are the labels of those on the same node, empty for a
    layout of one host.

    `check` is the thoroughness of the checks. `machine_facts` is the machine on which replicas are built for a full
    check; None builds no replicas. `seed` determines the bytes that are written, and is the same in all processes.
    `exclusive` says that no other code in this process makes driver calls or opens files, so that every difference is a
    leak of this run. `timeout` is the number of seconds that an external producer has to signal a semaphore.
    """

    plan: Plan
    geometry: Geometry
    machine: MachineLine
    spec: str | None = None
    position_of: Callable[[Path], str | None] = lambda _path: None
    picture: Diagram | None = None
    warnings: tuple[str, ...] = ()
    params: Mapping[str, str] = {}
    process: str = ""
    trace: str | None = None
    """File for the trace of the driver calls, or the folder for those of all processes."""
    layout: str = ""
    siblings: Mapping[str, Geometry] | None = None
    node: Collection[str] = ()
    machine_facts: Machine | None = None
    check: Check = "fast"
    seed: int = field(default_factory=lambda: int.from_bytes(os.urandom(8)))
    exclusive: bool = True
    timeout: float = 60.0
    source: str | None = None
    """Folder whose bytes come back before the layout is served."""
    digest: str = ""
    """Fingerprint of the spec."""
    rehearse: bool = False
    """True to go through the states of the layout after it is verified."""
    started: str = field(default_factory=lambda: datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
    """Time of the request."""

    @property
    def layout_name(self) -> str:
        """Name of the layout, also in one of its processes."""
        return self.layout or self.plan.name

    @property
    def processes(self) -> Mapping[str, Geometry]:
        """Geometry of every process of the layout by its label; the label of a single process is empty."""
        return self.siblings or {self.process: self.geometry}

    @property
    def processes_of_node(self) -> Mapping[str, Geometry]:
        """Geometry of every process that has the same GPUs, by its label."""
        return {label: each for label, each in self.processes.items() if not self.node or label in self.node}

    @property
    def about_trace(self) -> dict[str, object]:
        """First line of a trace of the run: its layout, its process if there are several, and its machine."""
        machine = self.machine
        about = {"layout": self.layout_name, "process": self.process or "", "machine": machine.name}
        return {**about, "simulated": machine.simulated, "driver": machine.driver}

    def of_process(self, process: str) -> RunRequest:
        """Return the request of one process of a multi-process layout, by its label."""
        every = self.geometry
        return replace(
            self, plan=self.plan.processes[process], geometry=every.processes[process], layout=every.name,
            process=process, siblings=every.processes, node=every.labels_beside(process),
        )  # fmt: skip

    def summary(self) -> PlanSummary:
        """Plan for the report; of a rehearsed layout with the memory of each state."""
        states = memory_by_state(self.plan, self.geometry) if self.rehearse else None
        return self.plan.summary(self.picture, self.warnings, states, self.params)

    def notes(self) -> Iterator[str]:
        """Notes on the check for the report, independent of its result."""
        if self.check == "full" and self.machine.simulated:
            yield "simulated: the first and last 4 KiB of each granule stand for every byte"


class Holding(Struct, frozen=True):
    """Terms of a held layout: socket, seconds until its deadline, grace for importers over ipc, and trusted users."""

    socket: str | None = None
    lasting: float | None = None
    grace: float = 5.0
    allow_uids: Sequence[int] = ()


class HoldResult(Struct, frozen=True):
    """Result of holding a layout: notes for the report, and the number of descriptors that stay open on purpose."""

    notes: Sequence[str] = ()
    descriptors: int = 0


class Revision(Struct, frozen=True):
    """Spec that a held layout is to have: the request to apply it, and the source that clients can draw it from."""

    request: RunRequest
    source: str


Revise = Callable[[str, RunRequest], Revision]
"""Validates a source, to which the layout of a request is to be changed. Raises `MemtopoError`."""
