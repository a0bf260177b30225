"""Programs in C on the simulator: those that plans are written as, and one that tries its calls."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from memtopo import machine
from memtopo.drivers.sim.physical import Physical
from memtopo.testing.abi import error_numbers
from memtopo.testing.library import SOCKET, folder
from memtopo.testing.program import LOOKUP, Call, Leak, SharedMachine
from memtopo.testing.server import Refusals, RemoteProgram, Server, report_left
from tests.helpers.command_line import environment, run_memtopo
from tests.helpers.processes import open_descriptors
from tests.helpers.program_calls import EXPRESSIBLE, HEADERS, compile_program, run_programs, written
from tests.helpers.samples import sampled

CLIENT = Path(__file__).parent / "programs" / "client.c"
LINES = """\
count before init: CUDA_ERROR_NOT_INITIALIZED (initialization error)
init: CUDA_SUCCESS (no error)
gpus: 2
set current: CUDA_SUCCESS (no error)
a thread begins without a context: 1
map: CUDA_SUCCESS (no error)
access: CUDA_SUCCESS (no error)
copied: device
copied: pinned, filled: pppned
import: CUDA_SUCCESS (no error)
import of what is closed: CUDA_ERROR_UNKNOWN (unknown error)
unmap a half: CUDA_ERROR_INVALID_VALUE (invalid argument)
launch: CUDA_ERROR_NOT_SUPPORTED (operation not supported)
graph: CUDA_ERROR_NOT_SUPPORTED (operation not supported)
address of cuMemAlloc: CUDA_SUCCESS (no error)
in the version of the header: 1, status 0
address of cuNoFunction: CUDA_ERROR_NOT_FOUND (named symbol not found)
none: 1, status 1
"""


EACH_TIME = {"quickstart", "hand-over", "managed", "legacy-ipc", "pools"}
"""Specs whose programs are run each time: with one process and with several, and memory of each kind."""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client, compiled with declarations of cuda.h and linked with the library."""
    made = tmp_path_factory.mktemp("client") / "client"
    command = ["gcc", "-Wall", "-Wextra", "-Werror", f"-I{HEADERS}", str(CLIENT), "-o", str(made)]
    subprocess.run([*command, f"-L{folder()}", "-lcuda", "-pthread"], check=True)
    return made


@pytest.fixture
def shared() -> SharedMachine:
    return SharedMachine(machine.load("h200x2"))


@pytest.fixture
def server(shared: SharedMachine) -> Iterator[Server]:
    server = Server(shared)
    yield server
    server.close()


def variables(server: Server) -> Mapping[str, str]:
    return environment(LD_LIBRARY_PATH=str(folder()), **{SOCKET: server.address})


def test_a_program_starts_a_simulator_of_its_own(client: Path) -> None:
    env = environment(LD_LIBRARY_PATH=str(folder()), MEMTOPO_MACHINE="h200x4", CUDA_VISIBLE_DEVICES="2,3,4,1")
    done = subprocess.run([client], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == LINES
    refused = [line.split(": ", 2)[2] for line in done.stderr.splitlines()]
    assert [line.partition("(")[0] for line in refused] == [
        "cuDeviceGetCount", "cuMemImportFromShareableHandle", "cuMemUnmap", "cuLaunchKernel", "cuGraphCreate",
    ]  # fmt: skip
    assert refused[2].endswith("CUDA_ERROR_INVALID_VALUE (the range covers a part of a mapping)")
    assert refused[3].endswith("CUDA_ERROR_NOT_SUPPORTED (kernels do not run on the simulator)")
    assert refused[4].endswith("CUDA_ERROR_NOT_SUPPORTED (it is not simulated)")


def test_the_command_runs_a_program_and_exits_as_it_does(client: Path) -> None:
    done = run_memtopo("simulator", "-m", "h100x1", "--", str(client))
    assert done.out == LINES.replace("gpus: 2", "gpus: 1")
    assert "cuGraphCreate(): CUDA_ERROR_NOT_SUPPORTED (it is not simulated)" in done.err
    assert "ended without freeing 0x600000000000 (4,096 bytes) from cuMemHostAlloc" in done.err
    assert run_memtopo("simulator", "--", "sh", "-c", "exit 7").status == 7
    assert Path(run_memtopo("simulator", "--path").out.strip(), "libcuda.so.1").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("simulator",), "no program was given"),
        (("simulator", "--", "no-such-program"), "the program 'no-such-program' cannot be started"),
        (("simulator", "-m", "h900", "--", "true"), "h900"),
    ],
)
def test_wrong_command_lines_are_refused(arguments: tuple[str, ...], message: str) -> None:
    done = run_memtopo(*arguments)
    assert done.status
    assert message in done.err


