"""Traces of runs: every call is in them as it was made, and what a plan lists is what they have."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from msgspec.structs import replace

from memtopo import machine
from memtopo.common.errors import NotWritten, UsageError
from memtopo.common.files import closing_fd
from memtopo.driver.kernels import Area
from memtopo.driver.ledger import Ledger
from memtopo.driver.recorder import CallContext, CallList, Recorder, error_name
from memtopo.driver.trace import Trace, traced
from memtopo.driver.trace_files import HEAD, create_record, empty_folder, is_record, require_replaceable
from memtopo.driver.types import DriverError, HandleType
from memtopo.driver.wrappers import Forwarder
from memtopo.drivers.sim import SimDriver
from memtopo.plans.calls import Exchange, ListedCall, PlannedCall, listing_entry, named
from memtopo.plans.trace import TraceFile, read_traces, summary
from memtopo.run import apply, processes
from memtopo.run.planned_calls import planned_calls
from tests.helpers.failing_driver import Failing
from tests.helpers.full_disk import largest_files
from tests.helpers.program_calls import driver_calls
from tests.helpers.samples import sampled
from tests.helpers.specs import ENSEMBLES, ROOT, ensemble, run_request
from tests.run.processes.conductor_program import WORKER
from tests.run.processes.test_crashes import TWO

QUICKSTART = ROOT / "specs" / "quickstart.yaml"
H200X4 = machine.load("h200x4")
ABOUT = {"layout": "test", "process": "", "machine": "h200x4", "simulated": True, "driver": "13.0"}


def traced_run(path: Path, at: int = 0) -> TraceFile:
    """Trace of a run of the quickstart whose call number `at` fails."""
    request = run_request(QUICKSTART, H200X4)
    with SimDriver(H200X4) as driver:
        driver.init()
        failing = Failing(driver, at) if at else driver
        with traced(failing, str(path), request.about_trace) as (recorded, context):
            apply.apply(request, Ledger(recorded), context=context)
    (found,) = read_traces([path])
    return found


def calls_of(entries: list[PlannedCall]) -> list[object]:
    """Calls of steps as they are listed, sorted where other processes decide on the order."""
    found = [listing_entry(each) for each in named(entries)]
    own = [each for each in found if not isinstance(each, Exchange)]
    kept = [(each.step, each.undo, each.function, each.makes, _own(each)) for each in own]
    sent = [each for each in kept if each[0].startswith("send ")]
    return [*(each for each in kept if each not in sent), *sorted(sent, key=str)]


def _own(call: ListedCall) -> dict[str, object]:
    """Arguments but what a process receives."""
    received = ("shared", "data", "fd", *(["handle"] if call.function.startswith("cuIpcOpen") else []))
    return {name: value for name, value in call.arguments.items() if name not in received}


@pytest.mark.parametrize("path", sampled(ENSEMBLES))
def test_processes_make_the_calls_that_their_plans_list(path: Path, tmp_path: Path) -> None:
    whole = ensemble(path, machine.load("h200x2"), check="none")
    empty_folder(tmp_path)
    report = processes.apply(replace(whole, request=replace(whole.request, trace=str(tmp_path))))
    assert report.outcome == "ok", report
    planned = planned_calls(whole.request.plan, whole.request.geometry)
    traces = {trace.head.process: trace for trace in read_traces([tmp_path])}
    assert traces.keys() == planned.keys()
    for label, entries in planned.items():
        assert calls_of(list(driver_calls(traces[label]))) == calls_of(list(entries)), label
        assert {call.process for call in traces[label].calls} == {label}


def test_a_trace_has_arguments_results_and_times(tmp_path: Path) -> None:
    trace = traced_run(tmp_path / "trace.jsonl")
    assert trace.head.layout == "quickstart"
    assert [call.number for call in trace.calls] == list(range(1, len(trace.calls) + 1))
    create = next(call for call in trace.calls if call.call == "cuMemCreate")
    assert create.arguments["size"] == 32 << 20
    assert create.arguments["properties"]["handles"] == ["fd"]
    assert create.step == "create hot"
    assert create.seconds is not None
    mapped = next(call for call in trace.calls if call.call == "cuMemMap")
    assert mapped.arguments["handle"] == create.result
    assert {call.phase for call in trace.calls} >= {"open", "reserve", "create", "map", "grant", "check", "take down"}


def test_calls_of_a_switch_of_states_have_their_steps(tmp_path: Path) -> None:
    request = replace(run_request(ROOT / "specs" / "sleep-mode.yaml", H200X4), rehearse=True)
    path = tmp_path / "trace.jsonl"
    with SimDriver(H200X4) as driver:
        driver.init()
        with traced(driver, str(path), request.about_trace) as (recorded, context):
            assert apply.apply(request, Ledger(recorded), context=context).outcome == "ok"
    (trace,) = read_traces([path])
    changing = {"cuMemCreate", "cuMemMap", "cuMemUnmap", "cuMemSetAccess"}
    made = [call for call in trace.calls if call.phase == "change" and call.call in changing]
    assert {call.call for call in made} == changing
    assert all(call.step for call in made)


def test_calls_after_an_export_that_failed_are_of_the_step_that_it_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with SimDriver(H200X4) as simulator, traced(simulator, str(path), ABOUT) as (driver, context):
        driver.init()
        context.begin_step("map", "page.3", undo=True)
        with pytest.raises(DriverError), context.within("send", "w.0"):
            driver.mem_export_to_shareable_handle(7, HandleType.FD)
        driver.device_get_count()
    (trace,) = read_traces([path])
    assert [(call.step, call.undo) for call in trace.calls[1:]] == [("send w.0", False), ("map page.3", True)]


def test_long_lists_of_kernels_are_cut(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with SimDriver(H200X4) as simulator, traced(simulator, str(path), ABOUT) as (driver, _):
        driver.init()
        driver.ctx_push_current(driver.device_primary_ctx_retain(0))
        driver.module_load_data()
        at = driver.mem_alloc(2 << 20)
        driver.fill([Area(at + 1024 * index, 1024, 7) for index in range(1000)])
    (trace,) = read_traces([path])
    areas = trace.calls[-1].arguments["areas"]
    assert areas[0] == [at, 1024, 7, 0]
    assert areas[-1] == "936 more"
    assert len(areas) == 65


def test_a_failed_call_is_first_in_the_summary_with_those_before_it(tmp_path: Path) -> None:
    calls = traced_run(tmp_path / "whole.jsonl").calls
    at = next(index for index, call in enumerate(calls) if call.call == "cuMemMap")
    trace = traced_run(tmp_path / "failed.jsonl", at + 1)
    found = summary([trace])
    (failed,) = found.failed
    assert failed.call.call == "cuMemMap"
    assert failed.call.error
    assert [call.call for call in failed.before] == [call.call for call in calls[at - 5 : at]]
    assert next(each for each in found.functions if each.function == "cuMemMap").errors == 1


class Interrupted(Forwarder):
    """A driver that Ctrl-C interrupts while it releases a chunk."""

    def mem_release(self, handle: int) -> None:
        del handle
        signal.raise_signal(signal.SIGINT)


def test_a_call_that_a_signal_interrupts_has_its_end_in_the_trace_and_others_follow(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with SimDriver(H200X4) as simulator, traced(Interrupted(simulator), str(path), ABOUT) as (driver, _):
        driver.init()
        with pytest.raises(KeyboardInterrupt):
            driver.mem_release(7)
        driver.device_get_count()
    (trace,) = read_traces([path])
    found = [(call.call, call.error) for call in trace.calls]
    assert found == [("cuInit", None), ("cuMemRelease", "KeyboardInterrupt"), ("cuDeviceGetCount", None)]
    assert all(call.seconds is not None for call in trace.calls)


def test_a_call_that_does_not_return_is_in_the_trace(tmp_path: Path) -> None:
    """As where a process dies in it: each line is begun before its call."""
    path = tmp_path / "trace.jsonl"
    context = CallContext()
    trace = Trace(path, context, ABOUT)
    trace.begin("mem_release", {"handle": 7})
    trace.end(None, None, 0.001)
    context.begin_step("map", "page.3", undo=False)
    trace.begin("mem_map", {"address": 1 << 40, "size": 2, "handle": 7})
    (found,) = read_traces([path])
    trace.close()
    (failed,) = summary([found]).failed
    assert failed.call.call == "cuMemMap"
    assert failed.call.step == "map page.3"
    assert failed.call.seconds is None
    assert [call.call for call in failed.before] == ["cuMemRelease"]


def test_nothing_is_lost_of_the_trace_of_a_worker_that_dies(tmp_path: Path) -> None:
    """It ends with the call in which the worker was killed; the others go on to their end."""
    whole = ensemble(TWO, machine.load("h200x2"), check="none", worker=WORKER)
    dying = {"MEMTOPO_CRASH": "server:mem_map#1:SIGKILL:self"}
    request = replace(whole.request, trace=str(tmp_path))
    report = processes.apply(replace(whole, request=request, variables=dying))
    assert report.outcome == "failed"
    server, reader = sorted(read_traces([tmp_path]), key=lambda each: each.head.process, reverse=True)
    assert server.calls[-1].call == "cuMemMap"
    assert server.calls[-1].seconds is None
    assert all(call.seconds is not None for call in server.calls[:-1])
    assert reader.calls[-1].call == "cuDevicePrimaryCtxRelease"
    assert summary([server, reader]).failed[0].call == server.calls[-1]


def test_handles_that_give_access_are_not_in_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with traced(SimDriver(H200X4), str(path), ABOUT) as (driver, _):
        driver.init()
        driver.ctx_push_current(driver.device_primary_ctx_retain(0))
        handle = driver.ipc_get_mem_handle(driver.mem_alloc(2 << 20))
    assert handle.hex() not in path.read_text()
    found = json.loads(path.read_text().splitlines()[-1])["result"]
    assert found.startswith("handle:")
    assert found.removeprefix("handle:") not in handle.hex()


def test_traces_of_an_earlier_run_leave_a_folder_and_other_files_stay(tmp_path: Path) -> None:
    Trace(tmp_path / "old.jsonl", CallContext(), ABOUT).close()
    (tmp_path / "mine.jsonl").write_text("{}\n")
    empty_folder(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["mine.jsonl"]


@pytest.mark.parametrize("more", [5, 150, 300, 400])
def test_a_trace_that_has_no_room_ends_with_a_whole_line_and_the_report_has_a_note(tmp_path: Path, more: int) -> None:
    path, request = tmp_path / "trace.jsonl", run_request(QUICKSTART, H200X4)
    with SimDriver(H200X4) as driver:
        driver.init()
        with traced(driver, str(path), request.about_trace) as (recorded, context):
            with largest_files(path.stat().st_size + more):
                for _ in range(5):
                    recorded.device_get_count()
            report = apply.apply(request, Ledger(recorded), context=context)
    assert report.outcome == "ok"
    (trace,) = read_traces([path])
    assert path.read_text().endswith("\n")
    assert f"the trace ends before call {len(trace.calls) + 1}: file too large" in report.notes


def test_a_pipe_is_no_record_and_nobody_waits_for_a_writer(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.jsonl"
    os.mkfifo(pipe)
    assert [is_record(path) for path in (pipe, tmp_path)] == [False, False]
    with pytest.raises(UsageError, match="exists, and is not a trace"):
        require_replaceable(pipe)


def test_no_bytes_are_taken_out_of_a_pipe_to_see_whether_it_is_a_record(tmp_path: Path) -> None:
    """It may have a spec, which is read afterwards."""
    pipe, text = tmp_path / "pipe", QUICKSTART.read_bytes()
    os.mkfifo(pipe)
    with closing_fd(os.open(pipe, os.O_RDWR | os.O_NONBLOCK)) as both:
        os.write(both, text)
        assert not is_record(pipe)
        assert os.read(both, len(text)) == text


def test_a_folder_of_traces_is_emptied_of_traces_alone(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside.jsonl", tmp_path / "traces"
    folder.mkdir()
    for path in (outside, folder / "old.jsonl"):
        path.write_text(HEAD)
    (folder / "other.jsonl").write_text("{}")
    (folder / "link.jsonl").symlink_to(outside)
    (folder / "old.txt").write_text(HEAD)
    empty_folder(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["link.jsonl", "old.txt", "other.jsonl"]
    with pytest.raises(UsageError, match="exists, and is not a trace"):
        require_replaceable(folder / "link.jsonl", link=False)
    require_replaceable(folder / "link.jsonl")


def test_only_the_trace_of_a_run_of_one_process_is_written_through_a_link(tmp_path: Path) -> None:
    """The name of a process's trace is memtopo's own."""
    link = tmp_path / "link"
    link.symlink_to("trace")
    with pytest.raises(NotWritten, match="Too many levels of symbolic links"):
        Trace(link, CallContext(), {**ABOUT, "process": "a"})
    assert not link.exists()
    Trace(link, CallContext(), ABOUT).close()
    assert link.read_text().startswith(HEAD)


def test_only_a_new_or_empty_file_or_a_trace_is_replaced(tmp_path: Path) -> None:
    trace, other = tmp_path / "trace", tmp_path / "other"
    trace.write_text(f"{HEAD}: 1}}\n")
    other.write_text("other")
    for path in (other, tmp_path):
        with pytest.raises(UsageError, match="exists, and is not a trace"):
            create_record(path)
    for path in (trace, trace, tmp_path / "new"):
        create_record(path)
        assert path.read_bytes() == b""
    assert (other.read_text(), (tmp_path / "new").stat().st_mode & 0o777) == ("other", 0o600)


def test_a_folder_is_a_record_if_one_of_its_files_is_a_trace(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("other")
    assert not is_record(tmp_path)
    (tmp_path / "b.jsonl").write_text(HEAD)
    assert is_record(tmp_path)
    assert not is_record(tmp_path / "absent")


def test_a_recorded_call_has_its_step_its_defaults_and_the_name_of_its_error(tmp_path: Path) -> None:
    """The simulator's reason is in a trace."""
    context = CallContext()
    recorded = CallList(context)
    with SimDriver(H200X4) as simulator:
        driver = Recorder(simulator, recorded)
        driver.init()
        context.begin_step("map", "page.3", undo=True)
        with pytest.raises(DriverError):
            driver.mem_map(4096, 1 << 21, handle=7)
        context.enter("check")
        driver.device_get_count()
        with traced(simulator, str(tmp_path / "t"), ABOUT) as (other, _), pytest.raises(DriverError) as refused:
            other.mem_release(7)
    _, mapped, counted = recorded.calls
    about = mapped.verb, mapped.subject, mapped.undo, mapped.number, mapped.of_step
    assert (mapped.error, about) == ("CUDA_ERROR_INVALID_VALUE", ("map", "page.3", True, 1, True))
    assert mapped.arguments["offset"] == 0
    assert (counted.phase, counted.undo, counted.of_step, counted.result) == ("check", False, False, 4)
    assert json.loads((tmp_path / "t").read_text().splitlines()[1])["reason"] == refused.value.reason
    assert [error_name(each) for each in (None, refused.value, KeyError("x"))] == [None, refused.value.name, "KeyError"]
