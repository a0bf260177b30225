"""Workers that a server forks: with their own environment and descriptors, until the server ends."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from memtopo.common.processes import RunningClock
from memtopo.run.processes.fork_server import ForkedWorker, WorkerServer
from memtopo.run.processes.worker_process import WorkerProcess, launch
from tests.helpers.holders import until
from tests.helpers.processes import open_descriptors

ROOT = Path(__file__).parents[3]


def simulated() -> WorkerServer:
    """A server of workers with simulated GPUs."""
    return WorkerServer("memtopo.drivers.sim", {})


@contextmanager
def gates() -> Iterator[list[int]]:
    """Descriptors of the gates of a teardown."""
    ends = [*os.pipe(), *os.pipe()]
    yield ends
    for end in ends:
        os.close(end)


def started(server: WorkerServer, ends: list[int], **variables: str) -> WorkerProcess:
    return launch("w", ends, variables, RunningClock(), server)


def sockets(pid: int) -> set[str]:
    """Sockets that a process has open."""
    found = set[str]()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it has been closed meanwhile
            found.add(str(each.readlink()))
    return {each for each in found if each.startswith("socket:")}


def server_of(worker: WorkerProcess) -> int:
    return int(status(worker.process.pid, "PPid"))


def end(worker: WorkerProcess) -> int:
    """Exit status of a forked worker that ends in time."""
    assert isinstance(worker.process, ForkedWorker)
    worker.gone = True
    worker.close()
    return worker.process.end(30)


def status(pid: int, key: str) -> str:
    """Field of the status of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.partition(":")[2].strip() for line in lines if line.startswith(f"{key}:"))


def ended(pidfd: int) -> bool:
    """Return whether a process ends in time."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(30_000))


def test_forked_workers_are_children_of_the_server_and_are_killed_by_this_process() -> None:
    with gates() as ends, closing(simulated()) as server:
        workers = [started(server, ends), started(server, ends)]
        assert server.child
        for each in workers:
            assert status(each.process.pid, "PPid") == str(server.child.process.pid)
            assert status(each.process.pid, "State")[0] in "SR"
            os.kill(each.process.pid, signal.SIGSTOP)  # it cannot end by itself once its channel closes
            each.kill("test")
            assert end(each) == -signal.SIGKILL
            assert not Path(f"/proc/{each.process.pid}").exists()


def test_a_forked_worker_ends_by_itself_when_its_channel_does() -> None:
    with gates() as ends, closing(simulated()) as server:
        assert end(started(server, ends)) == 0


def test_a_worker_that_does_not_end_in_time_is_killed_by_the_server() -> None:
    """The status of the next one is its own."""
    with gates() as ends, closing(simulated()) as server:
        worker, following = started(server, ends), started(server, ends)
        assert isinstance(worker.process, ForkedWorker)
        assert worker.process.end(0.01) == -signal.SIGKILL
        worker.gone = True
        worker.close()
        assert end(following) == 0


WITNESS = """
import atexit, os
from pathlib import Path
folder = Path(__file__).parent
atexit.register(lambda: (folder / str(os.getpid())).write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "unset")))
"""


def test_workers_that_see_different_gpus_are_forked_by_one_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver reads it when the worker initialises it."""
    (tmp_path / "witness.py").write_text(WITNESS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-c")
    with gates() as ends, closing(WorkerServer("witness", {})) as server:
        workers = [
            started(server, ends, CUDA_VISIBLE_DEVICES="GPU-a"),
            started(server, ends, CUDA_VISIBLE_DEVICES="GPU-b"),
            started(server, ends),
        ]
        for each in workers:
            assert end(each) == 0
    seen = [(tmp_path / str(each.process.pid)).read_text() for each in workers]
    assert seen == ["GPU-a", "GPU-b", "GPU-c"]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-c"


def test_a_forked_worker_has_its_own_descriptors_alone() -> None:
    """Standard streams, the channel and the gates; it has one more while it reads its first message, if at all."""
    with gates() as ends, closing(simulated()) as server:
        workers = [started(server, ends) for _ in range(3)]
        assert {open_descriptors(each.process.pid) for each in workers} <= {3 + 1 + 4, 3 + 1 + 4 + 1}
        until(lambda: not any(sockets(each.process.pid) & sockets(server_of(each)) for each in workers))
        for each in workers:
            each.close()


def test_workers_end_with_their_server_and_no_other_is_started() -> None:
    with gates() as ends, closing(simulated()) as server:
        worker = started(server, ends)
        watched = os.pidfd_open(worker.process.pid)
        assert server.child
        server.child.process.kill()
        assert ended(watched)
        os.close(watched)
        with pytest.raises(OSError, match="the process that starts them has ended"):
            started(server, ends)
        assert end(worker) == -signal.SIGKILL


def test_a_signal_that_ends_a_service_leaves_the_server_to_its_conductor() -> None:
    with gates() as ends, closing(simulated()) as server:
        workers = [started(server, ends)]
        assert server.child
        server.child.process.terminate()
        workers.append(started(server, ends))
        assert [end(each) for each in workers] == [0, 0]


def test_a_stopped_server_starts_no_worker_and_is_not_waited_for() -> None:
    with gates() as ends, closing(WorkerServer("memtopo.drivers.sim", {})) as server:
        first = started(server, ends)
        assert server.child
        process = server.child.process
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        begun = time.monotonic()
        with pytest.raises(OSError, match="the process that starts them is stopped"):
            started(server, ends)
        server.close()
        first.close()
        assert time.monotonic() - begun < 30


def test_a_driver_that_cannot_be_imported_is_left_to_the_worker() -> None:
    with gates() as ends, closing(WorkerServer("memtopo.driver.missing", {})) as server:
        worker = started(server, ends)
        assert isinstance(worker.process, ForkedWorker)
        worker.close()


PROGRAM = """
import os, signal, sys
from memtopo.common.processes import RunningClock
from memtopo.run.processes.worker_process import launch
from memtopo.run.processes.worker_process import WorkerServer
ends = [*os.pipe(), *os.pipe()]
server = WorkerServer("memtopo.drivers.sim", {})
workers = [launch("w", ends, {}, RunningClock(), server) for _ in range(2)]
print(*[each.process.pid for each in workers], server.child.process.pid, flush=True)
sys.stdin.readline()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_forked_workers_and_their_server_end_with_the_conductor() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as conductor:
        assert conductor.stdin
        assert conductor.stdout
        pids = [int(word) for word in conductor.stdout.readline().split()]
        assert len(pids) == 3
        watched = [os.pidfd_open(pid) for pid in pids]
        conductor.stdin.write(b"\n")
        conductor.stdin.flush()
        assert all(ended(each) for each in watched)
        for each in watched:
            os.close(each)
    assert conductor.returncode == -signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_the_status_of_a_forked_worker_is_that_of_its_end(number: int) -> None:
    with gates() as ends, closing(simulated()) as server:
        worker = started(server, ends)
        os.kill(worker.process.pid, number)
        assert end(worker) == -number
