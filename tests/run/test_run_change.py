"""Changes of a run to another request: what it reports, checks and leaves is that of the new spec."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from itertools import chain, count

import pytest
from hypothesis import HealthCheck, given, settings
from msgspec.structs import replace

from memtopo.common.errors import MemtopoError, Stopped
from memtopo.driver.ledger import Ledger
from memtopo.driver.types import Access, Grant, Properties, gpu
from memtopo.driver.wrappers import Forwarder
from memtopo.drivers.sim import SimDriver
from memtopo.executor import StepFailed
from memtopo.kinds.layout import HandleSource, current
from memtopo.plans.progress import Progress
from memtopo.plans.report import Check, Checks, Placed, Report
from memtopo.plans.transition import Stage
from memtopo.run.apply import apply
from memtopo.run.messages import ChangeCommand, ChangeResult, CheckChange, MakeStage
from memtopo.run.transition import DoesNotFit, RollbackFailed
from memtopo.session.composition import HoldResult, RunRequest
from memtopo.sharing.offers import ChangeFailed
from tests.helpers import strategies
from tests.helpers.conducted import Conducted
from tests.helpers.examples import check_block
from tests.helpers.failing_driver import Failing
from tests.helpers.machines import invented
from tests.helpers.specs import run_request
from tests.run.test_transition import AFTER, BEFORE

MACHINE = invented(3)
ONE_GPU = """
ranges: {r: {size: 8MiB}}
chunks: {a: {location: gpu0, size: 4MiB}, b: {location: gpu0, size: 4MiB}}
map: {r: [a, b]}
access: {r: {gpu0: rw}}
"""
OTHER_GPU = """
ranges: {r: {size: 8MiB}}
chunks: {a: {location: gpu2, size: 4MiB}, b: {location: gpu0, size: 4MiB}}
map: {r: [a, b]}
access: {r: {gpu2: rw}}
"""


ALLOCATIONS = """
ranges: {r: {size: 2MiB}}
chunks: {c: {location: gpu0, size: 2MiB}}
map: {r: [c]}
access: {r: {gpu0: rw}}
pools: {p: {location: gpu0}}
allocations: {a: {pool: p, size: 8MiB, count: 3}}
"""
WITHOUT_ALLOCATIONS = ALLOCATIONS[: ALLOCATIONS.index("allocations")].replace("2MiB", "4MiB")


def request_of(text: str, check: Check = "fast") -> RunRequest:
    return replace(run_request(text, MACHINE, check), machine_facts=MACHINE)


def held(
    text: str,
    use: Callable[[Conducted, Failing], None],
    check: Check = "fast",
    *,
    leaks: bool = False,
    only: set[str] | None = None,
    stop: Callable[[], int] = lambda: 0,
    progress: Progress | None = None,
) -> Report:
    """Report of a run that is used while it is held; `only` as for `Failing`, `stop` and `progress` as for `apply`."""
    with SimDriver(MACHINE) as driver:
        driver.init()
        failing = Failing(driver, only=only)
        ledger = Ledger(failing)

        def hold(made: Conducted) -> HoldResult:
            use(made, failing)
            return HoldResult()

        report = apply(request_of(text, check), ledger, hold=hold, stop=stop, progress=progress)
        assert ledger.empty is not leaks
        return report


def check_of_change(made: Conducted, request: RunRequest) -> Checks:
    """Results of the check of a change."""
    made.change(request)
    return made.checks()


def put(made: Conducted, label: str, data: bytes, device: int = 0) -> None:
    execution = made.run.execution
    with current(execution.driver, execution.layout.contexts[device]):
        execution.driver.memcpy_htod(execution.layout.ranges[label].address + 100, data)


def get(made: Conducted, label: str, size: int, device: int = 0) -> bytes:
    execution = made.run.execution
    with current(execution.driver, execution.layout.contexts[device]):
        return execution.driver.memcpy_dtoh(execution.layout.ranges[label].address + 100, size)


@pytest.mark.parametrize("check", ["fast", "full"])
def test_a_changed_run_is_checked_and_reported_as_the_new_spec(check: Check) -> None:
    found: list[Checks] = []

    def use(made: Conducted, _: Failing) -> None:
        found.append(check_of_change(made, request_of(AFTER, check)))
        assert not made.recheck().different

    report = held(BEFORE, use, check)
    applied = held(AFTER, lambda _, __: None, check)
    assert (report.outcome, report.exit_code, report.leaks) == ("ok", 0, ())
    assert report.plan.rows == applied.plan.rows
    assert report.plan.memory == applied.plan.memory
    assert [each.first for each in report.placed] == [each.first for each in applied.placed]
    assert report.left
    assert applied.left
    assert report.left.ledger_held == applied.left.ledger_held
    aspects = {tally.aspect: tally for tally in found[0].tallies}
    assert {"hole", "access"} <= set(aspects)
    assert aspects["bytes" if check == "fast" else "every byte"].looked_at > 0


@pytest.mark.parametrize("check", ["fast", "full"])
def test_kept_memory_keeps_its_bytes_and_new_memory_is_written(check: Check) -> None:
    def use(made: Conducted, _: Failing) -> None:
        put(made, "kv", b"page 0")
        made.change(request_of(AFTER, check))
        base = made.run.execution.layout.ranges["kv"].address + (2 << 20) + 100
        with current(made.run.execution.driver, made.run.execution.layout.contexts[0]):
            assert made.run.execution.driver.memcpy_dtoh(base, 6) == b"page 0"

    assert held(BEFORE, use, check).exit_code == 0


@pytest.mark.parametrize(("one", "other"), [(ONE_GPU, OTHER_GPU), (OTHER_GPU, ONE_GPU)])
def test_gpus_that_come_and_go_are_accounted_for(one: str, other: str) -> None:
    """Free memory before and after is compared on each GPU that the layout used at any time."""

    def use(made: Conducted, _: Failing) -> None:
        made.change(request_of(other))

    report = held(one, use)
    assert (report.outcome, report.leaks, report.notes) == ("ok", (), ())
    assert report.left
    assert [each.device for each in report.left.memory] == ["gpu0", "gpu2"]
    assert all(each.after == each.before for each in report.left.memory)


def test_a_change_that_fails_after_its_check_leaves_nothing_in_the_report() -> None:
    """Its last call releases a context that is not needed while the layout is held."""
    smaller = (
        "\nranges: {r: {size: 4MiB}}\nchunks: {a: {location: gpu2, size: 4MiB}}\nmap: {r: [a]}\naccess: {r: {gpu2: rw}}"
    )
    calls: list[int] = []

    def change(made: Conducted, failing: Failing) -> None:
        made.release_contexts()
        before = failing.calls
        made.change(request_of(smaller))
        calls.append(failing.calls - before)

    def fail(made: Conducted, failing: Failing) -> None:
        made.release_contexts()
        baseline = made.run.execution.baseline
        failing.at = failing.calls + calls[0]
        with pytest.raises(StepFailed, match="PrimaryCtxRelease"):
            made.change(request_of(smaller))
        assert (made.run.execution.baseline, made.run.ledger.counts()["contexts"]) == (baseline, 0)

    held(ONE_GPU, change)
    report = held(ONE_GPU, fail)
    assert report.checks
    assert (report.outcome, report.checks.differences) == ("ok", ())
    assert report.left
    assert [(each.device, each.before - (each.held or 0)) for each in report.left.memory] == [("gpu0", 8 << 20)]


def test_memory_that_a_change_leaves_on_a_gpu_that_is_no_longer_used_is_a_leak() -> None:
    def use(made: Conducted, _: Failing) -> None:
        made.run.ledger.mem_create(2 << 20, Properties(gpu(2)))
        made.change(request_of(ONE_GPU))

    report = held(OTHER_GPU, use, leaks=True)
    assert (report.exit_code, [leak.what for leak in report.leaks]) == (5, ["something that no step owns"])
    assert report.left
    assert [each.before - each.after for each in report.left.memory] == [0, 2 << 20]


def test_a_gpu_that_goes_and_returns_is_compared_with_its_memory_before_all_of_that() -> None:
    """What was lost while it was used first, and what is lost when it is used again, is in the report."""
    for first in (True, False):

        def use(made: Conducted, _: Failing, *, first: bool = first) -> None:
            for turn, text in enumerate((ONE_GPU, OTHER_GPU)):
                if first is (turn == 0):
                    made.run.execution.resume()
                    made.run.ledger.mem_create(2 << 20, Properties(gpu(2)))
                made.change(request_of(text))

        report = held(OTHER_GPU, use, leaks=True)
        assert report.left
        lost = {each.device: each.before - each.after for each in report.left.memory}
        assert lost == {"gpu0": 0, "gpu2": 2 << 20}, first


def test_a_reference_to_a_context_that_a_change_cannot_release_is_a_leak() -> None:
    def use(made: Conducted, failing: Failing) -> None:
        failing.at = failing.calls + 1
        made.change(request_of(OTHER_GPU))

    report = held(ONE_GPU, use, leaks=True, only={"device_primary_ctx_release"})
    assert (report.exit_code, [leak.what for leak in report.leaks]) == (5, ["context of gpu2"])


def test_a_change_that_does_not_fit_is_refused_before_its_first_call() -> None:
    large = ONE_GPU.replace("size: 8MiB", "size: 60GiB").replace("gpu0, size: 4MiB}}", "gpu0, size: 50GiB}}")

    def use(made: Conducted, failing: Failing) -> None:
        taken = made.run.ledger.mem_create(40 << 30, Properties(gpu(0)))
        with pytest.raises(DoesNotFit, match=r"gpu0 needs 50.0 GiB more than now at its peak, and has 39.5 GiB free"):
            made.change(request_of(large))
        assert made.generation == 1
        made.run.ledger.mem_release(taken)

    assert held(ONE_GPU, use).exit_code == 0


def test_a_failing_call_of_a_change_leaves_the_run_as_it_was() -> None:
    calls: list[int] = []

    def count(made: Conducted, failing: Failing) -> None:
        before = failing.calls
        made.change(request_of(AFTER))
        calls.append(failing.calls - before)

    held(BEFORE, count)
    assert calls[0] > 60

    def fail(at: int) -> Callable[[Conducted, Failing], None]:
        def use(made: Conducted, failing: Failing) -> None:
            request, ledger = made.request, made.run.ledger.counts()
            layout = made.run.execution.layout
            kept = layout.ranges["kv"], layout.chunks["hot"]
            put(made, "w", b"kept", device=1)
            failing.at = failing.calls + at
            with pytest.raises(StepFailed) as caught:
                made.change(request_of(AFTER))
            assert not isinstance(caught.value, RollbackFailed), caught.value
            assert made.request is request
            assert not made.recheck().different  # which releases what an interrupted check has retained
            assert made.run.ledger.counts() == ledger
            assert (layout.ranges["kv"], layout.chunks["hot"]) == kept
            assert get(made, "w", 4, device=1) == b"kept"

        return use

    for at in range(1, calls[0] + 1):
        assert held(BEFORE, fail(at)).exit_code == 0, at


@pytest.mark.parametrize("check", ["fast", "full"])
def test_a_change_in_which_a_context_cannot_be_popped_is_rolled_back(check: Check) -> None:
    """Whatever was undone in it is done again, once."""
    calls: list[int] = []

    def fail(at: int) -> Callable[[Conducted, Failing], None]:
        def use(made: Conducted, failing: Failing) -> None:
            ledger, before = made.run.ledger.counts(), failing.calls
            failing.at = before + at if at else 0
            with pytest.raises(StepFailed) if at else nullcontext() as caught:
                made.change(request_of(WITHOUT_ALLOCATIONS, check))
            calls.append(failing.calls - before)
            if caught:
                assert not isinstance(caught.value, RollbackFailed), caught.value
                assert not made.recheck().different
                assert made.run.ledger.counts() == ledger

        return use

    pops = {"ctx_pop_current"}
    held(ALLOCATIONS, fail(0), check, only=pops)
    for at in range(1, calls[0] + 1):
        assert held(ALLOCATIONS, fail(at), check, only=pops).exit_code == 0, at


def test_a_context_that_cannot_be_popped_leaves_kernels_to_be_loaded_again_once() -> None:
    calls: list[int] = []

    def look(made: Conducted, failing: Failing) -> None:
        before = failing.calls
        made.release_contexts()
        made.recheck()
        calls.append(failing.calls - before)

    def fail(made: Conducted, failing: Failing) -> None:
        failing.at = failing.calls + len(calls)
        for act in (made.release_contexts, made.recheck):
            with suppress(StepFailed, MemtopoError):
                act()
        assert not made.recheck().different
        counts = made.run.ledger.counts()
        assert (counts["modules"], counts["contexts"]) == (0, 0)

    pops = {"ctx_pop_current"}
    held(ONE_GPU, look, "full", only=pops)
    for _ in range(calls[0]):
        assert held(ONE_GPU, fail, "full", only=pops).exit_code == 0, calls
        calls.append(0)


@pytest.mark.parametrize("last", [MakeStage(Stage.SETTLE), MakeStage(Stage.BIND), CheckChange()])
def test_a_signal_after_any_part_of_a_change_brings_the_layout_back(last: ChangeCommand) -> None:
    def use(made: Conducted, _: Failing) -> None:
        request, counts, done = made.request, made.run.ledger.counts(), list[ChangeCommand]()
        change_each = made.change_each

        def noted(command: ChangeCommand) -> Mapping[str, ChangeResult]:
            done.append(command)
            return change_each(command)

        made.change_each = noted  # type: ignore[method-assign]
        made.stop = lambda: int(done[-1] == last)
        with pytest.raises(Stopped):
            made.change(request_of(AFTER))
        assert (made.request, made.run.ledger.counts()) == (request, counts)
        assert not made.recheck().different

    assert held(BEFORE, use).exit_code == 0


class Interrupted(Progress):
    """Hooks in the call number `at` of which Ctrl-C comes; `look` is that which asks for a stop."""

    at = calls = 0

    def advance(self, steps: int, process: str = "") -> None:
        del steps, process
        self.look()

    def look(self) -> int:
        self.calls += 1
        if self.calls == self.at:
            signal.raise_signal(signal.SIGINT)
        return 0


def test_ctrl_c_in_any_part_of_a_change_brings_the_layout_back() -> None:
    hooks = Interrupted()

    def use(made: Conducted, _: Failing) -> None:
        before = made.request, made.run.ledger.counts()
        for part in count(1):
            hooks.at = hooks.calls + part
            try:
                made.change(request_of(AFTER))
            except KeyboardInterrupt:
                assert (made.request, made.run.ledger.counts()) == before
                assert not made.recheck().different
            else:
                break
        hooks.at = 0
        assert part > 10

    assert held(BEFORE, use, progress=hooks, stop=hooks.look).exit_code == 0


def test_a_signal_stops_a_check_after_a_change_that_was_rolled_back() -> None:
    received: list[int] = []

    def use(made: Conducted, failing: Failing) -> None:
        failing.at = failing.calls + 1
        with pytest.raises(StepFailed):
            made.change(request_of(AFTER))
        received.append(signal.SIGTERM)
        with pytest.raises(MemtopoError, match="the check was not finished"):
            made.recheck()

    assert held(BEFORE, use, stop=lambda: sum(received)).outcome == "ok"  # and not interrupted by the check


def test_a_signal_stops_neither_a_rollback_nor_its_check() -> None:
    def use(made: Conducted, failing: Failing) -> None:
        execution = made.run.execution
        goes_on, execution.stop = execution.stop, lambda: int(failing.failed is not None)
        failing.at = failing.calls + 30
        with pytest.raises(StepFailed) as caught:
            made.change(request_of(AFTER))
        assert not isinstance(caught.value, RollbackFailed), caught.value
        execution.stop = goes_on
        assert not made.recheck().different

    assert held(BEFORE, use).outcome == "ok"


def test_a_change_that_the_end_of_another_process_cuts_off_leaves_nothing() -> None:
    def use(made: Conducted, _: Failing) -> None:
        change_each, commands = made.change_each, list[ChangeCommand]()

        def cut_off(command: ChangeCommand) -> Mapping[str, ChangeResult]:
            commands.append(command)
            if command == MakeStage(Stage.MAP):
                raise ChangeFailed("process b has ended", broken=True)
            return change_each(command)

        made.change_each = cut_off  # type: ignore[method-assign]
        with pytest.raises(ChangeFailed):
            made.change(request_of(OTHER_GPU))
        assert commands[-1] == MakeStage(Stage.MAP), "no process is asked to roll back with one that has ended"

    assert held(ONE_GPU, use).leaks == ()


def test_a_change_that_was_rolled_back_counts_as_a_change_of_the_layout() -> None:
    """Its memory was touched: handles that importers have may be of memory that is gone."""

    def use(made: Conducted, failing: Failing) -> None:
        failing.at = failing.calls + 1
        with pytest.raises(StepFailed):
            made.change(request_of(OTHER_GPU))
        assert made.generation == 2
        made.change(made.request)
        assert made.generation == 2

    assert held(ONE_GPU, use, only={"mem_create"}).exit_code == 0


def test_memory_that_importers_keep_is_no_room_for_a_change() -> None:
    """Of the exports that are named, and of no others."""
    entries = "{x: {location: gpu0, size: SIZE, handles: fd}, y: {location: gpu0, size: 2MiB, handles: fd}}"
    text = f"chunks: {entries}\nexports: {{x: {{chunk: x, via: fd}}, y: {{chunk: y, via: fd}}}}\n"

    def use(made: Conducted, _: Failing) -> None:
        larger = request_of(text.replace("SIZE", "50GiB"))
        with pytest.raises(DoesNotFit, match=r"gpu0 needs 50 GiB more than now at its peak"):
            made.change(larger, in_use=("x",))
        assert made.generation == 1
        made.change(larger, in_use=("y",))

    assert held(text.replace("SIZE", "40GiB"), use).exit_code == 0


def test_checks_of_a_held_layout_leave_its_report_as_it_was() -> None:
    def use(made: Conducted, _: Failing) -> None:
        address = made.run.execution.layout.ranges["r"].address
        assert not made.recheck().different
        made.run.ledger.mem_set_access(address, 4 << 20, (Grant(gpu(0), Access.R),))
        assert made.recheck().different
        made.run.ledger.mem_set_access(address, 4 << 20, (Grant(gpu(0), Access.RW),))

    report = held(ONE_GPU, use)
    assert (report.exit_code, report.checks) == (0, held(ONE_GPU, lambda _, __: None).checks)


def test_a_change_that_fails_leaves_the_exports() -> None:
    exporting = ONE_GPU.replace("4MiB}", "4MiB, handles: fd}") + "exports: {one: {chunk: a, via: fd}}\n"

    def use(made: Conducted, failing: Failing) -> None:
        before = [*made.run.exports.offers()]
        failing.at = failing.calls + 1
        with pytest.raises(StepFailed):
            made.change(request_of(exporting.replace("one:", "other:").replace("gpu0", "gpu2")))
        assert [*made.run.exports.offers()] == before

    assert held(exporting, use, only={"mem_create"}).exit_code == 0


@pytest.mark.parametrize("check", ["none", "fast"])
def test_the_exports_of_a_held_layout_are_those_of_the_spec_to_which_it_was_changed(check: Check) -> None:
    exporting = ONE_GPU.replace("4MiB}", "4MiB, handles: fd}") + "exports: {one: {chunk: a, via: fd}}\n"

    def use(made: Conducted, _: Failing) -> None:
        made.release_contexts()
        for text, names in ((exporting.replace("one:", "other:"), ["other"]), (ONE_GPU, [])):
            made.change(request_of(text, check))
            assert [*made.exports()] == names

    assert held(exporting, use, check).exit_code == 0


def test_a_change_that_cannot_be_rolled_back_leaves_a_run_that_is_taken_down() -> None:
    moved = BEFORE.replace("hot: {location: gpu1", "hot: {location: gpu0")

    machine, raised = MACHINE, list[RollbackFailed]()
    with SimDriver(machine) as driver:
        driver.init()
        failing = Failing(driver, only={"mem_create"}, every=True)
        ledger = Ledger(failing)

        def hold(made: Conducted) -> HoldResult:
            failing.at = failing.calls + 1
            with pytest.raises(RollbackFailed, match="to roll back a change") as caught:
                made.change(request_of(moved))
            raised.append(caught.value)
            raise caught.value

        report = apply(request_of(BEFORE), ledger, hold=hold)
        assert ledger.empty
    assert (report.outcome, report.exit_code, report.leaks) == ("failed", 4, ())
    assert raised


class Deaf(Forwarder):
    """A driver that does not change access while it is `deaf`, and reports success."""

    deaf = False

    def mem_set_access(self, address: int, size: int, grants: Sequence[Grant]) -> None:
        if not self.deaf:
            self._driver.mem_set_access(address, size, grants)


def test_kernels_that_fail_before_a_change_are_unloaded() -> None:
    def use(made: Conducted, failing: Failing) -> None:
        failing.at = failing.calls + 1
        with pytest.raises(StepFailed, match=r"^fingerprints of kept memory: "):
            made.change(request_of(ONE_GPU, "full"))
        assert made.run.ledger.counts()["modules"] == 0

    assert held(ONE_GPU, use, only={"fingerprint"}).outcome == "ok"


def test_new_memory_without_its_access_is_a_difference_and_no_kernel_accesses_it() -> None:
    """Which would end the process (fact 24)."""

    def use(made: Conducted, _: Failing) -> None:
        driver = made.run.execution.driver = Deaf(made.run.ledger)
        driver.deaf = True
        made.change(request_of(ONE_GPU.replace("4MiB", "2MiB").replace("8MiB", "4MiB"), "full"))
        assert {each.aspect for each in made.checks().differences} == {"access"}

    assert held(ONE_GPU, use, "full").outcome == "different"


def test_a_rollback_that_does_not_bring_the_layout_back_is_a_failure() -> None:
    raised: list[RollbackFailed] = []

    def use(made: Conducted, _: Failing) -> None:
        driver, change_each, done = Deaf(made.run.ledger), made.change_each, list[ChangeCommand]()
        made.run.execution.driver = driver

        def noted(command: ChangeCommand) -> Mapping[str, ChangeResult]:
            done.append(command)
            driver.deaf = command == MakeStage(Stage.MAP, back=True)
            return change_each(command)

        made.change_each = noted  # type: ignore[method-assign]
        made.stop = lambda: int(done[-1] == MakeStage(Stage.MAP))
        with pytest.raises(RollbackFailed, match=r"check after the rollback.* access of .* is r, not rw") as caught:
            made.change(request_of(BEFORE.replace("w: {gpu1: rw}", "w: {gpu1: r}")))
        raised.append(caught.value)

    report = held(BEFORE, use)
    assert (report.outcome, report.exit_code, report.leaks) == ("failed", 4, ())
    assert raised


class Unsettled(HandleSource):
    """A source that twice cannot close what was received: in a change, and in its rollback."""

    left = 2

    def settle(self) -> None:
        self.left -= 1
        if self.left >= 0:
            raise OSError("cannot be closed")


def test_an_error_of_no_step_in_a_rollback_leaves_a_run_that_can_only_be_taken_down() -> None:
    def use(made: Conducted, _: Failing) -> None:
        made.run.execution.layout.handle_source = Unsettled()
        with pytest.raises(RollbackFailed, match=r"^rollback, to roll back a change \(cannot be closed\)"):
            made.change(request_of(AFTER))

    report = held(BEFORE, use)
    assert (report.outcome, report.exit_code, report.leaks) == ("failed", 4, ())


def test_the_addresses_of_a_changed_run_are_in_the_order_of_its_spec() -> None:
    """A range of another size is reserved after one that stays."""
    both = "ranges: {first: {size: 4MiB}, second: {size: 2MiB}}\nchunks: {c: {location: gpu0, size: 2MiB}}\n"
    equals(both, both.replace("4MiB", "2MiB"))


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(strategies.specs(), strategies.specs())
def test_a_changed_run_equals_an_applied_one(one: str, other: str) -> None:
    equals(one, other)


@pytest.mark.exhaustive(seconds=6)
@pytest.mark.parametrize("block", range(20))
def test_two_thousand_changed_runs_equal_applied_ones(block: int) -> None:
    check_block(block, 100, equals, strategies.specs(), strategies.specs())


def equals(one: str, other: str) -> None:
    """Change a run from a random spec to another one, and compare its report with that of the other one."""
    machine = strategies.machine()
    changed, applied = (replace(run_request(text, machine), machine_facts=machine) for text in (one, other))
    applied = replace(applied, plan=replace(applied.plan, name=changed.plan.name))

    def use(made: Conducted) -> HoldResult:
        assert not check_of_change(made, applied).different
        return HoldResult()

    found = []
    for request, hold in ((changed, use), (applied, None)):
        with SimDriver(machine) as driver:
            driver.init()
            ledger = Ledger(driver)
            report = apply(request, ledger, hold=hold)
            assert ledger.empty
            assert (report.outcome, report.leaks) == ("ok", ())
            assert report.left
            assert all(each.after == each.before for each in report.left.memory)
            counts = {what: count for what, count in report.left.ledger_held.items() if count}
            found.append((report.plan, counts, list(chain.from_iterable(map(labels, report.placed)))))
    assert found[0] == found[1]


def labels(placed: Placed) -> list[str]:
    """Labels of reservations; those of one entry are a series only where their addresses are evenly spaced."""
    entry, _, number = placed.first.partition(".")
    return [f"{entry}.{int(number) + index}" for index in range(placed.count)] if placed.count > 1 else [placed.first]
