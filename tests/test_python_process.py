"""Processes that the tests' server forks are as those of a new interpreter."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.command_line import QUICKSTART, environment
from tests.helpers.python_process import OwnChild, PythonProcess, run_python, shell_command

PROPERTIES = """
import json, os, resource, signal, sys
print("on stderr", file=sys.stderr)
streams = [[each.encoding, each.errors, each.mode, each.line_buffering] for each in (sys.stdin, sys.stdout, sys.stderr)]
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({
    "argv": sys.argv, "path": list(dict.fromkeys(sys.path)), "folder": os.getcwd(),
    "name": __name__, "input": sys.stdin.read(),
    "variables": {k: v for k, v in os.environ.items() if k != "LC_CTYPE"}, "streams": streams, "parent": os.getppid(),
    "descriptors": sorted(os.listdir("/proc/self/fd")), "threads": status["Threads"], "umask": status["Umask"],
    "blocked": status["SigBlk"], "ignored": status["SigIgn"], "caught": status["SigCgt"],
    "interrupt": str(signal.getsignal(signal.SIGINT).__name__),
    "leads": [each == os.getpid() for each in (os.getsid(0), os.getpgrp())],
    "limits": [resource.getrlimit(each) for each in range(resource.RLIMIT_NOFILE + 1)],
}))
"""

BESIDE_A_THREAD = """
import sys, threading
from tests.helpers.python_process import run_python

over = threading.Event()
def work():
    while not over.is_set():
        pass
thread = threading.Thread(target=over.wait if sys.argv[1] == "waits" else work)
thread.start()
wait = threading.Condition.wait.__code__
while sys.argv[1] == "waits" and sys._current_frames()[thread.ident].f_code is not wait:
    pass
code = "import sys; print('tests.helpers.fork_server' in sys.modules)"
print(run_python([sys.executable, "-c", code], capture_output=True, text=True).stdout)
over.set()
"""


def properties(start: type[subprocess.Popen[Any]], folder: Path, **options: Any) -> tuple[Any, bytes, int]:
    read, write = os.pipe()
    command = [sys.executable, "-c", PROPERTIES, "one", "two words"]
    pipe = subprocess.PIPE
    with start(
        command, stdin=pipe, stdout=pipe, stderr=pipe, cwd=folder, env=environment(MORE="é"), pass_fds=[read], **options
    ) as process:
        out, err = process.communicate("ü".encode(), timeout=60)
    os.close(read)
    os.close(write)
    return json.loads(out), err, process.returncode


@pytest.mark.parametrize("options", [{}, {"start_new_session": True}, {"process_group": 0}], ids=str)
def test_a_forked_process_has_what_a_started_one_has(tmp_path: Path, options: dict[str, Any]) -> None:
    """Also a mask and a limit of open files that this process has set, and signals that it ignores."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    ignored = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    mask = os.umask(0o027)
    try:
        forked, started = (properties(start, tmp_path, **options) for start in (PythonProcess, subprocess.Popen))
    finally:
        os.umask(mask)
        signal.signal(signal.SIGUSR2, ignored)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert forked == started


@pytest.mark.parametrize(
    "code",
    [
        *("pass", "raise SystemExit", "raise SystemExit(3)", "raise SystemExit('a reason')", "raise SystemExit(True)"),
        *("1 / 0", "import os; os._exit(5)", "import os; os.kill(os.getpid(), 9)", "raise KeyboardInterrupt"),
        "import atexit; atexit.register(print, 'at exit')",
        "import threading, time; threading.Thread(target=lambda: (time.sleep(0.01), print('in a thread'))).start()",
    ],
)
def test_a_forked_process_ends_as_a_started_one(code: str) -> None:
    command = [sys.executable, "-c", code]
    forked = run_python(command, capture_output=True, env=environment())
    started = subprocess.run(command, capture_output=True, env=environment(), check=False)
    assert (forked.returncode, forked.stdout) == (started.returncode, started.stdout)
    assert forked.stderr.splitlines()[-1:] == started.stderr.splitlines()[-1:]


def test_a_module_that_is_imported_already_runs_without_a_warning() -> None:
    done = run_python([sys.executable, "-m", "memtopo.common.text"], capture_output=True, env=environment())
    assert (done.returncode, done.stderr) == (0, b"")


def test_programs_of_users_and_other_locales_get_a_new_interpreter() -> None:
    code = "print('tests.helpers.fork_server' in __import__('sys').modules)"
    command = [sys.executable, "-c", code]
    assert run_python(command, capture_output=True, env=environment()).stdout == b"True\n"
    assert run_python(command, capture_output=True, env=environment(PYTHONHASHSEED="1")).stdout == b"False\n"
    with OwnChild(command, stdout=subprocess.PIPE, env=environment()) as process:
        assert process.communicate()[0] == b"False\n"


@pytest.mark.parametrize(("thread", "forked"), [("waits", "True"), ("works", "False")])
def test_a_process_beside_a_thread_is_forked_only_while_that_waits(thread: str, forked: str) -> None:
    command = [sys.executable, "-c", BESIDE_A_THREAD, thread]
    assert run_python(command, capture_output=True, text=True, env=environment()).stdout.split() == [forked]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)])
def test_a_script_of_a_shell_has_memtopo_forked_and_it_ends_as_its_program(
    runtime: Path, number: int, status: int
) -> None:
    assert runtime.exists()
    command = [*shlex.split(shell_command()), "apply", QUICKSTART, "--machine", "h200x2", "--hold"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment()) as process:
        assert process.stderr
        assert process.stderr.readline().startswith(b"holding quickstart ")
        process.send_signal(number)
        process.stderr.read()  # until no process has it open
        assert process.wait(60) == status