def test_an_unknown_machine_is_named_where_a_program_starts_the_simulator(client: Path) -> None:
    env = environment(LD_LIBRARY_PATH=str(folder()), MEMTOPO_MACHINE="h900")
    done = subprocess.run([client], env=env, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("count before init: CUDA_ERROR_STUB_LIBRARY")
    assert "h900" in done.stderr
    assert "the simulator did not start" in done.stderr


def test_programs_of_one_machine_share_its_memory_until_they_end(
    client: Path, server: Server, shared: SharedMachine
) -> None:
    used = dict(shared.budget.used)
    both = [subprocess.Popen([client], env=variables(server), stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [each.communicate(timeout=60)[0] for each in both] == [LINES, LINES]
    assert not server.programs()
    assert shared.budget.used == used
    assert {call.pid for call in shared.calls} == {each.pid for each in both}


def test_a_descriptor_that_a_program_was_given_is_closed_in_the_simulator(client: Path, server: Server) -> None:
    counts = []
    for _ in range(2):
        subprocess.run([client], env=variables(server), capture_output=True, check=True)
        assert not server.programs()
        counts.append(open_descriptors())
    assert counts[0] == counts[1]


def test_a_simulator_that_ends_is_named_and_calls_fail(client: Path, server: Server) -> None:
    program = subprocess.Popen(
        [client, "wait"], env=variables(server), stdin=-1, stdout=-1, stderr=-1, text=True, bufsize=1
    )
    assert program.stdin
    assert program.stdout
    assert "gpus: 2\n" in program.stdout
    server.close()
    out, err = program.communicate("go\n", timeout=60)
    assert out == "count: CUDA_ERROR_SYSTEM_NOT_READY (system not yet initialized)\n"
    assert err == "memtopo simulator: the simulator has ended: no call is answered any more\n"


@pytest.mark.parametrize("answer", [b"x", bytes(41), struct.pack("=iiQQQ", 4, 0, 0, 0, 0)])
def test_a_server_that_is_no_simulator_ends_the_calls(client: Path, answer: bytes) -> None:
    """Its answer is too short, too long, or an order that no simulator gives."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind("")
        server.listen()
        env = environment(LD_LIBRARY_PATH=str(folder()), **{SOCKET: f"@{server.getsockname()[1:].decode()}"})
        with subprocess.Popen([client], env=env, stdout=-1, stderr=-1, text=True) as program:
            lease, connection = (server.accept()[0] for _ in range(2))
            with lease, connection:
                connection.recv(8)
                connection.send(answer)
                out, err = program.communicate(timeout=60)
    assert out.startswith("count before init: CUDA_ERROR_SYSTEM_NOT_READY (system not yet initialized)\n")
    assert err.startswith("memtopo simulator: the simulator has ended: no call is answered any more\n")


def test_without_a_simulator_there_is_no_driver(client: Path) -> None:
    env = environment(LD_LIBRARY_PATH=str(folder()), **{SOCKET: "@memtopo-simulator-none"})
    done = subprocess.run([client], env=env, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("count before init: CUDA_ERROR_STUB_LIBRARY (CUDA driver is a stub library)\n")
    assert done.stderr.startswith("memtopo simulator: no simulator is at MEMTOPO_SIMULATOR")


def test_a_forked_process_has_no_driver(client: Path, server: Server) -> None:
    done = subprocess.run([client, "fork"], env=variables(server), capture_output=True, text=True, check=True)
    child = "init of a child: CUDA_ERROR_NOT_INITIALIZED (initialization error)\n"
    assert done.stdout == LINES.replace("set current", f"{child}set current")


def test_a_program_that_closes_all_descriptors_gets_an_error_and_keeps_those_that_it_opens(
    client: Path, server: Server
) -> None:
    done = subprocess.run([client, "close"], env=variables(server), capture_output=True, text=True, check=True)
    refused = "CUDA_ERROR_SYSTEM_NOT_READY (system not yet initialized)"
    assert done.stdout.splitlines()[-2:] == [f"count: {refused}", f"count in a thread: {refused}"]
    assert done.stderr.count("memtopo simulator: the program has closed the connection to the simulator") == 2


def test_a_killed_program_leaves_nothing(client: Path, server: Server, shared: SharedMachine) -> None:
    program = subprocess.Popen([client, "wait"], env=variables(server), stdin=-1, stdout=-1, text=True)
    assert program.stdout
    assert "gpus: 2\n" in program.stdout
    (found,) = server.programs()
    assert found.pid == program.pid
    os.kill(program.pid, signal.SIGKILL)
    program.communicate(timeout=60)
    assert not server.programs()
    assert not any(shared.budget.used.values())


AGAIN = """
import ctypes, os, sys, threading
cuda, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
if sys.argv[1:]:
    sys.exit(cuda.cuDeviceGetCount(ctypes.byref(count)))
cuda.cuInit(0)
threading.Thread(target=cuda.cuInit, args=[1], daemon=True).start()
input()
os.execv(sys.executable, [sys.executable, __file__, "again"])
"""


def test_a_program_is_another_one_after_exec(tmp_path: Path) -> None:
    """Even while a call of the former one goes on: that of its thread."""
    is_made, may_end = threading.Event(), threading.Event()

    def hold(call: Call) -> None:
        if call.function == "cuInit":
            is_made.set()
            may_end.wait(60)

    (tmp_path / "again.py").write_text(AGAIN)
    server = Server(SharedMachine(machine.load("h200x2"), refused=hold))
    program = subprocess.Popen([sys.executable, tmp_path / "again.py"], env=variables(server), stdin=-1, text=True)
    try:
        assert is_made.wait(60)
        program.communicate("exec\n", timeout=60)
    finally:
        may_end.set()
        server.close()
    assert program.returncode == error_numbers()["CUDA_ERROR_NOT_INITIALIZED"]


def test_memory_of_a_program_that_has_ended_is_an_error() -> None:
    """Not something to wait for: the kernel reads and writes no bytes of it."""
    program = subprocess.Popen(["sleep", "60"])
    port = RemoteProgram(program.pid)
    with Path(f"/proc/{program.pid}/mem").open("r+b", buffering=0) as memory:
        program.kill()
        program.wait()
        physical = Physical(memory.fileno(), 0, 1 << 47)
        for access in (port.read, physical.read):
            with pytest.raises(OSError, match=r"no memory|not memory|Bad address"):
                access(4096, 4)
        for write in (port.write, physical.write):
            with pytest.raises(OSError, match=r"no memory|not memory|Bad address"):
                write(4096, b"data")
    port.ended()


CALLS = {
    "a number of no call": struct.pack("=9Q", LOOKUP + 1, *[0] * 8),
    "the largest number": struct.pack("=9Q", (1 << 64) - 1, *[0] * 8),
    "too short": b"x",
    "too long": bytes(73),
}


@pytest.mark.parametrize("what", CALLS)
def test_a_malformed_call_ends_its_connection_with_a_line(
    server: Server, capfd: pytest.CaptureFixture[str], what: str
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(60)
        connection.connect(f"\0{server.address[1:]}")
        connection.send(bytes(8))
        connection.send(CALLS[what])
        assert connection.recv(64) == b""
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"memtopo simulator: process {os.getpid()}: a connection is closed: ")


def test_a_lookup_at_no_memory_of_the_program_is_refused(server: Server, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(60)
        connection.connect(f"\0{server.address[1:]}")
        connection.send(bytes(8))
        connection.send(struct.pack("=9Q", LOOKUP, *[0] * 8))
        answer = struct.unpack("=iiQQQ", connection.recv(64))
    assert answer == (0, error_numbers()["CUDA_ERROR_INVALID_VALUE"], 0, 0, 0)
    assert "Traceback" not in capfd.readouterr().err


def test_the_simulator_of_a_program_takes_as_many_descriptors_as_it_may() -> None:
    """Each thread of a program has a connection."""
    read, write = os.pipe()
    script = f"ulimit -Sn 64; exec {sys.executable} -c 'from memtopo.testing.server import serve; serve({write})'"
    with subprocess.Popen(["bash", "-c", script], env=environment(), pass_fds=[write]) as process:
        os.close(write)
        with os.fdopen(read) as address:
            assert address.read().startswith("@memtopo-simulator-")
        limits = Path(f"/proc/{process.pid}/limits").read_text()
        process.kill()
    (files,) = (line.split()[3:5] for line in limits.splitlines() if line.startswith("Max open files"))
    assert files[0] == files[1] != "64"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_programs_of_another_user_get_no_answer(server: Server, shared: SharedMachine) -> None:
    answer = b""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        os.seteuid(65534)
        try:
            connection.connect(f"\0{server.address[1:]}")
        finally:
            os.seteuid(0)
        with suppress(ConnectionError):
            connection.send(bytes(8))
            connection.send(struct.pack("=9Q", *[0] * 9))
            answer = connection.recv(64)
    assert not answer
    assert not shared.calls


def test_threads_of_a_server_leave_signals_to_the_process(client: Path, server: Server) -> None:
    program = subprocess.Popen([client, "wait"], env=variables(server), stdin=-1, stdout=-1, text=True)
    assert program.stdout
    assert "gpus: 2\n" in program.stdout
    names = "memtopo simulator", f"memtopo {program.pid}"
    threads = [each for each in threading.enumerate() if each.name in names]
    assert {each.name for each in threads} == {*names}
    for each in threads:
        status = Path(f"/proc/self/task/{each.native_id}/status").read_text()
        blocked = int(status.partition("SigBlk:")[2].split()[0], 16)
        assert all(blocked >> (number - 1) & 1 for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1))
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])
    program.communicate("go\n", timeout=60)


def test_the_first_refused_calls_of_each_program_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    report = Refusals()
    for pid in (7, 8):
        report(Call("cuStreamQuery", {}, error="CUDA_ERROR_NOT_READY", pid=pid))
        for number in range(25):
            report(Call("cuMemFree", {"address": number}, error="CUDA_ERROR_INVALID_VALUE", pid=pid))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 * 21
    for pid, of_program in ((7, lines[:21]), (8, lines[21:])):
        head = f"memtopo simulator: process {pid}: "
        shown = [f"{head}cuMemFree(address={number:#x}): CUDA_ERROR_INVALID_VALUE" for number in range(20)]
        assert of_program == [*shown, f"{head}more refused calls are not shown"]


@pytest.mark.parametrize(("count", "more"), [(0, 0), (20, 0), (21, 1), (1025, 1005)])
def test_what_is_left_is_reported_with_the_number_of_what_is_not_shown(
    capsys: pytest.CaptureFixture[str], count: int, more: int
) -> None:
    report_left([Leak("cuMemCreate", "", number, "handles", pid=7) for number in range(count)])
    lines = capsys.readouterr().err.splitlines()
    shown = [
        f"memtopo simulator: process 7: ended without freeing {number:#x} from cuMemCreate" for number in range(20)
    ]
    last = [f"memtopo simulator: {more:,} more objects are not shown"] if more else []
    assert lines == shown[:count] + last


@pytest.mark.parametrize("path", sampled(EXPRESSIBLE, names=EACH_TIME))
def test_a_program_that_a_plan_is_written_as_runs(path: Path, tmp_path: Path) -> None:
    shared = SharedMachine(machine.load("h200x4"))
    server = Server(shared)
    files = {label: compile_program(file, folder()) for label, file in written(path, "c", tmp_path).items()}
    run_programs(files, folder(), tmp_path, **{SOCKET: server.address})
    assert not server.programs()
    assert [call for call in shared.calls if call.error] == []
    assert not shared.left
    server.close()
