"""From a briefing to a run: a worker plans for itself, from the same text and the same facts as all others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from memtopo import language, planner
from memtopo.common.errors import InternalError
from memtopo.driver.kernels import KernelDriver
from memtopo.driver.ledger import Ledger
from memtopo.geometry import Geometry
from memtopo.kinds.layout import HandleSource
from memtopo.language import Document
from memtopo.machine import Machine, parse, target
from memtopo.plans.report import MachineLine, Progress
from memtopo.rules.validation import validate
from memtopo.run.apply import Job, Run
from memtopo.run.processes.messages import Briefing
from memtopo.sharing.attaching import Holders
from memtopo.sharing.client import IN_FLIGHT
from memtopo.sharing.wire import Packet, close_all

Wrap = Callable[[str, KernelDriver], KernelDriver]
"""What stands between a process, by its label, and its driver."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a run has of the worker around it: how to ask siblings, to show that work goes on, and to know of its end.

    `alive` is told how many steps were done, and `stopped` gives the number of a signal, or 0.
    """

    wrap: Wrap
    ask: Ask
    alive: Callable[[int], None]
    stopped: Callable[[], int]


def prepare(briefing: Briefing, setting: Setting) -> Run:
    """A run of what the briefing says, before its first step. Raises `MemtopoError`."""
    machine = parse(briefing.machine.encode(), briefing.machine_name)
    document = language.read_text(briefing.text.encode(), briefing.spec)
    geometry = validate(document, machine).geometry
    if geometry is None:
        raise InternalError("a worker finds faults in a spec that the coordinator found valid")
    driver = target.open_in_worker(machine, simulated=briefing.simulated, visible=briefing.visible)
    job = _job(briefing, document, geometry, machine)
    ledger = Ledger(setting.wrap(briefing.process, driver))
    outside = Holders(job.geometry, briefing.gpus, briefing.sockets, briefing.allow_uids)
    handle_source = Siblings(job.geometry, setting.ask, outside)
    return Run(job, ledger, progress=_Telling(setting.alive), stop=setting.stopped, handle_source=handle_source)


def _job(briefing: Briefing, document: Document, geometry: Geometry, machine: Machine) -> Job:
    line = MachineLine(briefing.machine_name, briefing.simulated, (), machine.driver.cuda)
    member = geometry.processes[briefing.process]
    return Job(
        plan=planner.plan(geometry, machine).processes[briefing.process],
        geometry=member,
        machine=line,
        spec=briefing.spec,
        place=document.place,
        process=briefing.process,
        siblings=geometry.processes,
        facts=machine,
        check=briefing.check,
        seed=briefing.seed,
        timeout=briefing.timeout,
    )


class _Telling(Progress):
    """Progress that the coordinator hears of, and takes for a sign of life."""

    def __init__(self, alive: Callable[[int], None]) -> None:
        self._alive = alive

    def phase(self, name: str, steps: int) -> None:
        del name, steps
        self._alive(0)

    def advance(self, steps: int) -> None:
        self._alive(steps)


Ask = Callable[[str, str, int, int], Packet]


class Siblings:
    """What a process imports from its siblings; `ask` gets some handles of one export, in order.

    What its siblings do not have comes from `outside`.
    """

    def __init__(self, geometry: Geometry, ask: Ask, outside: HandleSource) -> None:
        self._each = {
            (holder, run.origin.export): run.origin.each
            for run in geometry.runs
            if run.origin and run.origin.siblings
            for holder in run.origin.holders
        }
        self._ask, self._outside = ask, outside
        self._batch: dict[tuple[str, str, int], int | bytes] = {}

    def attach(self, holder: str) -> int:
        return self._outside.attach(holder)

    def detach(self, holder: str) -> None:
        self._outside.detach(holder)

    def take(self, holder: str, export: str, index: int) -> int | bytes:
        if (holder, export) not in self._each:
            return self._outside.take(holder, export, index)
        if (holder, export, index) not in self._batch:
            self.settle()
            self._fetch(holder, export, index)
        return self._batch[holder, export, index]

    def gone(self, holder: str) -> bool:
        return self._outside.gone(holder)

    def settle(self) -> None:
        self._outside.settle()
        close_all(handle for handle in self._batch.values() if isinstance(handle, int))
        self._batch.clear()

    def _fetch(self, holder: str, export: str, first: int) -> None:
        count = min(IN_FLIGHT, self._each[holder, export] - first)
        packet = self._ask(holder, export, first, count)
        found: list[int | bytes] = [*packet.fds, *(bytes.fromhex(text) for text in packet.message["secrets"])]
        if len(found) != count:
            packet.close()
            raise InternalError(f"{holder} gave {len(found)} of {count} handles of {export}")
        self._batch = {(holder, export, first + index): handle for index, handle in enumerate(found)}
