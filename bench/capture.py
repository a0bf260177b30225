"""Captures: the cost of a recorded call, without and with stacks, and of a program that makes no memory calls.

A program in C makes 100,000 calls of the driver that create and destroy events, by itself and under captures,
alternately. Training steps of PyTorch run in one process in which a capture is on and off, alternately.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import memtopo
from memtopo.common.errors import MemtopoError

ROUNDS = 5
STEPS, PAIRS = 60, 20
PROGRAM = Path(__file__).with_suffix(".c")
KINDS = ("none", "python", "c")


def main() -> None:
    """Print the time of a call in µs, what a capture adds, and ratios."""
    from memtopo.drivers.target import resolve
    from memtopo.native.injection import working_cupti

    try:
        print(f"{resolve('local').machine.devices[0].name}, median of {ROUNDS} rounds")
        cupti = working_cupti(None)
    except MemtopoError as error:
        print(f"not run: {error.message}")
        return
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "program")
        subprocess.run(["cc", "-O2", "-o", program, PROGRAM, "-ldl"], check=True)
        rounds = [_round(program, Path(folder), cupti) for _ in range(ROUNDS)]
    plain = statistics.median(each["plain"]["call"] for each in rounds)
    print(f"a call by itself {plain:.2f} µs")
    for kind in KINDS:
        added = statistics.median(each[kind]["call"] - each["plain"]["call"] for each in rounds)
        print(f"  recorded with stacks {kind}: {added:.2f} µs more")
        if kind == "none":
            _bound("µs that a capture adds to a call", added, 5.0)
    starts = statistics.median(each["none"]["start"] - each["plain"]["start"] for each in rounds)
    print(f"the start of a process takes {starts * 1e3:.0f} ms more")
    taken = statistics.median(each["plain"]["free"] - each["none"]["free"] for each in rounds)
    print(f"a context takes {taken / (1 << 20):.0f} MiB of the GPU more")
    _steps(cupti)


def _steps(cupti: str) -> None:
    """Print the ratio of training steps without memory calls: under a capture, to those beside it."""
    try:
        import torch
    except ImportError:
        print("no steps: PyTorch is not installed")
        return
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(20))).cuda()
    given, optimizer = torch.randn(64, 1024, device="cuda"), torch.optim.SGD(model.parameters(), 1e-3)

    def run() -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(given).sum().backward()
            optimizer.step()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / STEPS

    run()
    pairs = []
    for _ in range(PAIRS):
        beside = run()
        with memtopo.capturing(cupti=cupti):
            pairs.append((run(), beside))
    print(f"a training step {statistics.median(beside for _, beside in pairs) * 1e3:.2f} ms")
    _bound("the step under a capture: ratio", statistics.median(one / other for one, other in pairs), 1.01)


def _round(program: Path, folder: Path, cupti: str) -> dict[str, dict[str, float]]:
    """Seconds and µs of one run by itself and one with each kind of stacks."""
    found = {"plain": _result([str(program)])}
    for kind in KINDS:
        record = str(folder / "record.jsonl")
        command = [sys.executable, "-m", "memtopo", "capture", "-o", record, "--cupti", cupti, "--stacks", kind, "--"]
        found[kind] = _result([*command, str(program)])
    return found


def _result(command: list[str]) -> dict[str, float]:
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def _bound(what: str, value: float, most: float) -> None:
    print(f"  {what} {value:.2f} (at most {most})")
