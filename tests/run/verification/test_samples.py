"""Verification by samples: differences from the spec are found and named."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from memtopo.driver.kernels import pattern, word
from memtopo.driver.ledger import Ledger
from memtopo.driver.types import Access, Grant, Location, Properties, gpu
from memtopo.drivers.sim import SimDriver
from memtopo.executor import STRIDE
from memtopo.kinds.layout import Layout
from memtopo.kinds.step import Finding
from memtopo.kinds.views import Member, mapped_memory
from memtopo.plans.report import Check, Checks, Tally
from memtopo.run.apply import apply
from memtopo.run.reports import FindingTally
from memtopo.run.verification.full import FullVerifier
from memtopo.run.verification.samples import WINDOW, SampleVerifier
from memtopo.run.verification.verifier import VerificationContext
from tests.helpers import faults
from tests.helpers.failing_driver import Failing
from tests.helpers.faults import Faulty
from tests.helpers.faulty_drivers import MakesFaulty, run_on
from tests.helpers.machines import invented
from tests.helpers.reports import tallies
from tests.helpers.specs import Run, run, run_request, validate_text

SPEC = """
ranges: {kv: {size: 8MiB}, view: {size: 2MiB}}
chunks: {hot: {location: gpu0, size: 2MiB, handles: fd}, cold: {location: gpu0, size: 2MiB}}
map: {kv: [hot, cold], view: hot}
access: {kv: {gpu0: rw}, view: {gpu0: r}}
"""


class LosesThirdWrite(faults.LosesWrite):
    """Loses the third copy to memory."""

    lost = 3


def lied(kind: MakesFaulty, text: str = SPEC) -> tuple[Run, Checks]:
    """The run of a spec on a driver that lies; everything was undone all the same."""
    machine = invented(2)
    done = run_on(kind(SimDriver(machine)), run_request(text, machine))
    assert done.ledger.empty
    assert done.report.checks, done.report
    return done, done.report.checks


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (faults.SwapsMappings, {
            ("mapped chunk", "hot in kv at 0x0"), ("mapped chunk", "cold in kv at 0x200000"),
            ("bytes", "hot in view at 0x0 by gpu0"), ("bytes", "hot in view at 0x1fffc0 by gpu0"),
        }),
        (LosesThirdWrite, {("bytes", "cold in kv at 0x200000 by gpu0")}),
        (faults.FlipsBit, {("bytes", "hot in kv at 0x1fffc0 by gpu0")}),
        (faults.GrantsTooMuch, {
            ("access", "hot in kv at 0x0 for gpu1"), ("access", "cold in kv at 0x200000 for gpu1"),
            ("access", "hot in view at 0x0 for gpu1"),
        }),
        (faults.GrantsReadingOnly, {
            ("access", "hot in kv at 0x0 for gpu0"), ("access", "cold in kv at 0x200000 for gpu0"),
        }),
        (faults.GrantsNothing, {
            ("access", "hot in kv at 0x0 for gpu0"), ("access", "cold in kv at 0x200000 for gpu0"),
            ("access", "hot in view at 0x0 for gpu0"),
        }),
        (faults.LosesHandleTypes, {("properties", "hot")}),
    ],
    ids=lambda each: each.__name__ if isinstance(each, type) else "",
)  # fmt: skip
def test_every_difference_is_found_and_no_other(kind: MakesFaulty, expected: set[tuple[str, str]]) -> None:
    done, checks = lied(kind)
    assert {(each.aspect, each.subject) for each in checks.differences} == expected
    assert checks.different == len(checks.differences) == len(expected)
    assert (done.report.outcome, done.report.exit_code) == ("different", 6)
    assert done.report.leaks == ()


MANY = """
ranges: {kv: {size: 600MiB}}
chunks: {page: {location: gpu0, size: 2MiB, count: 300}}
map: {kv: [page]}
access: {kv: {gpu0: rw, gpu1: r}}
"""
"""Chunks whose ends are copied in batches."""


def copies_of(text: str) -> tuple[Counter[int], Checks]:
    """Bytes of the copies of a run that are made in batches, and its checks."""
    copies = Counter[int]()

    class Counting(Faulty):
        def memcpy_async(self, destination: int, source: int, count: int, stream: int = 0) -> None:
            copies[count] += 1
            self._driver.memcpy_async(destination, source, count, stream)

    done, checks = lied(Counting, text)
    assert done.report.outcome == "ok"
    return copies, checks


def test_the_ends_of_many_chunks_are_verified_in_batches() -> None:
    """The end of a chunk with the start of the next, but at ends of batches: written by one GPU, and read by both."""
    copies, checks = copies_of(MANY)
    splits = 600 // STRIDE
    assert copies == {2 * WINDOW: 3 * (299 - splits), WINDOW: 3 * (2 + 2 * splits)}
    assert (tallies(checks)["bytes"], checks.different) == (Tally("bytes", 1200, 1200), 0)


@pytest.mark.parametrize(
    ("text", "copies"),
    [
        (MANY.replace("location: gpu0", "location: [gpu0, gpu1]"), {WINDOW: 3 * 600}),
        (MANY.replace("location: gpu0", "location: host:0").replace("{gpu0", "{host: rw, gpu0"), {}),
        ("buffers: {b: {location: gpu0, size: 2MiB, count: 300}}", {}),
    ],
)
def test_chunks_on_different_gpus_are_copied_apart_and_other_memory_without_batches(
    text: str, copies: dict[int, int]
) -> None:
    assert copies_of(text)[0] == copies


def test_one_of_many_chunks_that_differs_is_found() -> None:
    class Stale(Faulty):
        """Drops what is copied to the start of one chunk."""

        def memcpy_async(self, destination: int, source: int, count: int, stream: int = 0) -> None:
            start = [*self.mapped, *[0] * 300][200]
            own = destination <= start < destination + count
            self._driver.memcpy_async(destination, source, start - destination if own else count, stream)

    _, checks = lied(Stale, MANY)
    subjects = {(each.aspect, each.subject) for each in checks.differences}
    assert subjects == {("bytes", f"page.200 in kv at 0x19000000 by gpu{device}") for device in (0, 1)}


@pytest.mark.parametrize("method", ["mem_host_alloc", "stream_create"])
def test_many_chunks_are_verified_one_by_one_without_page_locked_memory_or_a_stream(method: str) -> None:
    """And what there was of it is freed."""
    machine = invented(2)
    done = run(run_request(MANY, machine), machine, at=1, only={method}, every=True)
    tally = tallies(done.report.checks)["bytes"]
    assert (done.report.outcome, tally.looked_at, tally.as_declared) == ("ok", 1200, 1200)
    assert done.ledger.empty


def test_a_refused_batch_is_an_error_if_each_of_its_windows_can_be_copied_alone() -> None:
    machine = invented(2)
    done = run(run_request(MANY, machine), machine, at=1, only={"memcpy_async"}, every=True)
    assert done.report.failure
    assert (done.report.outcome, done.report.failure.error) == ("failed", "cuMemcpyAsync: CUDA_ERROR_UNKNOWN")


@pytest.mark.parametrize(
    ("text", "method"),
    [(SPEC, "memcpy_htod"), (SPEC, "memcpy_dtoh"), (MANY, "host_write"), (MANY, "host_read")],
)
def test_no_further_window_or_batch_is_copied_after_a_requested_stop(text: str, method: str) -> None:
    machine = invented(2)
    with SimDriver(machine) as sim:
        sim.init()
        counted = Failing(sim, only={method})
        report = apply(run_request(text, machine), Ledger(counted), stop=lambda: 2 * (counted.calls > 0))
    assert (report.outcome, counted.calls, report.leaks) == ("interrupted", 1, ())


@pytest.mark.parametrize("access", [Access.R, Access.NONE])
def test_one_of_many_chunks_without_access_is_named(access: Access) -> None:
    class LosesAccess(Faulty):
        """Takes the access of the 200th mapping away after all are granted, and claims that it has it."""

        def mem_set_access(self, address: int, size: int, grants: tuple[Grant, ...]) -> None:
            self._driver.mem_set_access(address, size, grants)
            self.lost = address + 200 * (2 << 20)
            self._driver.mem_set_access(self.lost, 2 << 20, (Grant(gpu(0), access),))

        def mem_get_access(self, address: int, location: Location) -> int:
            found = self._driver.mem_get_access(address, location)
            return Access.RW if (address, location) == (self.lost, gpu(0)) else found

    _, checks = lied(LosesAccess, MANY)
    subjects = [(each.aspect, each.subject) for each in checks.differences]
    assert subjects == [("permitted", "copy to page.200 in kv at 0x19000000 by gpu0")]


def test_a_correct_driver_has_no_differences() -> None:
    done, checks = lied(Faulty)
    assert (checks.differences, done.report.exit_code) == ((), 0)


def test_a_difference_has_expected_and_observed_value_and_path() -> None:
    _, checks = lied(faults.GrantsTooMuch)
    first = checks.differences[0]
    assert (first.wanted, first.seen, first.path) == ("none", "rw", ("map", "kv", 0))
    _, checks = lied(LosesThirdWrite)
    (lost,) = checks.differences
    assert lost.seen == "00000000 00000000 00000000 00000000"
    assert len(lost.wanted) == len(lost.seen)
    assert lost.path == ("chunks", "cold")


def test_bytes_are_not_checked_after_the_driver_refuses_to_write() -> None:
    _, checks = lied(faults.GrantsReadingOnly)
    tally = tallies(checks)["bytes"]
    assert (tally.looked_at, tally.not_checked) == (0, 6)
    assert tally.why_not
    assert tally.why_not.startswith("the driver reported cuMemcpyHtoD")


@pytest.mark.parametrize("fixed", [True, False])
def test_a_missed_address_is_a_difference_only_if_fixed(fixed: bool) -> None:
    machine = invented(2)
    with SimDriver(machine) as driver:
        driver.init()
        taken = driver.mem_address_reserve(2 << 20)
        text = SPEC.replace("view: {size", f"view: {{address: {taken:#x}, fixed: {str(fixed).lower()}, size")
        report = run_on(driver, run_request(text, machine)).report
    assert report.exit_code == (6 if fixed else 0)
    assert report.checks
    found = [(each.aspect, each.subject, each.wanted, each.path) for each in report.checks.differences]
    assert found == ([("address", "view", hex(taken), ("ranges", "view"))] if fixed else [])


def test_a_fixed_address_that_is_met_is_as_declared() -> None:
    machine = invented(2)
    text = SPEC.replace("view: {size", "view: {address: 0x200000000000, fixed: true, size")
    report = run(run_request(text, machine), machine).report
    assert report.exit_code == 0
    assert tallies(report.checks)["address"].as_declared == 1


def test_a_missed_alignment_is_a_difference() -> None:
    _, checks = lied(faults.IgnoresAlignment, SPEC.replace("kv: {size", "kv: {align: 4MiB, size"))
    assert [(each.aspect, each.subject) for each in checks.differences] == [("alignment", "kv")]


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 1 << 40), st.integers(0, 200))
def test_a_pattern_depends_on_seed_and_offset_alone(seed: int, other: int, offset: int, size: int) -> None:
    offset *= 8
    bytes_ = pattern(seed, offset, WINDOW)
    assert bytes_ == b"".join(word(seed, at).to_bytes(8, "little") for at in range(offset, offset + WINDOW, 8))
    assert pattern(seed, offset, size) == (bytes_ + pattern(seed, offset + WINDOW, 4 * WINDOW))[:size]
    assert bytes_ != pattern(seed, offset + WINDOW, WINDOW)
    assert (bytes_ == pattern(other, offset, WINDOW)) == (seed == other)


def test_ten_thousand_chunks_have_different_patterns() -> None:
    seen = {pattern((number + 1) * 0x85EBCA6B & 0xFFFFFFFF, 0, WINDOW) for number in range(10_000)}
    assert len(seen) == 10_000
    assert bytes(WINDOW) not in seen


def test_memory_of_other_code_in_the_process_is_not_written() -> None:
    machine = invented(1)
    with SimDriver(machine) as driver:
        driver.init()
        theirs = _theirs(driver)
        text = "ranges: {kv: {size: 8MiB}}\nchunks: {c: {location: gpu0, size: 2MiB, count: 4}}\nmap: {kv: c}\n"
        found = _apply(driver, text + "access: {kv: {gpu0: rw}}")
        assert found.report.exit_code == 0
        assert driver.memcpy_dtoh(theirs, 2 << 20) == b"\xa5" * (2 << 20)


def _apply(driver: SimDriver, text: str) -> Run:
    failing = Failing(driver, 0)
    ledger = Ledger(failing)
    return Run(apply(run_request(text, driver.machine), ledger), ledger, failing)


def _theirs(driver: SimDriver) -> int:
    address = driver.mem_address_reserve(2 << 20)
    driver.mem_map(address, 2 << 20, driver.mem_create(2 << 20, Properties(gpu(0))))
    driver.mem_set_access(address, 2 << 20, (Grant(gpu(0), Access.RW),))
    driver.ctx_push_current(driver.device_primary_ctx_retain(0))
    driver.memset_d8(address, 0xA5, 2 << 20)
    return address


@pytest.mark.parametrize("size", [1, 16, 17, 64, 65, 96, 100, 127, 128, 129, 4095])
def test_managed_memory_of_any_size_is_as_declared(size: int) -> None:
    """Both ends are verified from both sides, whether or not they would overlap."""
    machine = invented(1)
    checks: tuple[Check, ...] = ("fast", "full")
    for check in checks:
        report = run(run_request(f"managed: {{m: {{size: {size}B}}}}", machine, check), machine).report
        assert report.exit_code == 0, report.checks


def test_a_difference_shows_the_first_bytes_that_differ() -> None:
    tally = FindingTally()
    tally.add([Finding("bytes", "a", bytes(64), bytes(40) + b"\1" + bytes(23))])
    (shown,) = tally.checks().differences
    assert shown.wanted == "+0x20: 00000000 00000000 00000000 00000000"
    assert shown.seen == "+0x20: 00000000 00000000 01000000 00000000"


def test_a_missed_address_has_its_position_and_a_hint() -> None:
    machine = invented(2)
    text = SPEC.replace("view: {size", "view: {address: 0x600000000000, fixed: true, size")  # not simulated
    request = replace(run_request(text, machine), position_of=lambda path: f"test.yaml: {path[-1]}")
    report = run(request, machine).report
    assert report.checks
    (difference,) = report.checks.differences
    assert difference.place == "test.yaml: view"
    assert "fact 11" in str(difference.hint)


def context_of(text: str) -> VerificationContext:
    machine = invented(2)
    geometry = validate_text(text, machine).geometry
    assert geometry
    memory = {"": mapped_memory(Member(geometry), machine)}
    return VerificationContext("", memory, {"": []}, SimDriver(machine), Layout())


def test_a_chunk_is_written_once_and_read_at_each_of_its_mappings_if_it_may_be_written() -> None:
    text = """
