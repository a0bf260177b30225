"""A full check: what a driver did otherwise than it was asked is found, and named; what is well is not."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from memtopo import machine
from memtopo.driver.sim import SimDriver
from memtopo.output import report as rendering
from memtopo.output import terminal
from memtopo.plans.report import Check, Checks, MachineLine, Report, Tally
from memtopo.run import processes
from memtopo.run.verification.rounds import FORBIDDEN, UNSAFE
from tests.helpers import liars
from tests.helpers.liars import run_on
from tests.helpers.machines import invented
from tests.helpers.specs import ENSEMBLES, EVERY_SPEC, Run, ensemble, run, run_request

SPEC = """
ranges: {kv: {size: 12MiB}, view: {size: 2MiB}}
chunks:
  hot: {location: gpu0, size: 2MiB}
  cold: {location: gpu0, size: 2MiB}
  long: {location: gpu1, size: 6MiB}
map: {kv: [hot, cold, long], view: hot}
access: {kv: {gpu0: rw, gpu1: rw}, view: {gpu0: r}}
"""
LYING = (sys.executable, "-P", str(Path(__file__).parent / "processes" / "lying_worker.py"))
SHARED = """
processes:
  server:
    ranges: {w: {size: 6MiB}}
    chunks: {w: {location: gpu0, size: 2MiB, count: 3, handles: fd}}
    map: {w: [w]}
    access: {w: {gpu0: rw}}
    exports: {w: {chunk: w, via: fd}}
  reader:
    ranges: {v: {size: 6MiB}}
    imports: {w: {from: server.w}}
    map: {v: [w]}
    access: {v: {gpu1: ACCESS}}
"""
ALL = "every byte"


def checked(kind: type[SimDriver], check: Check = "full", text: str = SPEC) -> tuple[Run, Checks]:
    """The run of a spec on a driver; everything was undone all the same."""
    made = invented(2)
    done = run_on(kind(made), run_request(text, made, check))
    assert done.ledger.empty
    assert done.report.checks, done.report
    return done, done.report.checks


def differing(checks: Checks) -> set[tuple[str, str]]:
    assert checks.different == len(checks.differences)
    return {(each.aspect, each.subject) for each in checks.differences}


def tally(checks: Checks | None, aspect: str) -> Tally:
    assert checks
    return next(each for each in checks.tallies if each.aspect == aspect)


def test_an_honest_driver() -> None:
    """Each chunk is verified by all who may read it after its first fill, and by two after the other writer's"""
    done, checks = checked(SimDriver)
    assert (checks.different, done.report.exit_code) == (0, 0)
    assert tally(checks, ALL) == Tally(ALL, 7 + 5, 7 + 5)
    assert checks.rates == ()
    assert any("stand for every byte" in note for note in done.report.notes)


@pytest.mark.parametrize(
    ("kind", "whole", "fast"),
    [
        (liars.SwapsChunks, {"hot + 0x0 in view at 0x0 by gpu0"}, True),
        (liars.DropsFills, {
            "hot + 0x0 in kv at 0x0 by gpu0", "hot + 0x0 in view at 0x0 by gpu0",
            "cold + 0x0 in kv at 0x200000 by gpu0", "long + 0x0 in kv at 0x400000 by gpu0",
            "long + 0x0 in kv at 0x400000 by gpu1",
        }, False),
        (liars.MapsOneTwice, {
            "hot + 0x0 in kv at 0x0 by gpu0", "hot + 0x0 in kv at 0x0 by gpu1", "hot + 0x0 in view at 0x0 by gpu0",
        }, True),
        (liars.Aliases, {
            "hot + 0x0 in kv at 0x0 by gpu0", "hot + 0x0 in kv at 0x0 by gpu1", "hot + 0x0 in view at 0x0 by gpu0",
        }, True),
        (liars.LosesTheLastGranule, {
            "long + 0x400000 in kv at 0x800000 by gpu0", "long + 0x400000 in kv at 0x800000 by gpu1",
        }, True),
    ],
    ids=lambda each: each.__name__ if isinstance(each, type) else "",
)  # fmt: skip
def test_wrong_bytes_are_found(kind: type[SimDriver], whole: set[str], fast: bool) -> None:
    """Chunk, offset, range and GPU of what differs are named; a fast check finds what its samples can show"""
    done, checks = checked(kind)
    assert {each.subject for each in checks.differences if each.aspect == ALL} == whole
    assert (done.report.outcome, done.report.exit_code) == ("different", 6)
    done, checks = checked(kind, "fast")
    assert any(each.aspect == "bytes" for each in checks.differences) == fast
    assert done.report.exit_code == (6 if fast else 0)


