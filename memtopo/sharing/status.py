"""Records that a holder reports: its status, its importers, the results of a check and of a change, and statistics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from memtopo.common.errors import ExchangeError
from memtopo.common.text import enumerated, process_name
from memtopo.driver.handles import OfferedKind, Via
from memtopo.geometry.diagram import Diagram
from memtopo.machine import MachineLine
from memtopo.plans.report import Checks
from memtopo.sharing.offers import Offer, ends_with_holder
from memtopo.sharing.wire import Count, LayoutName, Name, Pid, Positive, Seconds, Text, Texts

State = Literal["serving", "releasing", "lost"]
"""State of a held layout; one of a user's processes is `lost` once one of them, or its coordinator, has ended."""

PartState = Literal[State, "starting", "unreachable"]
"""State of a part of a layout, or of one that is not served."""

MOST_LOCATIONS = 256
"""Locations in one answer; a machine has fewer."""

MOST_STATES = 64
"""States of a layout that a status lists."""


class Taken(Struct, frozen=True):
    """Handles of one export that one importer received: how many different ones, and the bytes of their objects."""

    export: Name
    kind: OfferedKind
    via: Via
    handles: Count
    bytes: Count

    @property
    def bound(self) -> bool:
        """True if the objects become invalid when the holder releases them (facts 31, 32, 82)."""
        return ends_with_holder(self.kind, self.via)


class Importer(Struct, frozen=True):
    """A process that received handles and is still connected; `since` is in seconds of the epoch.

    `pid` is a number of the holder's pid namespace, None for a process outside of that. `handles` and `bytes` count all
    exports; `taken` has the first ones.
    """

    foreign: ClassVar = "pid"
    id: Count
    pid: Pid
    uid: Count
    since: Seconds
    handles: Count
    bytes: Count
    bound: bool
    """True if it uses an export over ipc, which becomes invalid when the holder releases it (facts 31, 32)."""
    taken: tuple[Taken, ...]


class HeapUse(Struct, frozen=True):
    """Allocations of a process in a heap: their number, and their bytes.

    `mapped` bytes of these have memory now, at the `location` if that is known; a heap whose memory a state drops or
    offloads keeps the allocations. `backed` bytes of host memory keep those of allocations, or kept them last.
    `process` is empty in a layout of one process.
    """

    process: Text
    heap: Text
    allocations: Count
    bytes: Count
    mapped: Count
    location: Text = ""
    backed: Count = 0


def shared_fields(source: Struct, kind: type[Struct]) -> dict[str, Any]:
    """Fields of a record that records of another kind have, too, with their values."""
    return {name: getattr(source, name) for name in source.__struct_fields__ if name in kind.__struct_fields__}


class NodeStatus(Struct, frozen=True):
    """Part of a layout of several nodes, as its holder on a node reported it last; `pid` is a number of that host.

    A node is `starting` until its holder serves, and `unreachable` if nothing is known of it.
    """

    foreign: ClassVar = "pid"
    node: Name
    host: Text
    state: PartState
    socket: Text = ""
    pid: Pid = None
    offers: tuple[Offer, ...] = ()
    importers: tuple[Importer, ...] = ()
    contexts: Texts | None = None


def unreachable(names: Iterable[str]) -> tuple[NodeStatus, ...]:
    """Statuses of nodes that nothing is known of."""
    return tuple(NodeStatus(node=name, host="", state="unreachable") for name in names)


MOST_PROCESSES = 256
"""Processes of a layout that an answer names."""

Processes = Annotated[Mapping[Text, Count], Meta(max_length=MOST_PROCESSES)]
"""Numbers of processes by label; 0 for one of another pid namespace."""


class LayoutEnd(Struct, frozen=True):
    """End of a layout of a user's processes: `lost` if one of them has ended or failed, else released.

    `ended` are the processes that have ended, and `remaining` those that still have memory.
    """

    reason: Text
    lost: bool
    ended: Processes
    remaining: Processes

    def __str__(self) -> str:
        if not self.remaining:
            return self.reason
        names = [f"{label} ({process_name(pid)})" for label, pid in self.remaining.items()]
        return f"{self.reason}; {enumerated(names, 'and')} still {'has' if len(names) == 1 else 'have'} memory"

    @property
    def remedy(self) -> str | None:
        """Return what ends the processes that still have memory."""
        if not self.remaining:
            return None
        pids = " ".join(str(pid) for pid in self.remaining.values() if pid)
        kill = f", or end with 'kill {pids}'" if pids else ""
        return f"they release it when their programs leave the layout{kill}"


class LayoutEnded(ExchangeError):
    """Layout of a user's processes that has ended, while some of them still have memory."""

    def __init__(self, name: str, end: LayoutEnd) -> None:
        code, state = ("lost", "lost") if end.lost else ("releasing", "being released")
        super().__init__(code, f"layout {name!r} is {state}: {end}", hint=end.remedy)
        self.end = end