ranges: {kv: {size: 16MiB}, again: {size: 8MiB}, fixed: {size: 2MiB}}
chunks: {zero: {location: gpu0, size: 2MiB}, page: {location: gpu1, size: 2MiB, count: 5}}
map: {kv: [{chunk: zero, each: 4}, page.0:4], again: page.1:4, fixed: page.4}
access: {kv: {gpu0: rw, gpu1: r}, again: {gpu0: rw}, fixed: {gpu0: r, gpu1: r}}
"""
    verifier = SampleVerifier(context_of(text))
    assert verifier.written(0) == 2 * (1 + 4)
    assert verifier.expected(0) == 2 * (2 * (4 + 4) + 3)
    assert [count for count, _ in verifier.not_verified()] == [2]


@pytest.mark.parametrize("method", [SampleVerifier, FullVerifier])
def test_imported_memory_is_reported_as_not_written(method: type[SampleVerifier | FullVerifier]) -> None:
    """Memory of another layout is not called external memory, which is that of another API."""
    text = """
ranges: {kv: {size: 4MiB}}
imports: {w: {from: weights/w, location: gpu0, size: 2MiB, count: 2}}
map: {kv: w}
access: {kv: {gpu0: rw}}
"""
    verifier = method(context_of(text))
    assert verifier.expected(0) == 0
    ((count, why),) = set(verifier.not_verified())
    assert count
    assert why == "this run did not create that memory, and does not write it"