def test_a_mismatch_says_who_stored_and_how_much() -> None:
    """What was wanted, who stored it, what is seen, and how many words differ; the path is that of the chunk"""
    _, checks = checked(liars.DropsFills)
    found = next(each for each in checks.differences if each.subject.startswith("cold"))
    assert found.wanted.endswith("stored by gpu1")
    assert found.seen.endswith("1,024 words differ")
    assert found.path == ("chunks", "cold")
    assert found.wanted[:18] != found.seen[:18]


@pytest.mark.parametrize("kind", [liars.GrantsTooMuch, liars.GrantsTooLittle, liars.GrantsNothing])
def test_wrong_access_is_found_before_it_ends_the_process(kind: type[SimDriver]) -> None:
    """Where an access is not as declared no kernel runs, and nothing counts as proven"""
    text = SPEC.replace("{gpu0: rw, gpu1: rw}", "{gpu0: rw}").replace("gpu1, size", "gpu0, size")
    done, checks = checked(kind, text=text)
    assert {aspect for aspect, _ in differing(checks)} <= {"access", "end of range"}
    found = tally(checks, ALL)
    assert (found.looked_at, found.not_checked, found.why_not) == (0, 4, UNSAFE)
    assert done.report.exit_code == 6
    assert done.report.failure is None


def test_a_kept_handle_is_found() -> None:
    """A chunk that the driver keeps though it was released is named, with the line that asked for it"""
    made = invented(2)
    done = run_on(liars.KeepsAHandle(made), run_request(SPEC, made, "full"))
    (leak,) = done.report.leaks
    assert (leak.what, leak.path) == ("chunk cold", ("chunks", "cold"))
    assert done.report.exit_code == 5


