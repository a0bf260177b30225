"""Program that builds and holds a spec, and prints when it serves, the bytes of its ranges, and the outcome."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from memtopo.cli.process import Stopper
from memtopo.driver.ledger import Ledger
from memtopo.driver.types import DriverError
from memtopo.drivers import target
from memtopo.kinds.ipc.steps import EVENT_HANDLES
from memtopo.kinds.layout import current
from memtopo.language import read_file
from memtopo.run import apply
from memtopo.session.composition import Composition, HoldResult
from memtopo.sharing.claims import claim
from memtopo.sharing.endpoints import endpoint
from memtopo.sharing.holder import hold
from memtopo.sharing.holder.state import HolderInfo
from memtopo.sharing.offers import LayoutExports
from tests.helpers.conducted import Conducted
from tests.helpers.processes import print_json


def main(
    spec: str,
    machine: str,
    socket: str | None = None,
    record: bool = False,
    source: str | None = None,
    uid: int = 0,
    allow_uids: Sequence[int] = (),
) -> None:
    """Hold a spec at its name or at a socket until a signal; each range begins with the bytes of its name.

    The holder sends the `source` of the layout, or another text in place of it. It may become another user.
    """
    if uid:
        os.setresuid(uid, uid, uid)
    found = target.resolve(machine)
    composed = Composition.of(read_file(spec), found)
    geometry, run_request = composed.geometry, composed.request(machine_facts=None)
    source = composed.source if source is None else source
    where = endpoint(geometry.name) if socket is None else endpoint(socket=socket)
    with Stopper(ending=True) as stopper, claim(where, allow_uids) as claimed:

        def serve(made: Conducted) -> HoldResult:
            _mark(made)
            if record:
                _record(made)
            layout, driver = made.run.execution.layout, made.run.execution.driver
            exports = LayoutExports(geometry, layout, driver, made.recheck)
            about = HolderInfo(geometry.name, spec, run_request.machine, source)
            held = hold(
                exports,
                claimed,
                about,
                stop=stopper.signal,
                allow_uids=allow_uids,
                ready=lambda: print_json({"serving": geometry.name}),
            )
            print_json({"why": held.why, "clients": held.clients, "handles": held.handles, "first": _first(made)})
            return HoldResult()

        report = apply.apply(run_request, Ledger(found.open()), hold=serve)
    print_json({"outcome": report.outcome, "failure": report.failure and report.failure.error})


def _mark(made: Conducted) -> None:
    """Write the name of each range to its beginning."""
    layout, driver = made.run.execution.layout, made.run.execution.driver
    for label, reserved in layout.ranges.items():
        with current(driver, layout.contexts[min(layout.contexts)]), suppress(DriverError):  # it may only be read
            driver.memcpy_htod(reserved.address, label.encode().ljust(16, b"."))


def _record(made: Conducted) -> None:
    layout, driver = made.run.execution.layout, made.run.execution.driver
    for event in layout.of(EVENT_HANDLES).values():
        with current(driver, layout.contexts[min(layout.contexts)]):
            driver.event_record(event)


def _first(made: Conducted) -> dict[str, str]:
    """First 16 bytes of each range."""
    layout, driver = made.run.execution.layout, made.run.execution.driver
    with current(driver, layout.contexts[min(layout.contexts)]):
        return {label: driver.memcpy_dtoh(reserved.address, 16).hex() for label, reserved in layout.ranges.items()}


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
