"""Coordinator of a layout whose processes are a user's own: gathers them, conducts them, and serves the layout.

It is a small process that the first of them starts. The layout is held at its usual socket meanwhile, so that other
programs list, check, switch and change it, and import from it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import get_args

from msgspec import Struct
from msgspec.structs import replace

from memtopo.common.errors import ExchangeError, MemtopoError
from memtopo.common.processes import RunningClock, name_process
from memtopo.common.signals import ENDING, received_signal
from memtopo.driver.handles import Handle
from memtopo.plans.progress import SafeProgress
from memtopo.run.conductor import conduct
from memtopo.run.holder import Holder, about_holder
from memtopo.run.messages import FromWorker
from memtopo.run.processes.ensemble import Ensemble
from memtopo.run.processes.gathering import Gathering, Joining
from memtopo.run.processes.worker_process import Peers, UserProcess, WorkerProcess
from memtopo.run.processes.workers import Workers
from memtopo.session.composition import Composition, revision
from memtopo.sharing.claims import Claim, claim
from memtopo.sharing.endpoints import Endpoint
from memtopo.sharing.holder.state import ProgressNotices

_AT_ONCE = 0.1
"""Seconds in which processes that leave together have ended."""


def main(folder: str, file: str, name: str, timeout: str, starter: str) -> None:
    """Coordinate the processes that connect to a socket, unless another process does.

    `starter` is a descriptor of a pipe to the process that started this one, which is told why it cannot.
    """
    name_process("memtopo-join")
    where = Endpoint(folder, file, name or None)
    stopped = received_signal(*ENDING)
    with ExitStack() as stack:
        try:
            claimed = stack.enter_context(claim(where))
            listening = claimed.listen()
        except ExchangeError as error:
            if error.code != "held":
                os.write(int(starter), json.dumps([error.message, error.hint, error.exit_code]).encode())
            return
        os.close(int(starter))
        gathered = Gathering(float(timeout), stopped)
        with listening as listener:
            try:
                composition = gathered.wait(listener)
            except MemtopoError as error:
                gathered.refuse(error, listener)
                return
            claimed.unlink_socket()
        held = replace(where, file=file.removesuffix(".join.sock") + ".sock")
        try:
            processes = {label: gathered.joined[label].pid for label in composition.geometry.processes}
            with claim(held, processes=processes) as owned:
                _conduct(gathered, composition, owned, stopped)
        except MemtopoError as error:
            gathered.refuse(error)


class Joined(Struct, frozen=True):
    """Source of processes that have joined a run, by label; each sees the GPUs with the `visible` ordinals."""

    ensemble: Ensemble
    joined: Mapping[str, Joining]
    visible: Mapping[str, tuple[int, ...]]
    owned: Claim

    def process(self, label: str, gates: Sequence[int], clock: RunningClock, origin: float) -> WorkerProcess:
        found = self.joined[label]
        channel = found.channel.expecting(get_args(FromWorker))
        message = replace(self.ensemble.start_message(label, self.visible[label]), origin=origin, exclusive=False)
        descriptors = [*map(os.dup, gates), self.owned.share()]
        channel.send(message, [Handle(fd=fd) for fd in descriptors])
        return WorkerProcess(label, UserProcess(found.pid), channel, clock)

    def close(self) -> None:
        """Do nothing: each process ends by itself."""


class Members(Workers):
    """Processes that have joined, whose layout is served until all of them have released their memory."""

    holder: Holder

    def await_end(self, ended: Callable[[float], bool]) -> None:
        if ended(_AT_ONCE):
            return
        with suppress(ExchangeError):  # without a socket, it waits all the same
            self.holder.await_end(self, partial(ended, 0.0))
        super().await_end(ended)


def _conduct(gathered: Gathering, composition: Composition, owned: Claim, stopped: Callable[[], int]) -> None:
    first = next(iter(gathered.joined.values())).request
    request = composition.request(check=first.check, timeout=first.timeout)
    ensemble = Ensemble(request, first.spec, composition.target.machine, first.timeout)
    progress = ProgressNotices()
    holder = Holder(
        owned,
        about_holder(composition, request),
        partial(revision, target=composition.target),
        gpus=[device.uuid for device in composition.target.machine.devices],
        stopped_by="a process that left",
        progress=progress,
    )
    source = Joined(ensemble, gathered.joined, gathered.visible(composition), owned)
    with Members(ensemble, SafeProgress(progress), stopped, Peers(), source) as workers:
        workers.holder = holder
        owned.report_end(conduct(workers, replace(holder, ready=workers.resume).hold))
