"""One application of a spec, in this process or its workers: producers, the run, and the holder of its layout."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from memtopo.cli.bindings import Bindings
from memtopo.cli.hold import HoldOptions
from memtopo.cli.process import Stopper
from memtopo.cli.report import RunOutput
from memtopo.cli.requests import revision
from memtopo.cli.specs import Loaded
from memtopo.common.errors import Stopped
from memtopo.common.garbage_collection import collector_paused
from memtopo.common.text import printable
from memtopo.driver.ledger import Ledger
from memtopo.driver.protocol import Driver
from memtopo.output import plain
from memtopo.output.progress import activity, progress
from memtopo.plans.progress import BothProgress, Progress
from memtopo.plans.report import Report
from memtopo.run import apply
from memtopo.run.request import RunRequest

if TYPE_CHECKING:  # imported where it is used: a layout of one process that nobody holds needs none of it
    from memtopo.cli.holder import Holder
    from memtopo.driver.kernels import KernelDriver
    from memtopo.driver.recorder import CallContext
    from memtopo.sharing.imports import CommitWait, HolderHandles


@dataclass(frozen=True, slots=True)
class Application:
    """One application of a spec; `stop` returns the number of a signal, or 0, and `reread` the spec's source now."""

    request: RunRequest
    loaded: Loaded
    bindings: Bindings
    reread: Callable[[], str]
    stop: Callable[[], int] = lambda: 0

    def run_and_show(self, holding: HoldOptions | None, output: RunOutput) -> int:
        """Apply the spec until it is done or a signal stops it, and show the report. Returns the exit status."""
        with Stopper(ending=True) as stopper:  # around the report too: a second signal must not cut it off
            return output.show(replace(self, stop=stopper.signal).run(holding))

    def run(self, holding: HoldOptions | None) -> Report:
        """Claim the layout's name if it is to be held, start its producers, and apply."""
        with self._holder(holding) as holder:
            report = self._apply(holder)
            if holder:
                holder.claim.report_end(report)
            return report

    def _apply(self, holder: Holder | None) -> Report:
        apply_request = self._in_processes if self.request.geometry.processes else self._in_process
        if not self.bindings.values and not self.request.geometry.imports_from_outside:
            return apply_request(holder, {})
        with ExitStack() as stack:
            with activity("start producers"):
                bound = self.bindings.producers(self.request.geometry, self.loaded.target, self.stop)
                producers = stack.enter_context(bound)
            report = producers.with_notes(apply_request(holder, producers.sockets))
        return producers.with_survivors(report)

    def _holder(self, holding: HoldOptions | None) -> AbstractContextManager[Holder | None]:
        if holding is None:
            return nullcontext()
        from memtopo.cli.holder import claimed_holder
        from memtopo.sharing.holder import HolderInfo
        from memtopo.sharing.sources import layout_source

        source = layout_source(self.loaded.document, self.loaded.target.machine)
        about = HolderInfo(self.request.plan.name, self.request.spec, self.request.machine, source)
        target = self.loaded.target
        gpus = [device.uuid for device in target.machine.devices]
        return claimed_holder(holding, about, self.stop, partial(revision, target=target), gpus, self.reread)

    def _in_process(self, holder: Holder | None, sockets: Mapping[str, str]) -> Report:
        outside = holder is not None or self.request.geometry.imports_from_outside  # a change may bring imports
        request = self.request
        with (
            self._traced(self.loaded.target.open()) as (driver, context),
            progress(simulated=request.machine.simulated) as shown,
            nullcontext() if holder else collector_paused(),  # the objects of a run make no cycles
        ):
            ledger = Ledger(driver)
            return apply.apply(
                request,
                ledger,
                progress=_shared(shown, holder),
                stop=self.stop,
                handle_source=self._handles_of_holders(ledger, sockets) if outside else None,
                hold=holder.hold if holder else None,
                context=context,
            )

    def _traced(self, driver: KernelDriver) -> AbstractContextManager[tuple[KernelDriver, CallContext | None]]:
        """The driver, which writes a trace if one was requested, and the context of its calls."""
        if self.request.trace is None:
            return nullcontext((driver, None))
        from memtopo.driver.trace import traced

        return traced(driver, self.request.trace, self.request.about_trace)

    def _handles_of_holders(self, driver: Driver, sockets: Mapping[str, str]) -> HolderHandles:
        from memtopo.sharing.imports import HolderHandles

        gpus = [driver.device_get_uuid(ordinal).hex() for ordinal in range(driver.device_get_count())]
        return HolderHandles(self.request.geometry, gpus, sockets, self.bindings.allow_uids, self._commits)

    @property
    def _commits(self) -> CommitWait:
        """Wait for the commit of imports, which a signal ends."""
        from memtopo.sharing.imports import CommitWait

        def advance() -> None:
            if self.stop():
                raise Stopped

        return CommitWait(self.bindings.silence, advance, lambda text: plain.print_lines([printable(text)], sys.stderr))

    def _in_processes(self, holder: Holder | None, sockets: Mapping[str, str]) -> Report:
        from memtopo.run import processes

        if self.request.trace:
            from memtopo.driver.trace import empty_folder

            empty_folder(self.request.trace)
        ensemble = processes.Ensemble(
            self.request,
            self.loaded.document.text,
            self.loaded.target.machine,
            self.bindings.silence,
            sockets,
            self.bindings.allow_uids,
            settings=self.loaded.document.settings,
            log=holder.service.log if holder else None,  # a pipe of the caller would not end while they live
        )
        hold = holder.hold if holder else None
        with progress(simulated=self.request.machine.simulated) as shown:
            return processes.apply(ensemble, progress=_shared(shown, holder), stop=self.stop, hold=hold)


def _shared(shown: Progress, holder: Holder | None) -> Progress:
    """Hooks that show the progress of a run here, and to the clients of its holder."""
    return BothProgress(shown, holder.progress) if holder else shown
