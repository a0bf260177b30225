"""Full verification: every byte, by kernels."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from memtopo import machine
from memtopo.driver.kernels import Area
from memtopo.driver.types import Access, Grant, Location, LocationKind, gpu
from memtopo.drivers.sim import SimDriver
from memtopo.kinds.views import Identity, MappedMemory
from memtopo.machine import MachineLine
from memtopo.output import console
from memtopo.output import report as rendering
from memtopo.plans.report import Check, Checks, Report, Tally
from memtopo.run import processes
from memtopo.run.verification.full import MAX_BATCH_AREAS, MAX_BATCH_BYTES, Task, batches, views
from memtopo.run.verification.rounds import FORBIDDEN, UNSAFE
from memtopo.run.verification.verifier import MappedView
from tests.helpers import faults, faulty_drivers
from tests.helpers.faults import Faulty
from tests.helpers.faulty_drivers import MakesFaulty, run_on
from tests.helpers.machines import invented, with_multicast
from tests.helpers.reports import tallies
from tests.helpers.samples import sampled
from tests.helpers.specs import ENSEMBLES, EVERY_SPEC, PLANNED_ONLY, Run, ensemble, run, run_request, server_and_readers

SPEC = """
ranges: {kv: {size: 12MiB}, view: {size: 2MiB}}
chunks:
  hot: {location: gpu0, size: 2MiB}
  cold: {location: gpu0, size: 2MiB}
  long: {location: gpu1, size: 6MiB}
