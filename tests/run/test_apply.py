"""Reports of runs in one process."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from memtopo.common.errors import Stopped
from memtopo.driver.handles import Handle
from memtopo.driver.ledger import Ledger
from memtopo.driver.types import Properties, gpu
from memtopo.drivers.sim import SimDriver
from memtopo.kinds.layout import HandleSource
from memtopo.plans.progress import NO_PROCESSES, Progress
from memtopo.plans.report import Report
from memtopo.run import apply
from memtopo.run.reports import MAX_DIFFERENCES
from tests.helpers import faults, faulty_drivers
from tests.helpers.faulty_drivers import run_on
from tests.helpers.machines import invented
from tests.helpers.reports import tallies
from tests.helpers.specs import document, run, run_request

MIB = 1 << 20
MACHINE = invented(2)
SPEC = """
ranges: {kv: {size: 8MiB, align: 2MiB}, view: {size: 2MiB}}
chunks:
  hot: {location: gpu0, size: 2MiB}
  cold: {location: gpu1, size: 4MiB}
map: {kv: [hot, cold], view: hot}
access: {kv: {gpu0: rw, gpu1: r}, view: {gpu0: r}}
"""


def reported(text: str = SPEC, *, at: int = 0, only: set[str] | None = None) -> Report:
    """The report of a run whose places are those of the spec's text."""
    made = replace(run_request(text, MACHINE), position_of=document(text).position)
    return run(made, MACHINE, at=at, only=only).report


def test_report_of_a_success_names_spec_machine_and_outcome() -> None:
    report = reported()
    assert (report.name, report.spec, report.outcome, report.exit_code) == ("test", "test.yaml", "ok", 0)
    assert report.machine.simulated
    assert report.machine.devices == ("Invented GPU", "Invented GPU")
    assert (report.failure, report.leaks, report.notes) == (None, (), ())
    assert report.plan.memory == {"gpu0": 2 * MIB, "gpu1": 4 * MIB}


def test_tallies_count_every_observation() -> None:
    found = tallies(reported().checks)
    assert {aspect: (tally.looked_at, tally.as_declared, tally.not_checked) for aspect, tally in found.items()} == {
        "alignment": (1, 1, 0),
        "properties": (2, 2, 0),
        "mapped chunk": (3, 3, 0),
        "access": (6, 6, 0),
        "hole": (2, 2, 0),
        "end of range": (2, 2, 0),
        "bytes": (10, 10, 0),  # two ends, hot by gpu0 and gpu1 in kv and gpu0 in view, cold by both
        "free memory": (2, 2, 0),
    }


@pytest.mark.parametrize(
    ("access", "looked_at", "not_checked"),
    [
        ("kv: {gpu0: r, gpu1: r}, view: {gpu0: r}", 0, 6),
        ("kv: {}, view: {gpu0: rw}", 2, 4),
        ("kv: {gpu0: r}, view: {gpu0: rw}", 4, 2),
    ],
)
def test_memory_without_writer_is_not_counted_as_passed(access: str, looked_at: int, not_checked: int) -> None:
    head = SPEC.partition("access")[0]
    tally = tallies(reported(f"{head}access: {{{access}}}").checks)["bytes"]
    assert (tally.looked_at, tally.as_declared) == (looked_at, looked_at)
    assert tally.not_checked == not_checked
    assert (tally.why_not or "").startswith("no device can write them")


def test_report_has_resources_before_held_and_after() -> None:
    left = reported().left
    assert left
    nothing = {"reservations": 0, "handles": 0, "mappings": 0, "contexts": 0}
    assert left.ledger_before == left.ledger_after == nothing
    assert left.ledger_held == {"reservations": 2, "handles": 2, "mappings": 3, "contexts": 2}
    assert left.fds_before == left.fds_after
    assert [device.device for device in left.memory] == ["gpu0", "gpu1"]
    assert [device.before - (device.held or 0) for device in left.memory] == [2 * MIB, 4 * MIB]
    assert all(device.before == device.after for device in left.memory)


def test_every_phase_is_timed_with_its_steps() -> None:
    times = reported().times
    assert [time.phase for time in times] == [
        "open", "reserve", "create", "map", "grant", "settle", "check", "write", "read", "take down"
    ]  # fmt: skip
    assert [time.steps for time in times] == [2, 2, 2, 3, 2, 2, 13, 4, 10, 13]
    assert all(0 < time.seconds < 60 for time in times)


@pytest.mark.parametrize(
    ("method", "at", "step", "place"),
    [
        ("mem_address_reserve", 2, "reserve view", "test.yaml:4:41"),
        ("mem_create", 2, "create cold", "test.yaml:7:3"),
        ("mem_map", 3, "map hot", "test.yaml:8:30"),
        ("mem_set_access", 1, "grant kv", "test.yaml:9:10"),
        ("mem_retain_allocation_handle", 1, "check of map hot", "test.yaml:8:12"),
        ("mem_get_allocation_properties_from_handle", 1, "check of create hot", "test.yaml:6:3"),
        ("device_primary_ctx_retain", 1, "retain context gpu0", None),
        ("memcpy_htod", 1, "verification by bytes", None),
        ("memcpy_dtoh", 4, "verification by bytes", None),
        ("mem_get_info", 1, "free memory before building", None),
    ],
)
def test_failure_names_step_call_and_position(method: str, at: int, step: str, place: str | None) -> None:
    report = reported(at=at, only={method})
    assert report.failure
    assert (report.failure.step, report.failure.place) == (step, place)
    assert report.failure.error.endswith(": CUDA_ERROR_UNKNOWN")
    assert (report.outcome, report.exit_code) == ("failed", 4)
    assert report.leaks == ()
    assert not report.checks or not report.checks.different


