"""Driver calls of a plan, listed by going through it on drivers that make none.

Such a driver answers each call as one would that refuses nothing: it has no rules and no memory, and its handles are
numbers in the order in which they are made. The simulator has rules and memory.

All processes of a layout go through their phases together, as a run does, one process after another in each phase: the
handles that a process imports are exported and sent by the others at that moment.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import sha512
from itertools import count
from typing import Any

from msgspec.structs import replace

from memtopo.common.errors import ExchangeError
from memtopo.common.units import by_key
from memtopo.driver.functions import function
from memtopo.driver.handles import Handle
from memtopo.driver.kernels import KernelDriver
from memtopo.driver.recorder import CallContext, CallList, DriverCall, Recorder
from memtopo.driver.types import ADDRESS_BLOCK, HandleType
from memtopo.driver.wrappers import METHODS, EveryCall, defaults, parameters
from memtopo.executor import Execution, StepFailed, TeardownGates
from memtopo.geometry import Geometry
from memtopo.kinds.layout import HandleSource
from memtopo.kinds.runs import NumberedSteps
from memtopo.kinds.step import Phase, Step
from memtopo.planner import Plan
from memtopo.plans import folding
from memtopo.plans.calls import Action, Exchange, PlannedCall
from memtopo.plans.report import Checks
from memtopo.sharing.offers import SEND, LayoutExports


def first_calls(plan: Plan, geometry: Geometry) -> dict[str, list[tuple[DriverCall, ...]]]:
    """Calls of the first step of each row of a plan, by the label of the process.

    Only these steps and the ones that they need are listed, or all of them where a step looks for an object of one
    that was left out: a range is exported with all that is mapped in it.
    """
    items = {label: each.items for label, each in (plan.processes or {"": plan}).items()}
    steps = {label: NumberedSteps(each) for label, each in items.items()}
    firsts = {label: [*folding.firsts(each)] for label, each in items.items()}
    try:
        return _calls_of(plan, geometry, firsts, steps, _with_needs(steps, firsts))
    except StepFailed as failure:
        error = failure.error  # that of a step, or of an export, which needs an object that the layout does not have
        if not (isinstance(error, KeyError) or (isinstance(error, ExchangeError) and error.code == "absent")):
            raise
        return _calls_of(plan, geometry, firsts, steps, {label: range(each.count) for label, each in steps.items()})


def _calls_of(
    plan: Plan,
    geometry: Geometry,
    firsts: Mapping[str, Sequence[int]],
    steps: Mapping[str, NumberedSteps],
    kept: Mapping[str, Sequence[int]],
) -> dict[str, list[tuple[DriverCall, ...]]]:
    """Calls of some steps of a plan, by their indices, of which only some are kept."""
    found: dict[str, list[tuple[DriverCall, ...]]] = {}
    only = {label: [*map(steps[label].__getitem__, indices)] for label, indices in kept.items()}
    for label, entries in planned_calls(_only(plan, only), geometry).items():
        calls = by_key((each.number - 1, each) for each in entries if isinstance(each, DriverCall) and builds(each))
        numbers = {index: number for number, index in enumerate(kept[label])}
        found[label] = [tuple(calls.get(numbers[index], ())) for index in firsts[label]]
    return found


def _only(plan: Plan, steps: Mapping[str, Sequence[Step]]) -> Plan:
    if not plan.processes:
        return replace(plan, items=tuple(steps[""]))
    processes = {label: replace(each, items=tuple(steps[label])) for label, each in plan.processes.items()}
    return replace(plan, processes=processes)


def _with_needs(steps: Mapping[str, NumberedSteps], wanted: Mapping[str, Sequence[int]]) -> dict[str, Sequence[int]]:
    """Steps that are wanted, with all that they need in any process, and all contexts, in their order."""
    kept = {label: {*each.of_phase(Phase.OPEN)} for label, each in steps.items()}
    open_ends = [(label, index) for label, indices in wanted.items() for index in indices]
    while open_ends:
        label, index = open_ends.pop()
        step = steps[label][index]
        if step.phase is not Phase.OPEN and index in kept[label]:
            continue
        kept[label].add(index)
        needed = [(label, each) for each in step.needs] + ([step.imports] if step.imports else [])
        for process, resource in needed:
            provider = steps[process].provider(resource) if process in steps and resource is not None else None
            if provider is not None:
                open_ends.append((process, provider))
    return {label: sorted(indices) for label, indices in kept.items()}


def builds(call: DriverCall) -> bool:
    """Return true for a call of a step that is done, not undone."""
    return call.of_step and not call.undo and call.verb != SEND


def planned_calls(plan: Plan, geometry: Geometry) -> dict[str, Sequence[PlannedCall]]:
    """Calls that build a plan and take it down, by the label of the process; '' is that of a layout of one process.

    Calls of no step, which measure free memory, are among them.
    """
    found: dict[str, list[PlannedCall]] = {label: [] for label in plan.steps_by_process}
    list_calls(plan, geometry, {label: each.append for label, each in found.items()})
    return dict(found)


def list_calls(plan: Plan, geometry: Geometry, receivers: Mapping[str, Callable[[PlannedCall], object]]) -> None:
    """Give each of the `planned_calls` of a process to its receiver, one after another: none of them is kept."""
    geometries, parts = geometry.processes or {"": geometry}, dict[str, _ListedProcess]()
    for label, each in (plan.processes or {"": plan}).items():
        parts[label] = _ListedProcess(label, each, geometries[label], receivers[label], parts)
    try:
        for phase in Phase:
            for part in parts.values():
                part.execution.build(phase)
                part.source.settle()
        for part in parts.values():
            part.execution.take_down(_Gates(part))
    finally:
        for part in parts.values():
            part.source.close()
            part.listing.close()


def count_calls(plan: Plan, geometry: Geometry) -> Counter[tuple[str, str, bool]]:
    """Numbers of the `planned_calls` of steps, by the label of the process, the C function, and true for an undo."""
    found = Counter[tuple[str, str, bool]]()

    def add(label: str, entry: PlannedCall) -> None:
        if isinstance(entry, DriverCall) and entry.of_step:
            found[label, function(entry.method).name, entry.undo] += 1

    list_calls(plan, geometry, {label: partial(add, label) for label in plan.steps_by_process})
    return found


class _ListedProcess:
    """One process: its driver, its execution, and the receiver of its calls and exchanges."""

    def __init__(
        self,
        label: str,
        plan: Plan,
        geometry: Geometry,
        receive: Callable[[PlannedCall], object],
        parts: Mapping[str, _ListedProcess],
    ) -> None:
        self.label = label
        self.context = CallContext()
        self.exchanged: set[str] = set()
        self._receive = receive
        self.listing = ListingDriver(label)
        self.driver: KernelDriver = Recorder(self.listing, CallList(self.context, receive))
        steps = tuple(step.dry for step in plan.steps)
        self.execution = Execution(replace(plan, items=steps), self.driver, context=self.context)
        self.exports = LayoutExports(
            geometry, self.execution.layout, self.driver, lambda: Checks((), (), 0), self.context
        )
        self.source = _Handles(self, parts)
        self.execution.layout.handle_source = self.source

    def send(self, peer: str, export: str, number: int) -> Handle:
        """Export one handle and send it to another process."""
        handle = self.exports.handle(export, number)
        self.exchange("send", peer, export, number)
        return handle

    def exchange(self, action: Action, peer: str = "", export: str = "", number: int = 0) -> None:
        """Note an exchange with another process at this point."""
        self.exchanged.add(action)
        self._receive(Exchange(action, peer, export, number, self.context.phase))


class _Handles(HandleSource):
    """Handles that a process imports: those of the other processes, and others as if their holder gave them."""

    def __init__(self, part: _ListedProcess, parts: Mapping[str, _ListedProcess]) -> None:
        self._part, self._parts = part, parts
        self._outside = ListingDriver("outside")
        self._open: list[Handle] = []

    def attach(self, holder: str) -> int:
        del holder
        return 0

    def take(self, holder: str, export: str, index: int) -> Handle:
        self.settle()
        self._part.exchange("receive", holder, export, index)
        other = self._parts.get(holder)
        handle = other.send(self._part.label, export, index) if other else self._of_outside(holder, export, index)
        self._open.append(handle)
        return handle

    def settle(self) -> None:
        for handle in self._open:
            handle.close()
        self._open.clear()

    def close(self) -> None:
        self.settle()
        self._outside.close()

    def _of_outside(self, holder: str, export: str, index: int) -> Handle:
        """A descriptor and bytes, since a holder that is not part of the plan may give either."""
        fd = self._outside.mem_pool_export_to_shareable_handle(0, HandleType.FD)
        secret = self._outside.ipc_get_mem_handle(
            int.from_bytes(sha512(f"{holder}/{export}.{index}".encode()).digest())
        )
        assert isinstance(fd, int)
        return replace(Handle.of(secret), fd=fd)


class _Gates(TeardownGates):
    """Gates at which a process leaves its exporters, and waits for its importers."""

    def __init__(self, part: _ListedProcess) -> None:
        self._part = part

    def imports_released(self) -> bool:
        done = set(self._part.exchanged)
        if "receive" in done:
            self._part.exchange("leave")
        if "send" in done:
            self._part.exchange("await")
        return True


_FIRST_RESERVED = 1 << 44
_FIRST_ALLOCATED = 1 << 46
_ALLOCATED = ("mem_alloc", "mem_alloc_managed", "mem_host_alloc", "mem_alloc_from_pool_async")
_UNKNOWN_SIZE = 1 << 40
_ANSWERS = {"event_query": True, "stream_query": True, "mem_get_info": (0, 0)}


class ListingDriver(EveryCall):
    """A driver that makes no call. `name` distinguishes its shareable handles from those of others.

    Descriptors that it exports are open files of this process, the caller's to close as any.
    """

    def __init__(self, name: str = "") -> None:
        self._name = name
        self._numbers = count(1)
        self._next = {"reserved": _FIRST_RESERVED, "allocated": _FIRST_ALLOCATED}
        self._imported: dict[int, int] = {}
        self._pool_files: dict[int, int] = {}
        self._special: dict[str, Callable[[dict[str, Any]], Any]] = {
            "mem_address_reserve": self._reserved,
            **dict.fromkeys(_ALLOCATED, self._allocated),
            "mem_pool_export_to_shareable_handle": self._exported_pool,
            "mem_pool_import_from_shareable_handle": self._imported_pool,
            "import_external_memory": self._taken,
            "import_external_semaphore": self._taken,
        }

    def close(self) -> None:
        """Close the files that stand for exported pools."""
        for fd in self._pool_files.values():
            os.close(fd)
        self._pool_files.clear()

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if method not in METHODS:
            raise AttributeError(f"{type(self).__name__} has no {method}")
        names, omitted = parameters(method), defaults(method)

        def answer(*args: Any, **kwargs: Any) -> Any:
            given = {**omitted, **dict(zip(names, args, strict=False)), **kwargs}
            if method in _ANSWERS:
                return _ANSWERS[method]
            if special := self._special.get(method):
                return special(given)
            makes = function(method).makes
            if makes in ("buffer", "allocation"):  # opened or imported: of a size that its caller knows
                return self._placed("allocated", _UNKNOWN_SIZE, ADDRESS_BLOCK)
            if makes == "shared" and given.get("kind", HandleType.FD) == HandleType.FD:
                return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            if makes in ("shared", "secret"):
                return sha512(f"{self._name} {method} {sorted(given.items(), key=str)}".encode()).digest()
            return next(self._numbers) if makes else None

        setattr(self, method, answer)
        return answer

    def _allocated(self, given: dict[str, Any]) -> int:
        return self._placed("allocated", given["size"], ADDRESS_BLOCK)

    def _reserved(self, given: dict[str, Any]) -> int:
        hint: int = given["address"]
        return hint or self._placed("reserved", given["size"], max(given["alignment"], ADDRESS_BLOCK))

    def _placed(self, where: str, size: int, alignment: int) -> int:
        address = -(-self._next[where] // alignment) * alignment
        self._next[where] = address + size
        return address

    def _exported_pool(self, given: dict[str, Any]) -> int:
        """A descriptor of the file that stands for a pool: an importer gets the same pool each time (fact 82)."""
        pool = given["pool"]
        if pool not in self._pool_files:
            self._pool_files[pool] = os.memfd_create("pool")
        return os.dup(self._pool_files[pool])

    def _imported_pool(self, given: dict[str, Any]) -> int:
        return self._imported.setdefault(os.fstat(given["shared"]).st_ino, next(self._numbers))

    def _taken(self, given: dict[str, Any]) -> int:
        """A number for an external object, whose descriptor is the driver's from now on."""
        os.close(given["fd"])
        return next(self._numbers)
