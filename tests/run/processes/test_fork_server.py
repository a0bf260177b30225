"""Workers that a server forks: children of this process with their own environment and descriptors, as spawned ones."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from memtopo.common.clock import RunningClock
from memtopo.run.processes.worker_process import ForkedWorker, WorkerProcess, WorkerServer, launch
from tests.helpers.processes import open_descriptors

ROOT = Path(__file__).parents[3]
SIMULATED = "memtopo.drivers.sim"


@contextmanager
def gates() -> Iterator[list[int]]:
    """Descriptors of the gates of a teardown."""
    ends = [*os.pipe(), *os.pipe()]
    yield ends
    for end in ends:
        os.close(end)


def started(server: WorkerServer, ends: list[int], **variables: str) -> WorkerProcess:
    return launch("w", ends, variables, RunningClock(), server=server)


def status(pid: int, key: str) -> str:
    """Field of the status of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.partition(":")[2].strip() for line in lines if line.startswith(f"{key}:"))


def ended(pidfd: int) -> bool:
    """Return whether a process ends in time."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(30_000))


def test_forked_workers_are_children_of_this_process_and_outlive_the_server() -> None:
    with gates() as ends, closing(WorkerServer(SIMULATED)) as server:
        workers = [started(server, ends), started(server, ends)]
        assert all(isinstance(each.process, ForkedWorker) for each in workers)
        server.close()
        for each in workers:
            assert status(each.process.pid, "PPid") == str(os.getpid())
            assert status(each.process.pid, "State")[0] in "SR"
            each.kill("test")  # before its channel closes, which would end it by itself
            each.close()
            assert each.process.wait() == -signal.SIGKILL


def test_a_forked_worker_ends_by_itself_when_its_channel_does() -> None:
    with gates() as ends, closing(WorkerServer(SIMULATED)) as server:
        worker = started(server, ends)
        worker.channel.close()
        assert worker.process.wait() == 0


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
    with gates() as ends, closing(WorkerServer("witness")) as server:
        workers = [
            started(server, ends, CUDA_VISIBLE_DEVICES="GPU-a"),
            started(server, ends, CUDA_VISIBLE_DEVICES="GPU-b"),
            started(server, ends),
        ]
        for each in workers:
            assert isinstance(each.process, ForkedWorker)
            each.channel.close()
            assert each.process.wait() == 0
    seen = [(tmp_path / str(each.process.pid)).read_text() for each in workers]
    assert seen == ["GPU-a", "GPU-b", "GPU-c"]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-c"


def test_a_forked_worker_has_its_own_descriptors_alone() -> None:
    """Standard streams, the channel and the gates; it has one more while it reads its first message, if at all."""
    with gates() as ends, closing(WorkerServer(SIMULATED)) as server:
        workers = [started(server, ends) for _ in range(3)]
        server.close()
        assert {open_descriptors(each.process.pid) for each in workers} <= {3 + 1 + 4, 3 + 1 + 4 + 1}
        for each in workers:
            each.close()


def test_a_worker_is_spawned_where_the_server_cannot_fork_it() -> None:
    with gates() as ends, closing(WorkerServer(SIMULATED)) as server:
        first = started(server, ends)
        other = started(server, ends, PYTHONMALLOC="malloc")  # which an interpreter reads at its start
        assert isinstance(other.process, subprocess.Popen)
        assert server._started
        server._started[0].kill()
        server._started[0].wait()
        third = started(server, ends)
        assert isinstance(first.process, ForkedWorker)
        assert isinstance(third.process, subprocess.Popen)
        for each in (first, other, third):
            each.close()


def test_a_driver_that_cannot_be_imported_is_left_to_the_worker() -> None:
    with gates() as ends, closing(WorkerServer("memtopo.driver.missing")) as server:
        worker = started(server, ends)
        assert isinstance(worker.process, ForkedWorker)
        worker.close()


PROGRAM = """
import os, signal, sys
from memtopo.common.clock import RunningClock
from memtopo.run.processes.worker_process import launch
from memtopo.run.processes.worker_process import WorkerServer
ends = [*os.pipe(), *os.pipe()]
server = WorkerServer("memtopo.drivers.sim")
workers = [launch("w", ends, {}, RunningClock(), server=server) for _ in range(2)]
print(*[each.process.pid for each in workers], server._started[0].pid, flush=True)
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
    with gates() as ends, closing(WorkerServer(SIMULATED)) as server:
        worker = started(server, ends)
        os.kill(worker.process.pid, number)
        assert worker.process.wait() == -number
        assert worker.process.wait() == -number
        worker.gone = True
        worker.close()