map: {kv: [hot, cold, long], view: hot}
access: {kv: {gpu0: rw, gpu1: rw}, view: {gpu0: r}}
"""
WRONG_EXPORT_WORKER = (sys.executable, "-P", str(Path(__file__).parent.parent / "processes" / "wrong_export_worker.py"))
ALL = "every byte"


def checked(kind: MakesFaulty, check: Check = "full", text: str = SPEC) -> tuple[Run, Checks]:
    """The run of a spec on a driver; everything was undone all the same."""
    made = invented(2)
    done = run_on(kind(SimDriver(made)), run_request(text, made, check))
    assert done.ledger.empty
    assert done.report.checks, done.report
    return done, done.report.checks


def differing(checks: Checks) -> set[tuple[str, str]]:
    assert checks.different == len(checks.differences)
    return {(each.aspect, each.subject) for each in checks.differences}


def test_every_reader_verifies_the_first_fill_and_two_verify_later_ones() -> None:
    done, checks = checked(Faulty)
    assert (checks.different, done.report.exit_code) == (0, 0)
    assert tallies(checks)[ALL] == Tally(ALL, 7 + 5, 7 + 5)
    assert checks.rates == ()
    assert any("stand for every byte" in note for note in done.report.notes)


@pytest.mark.parametrize(
    ("kind", "whole", "fast"),
    [
        (faults.SwapsMappings, {"hot + 0x0 in view at 0x0 by gpu0"}, True),
        (faults.LosesFillsOfOneGpu, {
            "hot + 0x0 in kv at 0x0 by gpu0", "hot + 0x0 in view at 0x0 by gpu0",
            "cold + 0x0 in kv at 0x200000 by gpu0", "long + 0x0 in kv at 0x400000 by gpu0",
            "long + 0x0 in kv at 0x400000 by gpu1",
        }, False),
        (faults.MapsFirstInPlaceOfSecond, {
            "hot + 0x0 in kv at 0x0 by gpu0", "hot + 0x0 in kv at 0x0 by gpu1", "hot + 0x0 in view at 0x0 by gpu0",
        }, True),
        (faults.SharesMemoryOfChunks, {
            "hot + 0x0 in kv at 0x0 by gpu0", "hot + 0x0 in kv at 0x0 by gpu1", "hot + 0x0 in view at 0x0 by gpu0",
        }, True),
        (faulty_drivers.LosesTheLastGranule, {
            "long + 0x400000 in kv at 0x800000 by gpu0", "long + 0x400000 in kv at 0x800000 by gpu1",
        }, True),
    ],
    ids=lambda each: each.__name__ if isinstance(each, type) else "",
)  # fmt: skip
def test_wrong_bytes_are_named_by_chunk_offset_range_and_gpu(kind: MakesFaulty, whole: set[str], fast: bool) -> None:
    """A fast check finds what its samples can show."""
    done, checks = checked(kind)
    assert {each.subject for each in checks.differences if each.aspect == ALL} == whole
    assert (done.report.outcome, done.report.exit_code) == ("different", 6)
    done, checks = checked(kind, "fast")
    assert any(each.aspect == "bytes" for each in checks.differences) == fast
    assert done.report.exit_code == (6 if fast else 0)


def test_a_difference_that_is_not_found_again_is_a_difference() -> None:
    done, checks = checked(faulty_drivers.ReadsWronglyOnce)
    assert (done.report.exit_code, len([each for each in checks.differences if each.aspect == ALL])) == (6, 1)


def test_a_difference_names_the_writer_and_the_number_of_words() -> None:
    _, checks = checked(faults.LosesFillsOfOneGpu)
    found = next(each for each in checks.differences if each.subject.startswith("cold"))
    assert found.wanted.endswith("stored by gpu1")
    assert found.seen.endswith("1,024 words differ")
    assert found.path == ("chunks", "cold")
    assert found.wanted[:18] != found.seen[:18]


@pytest.mark.parametrize("kind", [faults.GrantsTooMuch, faults.GrantsReadingOnly, faults.GrantsNothing])
def test_no_kernel_runs_when_an_access_is_not_as_declared(kind: MakesFaulty) -> None:
    text = SPEC.replace("{gpu0: rw, gpu1: rw}", "{gpu0: rw}").replace("gpu1, size", "gpu0, size")
    done, checks = checked(kind, text=text)
    assert {aspect for aspect, _ in differing(checks)} <= {"access", "end of range"}
    found = tallies(checks)[ALL]
    assert (found.looked_at, found.not_checked, found.why_not) == (0, 4, UNSAFE)
    assert done.report.exit_code == 6
    assert done.report.failure is None


def test_memory_that_the_driver_keeps_is_noted() -> None:
    """Its handle was released, and no call with a released handle is safe (fact 27)."""
    made = invented(2)
    done = run_on(faults.KeepsChunk(SimDriver(made)), run_request(SPEC, made, "full"))
    (note,) = (note for note in done.report.notes if "less free than before" in note)
    assert note.startswith("gpu0 has 2,097,152 bytes less")
    assert done.report.exit_code == 0


@pytest.mark.parametrize(("access", "check"), [("r", "full"), ("rw", "full"), ("r", "fast")])
def test_an_importer_finds_the_bytes_of_a_wrong_chunk(
    access: str, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMTOPO_WRONG_EXPORT", "server")
    text = server_and_readers(3, access=f"gpu1: {access}")
    report = processes.apply(ensemble(text, machine.load("h200x2"), worker=WRONG_EXPORT_WORKER, check=check))
    assert (report.outcome, report.exit_code) == ("different", 6), report
    assert report.checks
    subjects = {each.subject for each in report.checks.differences}
    assert any(each.startswith("reader: w.0") for each in subjects)
    assert not any("w.2" in each for each in subjects)


def shared(access: str, readers: int = 0) -> Report:
    text = server_and_readers(3, readers, f"gpu1: {access}")
    report = processes.apply(ensemble(text, machine.load("h200x2"), check="full"))
    assert (report.outcome, report.check) == ("ok", "full"), report
    return report


@pytest.mark.parametrize(("access", "seen"), [("r", 6), ("rw", 6 + 3)])
def test_processes_verify_fills_of_others_and_importers_fill_in_rounds_of_their_own(access: str, seen: int) -> None:
    assert tallies(shared(access).checks)[ALL].looked_at == seen


@pytest.mark.parametrize("readers", [0, 2])
def test_an_imported_chunk_of_a_sibling_has_one_replica(readers: int) -> None:
    found = tallies(shared("r", readers).checks)[FORBIDDEN]
    assert found.looked_at == 1
    assert found.looked_at == found.as_declared
    assert not found.not_checked, found.why_not


@pytest.mark.parametrize(
    ("text", "count", "why"),
    [
        (SPEC.replace("rw", "r"), 4, "no gpu can write them"),
        (SPEC.replace("access: {kv: {gpu0: rw, gpu1: rw}, view: {gpu0: r}}", "access: {kv: {gpu0: rw}}"), 1,
         "no gpu can read them there"),
    ],
)  # fmt: skip
def test_mappings_without_writer_or_reader_are_not_checked(text: str, count: int, why: str) -> None:
    done, checks = checked(Faulty, text=text)
    found = tallies(checks)[ALL]
    assert (found.not_checked, found.why_not) == (count, why)
    assert done.report.exit_code == 0


def test_every_gpu_and_every_mapping_with_write_access_fills_once() -> None:
    text = "ranges: {r: {size: 2MiB, count: 5}}\nchunks: {c: {location: gpu0, size: 2MiB}}\n"
    text += "map: {r.0: c, r.1: c, r.2: c, r.3: c, r.4: c}\naccess: {r: {gpu0: rw, gpu1: rw}}\n"
    made = invented(2)
    report = run(run_request(text, made, "full"), made).report
    assert report.exit_code == 0, report
    fills = next(time.steps for time in report.times if time.phase == "fill")
    assert fills == 2 + 4
    assert tallies(report.checks)[ALL].looked_at == 10 + 5 * 2


@pytest.mark.parametrize("check", ["none", "fast", "full"])
def test_check_none_checks_nothing(check: Check) -> None:
    made = invented(2)
    report = run(run_request(SPEC, made, check), made).report
    assert (report.outcome, report.check) == ("ok", check)
    assert (report.checks is None) == (check == "none")
    assert report.left
    assert not any(report.left.ledger_after.values())


@pytest.mark.parametrize("path", sampled(EVERY_SPEC))
def test_every_shipped_spec_passes_a_full_check(path: Path) -> None:
    made = machine.load("h200x4")
    made = with_multicast(made) if path in PLANNED_ONLY else made
    report = processes.apply(ensemble(path, made, check="full")) if path in ENSEMBLES else run(
        run_request(path, made, "full"), made
    ).report  # fmt: skip
    assert report.outcome == "ok", report


@pytest.mark.parametrize("method", ["module_load_data", "fill", "verify", "module_unload"])
def test_a_failed_kernel_call_fails_the_run(method: str) -> None:
    """Everything is undone; kernels that cannot be unloaded are named."""
    made = invented(2)
    done = run(run_request(SPEC, made, "full"), made, at=2, only={method})
    report = done.report
    if method == "module_unload":
        assert [leak.what for leak in report.leaks] == ["kernels of gpu0"]
    else:
        assert (report.outcome, report.exit_code) == ("failed", 4)
        assert done.ledger.empty


def test_a_mapped_hole_is_a_difference() -> None:
    made = invented(2)
    text = SPEC.replace("kv: {size: 12MiB}", "kv: {size: 14MiB}")
    checks: tuple[Check, ...] = ("fast", "full")
    for check in checks:
        report = run_on(faults.ReportsHolesAsMapped(SimDriver(made)), run_request(text, made, check)).report
        assert report.checks
        assert ("hole", "kv at 0xa00000") in differing(report.checks)


def test_a_later_write_to_a_chunk_with_fewer_writers_is_found() -> None:
    text = """