@pytest.mark.parametrize(("access", "check"), [("r", "full"), ("rw", "full"), ("r", "fast")])
def test_a_wrong_chunk_for_an_importer_is_found(access: str, check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exporter that hands out another chunk than it was asked for: the importer finds the other one's bytes"""
    monkeypatch.setenv("MEMTOPO_LYING", "server")
    text = SHARED.replace("ACCESS", access)
    report = processes.apply(ensemble(text, machine.load("h200x2"), worker=LYING, check=check))
    assert (report.outcome, report.exit_code) == ("different", 6), report
    assert report.checks
    subjects = {each.subject for each in report.checks.differences}
    assert any(each.startswith("reader: w.0") for each in subjects)
    assert not any("w.2" in each for each in subjects)


def shared(access: str) -> Report:
    report = processes.apply(ensemble(SHARED.replace("ACCESS", access), machine.load("h200x2"), check="full"))
    assert (report.outcome, report.check) == ("ok", "full"), report
    return report


@pytest.mark.parametrize(("access", "seen"), [("r", 6), ("rw", 6 + 3)])
def test_processes_verify_what_others_filled(access: str, seen: int) -> None:
    """What one process stores is verified in the other; an importer that may write does so in a turn of its own"""
    assert tally(shared(access).checks, ALL).looked_at == seen


def test_what_a_sibling_exports_has_a_replica() -> None:
    """What an importer may only read is tried on memory of its own, made like the sibling's"""
    found = tally(shared("r").checks, FORBIDDEN)
    assert found.looked_at >= 1
    assert found.looked_at == found.as_declared
    assert not found.not_checked, found.why_not


@pytest.mark.parametrize(
    ("text", "count", "why"),
    [
        (SPEC.replace("rw", "r"), 4, "no gpu may write them"),
        (SPEC.replace("access: {kv: {gpu0: rw, gpu1: rw}, view: {gpu0: r}}", "access: {kv: {gpu0: rw}}"), 1,
         "no gpu may read them there"),
    ],
)  # fmt: skip
def test_what_cannot_be_proven_is_told(text: str, count: int, why: str) -> None:
    """What nobody may write, or read through one mapping, is not checked, and counts as nothing else"""
    done, checks = checked(SimDriver, text=text)
    found = tally(checks, ALL)
    assert (found.not_checked, found.why_not) == (count, why)
    assert done.report.exit_code == 0


def test_every_writer_has_its_turn() -> None:
    """Each GPU that may write stores, and so is each mapping that may be written stored through"""
    text = "ranges: {r: {size: 2MiB, count: 5}}\nchunks: {c: {location: gpu0, size: 2MiB}}\n"
    text += "map: {r.0: c, r.1: c, r.2: c, r.3: c, r.4: c}\naccess: {r: {gpu0: rw, gpu1: rw}}\n"
    made = invented(2)
    report = run(run_request(text, made, "full"), made).report
    assert report.exit_code == 0, report
    fills = next(time.steps for time in report.times if time.phase == "fill")
    assert fills == 2 + 4
    assert tally(report.checks, ALL).looked_at == 10 + 5 * 2


@pytest.mark.parametrize("check", ["none", "fast", "full"])
def test_how_much_is_checked(check: Check) -> None:
    """With none nothing is looked at, and the report says so; what is built and taken down is the same"""
    made = invented(2)
    report = run(run_request(SPEC, made, check), made).report
    assert (report.outcome, report.check) == ("ok", check)
    assert (report.checks is None) == (check == "none")
    assert report.left
    assert not any(report.left.ledger_after.values())


@pytest.mark.parametrize("path", EVERY_SPEC, ids=lambda path: path.stem)
def test_every_spec(path: Path) -> None:
    """No false alarm in any spec that is shipped"""
    made = machine.load("h200x4")
    report = processes.apply(ensemble(path, made, check="full")) if path in ENSEMBLES else run(
        run_request(path, made, "full"), made
    ).report  # fmt: skip
    assert report.outcome == "ok", report


@pytest.mark.parametrize("method", ["module_load_data", "fill", "verify", "module_unload"])
def test_a_kernel_call_that_fails(method: str) -> None:
    """A failed launch fails the run, and everything is undone; kernels that cannot be unloaded are named"""
    made = invented(2)
    done = run(run_request(SPEC, made, "full"), made, at=2, only={method})
    report = done.report
    if method == "module_unload":
        assert [leak.what for leak in report.leaks] == ["kernels of gpu0"]
    else:
        assert (report.outcome, report.exit_code) == ("failed", 4)
        assert done.ledger.empty


def test_a_hole_that_is_none_is_found() -> None:
    """Something in a hole is told by the range and the offset; a fast check asks too"""
    made = invented(2)
    text = SPEC.replace("kv: {size: 12MiB}", "kv: {size: 14MiB}")
    checks: tuple[Check, ...] = ("fast", "full")
    for check in checks:
        report = run_on(liars.FillsHoles(made), run_request(text, made, check)).report
        assert report.checks
        assert ("hole", "kv at 0xa00000") in differing(report.checks)


def test_what_was_not_filled_again_is_spared() -> None:
    """A write that reaches a chunk which has fewer writers is found after the last turn"""
    text = """
ranges: {a: {size: 2MiB}, b: {size: 2MiB}}
chunks: {one: {location: gpu0, size: 2MiB}, two: {location: gpu0, size: 2MiB}}
map: {a: one, b: two}
access: {a: {gpu0: rw}, b: {gpu0: rw, gpu1: rw}}
"""
    _, checks = checked(liars.Spills, text=text)
    assert {(each.aspect, each.subject) for each in checks.differences} == {(ALL, "one + 0x0 in a at 0x0 by gpu0")}


def test_rates_are_told_where_something_was_measured() -> None:
    """Bytes and seconds of each GPU and each location's memory; nothing on a simulator"""
    made = invented(2)
    real = replace(
        run_request(SPEC, made, "full"), machine=MachineLine("local", simulated=False, devices=(), driver="")
    )
    report = run_on(SimDriver(made), real).report
    assert report.checks
    rates = {(each.verb, each.device, each.memory): each.bytes for each in report.checks.rates}
    granule = liars.GRANULE
    assert rates == {
        ("fill", "gpu0", "gpu0"): 2 * granule, ("fill", "gpu0", "gpu1"): 3 * granule,
        ("fill", "gpu1", "gpu0"): 2 * granule, ("fill", "gpu1", "gpu1"): 3 * granule,
        ("verify", "gpu0", "gpu0"): 3 * granule + 3 * granule, ("verify", "gpu0", "gpu1"): 3 * granule + 3 * granule,
        ("verify", "gpu1", "gpu0"): 2 * granule, ("verify", "gpu1", "gpu1"): 3 * granule + 3 * granule,
    }  # fmt: skip
    assert not any("stand for" in note for note in report.notes)
    stream = io.StringIO()
    terminal.show(rendering.renderable(report), stream)
    assert "bandwidth\n" in stream.getvalue()
