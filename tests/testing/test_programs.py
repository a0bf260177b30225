"""Programs in C on the simulator: those that plans are written as, and one that tries its calls."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from memtopo import machine
from memtopo.testing.library import SOCKET, folder
from memtopo.testing.program import SharedMachine
from memtopo.testing.server import Server
from tests.helpers.command_line import environment, run_memtopo
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
import of what is closed: CUDA_ERROR_INVALID_VALUE (invalid argument)
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
    env = environment(LD_LIBRARY_PATH=str(folder()), MEMTOPO_MACHINE="h200x2")
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
    assert "ended without a free of 0x600000000000 (4,096 bytes) of cuMemHostAlloc" in done.err
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


def test_without_a_simulator_there_is_no_driver(client: Path) -> None:
    env = environment(LD_LIBRARY_PATH=str(folder()), **{SOCKET: "@memtopo-simulator-none"})
    done = subprocess.run([client], env=env, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("count before init: CUDA_ERROR_STUB_LIBRARY (CUDA driver is a stub library)\n")
    assert done.stderr.startswith("memtopo simulator: no simulator is at MEMTOPO_SIMULATOR")


def test_a_forked_process_has_no_driver(client: Path, server: Server) -> None:
    done = subprocess.run([client, "fork"], env=variables(server), capture_output=True, text=True, check=True)
    child = "init of a child: CUDA_ERROR_NOT_INITIALIZED (initialization error)\n"
    assert done.stdout == LINES.replace("set current", f"{child}set current")


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
