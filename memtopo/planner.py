"""Plans: the ordered steps that build a geometry. Planning calls no driver and reads no clock and no file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property
from itertools import chain, groupby
from operator import attrgetter

from msgspec import Struct
from msgspec.structs import replace

from memtopo.diagnostics.model import Path
from memtopo.driver.types import Location
from memtopo.geometry.diagram import Diagram
from memtopo.geometry.groups import from_outside
from memtopo.geometry.model import Geometry
from memtopo.kinds import KINDS
from memtopo.kinds.external.semaphores import SEMAPHORES
from memtopo.kinds.resources import Attach, CreateStream, LoadKernels, RetainContext, Synchronize, common_ranges
from memtopo.kinds.runs import StepRun, expanded, number_of_steps, remaining
from memtopo.kinds.states import STATES
from memtopo.kinds.step import Phase, Step
from memtopo.language.names import AWAKE
from memtopo.machine import Choice, Machine, Machines
from memtopo.plans import folding
from memtopo.plans.report import PlanSummary, ProcessPlan


class Plan(Struct, frozen=True, dict=True):
    """Steps of a layout in the order of building; teardown reverses it. Equal inputs give equal plans.

    `items` are the steps, with equal ones as runs. `memory` has the bytes to create by location, which has its node if
    there are several. A multi-process layout has a plan for each process by label, and no steps of its own.
    """

    name: str
    items: tuple[Step | StepRun, ...]
    memory: dict[str, int]
    notes: tuple[str, ...]
    processes: Mapping[str, Plan] = {}
    choices: tuple[Choice, ...] = ()
    """Alternatives that the spec takes on the machine."""
    nodes: Mapping[str, tuple[str, ...]] = {}
    """Labels of the processes of each node by its name; empty for a layout of one host."""

    def __repr__(self) -> str:
        return f"<plan {self.name!r} of {self.number_of_steps} steps>"

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """Single steps, which are made when they are first asked for."""
        return tuple(expanded(self.items))

    @property
    def number_of_steps(self) -> int:
        """Number of single steps."""
        return number_of_steps(self.items)

    @cached_property
    def phases(self) -> tuple[tuple[Phase, tuple[Step | StepRun, ...]], ...]:
        """Items by phase, in order."""
        return tuple((phase, tuple(items)) for phase, items in groupby(self.items, key=attrgetter("phase")))

    @property
    def steps_by_process(self) -> Mapping[str, tuple[Step, ...]]:
        """Steps of each process by label; those of a layout of one process have the label ''."""
        return {label: plan.steps for label, plan in self.processes.items()} or {"": self.steps}

    @cached_property
    def node_of(self) -> Mapping[str, str]:
        """Node of each process by label; empty for a layout of one host."""
        return {label: node for node, labels in self.nodes.items() for label in labels}

    @property
    def common_ranges(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the ranges at the same address in all processes, by the label of the process."""
        return {
            label: tuple(dict.fromkeys(step.label.partition(".")[0] for step in common_ranges(plan.items)))
            for label, plan in (self.processes or {"": self}).items()
        }

    def summary(
        self,
        picture: Diagram | None = None,
        warnings: tuple[str, ...] = (),
        states: Mapping[str, Mapping[str, int]] | None = None,
        params: Mapping[str, str] | None = None,
    ) -> PlanSummary:
        """Plan with similar steps folded into rows, the picture of its layout and the warnings of its spec.

        `states` are those of `memory_by_state`, `params` the spec's parameters with their values.
        """
        rows = tuple(folding.rows(self.items))
        own = ((label, plan.summary()) for label, plan in self.processes.items())
        each = (
            ProcessPlan(label, label, 1, plan.rows, plan.memory, plan.notes, plan.choices, self.node_of.get(label))
            for label, plan in own
        )
        members = tuple(folding.processes(each))
        items = [item for plan in (self, *self.processes.values()) for item in plan.items]
        counted = [(1, row) for row in rows] + [(member.count, row) for member in members for row in member.rows]
        return PlanSummary(
            name=self.name,
            rows=rows,
            memory=self.memory,
            reserved=sum(n * row.bytes_each * row.calls for n, row in counted if row.phase == Phase.RESERVE),
            calls=sum(n * row.calls for n, row in counted),
            teardown_calls=number_of_steps(item for item in items if item.undoing.call),
            notes=self.notes,
            choices=self.choices,
            warnings=warnings,
            picture=picture,
            processes=members,
            states={name: dict(memory) for name, memory in (states or {}).items()},
            params=dict(params or {}),
        )


def plan(geometry: Geometry, machines: Machines) -> Plan:
    """Plan a geometry that satisfies the rules on this machine, or on the machines of its nodes."""
    if not geometry.processes:
        return _plan(geometry, machines.of(None))
    nodes = list(geometry.by_node)
    machine_of = {id(each): machines.of(node) for node, part in nodes for each in part.processes.values()}
    plan_of = {id(each): _plan(each, machine_of[id(each)]) for each in geometry.processes.values()}
    plans = {label: plan_of[id(member)] for label, member in geometry.processes.items()}
    memory = (_memory(*part.processes.values(), node=node).items() for node, part in nodes)
    return Plan(geometry.name, (), dict(chain.from_iterable(memory)), (), plans, nodes=geometry.nodes)


