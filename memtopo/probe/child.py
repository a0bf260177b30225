"""A child of a probe: makes trials, or imports what the trials of other children share.

A trial may end the process or hang. The system releases the rest when the process ends.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, get_args

from memtopo.common.errors import MemtopoError
from memtopo.driver.handles import Handle
from memtopo.driver.kernels import KernelDriver
from memtopo.driver.ledger import Ledger
from memtopo.driver.types import DriverError, LocationKind
from memtopo.drivers import target
from memtopo.probe import trials
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
from memtopo.sharing.channel import Channel, Received, work_for_parent

WrapDriver = Callable[[KernelDriver], KernelDriver]


def main(descriptor: str, wrap: WrapDriver = lambda driver: driver) -> None:
    """Carry out the messages from a socket, until done or until the socket is closed; `wrap` wraps the driver."""
    work_for_parent(descriptor, get_args(ToChild), lambda channel: _Trials(channel, wrap).work())


class _Trials:
    """The child's end of the channel, and its driver."""

    def __init__(self, channel: Channel[ToChild], wrap: WrapDriver) -> None:
        self._channel, self._received = channel, iter(channel)
        start = self._receive().message
        assert isinstance(start, Start)
        self._trials = start.trials
        began = time.monotonic()
        driver, extras = target.open_for_trials(start.record.encode() if start.record else None)
        self._ledger = Ledger(wrap(driver))
        external = target.external_api(simulated=start.record is not None)
        self._resources = trials.TrialResources(self._ledger, extras, self._import_elsewhere, external)
        channel.send(Ready(time.monotonic() - began))

    def work(self) -> None:
        """Make the trials in their order; without trials, answer requests to import until the channel is closed."""
        if self._trials is None:
            self._answer_imports()
            self._resources.close()
        elif self._make_trials(self._trials):
            self._resources.close()
            self._channel.send(Finished({} if self._ledger.empty else self._ledger.counts()))

    def _answer_imports(self) -> None:
        for received in self._received:
            assert isinstance(received.message, ImportRequest)
            self._channel.send(trials.import_shared(self._resources, received.message, *received.handles))
            received.close()

    def _make_trials(self, planned: Sequence[tuple[int, PlannedTrial]]) -> bool:
        """Return false after an error that makes the process unable to use its GPUs; the probe starts another one."""
        for number, trial in planned:
            self._channel.send(TrialBegun(number))
            ended = _make(self._resources, number, trial)
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


def _make(resources: trials.TrialResources, number: int, trial: PlannedTrial) -> TrialEnded:
    began, opening = time.monotonic(), resources.opening
    works: bool | None = None
    error = call = reason = data = None
    try:
        if trial.name == RATES:
            works, data = True, _rates(trial)
        else:
            works = trials.attempt(resources, trial)
    except DriverError as failure:
        error, call = failure.name, failure.call
    except MemtopoError as failure:  # the driver does not have the function
        error, reason = "CUDA_ERROR_NOT_FOUND", failure.message
    contexts = resources.opening - opening
    return TrialEnded(number, works, error, call, reason, time.monotonic() - began - contexts, contexts, data)


def _rates(trial: PlannedTrial) -> dict[str, Any]:
    meter = target.meter()
    if trial.location.kind == LocationKind.GPU:
        return meter.peers(trial.device, trial.location.id)
    return meter.host(trial.device)


if __name__ == "__main__":
    main(sys.argv[1])
