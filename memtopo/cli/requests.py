"""Requests of a spec: to apply it, and to change a held layout to it."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from memtopo import language, planner
from memtopo.cli.specs import Loaded
from memtopo.drivers.target import Target
from memtopo.geometry import Geometry
from memtopo.machine import dump
from memtopo.output.diagram.build import build_diagram
from memtopo.plans.report import Check
from memtopo.rules import NeverTried, require_tried
from memtopo.rules.change import diagnose_change
from memtopo.rules.validation import validate
from memtopo.session import saved
from memtopo.session.request import RunRequest
from memtopo.sharing.errors import ExchangeError

if TYPE_CHECKING:  # imported where it is used: only a held layout is changed
    from memtopo.run.held import Revision

_PATIENCE = 0.1
"""Seconds that a pipe has when a spec is read again: meanwhile the holder answers nobody."""


def reread(spec: str, loaded: Loaded) -> str:
    """The source of a spec as it is in its file now. Raises `ExchangeError` if it cannot be read again."""
    from memtopo.output.diagnostics import concise
    from memtopo.sharing.sources import layout_source

    if spec == "-" or loaded.saved:
        what = "a saved plan" if loaded.saved else "standard input"
        raise ExchangeError("invalid", f"the layout is from {what}, which is not read again", hint="use memtopo change")
    document = language.read_file(spec, patience=_PATIENCE, settings=loaded.document.settings)
    if errors := concise([each for each in document.diagnostics if each.severity == "error"], document):
        raise ExchangeError("invalid", f"the spec cannot be changed to: {next(iter(errors))}")
    return layout_source(document, loaded.target.machine)


def run_request(
    loaded: Loaded, *, spec: str, check: Check, timeout: float, rehearse: bool, trace: str | None
) -> RunRequest:
    """The request to apply a spec. Raises `StalePlan` if a saved plan no longer agrees with it, and `NeverTried`."""
    geometry, machine = loaded.validated.geometry, loaded.target.machine
    assert geometry
    if trace:
        _require_replaceable(trace, geometry)
    require_tried(geometry, loaded.target.machines)
    plan = planner.plan(geometry, loaded.target.machines)
    if loaded.saved:
        saved.compare(loaded.saved, spec, geometry, plan)
    request = RunRequest(
        plan=plan,
        geometry=geometry,
        machine=loaded.target.line,
        machine_facts=machine,
        check=check,
        timeout=timeout,
        rehearse=rehearse,
        trace=os.path.abspath(trace) if trace else None,  # noqa: PTH100 as it is, without its links followed
    )
    return _of_spec(request, loaded)


def _require_replaceable(trace: str, geometry: Geometry) -> None:
    """Raise `UsageError` where a trace, or that of a process in a folder, would replace another file."""
    from memtopo.driver.trace import process_file, require_replaceable

    if not geometry.processes:
        require_replaceable(trace)
    for process in geometry.processes:
        require_replaceable(process_file(trace, process), link=False)


def _of_spec(request: RunRequest, loaded: Loaded) -> RunRequest:
    """A request with what it reports of a spec."""
    return replace(
        request,
        spec=loaded.document.name,
        position_of=loaded.document.position,
        picture=build_diagram(request.geometry, loaded.target.machines),
        warnings=loaded.warnings,
        params=loaded.document.values,
    )


def revision(source: str, before: RunRequest, target: Target) -> Revision:
    """The request to which a held layout is to be changed, from a source of a client. Raises `ExchangeError`."""
    from memtopo.output.diagnostics import concise
    from memtopo.run.held import Revision
    from memtopo.sharing.sources import layout_source, parsed_source

    found_source = parsed_source(source)
    document = found_source.document
    if found_source.machine not in ("", dump(target.machine)):
        raise ExchangeError("invalid", f"the change is for another machine than {target.name!r}", hint="plan it again")
    loaded = Loaded(validate(document, target.machine), target, document.name)
    geometry = loaded.validated.geometry
    found = tuple(loaded.validated.diagnostics if geometry is None else diagnose_change(before.geometry, geometry))
    if geometry is None or found:
        first, *more = concise([each for each in found if each.severity == "error"], document)
        others = f" (and {len(more)} more)" if more else ""
        raise ExchangeError("invalid", f"the spec cannot be changed to: {first}{others}")
    try:
        require_tried(geometry, target.machine)
    except NeverTried as refused:
        raise ExchangeError("invalid", refused.message, hint=refused.hint) from refused
    request = replace(before, geometry=geometry, plan=planner.plan(geometry, target.machine))
    return Revision(_of_spec(request, loaded), layout_source(document, target.machine))
