"""Coordinator of a layout whose processes are a user's own: gathers them, conducts them, and serves the layout.

It is a small process that the first of them starts. The layout is held at its usual socket meanwhile, so that other
programs list, check, switch and change it, and import from it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import get_args

from memtopo.common.errors import MemtopoError
from memtopo.common.processes import RunningClock
from memtopo.common.signals import ENDING, received_signal
from memtopo.driver.handles import Handle
from memtopo.plans.progress import SafeProgress
from memtopo.run.conductor import conduct
from memtopo.run.holder import Holder, about_holder
from memtopo.run.messages import FromWorker
from memtopo.run.processes.ensemble import Ensemble
from memtopo.run.processes.gathering import Gathering, Joining
from memtopo.run.processes.router import Peers
from memtopo.run.processes.worker_process import UserProcess, WorkerProcess
from memtopo.run.processes.workers import Workers
from memtopo.session.composition import Composition, revision
from memtopo.sharing.claims import Claim, claim
from memtopo.sharing.endpoints import Endpoint
from memtopo.sharing.errors import ExchangeError
from memtopo.sharing.holder.state import ProgressNotices


def main(folder: str, file: str, name: str, timeout: str) -> None:
    """Coordinate the processes that connect to a socket, unless another process does."""
    where = Endpoint(folder, file, name or None)
    stopped = received_signal(*ENDING)
    try:
        claimed = claim(where)
    except ExchangeError:
        return
    with claimed:
        gathered = Gathering(float(timeout), stopped)
        with claimed.listen() as listener:
            try:
                composition = gathered.wait(listener)
            except MemtopoError as error:
                gathered.refuse(error, listener)
                return
            claimed.unlink_socket()
        held = replace(where, file=file.removesuffix(".join.sock") + ".sock")
        try:
            with claim(held) as owned:
                _conduct(gathered, composition, owned, stopped)
        except MemtopoError as error:
            gathered.refuse(error)


@dataclass(frozen=True, slots=True)
class Joined:
    """Source of processes that have joined a run, by label; each sees the GPUs with the `visible` ordinals."""

    ensemble: Ensemble
    joined: Mapping[str, Joining]
    visible: Mapping[str, tuple[int, ...]]

    def process(self, label: str, gates: Sequence[int], clock: RunningClock, origin: float) -> WorkerProcess:
        found = self.joined[label]
        channel = found.channel.expecting(get_args(FromWorker))
        message = replace(self.ensemble.start_message(label, self.visible[label]), origin=origin, exclusive=False)
        channel.send(message, [Handle(fd=os.dup(end)) for end in gates])
        return WorkerProcess(label, UserProcess(found.pid), channel, clock)

    def close(self) -> None:
        """Do nothing: each process ends by itself."""


def _conduct(gathered: Gathering, composition: Composition, owned: Claim, stopped: Callable[[], int]) -> None:
    first = next(iter(gathered.joined.values())).request
    request = composition.request(check=first.check, timeout=first.timeout)
    ensemble = Ensemble(request, first.spec, composition.target.machine, first.timeout)
    source = Joined(ensemble, gathered.joined, gathered.visible(composition))
    progress = ProgressNotices()
    holder = Holder(
        owned,
        about_holder(composition, request),
        partial(revision, target=composition.target),
        gpus=[device.uuid for device in composition.target.machine.devices],
        stopped_by="a process that left",
        progress=progress,
    )
    with Workers(ensemble, SafeProgress(progress), stopped, Peers(), source) as workers:
        owned.report_end(conduct(workers, replace(holder, ready=workers.resume).hold))