class Status(Struct, frozen=True):
    """A held layout. Times are in seconds of the epoch; `deadline` is the time of its automatic release.

    `pid` is the holder's in the pid namespace of this process, None if it is outside of that. `pid_namespace` is
    "another" if the holder is in another one, and the numbers of importers with it.
    `picture` is the diagram of the layout as its spec writes it, and `memory` has the bytes of physical memory by
    location in its state, if it has states; both if the holder reports the source.
    """

    name: str
    socket: str
    pid: int | None
    uid: int
    since: float
    state: State
    deadline: float | None
    spec: str | None
    machine: MachineLine
    offers: tuple[Offer, ...]
    importers: tuple[Importer, ...]
    generation: int = 1
    """Number of the layout: 1 when it is built, and one more after each change or switch that touched it."""
    layout_state: str | None = None
    """Name of the state that the layout is in; None if it has no states, or its holder does not report them."""
    layout_states: tuple[str, ...] = ()
    contexts: tuple[str, ...] | None = None
    """GPU of each context that the processes of the layout keep, as the holder names it; None if it reports none."""
    pid_namespace: Literal["same", "another"] = "same"
    picture: Diagram | None = None
    memory: Mapping[str, int] = {}
    digest: str | None = None
    """Digest of the spec, `sha256:…`; None if the holder does not send it."""
    nodes: tuple[NodeStatus, ...] = ()
    """Parts of a layout of several nodes, by node; empty for a layout of one host."""
    params: Mapping[str, str] = {}
    """Parameters of the spec with the values that are in effect; empty if the holder does not send it."""
    processes: Mapping[str, int] = {}
    """Numbers of the layout's processes by label, in the holder's pid namespace; 0 for one outside of that."""
    heaps: tuple[HeapUse, ...] = ()
    """What is allocated in heaps of its processes, as far as the holder may read it."""
    end: LayoutEnd | None = None
    """End of a layout of a user's processes, some of which still have memory; None as long as it is served."""

    def of_node(self, node: str, host: str) -> NodeStatus:
        """Return it as the status of a node's holder, as it is reported to the others."""
        return NodeStatus(node=node, host=host, **shared_fields(self, NodeStatus))


class Notice(Struct, frozen=True):
    """A message of a holder without a request, about the `exports` that this process imported.

    - `releasing`: the holder ends; imports over ipc become invalid within `grace` seconds.
    - `changing`: the memory of `exports` goes; importers have `grace` seconds to let go of it. `state` is the one that
      the layout is brought to.
    - `changed`: the change was made or given up, and their handles can be requested again. `generation` and `state` are
      those of the layout now. If several wait to be read, the last may stand for all, with their exports.

    The state is None if the layout has no states, and of a holder of an earlier version before a change.
    """

    kind: Literal["releasing", "changing", "changed"] = field(name="notice")
    grace: Seconds = 0.0
    generation: Positive = 1
    exports: Texts = ()
    state: Text | None = None

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in Notice.__struct_fields__)
        return f"Notice({values})"

    def after(self, earlier: Notice) -> Notice:
        """Return this notice with the exports of an earlier one as well."""
        return replace(self, exports=tuple(dict.fromkeys((*earlier.exports, *self.exports))))


class Released(Struct, frozen=True):
    """A released layout: importers that `lost` memory in use, and importers that keep some of it from being freed.

    `gone` is whether the end of its teardown was observed. `outcome`, `exit_code` and `reason` are those of the
    holder's report; `died` and 4 if it ended without one. They are None for a holder that makes no report.
    """

    name: LayoutName
    lost: tuple[Importer, ...]
    kept: tuple[Importer, ...]
    gone: bool = False
    outcome: str | None = None
    exit_code: int | None = None
    reason: str | None = None
    end: LayoutEnd | None = None
    """Processes of a user that still have memory; None if none has, or if it is not `gone` for another reason."""


class MemoryChange(Struct, frozen=True):
    """Bytes of a layout at a location before and after a change, by its plans and the tables of its heaps."""

    location: Annotated[str, Meta(max_length=64)]
    before: Count
    after: Count


MemoryChanges = Annotated[tuple[MemoryChange, ...], Meta(max_length=MOST_LOCATIONS)]


class Switched(Struct, frozen=True):
    """A layout that was switched to a state: the results of its check, and importers that keep memory that is gone.

    `memory` has the locations where it has another amount now. The change took `seconds`, without the wait for
    importers; None of a holder of an earlier version.
    """

    name: LayoutName
    state: Name
    checks: Checks
    kept: tuple[Importer, ...]
    memory: MemoryChanges = ()
    seconds: Seconds | None = None


class Changed(Struct, frozen=True):
    """A layout that was changed to another spec, and its generation now; the rest is as for a switch.

    `emptied` are exports that were committed before, and that a writer has to commit again; `moved` is memory that has
    another address now.
    """

    name: LayoutName
    generation: Positive
    checks: Checks
    kept: tuple[Importer, ...]
    emptied: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    memory: MemoryChanges = ()
    seconds: Seconds | None = None


class Looked(Struct, frozen=True):
    """Result of a holder's check of its layout: whether everything is as declared, and the details."""

    name: str
    ok: bool
    checks: Checks


class LocationMemory(Struct, frozen=True):
    """Physical memory that a layout has at a location now: bytes, and in how many allocations.

    `gpu` is the UUID of the GPU, None if it is unknown, or for memory of the host.
    """

    location: Annotated[str, Meta(max_length=64)]
    gpu: Text | None
    bytes: Count
    allocations: Count


class CheckResult(Struct, frozen=True):
    """Time of a check in seconds of the epoch, and the number of differences that it found."""

    time: Seconds
    different: Count


class Statistics(Struct, frozen=True):
    """Statistics of one held layout since it is served.

    `changes` and `rolled_back` count changes and switches that were made, and that failed and were rolled back.
    `clients` counts clients that received handles, `handles` what they received. `last_check` is None before the first.
    """

    memory: Annotated[tuple[LocationMemory, ...], Meta(max_length=MOST_LOCATIONS)]
    changes: Count
    rolled_back: Count
    last_check: CheckResult | None
    clients: Count
    handles: Count
