"""Commands of a conductor to the processes of a layout with their answers, and all messages to and from workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from memtopo.kinds.step import Phase
from memtopo.language import SpecText
from memtopo.plans.report import Check, Checks, Report
from memtopo.plans.transition import Stage
from memtopo.sharing.offers import Offer
from memtopo.storage.saved import SavedPart


@dataclass(frozen=True, slots=True)
class StartWorker:
    """First message to a worker: its process of the layout, and the text and machine from which it makes its own plan.

    `visible` are the ordinals, in the conductor's numbering, of the only GPUs that the worker sees; empty for all.
    `gpus` are the UUIDs of all GPUs as hex text. `machine` is that of the process's node, and `cluster` has those of
    all nodes by name, if there are several. A conductor that is silent for `timeout` seconds counts as dead. The
    run began at `origin`, by `time.perf_counter`, which is the same clock in all processes of a host.
    """

    process: str
    spec: SpecText
    machine: str
    machine_name: str
    simulated: bool
    visible: tuple[int, ...]
    timeout: float
    gpus: tuple[str, ...]
    sockets: dict[str, str]
    allow_uids: tuple[int, ...]
    check: Check = "fast"
    seed: int = 0
    cluster: dict[str, str] = field(default_factory=dict)
    origin: float | None = None
    trace: str | None = None
    """File for the trace of the worker's driver calls."""
    exclusive: bool = True
    """False for a process that a user started: it has memory and descriptors of its own."""
    held: bool = False
    """True if only the held processes of the spec are built, and others join them."""


@dataclass(frozen=True, slots=True)
class BuildPhase:
    """Do the steps of one phase."""

    phase: Phase

    @property
    def activity(self) -> str:
        return str(self.phase)


@dataclass(frozen=True, slots=True)
class AgreeOn:
    """Reserve ranges at these addresses, by their labels; answered by `Addresses`. Nothing is mapped yet."""

    addresses: dict[str, int]
    activity: ClassVar[str] = str(Phase.RESERVE)


@dataclass(frozen=True, slots=True)
class CheckSteps:
    """Check every step by driver queries."""

    activity: ClassVar[str] = "check"


@dataclass(frozen=True, slots=True)
class WriteRound:
    """Write the bytes and signals of one round of the verification."""

    index: int
    activity: ClassVar[str] = "write"


@dataclass(frozen=True, slots=True)
class ReadRound:
    """Read what all processes wrote in that round."""

    index: int
    activity: ClassVar[str] = "read"


@dataclass(frozen=True, slots=True)
class TryForbidden:
    """Try forbidden accesses on replicas."""

    activity: ClassVar[str] = "forbid"


@dataclass(frozen=True, slots=True)
class SkipVerification:
    """Report all bytes as not verified."""

    reason: str
    activity: ClassVar[str] = "skip verification"


@dataclass(frozen=True, slots=True)
class Recheck:
    """Check every step once more while the layout is held; answered by `ChangeResult`."""

    activity: ClassVar[str] = "recheck"


@dataclass(frozen=True, slots=True)
class PlanChange:
    """Plan a switch to a state of the layout, or a change to the spec of a `source`; answered by `ChangeResult`.

    Nothing is changed yet. A full check compares every byte that the change keeps. Importers outside of the layout keep
    the memory of `in_use` exports (`server.weights`), and the objects of `absent` ones are not there afterwards.
    """

    state: str
    check: Check = "fast"
    in_use: tuple[str, ...] = ()
    source: str = ""
    absent: tuple[str, ...] = ()
    activity: ClassVar[str] = "plan of a change"


@dataclass(frozen=True, slots=True)
class CheckChange:
    """Check the layout after all stages of a change, before it is ended; answered by `ChangeResult`."""

    activity: ClassVar[str] = "check of a change"


@dataclass(frozen=True, slots=True)
class MakeStage:
    """Do one stage of the planned change, or of its rollback; answered by `ChangeResult`."""

    stage: Stage
    back: bool = False

    @property
    def activity(self) -> str:
        return f"{self.stage}, of {'the rollback of ' * self.back}a change"


@dataclass(frozen=True, slots=True)
class StartRollback:
    """Make the stages of the change those of its rollback, for a reason; answered by `ChangeResult`."""

    reason: str
    activity: ClassVar[str] = "plan of a rollback"


@dataclass(frozen=True, slots=True)
class EndChange:
    """End the change, or its rollback, of which all processes have done all stages; answered by `ChangeResult`."""

    activity: ClassVar[str] = "end of a change"


@dataclass(frozen=True, slots=True)
class WriteKept:
    """Write the bytes that all of some states keep."""

    states: tuple[str, ...]
    activity: ClassVar[str] = "write, for a rehearsal"


@dataclass(frozen=True, slots=True)
class ReadKept:
    """Check every step, and read the bytes that all of some states keep, in the state that the layout is in."""

    states: tuple[str, ...]
    activity: ClassVar[str] = "read, for a rehearsal"


@dataclass(frozen=True, slots=True)
class Lend:
    """Have `count` objects of an export for a client, or objects that are given `back`; answered by `Lent`.

    If `listed`, the answer has the objects that clients have, and nothing changes.
    """

    export: str
    count: int = 0
    back: tuple[int, ...] | None = None
    listed: bool = False
    activity: ClassVar[str] = "lend"