def plan_states(plan: Plan, geometry: Geometry) -> dict[str, Plan]:
    """Plans of the other states of a planned layout, by name; each has the memory of the whole layout.

    A state that any process names is a state of a multi-process layout. Imports of what is gone in it are gone, too.
    """
    if not geometry.processes:
        variants = STATES.variants(geometry, plan.items)
        return {name: replace(plan, items=tuple(items)) for name, items in variants}
    awake = plan.processes
    own = {label: plan_states(each, geometry.processes[label]) for label, each in awake.items()}
    names = dict.fromkeys(name for states in own.values() for name in states)
    states = {name: {label: own[label].get(name, awake[label]) for label in own} for name in names}
    return {name: replace(plan, processes=_without_gone(awake, state)) for name, state in states.items()}


def memory_by_state(plan: Plan, geometry: Geometry) -> dict[str, dict[str, int]]:
    """Return the bytes of physical memory by location in each state of a planned layout, `awake` first.

    The result is empty if the layout has no states.
    """
    others = plan_states(plan, geometry)
    if not others:
        return {}
    whole = _allocated(plan)
    found = {AWAKE: plan.memory}
    for name, state in others.items():
        left = _allocated(state)
        found[name] = {at: size - whole[at] + left[at] for at, size in plan.memory.items()}
    return found


def _allocated(plan: Plan) -> Counter[str]:
    """Bytes that the steps of all processes create, by location."""
    total: Counter[str] = Counter()
    for label, step in ((label, step) for label, steps in plan.steps_by_process.items() for step in steps):
        if found := step.allocates:
            total[str(found[0].on(plan.node_of.get(label)))] += found[1]
    return total


def _without_gone(awake: Mapping[str, Plan], state: Mapping[str, Plan]) -> dict[str, Plan]:
    """Plans of a state without imports of what is gone in it; a process of which nothing goes has its plan of awake."""
    imported = {each for plan in awake.values() for step in plan.steps if (each := step.imports)}
    gone = imported - {(label, step.provides) for label, plan in state.items() for step in plan.steps}
    return {
        label: replace(plan, items=tuple(remaining(plan.items, gone)))
        if any(step.imports in gone for step in plan.steps)
        else plan
        for label, plan in state.items()
    }


def without(plan: Plan, gone: AbstractSet[Hashable]) -> Plan:
    """Plan of a layout without some resources, and without all that needs them; `plan` itself if there are none."""
    return replace(plan, items=tuple(remaining(plan.items, gone))) if gone else plan


def with_kernels(plan: Plan, gpus: Sequence[int]) -> Plan:
    """Plan that also loads the kernels which verify every byte."""
    opened = sum(1 for item in plan.items if item.phase is Phase.OPEN)
    loads = (LoadKernels((), device) for device in gpus)
    return replace(plan, items=(*plan.items[:opened], *loads, *plan.items[opened:]))


def _plan(geometry: Geometry, machine: Machine) -> Plan:
    phases: dict[Phase, list[Step | StepRun]] = {phase: [] for phase in Phase}
    for item in chain(_resources(geometry), *(kind.steps(geometry, machine) for kind in KINDS)):
        phases[item.phase].append(item)
    phases[Phase.SETTLE] += (Synchronize((), device) for device in geometry.gpus)
    items = list(chain.from_iterable(phases.values()))
    items += list(SEMAPHORES.last_steps(geometry, items))
    notes = (*(note for kind in KINDS for note in kind.notes(geometry)), *(each.text for each in geometry.choices))
    return Plan(geometry.name, tuple(items), _memory(geometry), notes, choices=geometry.choices)


def _resources(geometry: Geometry) -> Iterator[Step]:
    """Contexts, streams and connections, each once for all groups that need it."""
    yield from (RetainContext((), device) for device in geometry.gpus)
    streams: dict[int, Path] = {}
    holders: dict[str, Path] = {}
    for group in geometry.every:
        if group.stream is not None:
            streams.setdefault(group.stream, group.path)
        if group.origin and from_outside(group):
            holders.setdefault(group.origin.sources[0][0], group.path)
    yield from (CreateStream(path, device) for device, path in sorted(streams.items()))
    yield from (Attach(path, holder) for holder, path in holders.items())


def _memory(*members: Geometry, node: str | None = None) -> dict[str, int]:
    """Bytes created at each location of a node; imports belong to another process."""
    total: Counter[Location] = Counter()
    for group in (group for member in members for group in member.every):
        for location, count in group.shares().items():
            total[location] += count * group.size
    return {str(location.on(node)): total[location] for location in sorted(total)}
