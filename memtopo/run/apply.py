"""Run of a layout in one process: build, check, verify, take down, and report."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from itertools import chain
from threading import Lock

from memtopo import planner
from memtopo.common.errors import InternalError, MemtopoError, Stopped
from memtopo.common.outcomes import outcome
from memtopo.driver.ledger import Ledger
from memtopo.driver.recorder import CallContext
from memtopo.driver.types import DriverError
from memtopo.executor import Execution, StepFailed, Teardown, TeardownGates
from memtopo.geometry import Geometry
from memtopo.kinds.layout import HandleSource, NoHandleSource, Reservation
from memtopo.kinds.step import Phase
from memtopo.language.names import AWAKE
from memtopo.planner import Plan
from memtopo.plans import folding
from memtopo.plans.progress import Progress
from memtopo.plans.report import Checks, Left, Placed, Report
from memtopo.plans.transition import Transition, transition
from memtopo.run.capacity import DoesNotFit, require_room
from memtopo.run.findings import FindingTally
from memtopo.run.leaks import ResourceBalance, descriptor_notes, memory_notes
from memtopo.run.outcome import exit_code, failure
from memtopo.run.rehearsal import Rehearsal, RehearsedPart, States, stops
from memtopo.run.states import StatePlans
from memtopo.run.transition import all_or_nothing, make_transition
from memtopo.run.verification.fingerprints import ASPECT, Fingerprints
from memtopo.run.verification.isolation import MAX_HOLE_QUERIES, holes, isolation
from memtopo.run.verification.rounds import Verification
from memtopo.session.request import HoldResult, RunRequest
from memtopo.sharing.exports import LayoutExports


def apply(
    request: RunRequest,
    ledger: Ledger,
    *,
    progress: Progress | None = None,
    stop: Callable[[], int] = lambda: 0,
    handle_source: HandleSource | None = None,
    hold: Callable[[Run], HoldResult] | None = None,
    context: CallContext | None = None,
) -> Report:
    """Build a plan, check it and take it down.

    `ledger` wraps the driver, and is empty before the run. `stop` returns the number of the signal that requests a
    stop, or 0. `hold` is called with a layout that is as declared; the teardown starts when it returns. Errors of the
    run are not raised but reported. A `context` has what the calls of each moment are made for.
    """
    if request.geometry.processes:
        raise InternalError("a multi-process layout is applied as a layout of one process")
    run = Run(request, ledger, progress=progress, stop=stop, handle_source=handle_source, context=context)
    try:
        with run.recording_failure():
            run.build()
            run.check()
            run.verify()
            if request.rehearse and run.as_declared:
                run.rehearse()
            if hold and run.as_declared:
                run.hold(hold)
    finally:
        run.take_down()
    return run.report()


class Run:
    """Run in one process, in parts that the processes of a multi-process layout go through together.

    It is built without the resources that are `absent`, and what needs them; `leave_out` changes what is absent.
    """

    def __init__(
        self,
        request: RunRequest,
        ledger: Ledger,
        *,
        progress: Progress | None = None,
        stop: Callable[[], int] = lambda: 0,
        handle_source: HandleSource | None = None,
        absent: frozenset[Hashable] = frozenset(),
        origin: float | None = None,
        context: CallContext | None = None,
    ) -> None:
        """`origin` is that of the execution's times, and `context` has what the calls of each moment are made for."""
        self.request, self.ledger, self.context = request, ledger, context
        self._plans, self.absent = StatePlans(built_plan(request), request.geometry), absent
        plan = self._plans.to_build(absent)
        self.execution = Execution(plan, ledger, progress=progress, stop=stop, origin=origin, context=context)
        self.execution.layout.handle_source = handle_source or NoHandleSource()
        self.execution.layout.timeout = request.timeout
        self.state = AWAKE
        """Name of the state that the layout is in."""
        self.failure: StepFailed | None = None
        self.stopped = False
        self._signal = stop
        self._findings = FindingTally()
        self._balance = ResourceBalance(self.execution, ledger, exclusive=request.exclusive)
        self._reserved: Mapping[str, Reservation] = {}
        self._hold_result = HoldResult()
        self._held = False
        self._rechecking = Lock()
        self._teardown: Teardown | None = None
        self.verification = Verification(request, ledger, self.execution, self._findings)

    @contextmanager
    def recording_failure(self) -> Iterator[None]:
        """Record a failure or a requested stop for the report, and continue after the block."""
        try:
            yield
        except StepFailed as failure:
            self.failure = failure
        except Stopped:
            self.stopped = True

    def build(self, *only: Phase) -> None:
        """Do every step, or the steps of some phases. Raises `StepFailed` or `Stopped`."""
        self.execution.build(*only)
        self.execution.layout.handle_source.settle()

    def check(self) -> None:
        """Compare every step with the driver's state, unless the check is "none". Raises `StepFailed` or `Stopped`."""
        self._balance.record_held()
        self._reserved = {**self.execution.layout.ranges}
        if self.request.check == "none":
            return
        with self.execution.timed("check", len(self.execution.plan.steps)) as count:
            try:
                self._findings.add(self.execution.check())
                self.execution.progress.phase("check holes", 0)
                self._check_isolation(self.request.geometry, self._findings)
                if self.whole:  # what is absent has no access yet
                    self.execution.progress.phase("check access", 0)
                    self.verification.try_permitted()
            except DriverError as error:
                raise StepFailed(None, "check of holes, ends and access", error) from error
            finally:
                count.steps = self.execution.checked

    def _check_isolation(self, geometry: Geometry, findings: FindingTally) -> None:
        unmapped = holes(geometry)
        findings.add(isolation(geometry, unmapped, self.ledger, self.execution.layout))
        if unmapped.unqueried:
            why = f"{MAX_HOLE_QUERIES:,} granules of holes are queried, evenly spaced"
            findings.not_checked("hole", unmapped.unqueried, why)

    def verify(self) -> None:
        """Do all rounds of the verification by bytes. Raises `StepFailed` or `Stopped`.

        Processes of a multi-process layout call the parts of each round on `verification` instead.
        """
        self.execution.progress.phase("list memory", 0)  # of all chunks, and the views of it that are verified
        for index in range(self.verification.rounds):
            self.verification.write(index)
            if index == 0:
                self.verification.try_forbidden()
            self.verification.read(index)

    def rehearse(self) -> None:
        """Go through the states of the layout and back, and check each. Raises `StepFailed` or `Stopped`."""
        with self.execution.timed("rehearse") as count:
            count.steps = stops(self.states)
            full = self.request.check == "full"
            Rehearsal(self.execution, self.states, self.verification, self._findings, full=full).walk()

    def include(self, findings: FindingTally, aspect: str) -> None:
        """Count findings of an aspect, which a switch has made, for the report."""
        self._findings.include(findings, aspect)

    def rehearsed(self, states: States) -> RehearsedPart:
        """Part of this process in a rehearsal of a layout of several processes."""
        return RehearsedPart(self.execution, states, self.verification, self._findings)

    @property
    def states(self) -> Mapping[str, Plan]:
        """Plans of all states of the layout by name; that of the layout as it is written is the first."""
        return self._plans.by_name

    def switch(self, state: str, in_use: Container[Hashable] = (), *, full: bool = False) -> Checks:
        """Bring the layout to one of its states, and return the results of the queries that check it.

        With `full`, kernels verify all bytes that the switch keeps; nothing may write them meanwhile. The memory of
        `in_use` resources is not free after its release. Raises `DoesNotFit` before the first call, `StepFailed` or
        `Stopped` after the layout was brought back to the state before and checked, `RollbackFailed`.
        """
        kept = Fingerprints.take(self.execution, self._plans.without(state, self.absent)) if full else None
        with self._entering(state, self.absent, in_use):
            return self.check_switched(kept).checks()

    def leave_out(self, absent: frozenset[Hashable]) -> None:
        """Bring the layout to its state without some resources and what needs them, and with all others.

        Raises as `switch` does.
        """
        with self._entering(self.state, absent):
            pass  # unchecked

    def transition_to(self, state: str) -> Transition:
        """Return the transition to one of the layout's states, without what is absent now."""
        return self._transition(state, self.absent)

    def _transition(self, state: str, absent: frozenset[Hashable]) -> Transition:
        return self._plans.transition(self.execution.plan, self._plans.without(state, absent))

    def renew(self, resources: frozenset[Hashable]) -> Checks:
        """Release some resources with what needs them, create them anew, and return the results of the queries.

        Raises as `switch` does; if they cannot be created, they stay away until they are renewed again.
        """
        self.leave_out(self.absent | resources)
        with self._entering(self.state, self.absent - resources):
            return self.check_switched().checks()

    @contextmanager
    def _entering(self, state: str, absent: frozenset[Hashable], in_use: Container[Hashable] = ()) -> Iterator[None]:
        """Bring the layout to a state without some resources, and back again if the code inside fails."""
        plan, steps = self._plans.without(state, absent), self._transition(state, absent)
        self.require_room_for(steps, self.request, in_use)
        with all_or_nothing(self.execution):
            make_transition(self.execution, plan, steps)
            yield
        self.state, self.absent = state, absent

    def change(
        self, request: RunRequest, in_use: Container[Hashable] = (), absent: frozenset[Hashable] = frozenset()
    ) -> None:
        """Bring the layout, in state awake, to another request; `checks` has the results of its check.

        It is built without the resources that are `absent` then, and what needs them.

        The check is that of `check`, and new memory is verified by bytes; other bytes are not written, but if the
        request's check is full, kernels compare them with what they were. Raises as `switch` does.
        """
        plans = StatePlans(built_plan(request), request.geometry)
        plan = plans.without(AWAKE, absent)
        kept = Fingerprints.take(self.execution, plan) if request.check == "full" else None
        steps = transition(self.execution.plan.steps, plan.steps)
        self.require_room_for(steps, request, in_use)
        with (
            all_or_nothing(self.execution),
            self._expecting(request.geometry),
            self.changing(request.geometry.gpus) as arrived,
        ):
            make_transition(self.execution, plan, steps)
            arrived()
            findings = self.check_changed(request, steps, kept)
            self.suspend(request)
        self.adopt(request, plans, findings, absent)

    def require_room(self, request: RunRequest) -> None:
        """Raise `DoesNotFit` if a change to another request needs more memory than is free. Raises `StepFailed`."""
        self.require_room_for(transition(self.execution.plan.steps, built_plan(request).steps), request)

    def require_room_for(self, steps: Transition, request: RunRequest, in_use: Container[Hashable] = ()) -> None:
        """Raise `DoesNotFit` if a transition needs more memory than is free. Raises `StepFailed`."""
        self.execution.resume()  # free memory is queried in contexts
        try:
            require_room(self.execution, steps, request.machine_facts, in_use)
        except DoesNotFit:
            self.suspend(self.request)
            raise

    def suspend(self, request: RunRequest) -> None:
        """Release contexts that the layout of a request does not need while it is held. Raises `StepFailed`."""
        if self._held:
            self.execution.suspend(request.geometry.idle_gpus)

    def check_changed(self, request: RunRequest, steps: Transition, kept: Fingerprints | None = None) -> FindingTally:
        """Check a changed layout by queries, and what is new in it by bytes. Raises `StepFailed` or `Stopped`."""
        findings = FindingTally()
        try:
            self.execution.progress.extend(len(self.execution.plan.steps))
            findings.add(self.execution.check())
            self._check_isolation(request.geometry, findings)
        except DriverError as error:
            raise StepFailed(None, "check of holes and ends", error) from error
        if kept:
            findings.include(kept.compared_after(findings), ASPECT)
        verification = Verification(request, self.ledger, self.execution, findings)
        verification.verify_only({step.provides for step in steps.do if step.allocates})
        return findings

    def changing(self, gpus: Collection[int]) -> AbstractContextManager[Callable[[], None]]:
        """Record what the layout uses anew while the code inside changes it, as `ResourceBalance.changing`."""
        return self._balance.changing(gpus)

    def adopt(
        self, request: RunRequest, plans: StatePlans, findings: FindingTally, absent: frozenset[Hashable] = frozenset()
    ) -> None:
        """Make a request and its plans, to which the layout was changed, those of the run.

        Nothing is presented here, since the layout is changed already: that may fail, and this may not.
        """
        self.request, self._plans, self.absent = request, plans, absent
        self._findings, self._reserved = findings, {**self.execution.layout.ranges}
        self.verification = Verification(request, self.ledger, self.execution, findings)

    def _placed(self) -> tuple[Placed, ...]:
        """Addresses of the ranges in the order of the plan: a change reserves new ones after those that stay."""
        ranges = self._reserved
        reserving = chain.from_iterable(steps for phase, steps in self._plans.awake.phases if phase is Phase.RESERVE)
        labels = [step.describe().subject for step in reserving]
        return tuple(folding.placed({label: ranges[label] for label in labels if label in ranges}))

    @contextmanager
    def _expecting(self, geometry: Geometry) -> Iterator[None]:
        """Import as a geometry declares, or as before if the code inside fails."""
        source = self.execution.layout.handle_source
        source.expect(geometry)
        try:
            yield
        except BaseException:
            source.expect(self.request.geometry)
            raise

    def exports_of(self, geometry: Geometry) -> LayoutExports:
        """Return the exports of the layout, as a geometry declares them."""
        return LayoutExports(geometry, self.execution.layout, self.execution.driver, self.recheck, self.context)

    @property
    def whole(self) -> bool:
        """True if everything that the spec declares exists: no state and no holder has taken some of it away."""
        return self.execution.plan is self._plans.awake

    def recheck(self) -> Checks:
        """Compare every step with the driver's state again, by queries alone; the report leaves the result out.

        Raises `MemtopoError`, since its caller is another program and the run continues.
        """
        try:
            return self.check_switched().checks()
        except (StepFailed, Stopped) as error:
            raise MemtopoError(f"the check was not finished: {error or 'interrupted'}") from error

    def check_switched(self, kept: Fingerprints | None = None) -> FindingTally:
        """Check the layout by queries, and compare what a switch has `kept`. Raises `StepFailed` or `Stopped`."""
        findings = FindingTally()
        with self._rechecking:  # a check of a mapping keeps its handle in the layout meanwhile
            self.execution.progress.extend(len(self.execution.plan.steps))
            findings.add(self.execution.check())
            if kept:
                findings.include(kept.compared_after(findings), ASPECT)
            self.suspend(self.request)
        return findings

    @property
    def as_declared(self) -> bool:
        """True if no check found a difference from the spec."""
        return not self._findings.different

    def hold(self, hold: Callable[[Run], HoldResult]) -> None:
        """Call `hold` with the complete layout. Raises `StepFailed`."""
        self.execution.progress.end()
        try:
            self._hold_result = hold(self)
        except MemtopoError as error:
            raise StepFailed(None, "hold the layout", error) from error

    def begin_hold(self) -> None:
        """Keep the layout without the contexts that only its changes and checks need. Raises `StepFailed`.

        A context takes some 500 MiB of its GPU, and ends with a fault of any process that shares the GPU's channel.
        """
        self._held = True
        self.suspend(self.request)

    def take_down(self, gates: TeardownGates | None = None) -> None:
        """Undo everything; `gates` as for `Execution.take_down`."""
        self.execution.layout.handle_source.settle()
        self._balance.record_before_teardown()
        self._teardown = self.execution.take_down(gates)
        if self.failure is None and self._teardown.failures:
            self.failure = self._teardown.failures[0]
        if self.request.check != "none":
            self._check_free_memory(self._teardown)

    def _check_free_memory(self, teardown: Teardown) -> None:
        """Compare the memory that was taken with the plan. Each process has simulated GPUs of its own."""
        own = self.request.machine.simulated
        geometries = [self.request.geometry] if own else self.request.processes_of_node.values()
        left = self._balance.left(teardown, self._hold_result.descriptors)
        self._findings.add(self._balance.misplaced(geometries, left))

    def report(self) -> Report:
        """Return the report of the run, after its teardown."""
        request, teardown = self.request, self._teardown
        if teardown is None:
            raise InternalError("a run is reported before it is taken down")
        left = self._balance.left(teardown, self._hold_result.descriptors)
        leaks = self._balance.leaks(teardown, left, request.position_of)
        signal = self._signal() if self.stopped else None
        codes = [exit_code(self.failure.error)] if self.failure else ()
        word, status = outcome(leaks, signal=signal, as_declared=self.as_declared, codes=codes)
        return Report(
            name=request.plan.name,
            spec=request.spec,
            machine=request.machine,
            outcome=word,
            exit_code=status,
            plan=request.summary(),
            times=tuple(self.execution.times),
            checks=None if self._findings.empty else self.checks(),
            failure=failure(self.failure, request) if self.failure else None,
            leaks=leaks,
            left=left,
            notes=(*self._hold_result.notes, *self._notes(teardown, left, clean=not leaks)),
            check=request.check,
            placed=self._placed(),
            started=request.started,
        )

    def checks(self) -> Checks:
        """Results of the checks of the layout as it was built or changed, with the position of each difference."""
        found = self._findings.checks()
        differences = tuple(replace(each, place=self.request.position_of(each.path)) for each in found.differences)
        return replace(found, differences=differences, rates=self.verification.rates)

    def _notes(self, teardown: Teardown, left: Left | None, *, clean: bool) -> Iterator[str]:
        if self.request.siblings is None:
            yield from self.request.notes()
        if self.context and self.context.lost:
            yield self.context.lost
        yield from self._balance.owner_notes(self.request.geometry, clean=clean)
        if teardown.timed_out:
            yield "another process did not finish in time; memory that it imported may have been released while in use"
        yield from memory_notes(left, self.request.geometry)
        if not self.request.exclusive:
            yield from descriptor_notes(left)


def built_plan(request: RunRequest) -> Plan:
    """Return the plan of a request as it is built: a full check needs kernels."""
    full = request.check == "full"
    return planner.with_kernels(request.plan, request.geometry.gpus) if full else request.plan
