"""`memtopo.capturing`: a part of a process is recorded; and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.helpers import captures
from tests.helpers.command_line import ROOT
from tests.helpers.python_process import run_python

BEFORE = f"import memtopo, os\n{captures.BEFORE}driver = Driver().init(0)\ncupti = os.environ['STUB_CUPTI']\n"


def run(code: str, **more: str) -> str:
    """What a program prints whose driver and CUPTI are the stubs."""
    command = [sys.executable, "-c", BEFORE + code]
    done = run_python(command, env=captures.variables(**more), capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def test_the_calls_within_the_block_are_recorded() -> None:
    code = """
driver.allocate(1)
with memtopo.capturing(cupti=cupti) as record:
    driver.allocate(2)
    memtopo.mark("loaded")
    print(len(record.calls))
    driver.allocate(3)
driver.allocate(4)
memtopo.mark("after")
print([call.arguments for call in record.calls], record.traces[0].head.gpus[1][-2:])
kept = record.file
print(kept.exists())
del record
print(kept.exists())
"""
    shown = "[{'size': 2}, {'label': 'loaded'}, {'size': 3}] 01"
    assert run(code).splitlines() == ["2", shown, "True", "False"]


def test_a_block_without_calls_has_an_empty_record() -> None:
    code = """
with memtopo.capturing(cupti=cupti) as record:
    print(record.calls)
print(record.calls, record.traces)
"""
    assert run(code).splitlines() == ["()", "() ()"]


def test_a_file_of_ones_own_is_kept_and_replaced_by_the_next_capture(tmp_path: Path) -> None:
    code = f"""
os.chdir({str(tmp_path)!r})
for size in (1, 2):
    with memtopo.capturing("r.jsonl", stacks="python", cupti=cupti) as record:
        driver.allocate(size)
os.chdir("/")
print([(call.arguments, '<string>:9 <module>' in call.stack) for call in record.calls], record.file)
"""
    assert run(code) == f"[({{'size': 2}}, True)] {tmp_path / 'r.jsonl'}\n"


def test_an_exception_ends_the_capture() -> None:
    code = """
try:
    with memtopo.capturing(cupti=cupti) as record:
        raise KeyError
except KeyError:
    print(driver.allocate(1), record.calls)
"""
    assert run(code) == "0 ()\n"


@pytest.mark.parametrize("number", [4, pytest.param(40, marks=pytest.mark.exhaustive(seconds=8))])
def test_threads_may_make_calls_while_a_capture_ends(number: int) -> None:
    code = f"""
from threading import Event, Thread
ended = Event()
def work():
    while not ended.is_set():
        driver.allocate(1)
threads = [Thread(target=work) for _ in range(4)]
[thread.start() for thread in threads]
for _ in range({number}):
    with memtopo.capturing(cupti=cupti) as record:
        driver.allocate(2)
    assert {{"size": 2}} in [call.arguments for call in record.calls]
ended.set()
[thread.join() for thread in threads]
print("ok")
"""
    assert run(code) == "ok\n"


def test_two_captures_at_once_are_refused() -> None:
    code = """
with memtopo.capturing(cupti=cupti) as record:
    try:
        with memtopo.capturing(cupti=cupti):
            pass
    except memtopo.UsageError as error:
        print(error)
    driver.allocate(1)
print(len(record.calls))
"""
    assert run(code).splitlines() == ["a capture of this process runs already", "1"]


def test_a_capture_that_is_refused_leaves_the_record_of_the_one_that_runs(tmp_path: Path) -> None:
    code = f"""
file = {str(tmp_path / "r.jsonl")!r}
with memtopo.capturing(file, cupti=cupti) as record:
    driver.allocate(1)
    try:
        with memtopo.capturing(file, cupti=cupti):
            pass
    except memtopo.UsageError:
        pass
print(len(record.calls))
"""
    assert run(code) == "1\n"


def test_a_record_that_cannot_be_written_is_not_the_fault_of_cupti(tmp_path: Path) -> None:
    code = f"""
from memtopo.native.injection import start_capture
try:
    start_capture({str(tmp_path / "no/r.jsonl")!r}, cupti, "none")
except memtopo.MemtopoError as error:
    print(type(error).__name__, error)
"""
    assert run(code) == "NotWritten the record cannot be written: No such file or directory\n"


def test_what_prevents_a_capture_is_an_error() -> None:
    code = """
try:
    with memtopo.capturing(cupti=cupti):
        pass
except memtopo.NotCaptured as error:
    print(error.exit_code, error)
"""
    assert run(code, CUPTI_RESULT="39").startswith("3 CUPTI has another subscriber, such as a profiler")


def test_a_capture_that_cupti_reports_no_call_to_ends_before_it_is_refused() -> None:
    code = """
for _ in range(2):
    try:
        with memtopo.capturing(cupti=cupti):
            pass
    except memtopo.NotCaptured as error:
        print(error)
"""
    refused = run(code, CUPTI_NAMES="cuLaunchKernel").splitlines()
    assert ["knows none of the driver's calls" in line for line in refused] == [True, True]


def test_a_file_that_is_no_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("precious")
    code = f"""
for file in ({str(tmp_path / "other")!r}, {str(tmp_path)!r}, {str(tmp_path / "no/r")!r}):
    try:
        with memtopo.capturing(file, cupti=cupti):
            pass
    except memtopo.MemtopoError as error:
        print(type(error).__name__)
"""
    assert run(code).splitlines() == ["UsageError", "UsageError", "NotWritten"]
    assert (tmp_path / "other").read_text() == "precious"