ranges: {a: {size: 2MiB}, b: {size: 2MiB}}
chunks: {one: {location: gpu0, size: 2MiB}, two: {location: gpu0, size: 2MiB}}
map: {a: one, b: two}
access: {a: {gpu0: rw}, b: {gpu0: rw, gpu1: rw}}
"""
    _, checks = checked(faults.StoresIntoFirstMapping, text=text)
    assert {(each.aspect, each.subject) for each in checks.differences} == {(ALL, "one + 0x0 in a at 0x0 by gpu0")}


def test_rates_are_measured_by_gpu_and_location_on_real_machines() -> None:
    made = invented(2)
    real = replace(
        run_request(SPEC, made, "full"), machine=MachineLine("local", simulated=False, devices=(), driver="")
    )
    report = run_on(SimDriver(made), real).report
    assert report.checks
    rates = {(each.verb, each.device, each.memory): each.bytes for each in report.checks.rates}
    granule = faults.GRANULE
    assert rates == {
        ("fill", "gpu0", "gpu0"): 2 * granule, ("fill", "gpu0", "gpu1"): 3 * granule,
        ("fill", "gpu1", "gpu0"): 2 * granule, ("fill", "gpu1", "gpu1"): 3 * granule,
        ("verify", "gpu0", "gpu0"): 3 * granule + 3 * granule, ("verify", "gpu0", "gpu1"): 3 * granule + 3 * granule,
        ("verify", "gpu1", "gpu0"): 2 * granule, ("verify", "gpu1", "gpu1"): 3 * granule + 3 * granule,
    }  # fmt: skip
    assert not any("stand for" in note for note in report.notes)
    stream = io.StringIO()
    console.show(rendering.text_page(report), stream)
    assert "bandwidth\n" in stream.getvalue()


_GPU0 = gpu(0)


def task(size: int, device: int = 0, location: Location = _GPU0) -> Task:
    """An area of so many bytes that a GPU is to fill."""
    memory = MappedMemory(Identity("", "c"), "c", size, location, (), ())
    return Task(memory, MappedView("", device, "r", 0), Area(0, size, 0))


def test_views_of_the_creator_come_first() -> None:
    """The importer is named first, and its own view is the last one."""
    identity = Identity("server", "w")
    shared = MappedMemory(identity, "w", 2 << 20, gpu(0), (), (("r", 0, (Grant(gpu(0), Access.RW),)),))
    memory = {"reader": [shared], "server": [shared]}
    assert [view.process for view in views(memory, Access.RW)[identity]] == ["server", "reader"]


@pytest.mark.parametrize(
    ("sizes", "lengths"),
    [
        ([], []),
        ([MAX_BATCH_BYTES // 2] * 5, [2, 2, 1]),
        ([MAX_BATCH_BYTES // 2, MAX_BATCH_BYTES // 2 + 1, 1], [1, 2]),
        ([MAX_BATCH_BYTES * 2, MAX_BATCH_BYTES * 2], [1, 1]),
        ([1] * (MAX_BATCH_AREAS + 1), [MAX_BATCH_AREAS, 1]),
    ],
)
def test_a_batch_has_at_most_eight_gibibytes_and_4096_areas(sizes: list[int], lengths: list[int]) -> None:
    """An area that is larger has a batch of its own."""
    assert (MAX_BATCH_BYTES, MAX_BATCH_AREAS) == (8 << 30, 4096)
    assert [len(batch) for batch in batches(map(task, sizes))] == lengths


def test_a_batch_is_of_one_gpu_and_of_memory_of_one_location() -> None:
    host = Location(LocationKind.HOST)
    tasks = [task(1, 0), task(2, 1), task(3, 0), task(4, 0, gpu(1)), task(5, 1), task(6, 0, host)]
    assert sorted([each.area.size for each in batch] for batch in batches(tasks)) == [[1, 3], [2, 5], [4], [6]]
