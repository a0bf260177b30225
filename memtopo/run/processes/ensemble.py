"""The layout of several processes that a conductor is to build: its workers, their common addresses, and their report.

Ranges with `same_address` have one in all instances of a counted process. After the reserve phase, every instance
reports the addresses that it has. As long as they differ, the conductor chooses one that an instance has, and all
others reserve the range there, where it is free: a hint is not binding (fact 11). It ends with a round in which all
have what they were asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain, groupby

from msgspec import Struct
from msgspec.structs import replace

from memtopo import machine as machines
from memtopo.common.errors import Exit, Failed, InternalError, MemtopoError, outcome, reason
from memtopo.common.processes import start_hint
from memtopo.common.text import first_of
from memtopo.common.units import by_key, rounded_up
from memtopo.driver.trace_files import process_file
from memtopo.driver.types import ADDRESS_BLOCK, LAST_ADDRESS
from memtopo.drivers import target
from memtopo.executor import StepFailed
from memtopo.geometry import Geometry
from memtopo.kinds.resources import ReserveRange, common_ranges
from memtopo.language import SpecText
from memtopo.machine import Cluster, Machine
from memtopo.planner import Plan
from memtopo.plans.report import DeviceMemory, Failure, Left, PhaseTime, ProcessReport, Report
from memtopo.run import messages
from memtopo.run.messages import Addresses, AgreeOn
from memtopo.run.processes.worker_process import WorkerProcess
from memtopo.run.reports import failure as failure_of
from memtopo.run.reports import merged_checks, report_on, sum_of_left
from memtopo.session.composition import RunRequest
from memtopo.sharing.sockets import SYSTEM, System

TIMEOUT = 30.0
"""Seconds of silence after which a process counts as dead."""

_STARTUP, _SLOWER = 60.0, 10
"""Seconds that a worker has for its imports and the driver's start, and the multiple of a short timeout."""


class Ensemble(Struct, frozen=True):
    """A multi-process layout: the whole layout as a request, the text of its spec, and the machine.

    A process that is silent for `timeout` seconds counts as dead. `sockets` are those of external holders, by name, and
    `allow_uids` other users whose holders are trusted. `worker` is a command that replaces memtopo's own worker.
    """

    request: RunRequest
    spec: SpecText
    machine: Machine
    timeout: float = TIMEOUT
    sockets: Mapping[str, str] = {}
    allow_uids: tuple[int, ...] = ()
    worker: Sequence[str] = ()
    log: int | None = None
    """Descriptor of the file that receives the standard error of the processes; None for that of this process."""
    variables: Mapping[str, str] = {}
    """Environment variables that all workers get."""
    labels: frozenset[str] | None = None
    """Processes that one conductor runs, if others run the rest; None for all."""
    cluster: Cluster | None = None
    """Machines of all nodes of a layout of several; `machine` is then that of this node."""
    system: System = SYSTEM

    @property
    def processes(self) -> Mapping[str, Geometry]:
        """Geometry of each process that the conductor runs, by label."""
        every = self.request.geometry.processes
        return every if self.labels is None else {label: every[label] for label in every if label in self.labels}

    def environment(self, visible: Sequence[int]) -> dict[str, str]:
        """Return environment variables of a worker, which make the visible real GPUs, by UUID, the only ones."""
        if not visible or self.request.machine.simulated:
            return {}
        uuids = [self.machine.devices[ordinal].uuid for ordinal in visible]
        if None in uuids:
            raise InternalError("a GPU that must be visible to a process has no UUID")
        return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, uuids))}

    def start_message(self, label: str, visible: tuple[int, ...]) -> messages.StartWorker:
        """Return the first message to the worker of a process."""
        return messages.StartWorker(
            process=label,
            spec=self.spec,
            machine=machines.dump(self.machine),
            machine_name=self.request.machine.name,
            simulated=self.request.machine.simulated,
            visible=visible,
            timeout=self.timeout,
            gpus=tuple(target.uuids(self.machine)),
            sockets=dict(self.sockets),
            allow_uids=self.allow_uids,
            check=self.request.check,
            seed=self.request.seed,
            cluster={node: machines.dump(each) for node, each in self.cluster.nodes.items()} if self.cluster else {},
            held=self.request.geometry.is_held_part,
            trace=str(process_file(self.request.trace, label)) if self.request.trace else None,
        )


