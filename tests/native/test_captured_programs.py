"""Records of programs: threads, processes, deaths, full disks, and descriptors that are not the record's any more."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from memtopo.common import __version__
from memtopo.driver.trace_files import Stacks
from tests.helpers import captures

COUNT = 2000
THREADS = f"""
from threading import Thread
driver = Driver().init()
def work(number):
    if number % 2:
        driver.use(number)
    for index in range({COUNT}):
        driver.allocate(number << 32 | index)
threads = [Thread(target=work, args=(number,)) for number in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "record.jsonl"


def test_the_first_line_is_that_of_a_trace_with_the_gpus(file: Path) -> None:
    found = captures.run("driver = Driver().init(); driver.allocate(5)", file)
    ((head, calls),) = ((trace.head, trace.calls) for trace in found.traces)
    assert (head.layout, head.machine, head.simulated, head.driver) == ("", "local", False, "CUDA 13.0")
    assert head.process == str(head.pid)
    assert head.gpus == tuple(f"GPU-abababab-abab-abab-abab-ababababab0{number}" for number in (0, 1))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00", head.started)
    assert json.loads(file.read_text().splitlines()[0])["memtopo"] == __version__
    assert (calls[0].phase, calls[0].step, calls[0].device, calls[0].thread) == ("", None, None, head.pid)
    assert calls[0].seconds is not None
    assert 0 <= calls[0].time < 60


def test_calls_of_other_functions_are_not_reported_to_the_library(file: Path) -> None:
    code = "driver = Driver().init(); print(driver.call('cuLaunchKernel', []), driver.allocate(1))"
    assert captures.run(code, file).done.stdout == "0 1\n"


def test_lines_of_threads_do_not_mix_and_none_is_missing(file: Path) -> None:
    calls = captures.run(THREADS, file).calls
    assert sorted(call.number for call in calls) == [*range(1, 8 * COUNT + 1)]
    by_thread: dict[int | None, list[int]] = {}
    for call in calls:
        by_thread.setdefault(call.thread, []).append(call.arguments["size"])
    assert sorted(by_thread.values()) == [[number << 32 | index for index in range(COUNT)] for number in range(8)]
    assert Counter(call.device for call in calls) == {None: 4 * COUNT} | dict.fromkeys((1, 3, 5, 7), COUNT)


def test_processes_have_their_own_heads_in_one_file(file: Path) -> None:
    code = """
import os, subprocess, sys
for number in range(2):
    if not (child := os.fork()):
        Driver().init(number).allocate(number)
        os._exit(0)
    os.waitpid(child, 0)
program = "from tests.native.captured_program import Driver; Driver().init().allocate(7)"
subprocess.run([sys.executable, "-c", program], check=True)
Driver().init().allocate(8)
"""
    traces = captures.run(code, file).traces
    assert [[call.arguments["size"] for call in trace.calls] for trace in traces] == [[0], [1], [7], [8]]
    assert len({trace.head.process for trace in traces}) == 4


def test_a_process_forked_after_the_start_is_another_one(file: Path) -> None:
    code = """
import os
driver = Driver().init()
driver.allocate(1)
if not (child := os.fork()):
    driver.allocate(2)
    os._exit(0)
os.waitpid(child, 0)
driver.allocate(3)
"""
    ours, child = captures.run(code, file, stacks="python").traces
    assert [(call.number, call.arguments["size"]) for call in ours.calls] == [(1, 1), (2, 3)]
    assert [(call.number, call.arguments["size"]) for call in child.calls] == [(1, 2)]
    assert child.calls[0].thread == child.head.pid != ours.head.pid
    assert child.calls[0].stack


def test_a_program_that_is_killed_leaves_every_call_that_returned(file: Path) -> None:
    code = """
import os, signal
driver = Driver().init()
[driver.allocate(index) for index in range(100)]
os.kill(os.getpid(), signal.SIGKILL)
"""
    found = captures.run(code, file)
    assert found.done.returncode == -signal.SIGKILL
    assert [call.arguments["size"] for call in found.calls] == [*range(100)]


FULL = """
driver = Driver().init()
[driver.allocate(index) for index in range(1000)]
print("done")
"""


def test_a_record_that_is_as_large_as_a_file_may_be_ends_and_the_program_goes_on(file: Path) -> None:
    """Also where SIGXFSZ would end it, which Python ignores."""
    code = f"import signal; signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n{FULL}"
    limit = 20_000
    found = captures.run(code, file, preexec=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    assert (found.done.returncode, found.done.stdout) == (0, "done\n")
    assert re.fullmatch(r"memtopo capture: the record of process \d+ ends here: File too large\n", found.done.stderr)
    assert file.read_bytes().endswith(b"}\n"), "the part of the last line was removed"
    assert [call.arguments["size"] for call in found.calls] == [*range(len(found.calls))]


def test_a_full_disk_ends_the_record_and_the_program_goes_on() -> None:
    done = captures.run(FULL, Path("/dev/full")).done
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert done.stderr.count("ends here: No space left on device\n") == 1
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("stacks", ["none", "python"])
def test_descriptors_that_the_program_closed_are_not_used(stacks: Stacks, file: Path, tmp_path: Path) -> None:
    """It closes all that it did not open, and opens others, as daemons do."""
    (tmp_path / "own").write_bytes(b"precious")
    code = f"""
import os
driver = Driver().init()
driver.allocate(1)
held = [int(each) for each in os.listdir("/proc/self/fd")]
os.closerange(3, max(held) + 1)
files = [os.open({str(tmp_path / "own")!r}, os.O_CREAT | os.O_RDWR) for _ in range(max(held))]
driver.allocate(2)
"""
    calls = captures.run(code, file, stacks=stacks).calls
    assert [call.arguments["size"] for call in calls] == [1, 2]
    assert all(call.stack for call in calls) is (stacks == "python")
    assert (tmp_path / "own").read_bytes() == b"precious"


def test_a_record_that_was_removed_is_not_made_again(file: Path) -> None:
    code = f"""
import os
driver = Driver().init()
driver.allocate(1)
os.unlink({str(file)!r})
driver.allocate(2)
"""
    found = captures.run(code, file)
    assert (found.done.returncode, found.done.stderr, file.exists()) == (0, "", False)


def test_a_process_that_cannot_be_recorded_says_so_and_goes_on(file: Path) -> None:
    code = "import os; os.environ['CUPTI_RESULT'] = '39'; print(Driver().init().allocate(1))"
    done = captures.run(code, file).done
    assert (done.returncode, done.stdout) == (0, "0\n")
    assert "is not recorded: CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED (error 39)" in done.stderr


def test_the_error_number_of_the_program_is_kept(tmp_path: Path) -> None:
    """By a call whose line cannot be written."""
    code = """
import ctypes
get = ctypes.CDLL(None).__errno_location
get.restype = ctypes.POINTER(ctypes.c_int)
driver = Driver().init()
from ctypes import byref, c_size_t, c_uint64, c_void_p, Structure
class Parameters(Structure):
    _fields_ = [("made", c_void_p), ("size", c_size_t)]
get()[0] = 33
driver.cupti.stub_call(b"cuMemAlloc_v2", byref(Parameters()), 0)
print(get()[0])
"""
    assert captures.run(code, Path("/dev/full")).done.stdout == "33\n"


def test_nothing_of_the_program_is_in_the_record(file: Path) -> None:
    code = "import os; os.environ['TOKEN'] = 'hunter2'; Driver().init().allocate(1)"
    text = captures.run(code, file, stacks="c").file.read_text()
    for hidden in ("hunter2", "/", "captured_program"):
        assert hidden not in text


def test_stacks_of_python_have_the_names_of_files_without_folders(file: Path) -> None:
    code = """
def inner(): driver.allocate(1)
def outer(): inner()
driver = Driver().init()
outer()
"""
    (call,) = captures.run(code, file, stacks="python").calls
    assert call.stack == (
        *("captured_program.py:66 call", "captured_program.py:69 allocate"),
        *("<string>:3 inner", "<string>:4 outer", "<string>:6 <module>"),
    )


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_stacks_are_those_of_every_version_of_python(version: str, file: Path) -> None:
    """Where it is installed. Frames of generators, of functions that C calls, and of threads."""
    code = """
from threading import Thread
def generated(): yield driver.allocate(1)
class Model:
    def load(self): return sorted([1], key=lambda _: next(generated()))
driver = Driver().init()
thread = Thread(target=Model().load, name="loader")
thread.start()
thread.join()
"""
    found = captures.run(code, file, stacks="python", python=f"python{version}")
    if found.done.returncode:
        pytest.skip(f"there is no Python {version}")
    (call,) = found.calls
    own = [frame for frame in call.stack if frame.startswith("<string>")]
    assert own == ["<string>:4 generated", "<string>:6 <lambda>", "<string>:6 load"]
    assert call.stack[-1].startswith("threading.py:")


def test_threads_that_hold_the_interpreters_lock_or_not_have_stacks_of_python(file: Path) -> None:
    """Calls by ctypes release the lock, so that threads make them at the same time."""
    found = captures.run(THREADS.replace(str(COUNT), "300"), file, stacks="python")
    assert found.done.returncode == 0
    stacks = {call.stack[-4:] for call in found.calls}
    assert len(found.calls) == 2400
    assert {stack[0].split(" ")[1] for stack in stacks} == {"work"}


def test_threads_that_outlive_the_interpreter_make_calls_without_a_stack(file: Path) -> None:
    """Daemon threads whose states the interpreter frees while they are in calls without the lock."""
    code = f"""
import ctypes, os, threading
driver = Driver().init()
block = (ctypes.c_uint64 * 2)(0, 9)
libc = ctypes.CDLL(None)
def work():
    driver.cupti.stub_calls(b"cuMemAlloc_v2", ctypes.byref(block), 50_000)
class Last:
    def __del__(self, stat=os.stat, file={str(file)!r}):
        before = stat(file).st_size
        while stat(file).st_size < before + 4000:
            pass
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
last = Last()
libc.usleep(2000)
for _ in range(100):
    libc.on_exit(libc.usleep, None)  # gets the status: the threads go on for 20 ms once there is no interpreter
raise SystemExit(200)
"""
    found = captures.run(code, file, stacks="python")
    assert (found.done.returncode, found.done.stderr) == (200, "")
    assert not all(call.stack for call in found.calls)


def test_a_thread_without_python_has_an_empty_stack_of_python(file: Path) -> None:
    code = """
import ctypes
driver = Driver().init()
block = (ctypes.c_uint64 * 2)(0, 9)
thread = ctypes.c_ulong()
libc = ctypes.CDLL(None)
driver.cupti.stub_thread(b"cuMemAlloc_v2", ctypes.byref(block))
"""
    (call,) = captures.run(code, file, stacks="python").calls
    assert (call.arguments, call.stack) == ({"size": 9}, ())


def test_stacks_of_c_have_modules_and_symbols_without_those_of_the_capture(file: Path) -> None:
    calls = captures.run("driver = Driver().init(); driver.allocate(1); driver.allocate(2)", file, stacks="c").calls
    for call in calls:
        modules = [frame.partition(":")[0] for frame in call.stack]
        assert not [each for each in modules if each.startswith(("capture", "libcupti", "libcuda"))]
        assert "/" not in "".join(modules)
        assert any("Py" in frame for frame in call.stack)


STARTED = """
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>
__attribute__((constructor)) static void start(void) {
    void *cupti = dlopen(getenv("STUB_CUPTI"), RTLD_NOW | RTLD_NOLOAD);
    int (*call)(const char *, const void *, int) = (int (*)(const char *, const void *, int))dlsym(cupti, "stub_call");
    unsigned long long made = 1, parameters[2] = {(unsigned long long)&made, 7};
    usleep(400000);
    call("cuMemAlloc_v2", parameters, 0);
}
"""


def test_a_library_may_make_calls_while_it_is_loaded(file: Path, tmp_path: Path) -> None:
    """The loader keeps its lock then, for which a stack of another thread may have to wait."""
    source, library = tmp_path / "started.c", tmp_path / "started.so"
    source.write_text(STARTED)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    code = f"""
import ctypes, signal, threading, time
signal.alarm(30)
driver = Driver().init()
driver.cupti.stub_call
load = ctypes.CDLL(None).dlopen
loader = threading.Thread(target=load, args=({os.fsencode(library)!r}, 2))
loader.start()
time.sleep(0.1)
driver.allocate(1)
loader.join()
"""
    found = captures.run(code, file, stacks="c")
    assert found.done.returncode == 0, found.done.stderr
    assert sorted(call.arguments["size"] for call in found.calls) == [1, 7]


def test_a_mark_is_a_line_where_a_capture_runs(file: Path) -> None:
    code = """
import memtopo
memtopo.mark("before")
driver = Driver().init()
memtopo.mark('lo"aded ü')
driver.allocate(1)
"""
    marked, allocated = captures.run(code, file).calls
    assert (marked.method, marked.call, marked.arguments) == ("mark", "mark", {"label": 'lo"aded ü'})
    assert (marked.result, marked.error, allocated.method) == (None, None, "mem_alloc")


def test_a_mark_without_a_capture_does_nothing() -> None:
    import memtopo

    memtopo.mark("nothing")
    with pytest.raises(memtopo.UsageError):
        memtopo.mark("x" * 5000)


def test_the_limit_of_a_mark_is_that_of_its_bytes_in_the_record() -> None:
    import memtopo

    memtopo.mark("x" * 4094)  # in quotes
    for label in ("x" * 4095, "é" * 683):  # of six bytes each
        with pytest.raises(memtopo.UsageError, match=r"the label of a mark has 4,\d+ bytes"):
            memtopo.mark(label)
