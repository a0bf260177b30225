"""Layouts that a thread of this process holds, on a simulated machine."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from memtopo import planner
from memtopo.driver.ledger import Ledger
from memtopo.language import read_text
from memtopo.machine.target import Target
from memtopo.plans.report import MachineLine, Report
from memtopo.rules.validation import validate
from memtopo.run import apply
from memtopo.run.apply import Run
from memtopo.run.held import HeldLayout
from memtopo.run.request import HoldResult, RunRequest
from memtopo.sharing.claims import claim
from memtopo.sharing.endpoints import endpoint
from memtopo.sharing.holder import HolderInfo, hold
from tests.helpers.child_process import PATIENCE


@dataclass
class Held:
    """A held layout; `run` exists while it is held, `report` afterwards."""

    runs: list[Run] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)

    @property
    def run(self) -> Run:
        return self.runs[0]

    @property
    def report(self) -> Report:
        return self.reports[0]


@contextmanager
def held(spec: Mapping[str, Any], target: Target, **terms: Any) -> Iterator[Held]:
    """Hold a spec under its name, until the end of the block."""
    document = read_text(json.dumps(spec).encode(), "held.yaml")
    geometry = validate(document, target.machine).geometry
    assert geometry
    line = MachineLine(target.name, target.simulated, (), "")
    request = RunRequest(planner.plan(geometry, target.machine), geometry, line, "held.yaml")
    found, serving, ended = Held(), threading.Event(), threading.Event()
    ours, theirs = socket.socketpair()

    def serve(run: Run) -> HoldResult:
        found.runs.append(run)
        layout, about = HeldLayout(run, ""), HolderInfo(geometry.name, "held.yaml", line)
        with claim(endpoint(geometry.name)) as claimed:
            hold(layout, claimed, about, stop=ended.is_set, ready=serving.set, wake=theirs, changeable=layout, **terms)
        return HoldResult()

    def build() -> None:
        found.reports.append(apply.apply(request, Ledger(target.open()), hold=serve))
        serving.set()

    thread = threading.Thread(target=build)
    with ours, theirs:
        theirs.setblocking(False)
        thread.start()
        try:
            assert serving.wait(PATIENCE)
            assert not found.reports, found.reports
            yield found
        finally:
            ended.set()
            ours.send(b"x")
            thread.join(PATIENCE)
    assert not thread.is_alive()