class NotStarted(Failed):
    """A process of the layout that the system did not start; `started` others were."""

    def __init__(self, started: int, error: OSError) -> None:
        message = f"process {started + 1} of the layout cannot be started: {reason(error)}"
        super().__init__(message, hint=start_hint(error))


def startup_limit(timeout: float) -> float:
    """Return the seconds of silence after which a starting process counts as dead."""
    return max(timeout, min(_SLOWER * timeout, _STARTUP))


def merged_report(
    request: RunRequest,
    workers: Mapping[str, WorkerProcess],
    times: Sequence[PhaseTime],
    interrupted: int,
    failed: StepFailed | None = None,
) -> Report:
    """Merge the reports of a run; its outcome is the worst of all processes.

    The first of `workers` is the one that failed or died first, if any did. `failed` is a failure of none of them. An
    end that nobody caused comes before failures: an import from a process that was killed may fail before it is known.
    """
    reports = {label: worker.report for label, worker in workers.items() if worker.report}
    leaks = tuple(replace(leak, what=f"{label}: {leak.what}") for label, each in reports.items() for leak in each.leaks)
    ended_first = sorted(workers.values(), key=lambda worker: worker.death is None or worker.killed)
    failure = next((found for worker in ended_first if (found := _failure(worker))), None)
    checks = {label: each.checks for label, each in reports.items() if each.checks}
    merged = merged_checks(checks) if checks else None
    codes = [*_statuses(workers.values()), Exit.FAILED] if failure else ()
    ending = outcome(leaks, signal=interrupted or None, as_declared=not (merged and merged.different), codes=codes)
    report = report_on(
        request,
        ending,
        times=tuple(times),
        checks=merged,
        failure=None if interrupted else failure,
        leaks=leaks,
        left=_left([reports[label] for label in request.geometry.processes if label in reports]),
        notes=(*request.notes(), *_notes(workers)),
        processes=tuple(
            _process(workers[label], failed=ending[1] != 0) for label in request.geometry.processes if label in workers
        ),
    )
    if failed is None or interrupted or failure:
        return report
    report = replace(report, failure=failure_of(failed, request))
    if ending[1]:
        return report
    code = failed.error.exit_code if isinstance(failed.error, MemtopoError) else Exit.FAILED
    return replace(report, outcome="failed", exit_code=code)


def _statuses(workers: Iterable[WorkerProcess]) -> Iterator[int]:
    """Exit statuses of the processes that failed."""
    for worker in workers:
        if worker.failed and not worker.report:
            yield worker.exit_code
        if worker.report and worker.report.failure:
            yield worker.report.exit_code


def _failure(worker: WorkerProcess) -> Failure | None:
    step = f"{worker.label}: {worker.activity}"
    if worker.death:
        meaning = "its memory was freed with it; the others were stopped and took down their parts"
        return Failure(step, f"process {worker.label} {worker.death}", meaning)
    if worker.report and worker.report.failure:
        return replace(worker.report.failure, step=f"{worker.label}: {worker.report.failure.step}")
    if worker.failed and not worker.report:
        return Failure(step, worker.failed, hint=worker.hint)
    if worker.failed:
        return Failure(step, f"process {worker.label} was interrupted, and all took down their parts")
    return None


def _process(worker: WorkerProcess, *, failed: bool) -> ProcessReport:
    if worker.report is None:
        return ProcessReport(worker.label, worker.process.pid, "died" if worker.death else "failed", worker.death)
    report = worker.report
    # Without the failed process, the part of another one is not a success.
    outcome = "taken down" if report.outcome == "interrupted" or (report.outcome == "ok" and failed) else report.outcome
    return ProcessReport(
        worker.label, worker.process.pid, outcome, None, report.checks, report.failure, report.leaks, report.left,
        report.times, report.placed,
    )  # fmt: skip


def _left(reports: Sequence[Report]) -> Left | None:
    """Sums over all processes in the order of the spec; each of them has simulated GPUs of its own."""
    found = [each.left for each in reports if each.left]
    total = sum_of_left(found)
    if total is None or not reports[0].machine.simulated:
        return total
    memory = [device for left in found for device in left.memory]
    return replace(total, memory=tuple(_with_others(each, memory) for each in total.memory))


def _with_others(device: DeviceMemory, memory: Sequence[DeviceMemory]) -> DeviceMemory:
    """Memory of a GPU from which all processes take what each takes from its own."""
    every = [each for each in memory if each.device == device.device]
    taken = [each.before - each.held for each in every if each.held is not None]
    held = device.before - sum(taken) if taken else None
    return replace(device, held=held, after=device.before - sum(each.before - each.after for each in every))