def test_a_descriptor_that_is_left_is_named_with_its_file(tmp_path: Path) -> None:
    """Which was open before, too."""

    class Opening(Progress):
        def phase(self, name: str, steps: int, processes: Mapping[str, int] = NO_PROCESSES) -> None:
            super().phase(name, steps, processes)
            if name == "create":
                stack.enter_context((tmp_path / "left").open("w"))

    with ExitStack() as stack, SimDriver(MACHINE) as driver, (tmp_path / "left").open("w"):
        driver.init()
        report = apply.apply(run_request(SPEC, MACHINE), Ledger(driver), progress=Opening())
    (leak,) = report.leaks
    assert (leak.what, leak.error) == ("1 file descriptor", f"open after taking down: {tmp_path / 'left'}")
    assert report.exit_code == 5


def test_leak_names_position_and_what_stays() -> None:
    report = reported(at=1, only={"mem_unmap"})
    (leak,) = report.leaks
    assert (leak.what, leak.place, leak.stays) == ("mapping of hot in view at 0x0", "test.yaml:8:30", ("range view",))
    assert (report.outcome, report.exit_code) == ("leaked", 5)
    assert report.left
    assert report.left.ledger_after == {"reservations": 1, "handles": 0, "mappings": 1, "contexts": 0}


def test_failure_has_the_hint_of_its_error() -> None:
    big = "chunks: {a: {location: gpu0, size: 81408MiB}}"
    report = run_on(_Full(MACHINE), run_request(big, MACHINE)).report
    assert report.failure
    assert report.failure.error == "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY"
    assert "memtopo who" in (report.failure.hint or "")


class _Full(SimDriver):
    """Its memory is taken by something else."""

    def init(self) -> None:
        super().init()
        self.mem_create(2 << 20, Properties(gpu(0)))


def test_changed_free_memory_is_a_note_and_no_failure() -> None:
    report = run_on(faulty_drivers.SharedMachine(MACHINE), run_request(SPEC, MACHINE)).report
    assert report.exit_code == 0
    assert [note.partition(" has ")[0] for note in report.notes] == ["gpu0", "gpu1"]
    assert all(
        note.endswith("less free than before; another process may use it, or keep it by an open descriptor")
        for note in report.notes
    )


def test_report_lists_the_first_differences_and_counts_all() -> None:
    count = MAX_DIFFERENCES + 50
    text = f"ranges: {{kv: {{size: {2 * count}MiB}}}}\nchunks: {{p: {{location: gpu0, size: 2MiB, count: {count}}}}}\n"
    text += "map: {kv: p}\naccess: {kv: {gpu0: rw}}"
    report = run_on(faults.GrantsTooMuch(SimDriver(MACHINE)), run_request(text, MACHINE)).report
    assert report.checks
    assert len(report.checks.differences) == MAX_DIFFERENCES
    assert report.checks.different == count
    tally = tallies(report.checks)["access"]
    assert tally.looked_at - tally.as_declared == count


def test_a_step_that_is_stopped_while_it_waits_is_no_failure_of_the_run() -> None:
    received: list[int] = []

    class Waiting(HandleSource):
        def attach(self, holder: str) -> int:
            del holder
            return 0

        def take(self, holder: str, export: str, index: int) -> Handle:
            del holder, export, index
            received.append(15)
            raise Stopped

    text = f"{SPEC}imports: {{w: {{from: other/w, location: gpu0, size: 2MiB}}}}\n"
    with SimDriver(MACHINE) as driver:
        driver.init()
        ledger = Ledger(driver)
        request = run_request(text, MACHINE)
        report = apply.apply(request, ledger, stop=lambda: sum(received), handle_source=Waiting())
    assert (report.outcome, report.exit_code, report.failure, report.leaks) == ("interrupted", 143, None, ())
    assert ledger.empty


def test_the_failure_of_a_run_is_its_first_though_its_teardown_has_one_too() -> None:
    """Free memory cannot be measured any more once a chunk could not be created."""
    report = run(run_request(SPEC, MACHINE), MACHINE, at=3, only={"mem_get_info", "mem_create"}, every=True).report
    assert report.failure
    assert (report.exit_code, report.failure.step, report.left) == (4, "create hot", None)


def test_a_run_leaves_no_reference_cycle() -> None:
    """A run has a few objects for each chunk, which the collector would have to go through."""
    driver, source = SimDriver(MACHINE), HandleSource()
    alive = weakref.ref(source)
    driver.init()
    gc.disable()
    try:
        assert apply.apply(run_request(SPEC, MACHINE), Ledger(driver), handle_source=source).outcome == "ok"
        del source
        assert alive() is None
    finally:
        gc.enable()
    driver.close()
