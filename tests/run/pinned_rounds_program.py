"""Rounds of registering a file that another process has registered, too; run in a process of its own.

    python -m tests.run.pinned_rounds_program MACHINE FILE ROUNDS

Each round finds what the other process wrote last, and writes its number. Prints the open descriptors, the locked
memory in KiB, and the mappings of the file, before and after.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import memtopo
from memtopo.common.units import MiB
from memtopo.drivers.target import resolve
from tests.helpers.python_process import run_python
from tests.helpers.specs import ROOT

SIZE = 4 * MiB
WORD = 8


def spec(file: str) -> dict[str, object]:
    """A layout with the whole file registered."""
    return {"memtopo": 1, "name": "reader", "pinned": {"ring": {"file": file, "size": "4MiB", "accessed_by": ["gpu0"]}}}


def rounds_elsewhere(machine: str, file: str, rounds: int) -> tuple[list[int], list[int]]:
    """Make rounds in another process; returns what it has open, locked and mapped after the first one and the last."""
    command = [sys.executable, "-m", "tests.run.pinned_rounds_program", machine, file, str(rounds)]
    done = run_python(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=300, check=True)
    before, after = json.loads(done.stdout)
    return before, after


def _make_round(machine: str, file: str, number: int) -> None:
    with memtopo.applied(spec(file), machine=machine) as layout:
        address = layout.address("ring")
        assert ctypes.string_at(address + WORD, WORD) == b"by other"
        ctypes.memmove(address, number.to_bytes(WORD, "little"), WORD)
    assert layout.report
    assert layout.report.outcome == "ok"


def _held() -> list[int]:
    """Open descriptors, KiB of locked memory, and mappings of the file."""
    status = Path("/proc/self/status").read_text()
    locked = sum(int(each) for each in re.findall(r"^Vm(?:Lck|Pin):\s+(\d+)", status, re.MULTILINE))
    return [len(os.listdir("/proc/self/fd")), locked, Path("/proc/self/maps").read_text().count("memtopo-test")]


def main(machine: str, file: str, rounds: int) -> None:
    """Make the rounds, beside a context that makes each of them short on a GPU."""
    resolve(machine).open().device_primary_ctx_retain(0)
    _make_round(machine, file, 0)
    before = _held()
    for number in range(1, rounds):
        _make_round(machine, file, number)
    sys.stdout.write(json.dumps([before, _held()]))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
