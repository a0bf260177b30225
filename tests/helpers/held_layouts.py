"""Layouts that a thread of this process holds, on a simulated machine."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

from memtopo.api.session import uuids
from memtopo.cli.specs import revise
from memtopo.driver.ledger import Ledger
from memtopo.drivers.target import Target
from memtopo.kinds.layout import current
from memtopo.language import Document, read_text
from memtopo.plans.report import Report
from memtopo.run import apply
from memtopo.run.holder import HeldLayout
from memtopo.run.imports import Follower
from memtopo.run.process_run import ProcessRun
from memtopo.session.composition import HoldResult, Revise
from memtopo.sharing.claims import claim
from memtopo.sharing.client import connect
from memtopo.sharing.endpoints import endpoint
from memtopo.sharing.holder import hold
from memtopo.sharing.holder.state import HolderInfo
from memtopo.sharing.imports import HolderHandles
from memtopo.sharing.status import Switched
from memtopo.sharing.wire import layout_source
from tests.helpers.child_process import PATIENCE
from tests.helpers.conducted import Conducted
from tests.helpers.specs import request_of


@dataclass
class Held:
    """A held layout; `run` and its conductor exist while it is held, `report` afterwards. `end` ends the hold."""

    end: Callable[[], None]
    conductors: list[Conducted] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)

    @property
    def run(self) -> ProcessRun:
        return self.conductors[0].run

    @property
    def report(self) -> Report:
        return self.reports[0]

    def bytes_of(self, name: str, offset: int, size: int) -> bytes:
        """Bytes of a range."""
        execution = self.run.execution
        execution.resume()  # a refused change has released the contexts
        with current(execution.driver, execution.layout.contexts[0]):
            return execution.driver.memcpy_dtoh(execution.layout.ranges[name].address + offset, size)

    def write(self, name: str, data: bytes) -> None:
        """Write bytes to the beginning of a range."""
        execution = self.run.execution
        execution.resume()
        with current(execution.driver, execution.layout.contexts[0]):
            execution.driver.memcpy_htod(execution.layout.ranges[name].address, data)


def _serve(
    made: Conducted, document: Document, target: Target, revised: Revise | None, stop: Callable[[], int], **terms: Any
) -> HoldResult:
    """Serve a layout until `stop` returns true."""
    layout = HeldLayout(made, layout_source(document, target.machine), revised or revise(target))
    about = HolderInfo(made.request.geometry.name, document.name, made.request.machine)
    with claim(endpoint(about.name)) as claimed:
        follower = Follower(made)
        hold(layout, claimed, about, stop=lambda: follower.stop() or stop(), changeable=layout, **terms)
    return HoldResult(follower.notes)


Switch = Callable[..., Future[Switched]]


@contextmanager
def switching(name: str) -> Iterator[Switch]:
    """A function that requests a switch of a held layout in a thread."""
    with ThreadPoolExecutor() as pool:

        def request(state: str, *, force: bool = False, wait: float = PATIENCE) -> Switched:
            with connect(endpoint(name)) as client:
                return client.switch(state, force=force, wait=wait)

        yield lambda *words, **terms: pool.submit(request, *words, **terms)


@contextmanager
def held(spec: Mapping[str, Any], target: Target, revised: Revise | None = None, **terms: Any) -> Iterator[Held]:
    """Hold a spec under its name, until the end of the block. `revised` makes the request of a change."""
    document = read_text(json.dumps(spec).encode(), "held.yaml")
    request = request_of(document, target, exclusive=False)  # other tests of this process open files
    serving, ended = threading.Event(), threading.Event()
    ours, theirs = socket.socketpair()

    def end() -> None:
        ended.set()
        ours.send(b"x")

    found = Held(end)

    def serve(made: Conducted) -> HoldResult:
        found.conductors.append(made)
        return _serve(made, document, target, revised, ended.is_set, ready=serving.set, wake=theirs, **terms)

    def build() -> None:
        driver: Any = target.open()
        handles = HolderHandles(request.geometry, uuids(driver))
        with closing(driver):
            found.reports.append(apply.apply(request, Ledger(driver), hold=serve, handle_source=handles))
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
            end()
            thread.join(PATIENCE)
    assert not thread.is_alive()
