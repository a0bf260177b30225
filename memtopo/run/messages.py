"""Commands of a conductor to the processes of a layout with their answers, and all messages to and from workers."""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from memtopo.common.processes import Broken
from memtopo.kinds.step import Phase
from memtopo.language import SpecText
from memtopo.plans.report import Check, Checks, Report
from memtopo.plans.transition import Stage
from memtopo.sharing.offers import Offer
from memtopo.storage.saved import SavedPart


class StartWorker(Struct, frozen=True):
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
    cluster: dict[str, str] = {}
    origin: float | None = None
    trace: str | None = None
    """File for the trace of the worker's driver calls."""
    exclusive: bool = True
    """False for a process that a user started: it has memory and descriptors of its own."""
    held: bool = False
    """True if only the held processes of the spec are built, and others join them."""


class BuildPhase(Struct, frozen=True):
    """Do the steps of one phase."""

    phase: Phase

    @property
    def activity(self) -> str:
        return str(self.phase)


class AgreeOn(Struct, frozen=True):
    """Reserve ranges at these addresses, by their labels; answered by `Addresses`. Nothing is mapped yet."""

    addresses: dict[str, int]
    activity: ClassVar[str] = str(Phase.RESERVE)


class CheckSteps(Struct, frozen=True):
    """Check every step by driver queries."""

    activity: ClassVar[str] = "check"


class WriteRound(Struct, frozen=True):
    """Write the bytes and signals of one round of the verification."""

    index: int
    activity: ClassVar[str] = "write"


class ReadRound(Struct, frozen=True):
    """Read what all processes wrote in that round."""

    index: int
    activity: ClassVar[str] = "read"


class TryForbidden(Struct, frozen=True):
    """Try forbidden accesses on replicas."""

    activity: ClassVar[str] = "forbid"


class SkipVerification(Struct, frozen=True):
    """Report all bytes as not verified."""

    reason: str
    activity: ClassVar[str] = "skip verification"


class Recheck(Struct, frozen=True):
    """Check every step once more while the layout is held; answered by `ChangeResult`."""

    activity: ClassVar[str] = "recheck"


class PlanChange(Struct, frozen=True):
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


class CheckChange(Struct, frozen=True):
    """Check the layout after all stages of a change, before it is ended; answered by `ChangeResult`."""

    activity: ClassVar[str] = "check of a change"


class MakeStage(Struct, frozen=True):
    """Do one stage of the planned change, or of its rollback; answered by `ChangeResult`."""

    stage: Stage
    back: bool = False

    @property
    def activity(self) -> str:
        return f"{self.stage}, of {'the rollback of ' * self.back}a change"


class StartRollback(Struct, frozen=True):
    """Make the stages of the change those of its rollback, for a reason; answered by `ChangeResult`."""

    reason: str
    activity: ClassVar[str] = "plan of a rollback"


class EndChange(Struct, frozen=True):
    """End the change, or its rollback, of which all processes have done all stages; answered by `ChangeResult`."""

    activity: ClassVar[str] = "end of a change"


class WriteKept(Struct, frozen=True):
    """Write the bytes that all of some states keep."""

    states: tuple[str, ...]
    activity: ClassVar[str] = "write, for a rehearsal"


class ReadKept(Struct, frozen=True):
    """Check every step, and read the bytes that all of some states keep, in the state that the layout is in."""

    states: tuple[str, ...]
    activity: ClassVar[str] = "read, for a rehearsal"


class Lend(Struct, frozen=True):
    """Have `count` objects of an export for a client, or objects that are given `back`; answered by `Lent`.

    If `listed`, the answer has the objects that clients have, and nothing changes.
    """

    export: str
    count: int = 0
    back: tuple[int, ...] | None = None
    listed: bool = False
    activity: ClassVar[str] = "lend"


class SaveBytes(Struct, frozen=True):
    """Write the bytes of the process to a folder that the conductor has locked; answered by `SavedPart`.

    `number` is that of the save.
    """

    folder: str
    number: str
    activity: ClassVar[str] = "save"


class RestoreBytes(Struct, frozen=True):
    """Copy the bytes of a saved folder to the memory of the process."""

    folder: str
    activity: ClassVar[str] = "restore"


class Hold(Struct, frozen=True):
    """Keep the layout until `TakeDown`; answered by `ChangeResult` with the exports."""

    activity: ClassVar[str] = "hold"


class TakeDown(Struct, frozen=True):
    """Undo all steps and send `WorkerFinished`.

    `reason` is why the layout ends, by a failure if `failed`: that of the process with a label and a number, if it is
    one.
    """

    reason: str = ""
    failed: bool = False
    process: str = ""
    pid: int = 0


class Attend(Struct, frozen=True):
    """Execute commands until `Resume`, in place of the user's program; answered by `Attending` with the same number.

    `state` is the one that a change brings the layout to; None if nothing is changed. `source` is that of another spec.
    """

    number: int
    state: str | None = None
    source: str = ""


class Resume(Struct, frozen=True):
    """Go on with the user's program, with the layout in a generation."""

    generation: int


class Ended(Struct, frozen=True):
    """Report of all processes, after all have taken down, for those of a user."""

    report: Report


class KeepAlive(Struct, frozen=True):
    """Heartbeat of the conductor."""


class WorkerReady(Struct, frozen=True):
    """A worker has its plan and its driver: `rounds` of verification, the same for all, and its bytes in them."""

    rounds: int
    volume: int


class StepsDone(Struct, frozen=True):
    """Heartbeat of a worker: steps done, and steps of the phases that it began, since the last."""

    steps: int
    begun: int = 0


class Done(Struct, frozen=True):
    """A command is complete; `safe` if no kernel is known to access memory that it may not."""

    as_declared: bool
    safe: bool


class Addresses(Struct, frozen=True):
    """Addresses of the ranges that all instances of a counted process reserve at one, by their labels."""

    addresses: dict[str, int]


class ChangeResult(Struct, frozen=True):
    """Result of a command of a change, `Hold` or `Recheck`, and why any command was refused or failed, if it was.

    `code` is that of an `ExchangeError`. A save and a lend that are refused are answered by it, too. At the end of a
    change, `touched` is true if memory or addresses were. `checks` has the results of `CheckChange`, or of `Recheck`.
    `offers` has the exports of a layout that is held from now on, or was changed to another spec.
    """

    error: str | None = None
    hint: str | None = None
    touched: bool = False
    checks: Checks | None = None
    offers: tuple[Offer, ...] | None = None
    code: str | None = None


class Lent(Struct, frozen=True):
    """Numbers of objects that are lent."""

    numbers: tuple[int, ...] = ()


class Attending(Struct, frozen=True):
    """A process of a user executes commands as they come."""

    number: int


class Leave(Struct, frozen=True):
    """A process of a user takes its part of the layout down."""


class WorkerFailed(Struct, frozen=True):
    """A step failed or the worker was interrupted; it takes down, and reports."""

    error: str


class WorkerFinished(Struct, frozen=True):
    """Last message of a worker."""

    report: Report


class HandleRequest(Struct, frozen=True):
    """Request for `count` handles of a process's export from index `first` on, routed by the conductor.

    `requester` is the label of a process, empty for the conductor.
    """

    requester: str
    holder: str
    export: str
    first: int
    count: int


class HandleAnswer(Struct, frozen=True):
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
Answer = Done | Addresses | ChangeResult | Lent | SavedPart
Results = WorkerReady | StepsDone | Answer | WorkerFailed | Broken | WorkerFinished
FromWorker = Results | Attending | Leave | HandleRequest | HandleAnswer
