"""A child of a probe: makes the trials that it is told, or opens what other children hand over.

It is spawned and never forked (fact 33), may die of any trial, and takes everything along when it goes.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from memtopo.common.errors import MemtopoError
from memtopo.driver.kernels import KernelDriver
from memtopo.driver.ledger import Ledger
from memtopo.driver.types import DriverError, Location, LocationKind
from memtopo.machine import target
from memtopo.machine.probe import trials
from memtopo.machine.probe.messages import Message, close, receive, send
from memtopo.machine.probe.trial_resources import FATAL, Bench
from memtopo.machine.probe.trial_table import RATES, Ask

_PR_SET_PDEATHSIG = 1

Wrap = Callable[[KernelDriver], KernelDriver]


class _Child:
    """One end of the conversation with the probe."""

    def __init__(self, channel: socket.socket, wrap: Wrap) -> None:
        self._channel = channel
        briefing, fds = receive(channel) or sys.exit(0)
        self._asks = _read_asks(briefing.get("asks"))
        began = time.monotonic()
        record = _machine(fds)
        driver, extras = target.open_for_trials(record)
        self._ledger = Ledger(wrap(driver))
        self._bench = Bench(self._ledger, extras, self._hand_over, target.foreign(simulated=record is not None))
        self.tell({"ready": time.monotonic() - began})

    def tell(self, message: Message) -> None:
        send(self._channel, message)

    def work(self) -> None:
        """Make the trials in turn, or without any, open whatever comes until nobody is there to ask."""
        if self._asks is None:
            while request := receive(self._channel):
                self.tell({"got": trials.import_answer(self._bench, *request)})
                close(request[1])
        elif not self._try_all(self._asks):
            return
        self._bench.close()
        if self._asks is not None:
            self.tell({"done": True, "left": {} if self._ledger.empty else self._ledger.counts()})

    def _try_all(self, asks: Sequence[tuple[int, Ask]]) -> bool:
        for number, ask in asks:
            self.tell({"begin": number})
            outcome = _outcome(self._bench, ask)
            self.tell({"end": number, **outcome})
            if outcome.get("error") in FATAL:
                return False  # the probe starts another child for what is left
        return True

    def _hand_over(self, request: Message, fds: Sequence[int]) -> Message:
        send(self._channel, {"import": request}, fds)
        answer = receive(self._channel) or sys.exit(0)
        return dict(answer[0]["got"])


def _outcome(bench: Bench, ask: Ask) -> Message:
    began, opening = time.monotonic(), bench.opening
    told: Message
    try:
        told = {"works": True, "data": _rates(ask)} if ask.name == RATES else {"works": trials.attempt(bench, ask)}
    except DriverError as error:
        told = {"error": error.name, "call": error.call}
    except MemtopoError as error:  # the driver does not even have the function
        told = {"error": "CUDA_ERROR_NOT_FOUND", "why": error.message}
    contexts = bench.opening - opening
    return told | {"seconds": time.monotonic() - began - contexts, "contexts": contexts}


def _rates(ask: Ask) -> dict[str, Any]:
    meter = target.meter()
    return meter.peers(ask.by, ask.place.id) if ask.place.kind == LocationKind.GPU else meter.host(ask.by)


def _read_asks(listed: Sequence[Any] | None) -> list[tuple[int, Ask]] | None:
    if listed is None:
        return None
    return [(n, Ask(Location(LocationKind(kind), place), name, by)) for n, kind, place, name, by in listed]


def _machine(fds: Sequence[int]) -> bytes | None:
    """The record of the machine to simulate; None of a real one."""
    if not fds:
        return None
    with os.fdopen(fds[0], "rb") as file:
        file.seek(0)
        return file.read()


def main(descriptor: int, wrap: Wrap = lambda driver: driver) -> None:
    """Work on a socket until everything is done; `wrap` may put something before the driver."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the probe's to hear
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    channel = socket.socket(fileno=descriptor)
    channel.set_inheritable(False)
    try:
        _Child(channel, wrap).work()
    except Exception as error:  # noqa: BLE001 the probe tells it; a traceback here would be lost
        send(channel, {"broken": json.dumps(f"{type(error).__name__}: {error}")[1:-1]})


if __name__ == "__main__":
    main(int(sys.argv[1]))
