"""Many rounds of hold, attach and release between two processes; each prints its resources before and after.

`hold` builds tests/run/processes/held.yaml and serves it until it is released, again and again; `attach` applies
tests/run/processes/attached.yaml, which imports from it, and releases it each time. Arguments: which, machine, rounds.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from memtopo.cli.specs import revise
from memtopo.common.errors import ExchangeError, NoLayout
from memtopo.driver.ledger import Ledger
from memtopo.drivers import target
from memtopo.drivers.target import Target
from memtopo.language import read_file
from memtopo.plans.report import Report
from memtopo.run.apply import apply
from memtopo.run.holder import Holder
from memtopo.session.composition import Composition, Holding, RunRequest
from memtopo.sharing.claims import claim
from memtopo.sharing.client import Client, connect
from memtopo.sharing.endpoints import endpoint
from memtopo.sharing.holder.state import HolderInfo
from memtopo.sharing.imports import HolderHandles

FOLDER = Path(__file__).parent
PATIENCE = 30.0


def run_request(spec: str, found: Target) -> RunRequest:
    return Composition.of(read_file(str(FOLDER / spec)), found).request(machine_facts=None)


def hold(found: Target) -> Callable[[], Report]:
    made, ledger = run_request("held.yaml", found), Ledger(found.open())

    def once() -> Report:
        info = HolderInfo("held", None, made.machine)
        with claim(endpoint("held")) as claimed:
            holder = Holder(claimed, info, revise(found), Holding(grace=1.0))
            return apply(made, ledger, hold=holder.hold)

    return once


def attach(found: Target) -> Callable[[], Report]:
    made, ledger = run_request("attached.yaml", found), Ledger(found.open())
    gpus = [ledger.device_get_uuid(ordinal).hex() for ordinal in range(ledger.device_get_count())]

    def once() -> Report:
        with reached() as client:
            report = apply(made, ledger, handle_source=HolderHandles(made.geometry, gpus))
            assert client.release(force=True, grace=0.0).gone
        return report

    return once


def reached() -> Client:
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return connect(endpoint("held"))
        except (ExchangeError, NoLayout):  # it is not there yet, or is being built or taken down
            if time.monotonic() > until:
                raise
            os.sched_yield()


def main(which: str, machine: str, rounds: int) -> None:
    once = {"hold": hold, "attach": attach}[which](target.resolve(machine))
    first = last = once()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(rounds):
        last = once()
        assert last.outcome == "ok", last
    assert first.left
    assert last.left
    memory = [[device.after for device in report.left.memory] for report in (first, last) if report.left]
    sys.stdout.write(json.dumps({"fds": [before, len(os.listdir("/proc/self/fd"))], "memory": memory}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
