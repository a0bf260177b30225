"""Joining all processes of a layout, compared with `memtopo apply` of the same spec, and the memory that it takes.

The processes are programs that have imported memtopo, as a server's ranks have, and NumPy; they join at once, and leave
when all are complete. The command builds, checks and takes down the same layout. Both by turns, on two GPUs or on a
simulator, with the processor's time of all processes, the coordinator of the joined ones among them. The memory is that
of one more round, in which each program has the primary context of its GPU before, as PyTorch's have.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench import processes
from memtopo.common.errors import Unavailable
from memtopo.drivers.target import Target, resolve

ROOT = Path(__file__).parent.parent
SPEC = ROOT / "specs" / "tensor-parallel-server.yaml"
LABELS = ("rank.0", "rank.1")
ROUNDS = 7
LARGEST_RATIO, LARGEST_MEMORY = 1.2, 20

PROGRAM = """
import json, sys
import memtopo, numpy
from memtopo.drivers.target import resolve

spec, process, machine, *context = sys.argv[1:]
memtopo.join
if context:
    driver = resolve(machine).open()
    driver.ctx_push_current(driver.device_primary_ctx_retain(int(process[-1])))

def anonymous():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

def wait():
    print(json.dumps(anonymous()), flush=True)
    sys.stdin.readline()

wait()
with memtopo.join(spec, process, machine) as layout:
    wait()
"""


class Round(NamedTuple):
    """Wall time and processor time of one round in seconds."""

    wall: float
    cpu: float


def main() -> None:
    """Print both times, the median ratios of the pairs, and the memory of a process."""
    target = _target()
    where = f"a simulator of {target.name}" if target.simulated else f"two of {target.machine.devices[0].name}"
    with tempfile.TemporaryDirectory() as folder:
        environment = processes.with_bytecode(Path(folder) / "bytecode") | {"XDG_RUNTIME_DIR": folder}
        rounds = [(_apply(target.name, environment), _join(target.name, environment)) for _ in range(ROUNDS + 1)][1:]
        memory = _memory(target.name, environment)
    print(f"{SPEC.name}, {len(LABELS)} processes on {where}, {ROUNDS} alternating rounds")
    for label, index in (("memtopo apply", 0), ("memtopo.join", 1)):
        wall, cpu = (statistics.median(each[index][value] for each in rounds) for value in (0, 1))
        print(f"{label:14} {wall:6.2f} s, {cpu:5.2f} s of the processor")
    for what, value in (("wall time", 0), ("processor time", 1)):
        ratio = statistics.median(joined[value] / applied[value] for applied, joined in rounds)
        print(f"ratio of {what + ', median of the pairs':34} {ratio:6.2f}   (at most {LARGEST_RATIO})")
    print(f"memory of a process beside the layout       {memory:6.1f} MiB   (at most {LARGEST_MEMORY})")


def _target() -> Target:
    """This machine if it has two GPUs, else a simulated one."""
    try:
        local = resolve("local")
    except Unavailable:
        return resolve("h200x2")
    return local if len(local.machine.devices) >= len(LABELS) else resolve("h200x2")


def _apply(machine: str, environment: dict[str, str]) -> Round:
    command = [sys.executable, "-m", "memtopo", "apply", str(SPEC), "--machine", machine]
    start = time.perf_counter()
    cpu = processes.cpu_seconds(command, ROOT, environment)
    return Round(time.perf_counter() - start, cpu)


def _join(machine: str, environment: dict[str, str]) -> Round:
    started = [_start(label, machine, environment) for label in LABELS]
    for each in started:
        _line(each)
    spent = sum(_spent(each.pid) for each in started)
    start = time.perf_counter()
    _go_on(started)
    for each in started:
        _line(each)
    of_coordinator = _spent(_coordinator(Path(environment["XDG_RUNTIME_DIR"])))
    _go_on(started)
    cpu = sum(_ended(each) for each in started)
    return Round(time.perf_counter() - start, cpu - spent + of_coordinator)


def _memory(machine: str, environment: dict[str, str]) -> float:
    """Most memory of a process beside the layout in MiB, in programs that have the context of their GPU before."""
    started = [_start(label, machine, environment, "context") for label in LABELS]
    before = [_line(each) for each in started]
    _go_on(started)
    joined = [_line(each) for each in started]
    _go_on(started)
    for each in started:
        _ended(each)
    return max(after - at_first for at_first, after in zip(before, joined, strict=True)) / 1024


def _start(label: str, machine: str, environment: dict[str, str], *context: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, str(SPEC), label, machine, *context]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, env=environment, text=True, stdin=pipe, stdout=pipe)


def _line(process: subprocess.Popen[str]) -> float:
    """Anonymous memory of a process in KiB, which it prints when it waits."""
    assert process.stdout
    return float(json.loads(process.stdout.readline()))


def _go_on(started: Sequence[subprocess.Popen[str]]) -> None:
    for each in started:
        assert each.stdin
        each.stdin.write("\n")
        each.stdin.flush()


def _ended(process: subprocess.Popen[str]) -> float:
    """Processor time of a process from its start to its end."""
    with process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return used.ru_utime + used.ru_stime


def _spent(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def _coordinator(runtime: Path) -> int:
    """Process that coordinates the layout, which is no child of this one."""
    (lock,) = (runtime / "memtopo").glob("*.join.sock.lock")
    return int(lock.read_text().split("process ")[1].split()[0])
