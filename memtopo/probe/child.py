"""A child of a probe: makes trials, or imports what the trials of other children share.

A trial may end the process or hang. The system releases the rest when the process ends.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import get_args

from memtopo.common.errors import MemtopoError
from memtopo.driver.handles import Handle
from memtopo.driver.kernels import KernelDriver
from memtopo.driver.ledger import Ledger
from memtopo.driver.types import DriverError, LocationKind
from memtopo.drivers import target
from memtopo.probe.supervisor import (
    FATAL,
    Finished,
    ImportAnswer,
    ImportRequest,
    Ready,
    Start,
    ToChild,
    TrialBegun,
    TrialEnded,
)
from memtopo.probe.trial_table import RATES, PlannedTrial
from memtopo.probe.trials import Trials
from memtopo.sharing.channel import Channel, Received, work_for_parent

WrapDriver = Callable[[KernelDriver], KernelDriver]


def main(descriptor: str, wrap: WrapDriver = lambda driver: driver) -> None:
    """Carry out the messages from a socket, until done or until the socket is closed; `wrap` wraps the driver."""
    work_for_parent(descriptor, get_args(ToChild), lambda channel: _Child(channel, wrap).work())


class _Child:
    """The child's end of the channel, and its driver."""

    def __init__(self, channel: Channel[ToChild], wrap: WrapDriver) -> None:
        self._channel, self._received = channel, iter(channel)
        start = self._receive().message
        assert isinstance(start, Start)
        self._planned = start.trials
        began = time.monotonic()
        driver, extras = target.open_for_trials(start.record.encode() if start.record else None)
        self._ledger = Ledger(wrap(driver))
        external = target.external_api(simulated=start.record is not None)
        self._trials = Trials(self._ledger, extras, self._import_elsewhere, external)
        channel.send(Ready(time.monotonic() - began))

    def work(self) -> None:
        """Make the trials in their order; without trials, answer requests to import until the channel is closed."""
        if self._planned is None:
            for received in self._received:
                assert isinstance(received.message, ImportRequest)
                self._channel.send(self._trials.import_shared(received.message, *received.handles))
                received.close()
            self._trials.close()
        elif self._make_trials(self._planned):
            self._trials.close()
            self._channel.send(Finished({} if self._ledger.empty else self._ledger.counts()))

    def _make_trials(self, planned: Sequence[tuple[int, PlannedTrial]]) -> bool:
        """Return false after an error that makes the process unable to use its GPUs; the probe starts another one."""
        for number, trial in planned:
            self._channel.send(TrialBegun(number))
            ended = _make(self._trials, number, trial)
            self._channel.send(ended)
            if ended.error in FATAL:
                return False
        return True

    def _import_elsewhere(self, request: ImportRequest, handle: Handle) -> ImportAnswer:
        self._channel.send(request, [handle])
        answer = self._receive().message
        assert isinstance(answer, ImportAnswer)
        return answer

    def _receive(self) -> Received[ToChild]:
        return next(self._received, None) or sys.exit(0)


def _make(trials: Trials, number: int, trial: PlannedTrial) -> TrialEnded:
    began, opening = time.monotonic(), trials.opening
    works: bool | None = None
    error = call = reason = data = None
    try:
        if trial.name != RATES:
            works = trials.attempt(trial)
        elif trial.location.kind == LocationKind.GPU:
            works, data = True, target.meter().peers(trial.device, trial.location.id)
        else:
            works, data = True, target.meter().host(trial.device)
    except DriverError as failure:
        error, call = failure.name, failure.call
    except MemtopoError as failure:  # the driver does not have the function
        error, reason = "CUDA_ERROR_NOT_FOUND", failure.message
    contexts = trials.opening - opening
    return TrialEnded(number, works, error, call, reason, time.monotonic() - began - contexts, contexts, data)


if __name__ == "__main__":
    main(sys.argv[1])
