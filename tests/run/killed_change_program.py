"""Changes of a held layout whose holder gets a signal at a driver call; prints one line for each point.

Arguments: the signal's number, and the stride between the calls; 0 counts the calls of a whole change.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from functools import wraps
from typing import Any

from memtopo.cli.process import Stopper
from memtopo.cli.specs import revise
from memtopo.common.errors import ExchangeError, MemtopoError
from memtopo.driver.ledger import Ledger
from memtopo.driver.protocol import Driver
from memtopo.driver.wrappers import Call, Forwarder
from memtopo.drivers.sim import SimDriver
from memtopo.drivers.target import Target, resolve
from memtopo.language import read_text
from memtopo.run.apply import apply
from memtopo.run.holder import Holder
from memtopo.session.composition import Composition, Holding, HoldResult
from memtopo.sharing.claims import claim
from memtopo.sharing.client import Client, connect
from memtopo.sharing.endpoints import endpoint
from memtopo.sharing.held import survey
from memtopo.sharing.holder.state import HolderInfo
from tests.helpers.conducted import Conducted
from tests.helpers.holders import until
from tests.helpers.processes import print_json

HEAD = "memtopo: 1\nname: killed\n"
BEFORE = HEAD + (
    "ranges: {a: {size: 4MiB}, b: {size: 2MiB}}\n"
    "chunks: {x: {location: gpu0, size: 2MiB, count: 2}, y: {location: gpu0, size: 2MiB}}\n"
    "map: {a: [x], b: [y]}\naccess: {a: {gpu0: rw}, b: {gpu0: rw}}\n"
)
AFTER = HEAD + (
    "ranges: {a: {size: 4MiB}, c: {size: 4MiB}}\n"
    "chunks: {x: {location: gpu0, size: 2MiB, count: 2}, z: {location: gpu0, size: 4MiB}}\n"
    "map: {a: [x.1, x.0], c: [z]}\naccess: {a: {gpu0: rw}, c: {gpu0: rw}}\n"
)


class Signalling(Forwarder):
    """A driver during whose `at`-th call, from 1, the process gets a signal; 0 for none."""

    def __init__(self, driver: Driver, number: int) -> None:
        self.calls, self.at, self._number = 0, 0, number
        super().__init__(driver)

    def _wrap(self, method: str, call: Call) -> Call:
        del method

        @wraps(call)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            if self.calls == self.at:
                os.kill(os.getpid(), self._number)
            return call(*args, **kwargs)

        return counted


def hold(target: Target, number: int, at: int, out: int) -> None:
    """Hold the layout, and write its report at the end."""
    document = read_text(BEFORE.encode(), "before.yaml")
    request = Composition.of(document, target).request()
    driver = SimDriver(target.machine)
    driver.init()
    signalling = Signalling(driver, number)
    with Stopper(ending=True) as stopper:
        info = HolderInfo("killed", None, request.machine)
        with claim(endpoint("killed")) as claimed:
            holder = Holder(claimed, info, revise(target), Holding(grace=0.0))

            def held(made: Conducted) -> HoldResult:
                made.release_contexts()
                signalling.at = signalling.calls + at if at else 0
                before = signalling.calls
                result = holder.hold(made)
                os.write(out, f"{signalling.calls - before}\n".encode())
                return result

            ledger = Ledger(signalling)
            report = apply(request, ledger, stop=stopper.signal, hold=held)
    found = {"outcome": report.outcome, "leaks": len(report.leaks), "empty": ledger.empty}
    os.write(out, f"{json.dumps(found)}\n".encode())


def attempt(target: Target, number: int, at: int) -> dict[str, Any]:
    """Change a layout whose holder gets the signal at a call; with no call, release it."""
    incoming, out = os.pipe()
    child = os.fork()
    if not child:
        os.close(incoming)
        hold(target, number, at, out)
        os._exit(0)
    os.close(out)
    found: dict[str, Any] = {"at": at}
    clients: list[Client] = []
    until(lambda: _connected(child, clients))
    with clients[0] as client:
        try:
            client.change(json.dumps({"spec": AFTER}))
            found["change"] = "made"
            if not at:
                client.release()
        except ExchangeError as error:
            found["change"] = error.code
    _, status = os.waitpid(child, 0)
    with os.fdopen(incoming, "rb") as pipe:
        lines = pipe.read().splitlines()
    found["status"] = os.waitstatus_to_exitcode(status)
    if lines:
        found |= {"calls": int(lines[0]), **json.loads(lines[1])}
    found["listed"] = len(survey().layouts)
    return found


def _connected(child: int, clients: list[Client]) -> bool:
    assert os.waitpid(child, os.WNOHANG) == (0, 0)
    with suppress(MemtopoError):  # it is not held yet
        clients.append(connect(endpoint("killed"), suggest=False))
    return bool(clients)


def main(number: int, stride: int) -> None:
    target = resolve("h100x1")
    whole = attempt(target, number, 0)
    print_json(whole)
    for at in range(1, whole["calls"] + 1, stride):
        print_json(attempt(target, number, at))


if __name__ == "__main__":
    main(getattr(signal, sys.argv[1]), int(sys.argv[2]))