def _notes(workers: Mapping[str, WorkerProcess]) -> Iterator[str]:
    """Notes of all processes, each once, with the labels of those that have it."""
    reports = {worker.label: worker.report for worker in workers.values() if worker.report}
    notes = by_key((note, label) for label, report in reports.items() for note in report.notes)
    yield from (f"{first_of(labels, _LISTED)}: {note}" for note, labels in notes.items())


_LISTED = 4
"""Processes that a note names."""

TRIES = 16
"""Largest number of addresses that are tried for a range."""

_LOWEST = 1 << 36
"""Lowest address that is tried, unless a process has a lower one: the addresses of contexts are below (fact 11)."""

CommandEach = Callable[[Mapping[str, AgreeOn]], Mapping[str, Addresses]]
"""Sends each process its command, and returns the answers by label."""


class NoCommonAddress(Failed):
    """Processes that found no address which is free in all of them."""


def agree(plans: Mapping[str, Plan], command_each: CommandEach) -> None:
    """Bring the instances of each counted process to common addresses. Raises `NoCommonAddress` after `TRIES` each."""
    ranges = {label: common_ranges(plan.items) for label, plan in plans.items()}
    common = (label for label in plans if ranges[label])
    for _, labels in groupby(common, key=lambda label: label.partition(".")[0]):
        instances = list(labels)
        _Agreement(instances, chain.from_iterable(ranges[label] for label in instances), command_each).reach()


class _Agreement:
    """Search for the common addresses of the `ranges` of all instances of a process."""

    def __init__(self, instances: Sequence[str], ranges: Iterable[ReserveRange], command_each: CommandEach) -> None:
        self._instances, self._command_each = instances, command_each
        self._strides: dict[str, int] = {}
        for step in ranges:
            stride = rounded_up(step.size, max(step.align, ADDRESS_BLOCK))
            self._strides[step.label] = max(self._strides.get(step.label, 0), stride)
        self._tried: dict[str, set[int]] = {label: set() for label in self._strides}
        self._end = _LOWEST
        """Address from which on nothing was tried."""
        self._from_lowest = False
        """True once the search has reached the end of the address space, and has gone on from the lowest address."""

    def reach(self) -> None:
        """Try addresses until all instances have the same. Raises `NoCommonAddress`."""
        wanted: dict[str, int] = {}
        for number in range(TRIES + 1):
            answers = self._command_each(dict.fromkeys(self._instances, AgreeOn(wanted)))
            found = {label: {each.addresses[label] for each in answers.values()} for label in self._strides}
            if all({wanted.get(label)} == addresses for label, addresses in found.items()):
                return
            asked, wanted = wanted, self._next(found, number)
        raise _disagreement(asked, answers)

    def _next(self, found: Mapping[str, AbstractSet[int]], number: int) -> dict[str, int]:
        """Addresses to try next: what all have, the highest that some have and none was asked for, and new ones.

        In the second half of the tries, all are new ones, at growing distances, since those around are taken.
        """
        if not self._from_lowest:
            self._end = max(self._end, *(max(each) + self._strides[label] for label, each in found.items()))
        self._end += ADDRESS_BLOCK << number
        wanted: dict[str, int] = {}
        for label, addresses in found.items():
            new = addresses - self._tried[label] if number < TRIES // 2 else frozenset[int]()
            wanted[label] = max(addresses if len(addresses) == 1 else new or [self._behind(self._strides[label])])
            self._tried[label].add(wanted[label])
        return wanted

    def _behind(self, stride: int) -> int:
        """Address behind all others; at the end of the address space, it goes on from the lowest."""
        address = rounded_up(self._end, stride & -stride)
        if address + stride > LAST_ADDRESS:
            self._from_lowest, address = True, rounded_up(_LOWEST, stride & -stride)
        self._end = address + stride
        return address


def _disagreement(wanted: Mapping[str, int], answers: Mapping[str, Addresses]) -> NoCommonAddress:
    process, label = next(
        (process, label)
        for process, answer in answers.items()
        for label, address in answer.addresses.items()
        if address != wanted[label]
    )
    other = f"{process} has it at {answers[process].addresses[label]:#x} in place of {wanted[label]:#x}"
    message = f"range {label!r} has no address that is free in all processes: after {TRIES} tries, {other}"
    return NoCommonAddress(message, hint="write an 'address' that is free in all of them, or omit 'same_address'")
