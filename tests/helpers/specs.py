"""Specs as tests need them: from text or a file to a request, and a run of it on a simulator."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from memtopo import planner
from memtopo.diagnostics.model import Diagnostic
from memtopo.driver.ledger import Ledger
from memtopo.drivers.sim import SimDriver
from memtopo.drivers.target import Target, recorded
from memtopo.geometry import Geometry
from memtopo.kinds.step import Step
from memtopo.language import NO_SETTINGS, Document, SpecText, read_file, read_text
from memtopo.machine import Machine, Machines
from memtopo.planner import Plan
from memtopo.plans.report import Check, Report
from memtopo.rules import Validated, validate
from memtopo.run import apply, processes
from memtopo.run.processes import Ensemble
from memtopo.session.composition import Composition, RunRequest
from memtopo.session.machines import own_targets
from tests.helpers.failing_driver import Failing
from tests.helpers.machines import invented
from tests.helpers.shared_producers import handle_source, sockets

AnyStep = TypeVar("AnyStep", bound=Step)
ROOT = Path(__file__).parent.parent.parent
EVERY_SPEC = sorted((ROOT / "specs").glob("*.yaml"))
ENSEMBLES = [path for path in EVERY_SPEC if "\nprocesses:" in path.read_text()]
"""Those of several processes."""
PLANNED_ONLY = [path for path in EVERY_SPEC if "\nmulticast:" in path.read_text()]
"""Those with multicast objects, which are built on machines alone whose record says that these work (fact 87)."""
SPECS = [path for path in EVERY_SPEC if path not in (*ENSEMBLES, *PLANNED_ONLY)]
"""Those of one process."""


def machine_of(path: Path) -> Machine:
    """Return the first of the machines that a spec names."""
    return next(iter(own_targets(read_file(path))[0].values())).machine


def document(text: str) -> Document:
    """A spec's text as a document; `memtopo` and `name` are added where it has none."""
    head = "" if re.search(r"^[^#\n]*memtopo:", text, re.MULTILINE) else "memtopo: 1\nname: test\n"
    return read_text((head + text).encode(), "test.yaml")


def validate_text(text: str, machine: Machines | None = None) -> Validated:
    """Validate a spec's text, completed by `document`, on a machine; two invented GPUs by default."""
    return validate(document(text), machine or invented(2))


def validate_verbatim(text: str, machine: Machine) -> Validated:
    """Validate a spec's text as it is."""
    return validate(read_text(text.encode(), "test.yaml"), machine)


def codes(text: str, machine: Machines | None = None) -> list[str]:
    """Codes of all diagnostics of a spec."""
    return [fault.code for fault in diagnose(text, machine)]


def diagnose(text: str, machine: Machines | None = None) -> tuple[Diagnostic, ...]:
    """Return all diagnostics of a spec."""
    return validate_text(text, machine).diagnostics


def geometry_of(text: str, machine: Machines | None = None) -> Geometry:
    """Geometry of a spec that may have warnings, but no errors."""
    found = validate_text(text, machine)
    assert found.geometry is not None, (found.diagnostics, text)
    return found.geometry


def clean_geometry(text: str, machine: Machines | None = None) -> Geometry:
    """Geometry of a spec without any diagnostics."""
    found = validate_text(text, machine)
    assert not found.diagnostics, (found.diagnostics, text)
    assert found.geometry is not None
    return found.geometry


def plan_of(text: str, machine: Machines) -> Plan:
    """Plan of a spec that may have warnings, but no errors."""
    return planner.plan(geometry_of(text, machine), machine)


def steps_of(plan: Plan, *kinds: type[AnyStep]) -> list[AnyStep]:
    """Steps of a plan that are of one of some classes."""
    return [step for step in plan.steps if isinstance(step, kinds)]


def composed(spec: str | Path, machine: Machine) -> Composition:
    """A spec, given as text or file, that is planned on a machine, whatever was tried there."""
    return Composition.of(read_file(spec) if isinstance(spec, Path) else document(spec), recorded("test", machine))


def run_request(
    spec: str | Path, machine: Machine, check: Check = "fast", settings: Mapping[str, str] = NO_SETTINGS
) -> RunRequest:
    """Request to apply a spec, given as text or file; `tests.helpers.shared_producers` has its external entries."""
    found = read_file(spec, settings=settings) if isinstance(spec, Path) else document(spec)
    return request_of(found, recorded("test", machine), check=check)


def request_of(document: Document, target: Target, **options: Any) -> RunRequest:
    """Request to apply a document on a machine, with the same bytes each time."""
    return Composition.of(document, target).request(**{"machine_facts": None, "seed": 4711, **options})


def server_and_readers(chunks: int, readers: int = 0, access: str = "gpu1: r", via: str = "fd") -> str:
    """Spec of a server that exports so many chunks `w` of gpu0, and of a reader that maps them, or of several."""
    size, count = f"{2 * chunks}MiB", f"count: {readers}" if readers else ""
    return f"""
processes:
  server:
    ranges: {{w: {{size: {size}}}}}
    chunks: {{w: {{location: gpu0, size: 2MiB, count: {chunks}, handles: {via}}}}}
    map: {{w: [w]}}
    access: {{w: {{gpu0: rw}}}}
    exports: {{w: {{chunk: w, via: {via}}}}}
  reader:
    {count}
    ranges: {{v: {{size: {size}}}}}
    imports: {{w: {{from: server.w}}}}
    map: {{v: [w]}}
    access: {{v: {{{access}}}}}
"""


OWN_AND_IMPORTED = """
processes:
  server:
    ranges: {r: {size: 2MiB}}
    chunks: {c: {location: gpu0, size: 2MiB, handles: fd}}
    map: {r: c}
    access: {r: {gpu0: rw}}
    exports: {shared: {chunk: c, via: fd}}
  reader:
    ranges: {r: {size: 4MiB}}
    chunks: {c: {location: gpu0, size: 2MiB}}
    imports: {i: {from: server.shared}}
    map: {r: [c, i]}
    access: {r: {gpu0: rw}}
"""
"""A server that exports a chunk, and a reader that maps it beside one of its own."""


def ensemble(
    spec: str | Path,
    machine: Machine,
    *,
    timeout: float = processes.TIMEOUT,
    worker: tuple[str, ...] = (),
    check: Check = "fast",
    settings: Mapping[str, str] = NO_SETTINGS,
) -> Ensemble:
    """A spec's text or file of several processes, ready to be applied."""
    found = read_file(spec) if isinstance(spec, Path) else document(spec)
    made = run_request(spec, machine, check, settings)
    bound = sockets(made.geometry, machine)
    return Ensemble(made, SpecText(found.name, found.text, dict(settings)), machine, timeout, bound, worker=worker)


@dataclass
class Run:
    """Result of a run on a simulator: its report, its ledger, and the wrapper that made a call fail."""

    report: Report
    ledger: Ledger
    failing: Failing


def run(made: RunRequest, machine: Machine, *, at: int = 0, only: set[str] | None = None, every: bool = False) -> Run:
    """Apply a request on a fresh simulator whose `at`-th call fails; 0 lets all of them succeed."""
    driver = SimDriver(machine)
    driver.init()
    failing = Failing(driver, at, only=only, every=every)
    ledger = Ledger(failing)
    try:
        return Run(apply.apply(made, ledger, handle_source=handle_source(made, machine)), ledger, failing)
    finally:
        driver.close()
