"""The layout of several processes that a conductor is to build, and the limits of time of its workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from memtopo import machine as machines
from memtopo.common.errors import Exit, InternalError, MemtopoError
from memtopo.common.processes import start_hint
from memtopo.driver.trace import process_file
from memtopo.drivers import target
from memtopo.geometry import Geometry
from memtopo.machine import Cluster, Machine
from memtopo.run import messages
from memtopo.run.processes.fork_server import WorkerServer
from memtopo.session.request import RunRequest
from memtopo.sharing.errors import reason

TIMEOUT = 30.0
"""Seconds of silence after which a process counts as dead."""

_STARTUP, _SLOWER = 60.0, 10
"""Seconds that a worker has for its imports and the driver's start, and the multiple of a short timeout."""


@dataclass(frozen=True, slots=True)
class Ensemble:
    """A multi-process layout: the whole layout as a request, its text, and the machine.

    A process that is silent for `timeout` seconds counts as dead. `sockets` are those of external holders, by name, and
    `allow_uids` other users whose holders are trusted. `worker` is a command that replaces memtopo's own worker.
    """

    request: RunRequest
    text: str
    machine: Machine
    timeout: float = TIMEOUT
    sockets: Mapping[str, str] = field(default_factory=dict)
    allow_uids: tuple[int, ...] = ()
    worker: Sequence[str] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    """Values of the spec's parameters that its text was read with."""
    log: int | None = None
    """Descriptor of the file that receives the standard error of the processes; None for that of this process."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that all workers get."""
    labels: frozenset[str] | None = None
    """Processes that one conductor runs, if others run the rest; None for all."""
    cluster: Cluster | None = None
    """Machines of all nodes of a layout of several; `machine` is then that of this node."""

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
            raise InternalError("a GPU that a process is to see has no UUID")
        return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, uuids))}

    def worker_server(self) -> WorkerServer:
        """Return a server that forks workers."""
        driver = "memtopo.drivers.sim" if self.request.machine.simulated else "memtopo.drivers.cuda.driver"
        return WorkerServer(driver, self.variables, self.log)

    def start_message(self, label: str, visible: tuple[int, ...]) -> messages.StartWorker:
        """Return the first message to the worker of a process."""
        return messages.StartWorker(
            process=label,
            spec=self.request.spec or "<spec>",
            text=self.text,
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
            settings=dict(self.settings),
            cluster={node: machines.dump(each) for node, each in self.cluster.nodes.items()} if self.cluster else {},
            trace=str(process_file(self.request.trace, label)) if self.request.trace else None,
        )


class NotStarted(MemtopoError):
    """A process of the layout that the system did not start; `started` others were."""

    exit_code = Exit.FAILED

    def __init__(self, started: int, error: OSError) -> None:
        message = f"process {started + 1} of the layout cannot be started: {reason(error)}"
        super().__init__(message, hint=start_hint(error))


def startup_limit(timeout: float) -> float:
    """Return the seconds of silence after which a starting process counts as dead."""
    return max(timeout, min(_SLOWER * timeout, _STARTUP))