@dataclass(frozen=True, slots=True)
class SaveBytes:
    """Write the bytes of the process to a folder that the conductor has locked; answered by `SaveResult`.

    `number` is that of the save.
    """

    folder: str
    number: str
    activity: ClassVar[str] = "save"


@dataclass(frozen=True, slots=True)
class RestoreBytes:
    """Copy the bytes of a saved folder to the memory of the process."""

    folder: str
    activity: ClassVar[str] = "restore"


@dataclass(frozen=True, slots=True)
class Hold:
    """Keep the layout until `TakeDown`; answered by `ChangeResult` with the exports."""

    activity: ClassVar[str] = "hold"


@dataclass(frozen=True, slots=True)
class TakeDown:
    """Undo all steps and send `WorkerFinished`.

    `reason` is why the layout ends, by a failure if `failed`: that of the process with a label and a number, if it is
    one.
    """

    reason: str = ""
    failed: bool = False
    process: str = ""
    pid: int = 0


@dataclass(frozen=True, slots=True)
class Attend:
    """Execute commands until `Resume`, in place of the user's program; answered by `Attending` with the same number.

    `state` is the one that a change brings the layout to; None if nothing is changed. `source` is that of another spec.
    """

    number: int
    state: str | None = None
    source: str = ""


@dataclass(frozen=True, slots=True)
class Resume:
    """Go on with the user's program, with the layout in a generation."""

    generation: int


@dataclass(frozen=True, slots=True)
class Ended:
    """Report of all processes, after all have taken down, for those of a user."""

    report: Report


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """Heartbeat of the conductor."""


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """A worker has its plan and its driver: `rounds` of verification, the same for all, and its bytes in them."""

    rounds: int
    volume: int


@dataclass(frozen=True, slots=True)
class StepsDone:
    """Heartbeat of a worker: steps done, and steps of the phases that it began, since the last."""

    steps: int
    begun: int = 0


@dataclass(frozen=True, slots=True)
class Done:
    """A command is complete; `safe` if no kernel is known to access memory that it may not."""

    as_declared: bool
    safe: bool


@dataclass(frozen=True, slots=True)
class Addresses:
    """Addresses of the ranges that all instances of a counted process reserve at one, by their labels."""

    addresses: dict[str, int]


@dataclass(frozen=True, slots=True)
class ChangeResult:
    """Result of a command of a change, `Hold` or `Recheck`: why it was refused or failed, if it was.

    At the end of a change, `touched` is true if memory or addresses were. `checks` has the results of `CheckChange`, or
    of `Recheck`. `offers` has the exports of a layout that is held from now on, or was changed to another spec.
    """

    error: str | None = None
    hint: str | None = None
    touched: bool = False
    checks: Checks | None = None
    offers: tuple[Offer, ...] | None = None


@dataclass(frozen=True, slots=True)
class Lent:
    """Numbers of objects that are lent, or why there are none; `code` is that of an `ExchangeError`."""

    numbers: tuple[int, ...] = ()
    error: str | None = None
    code: str | None = None


@dataclass(frozen=True, slots=True)
class SaveResult:
    """Result of `SaveBytes`, or why there is none."""

    part: SavedPart | None = None
    error: str | None = None
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Attending:
    """A process of a user executes commands as they come."""

    number: int


@dataclass(frozen=True, slots=True)
class Leave:
    """A process of a user takes its part of the layout down."""


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """A step failed or the worker was interrupted; it takes down, and reports."""

    error: str


@dataclass(frozen=True, slots=True)
class WorkerBroken:
    """A worker ends without a report."""

    error: str
    hint: str | None
    exit_code: int


@dataclass(frozen=True, slots=True)
class WorkerFinished:
    """Last message of a worker."""

    report: Report


@dataclass(frozen=True, slots=True)
class HandleRequest:
    """Request for `count` handles of a process's export from index `first` on, routed by the conductor.

    `requester` is the label of a process, empty for the conductor.
    """

    requester: str
    holder: str
    export: str
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class HandleAnswer:
    """Answer to a `HandleRequest`: handles beside the message, in order of index, at least one, or an error.

    `code` is that of an `ExchangeError`.
    """

    requester: str
    error: str | None = None
    code: str | None = None


ChangeCommand = PlanChange | MakeStage | CheckChange | StartRollback | EndChange
Verification = CheckSteps | WriteRound | ReadRound | TryForbidden | SkipVerification | WriteKept | ReadKept
Bytes = SaveBytes | RestoreBytes
Command = BuildPhase | AgreeOn | Verification | Recheck | Hold | Lend | Bytes | ChangeCommand
Participation = Attend | Resume | Ended
ToWorker = StartWorker | Command | TakeDown | Participation | KeepAlive | HandleRequest | HandleAnswer
Answer = Done | Addresses | ChangeResult | Lent | SaveResult
Results = WorkerReady | StepsDone | Answer | WorkerFailed | WorkerBroken | WorkerFinished
FromWorker = Results | Attending | Leave | HandleRequest | HandleAnswer
