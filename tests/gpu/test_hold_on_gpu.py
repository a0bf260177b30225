"""A holder on a real GPU takes no memory but its chunks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from memtopo.driver.protocol import Driver
from memtopo.drivers.target import Target
from memtopo.kinds.layout import current
from tests.helpers.command_line import ROOT, environment

pytestmark = pytest.mark.gpu
SIZE = 64 << 20
SPEC = """
memtopo: 1
name: chunks-alone
ranges: {kv: {size: 64MiB}}
chunks: {page: {location: gpu0, size: 2MiB, count: 32, handles: fd}}
map: {kv: page}
access: {kv: {gpu0: rw}}
exports: {pages: {chunk: page, via: fd}}
"""


@contextmanager
def held(folder: Path) -> Iterator[subprocess.Popen[str]]:
    spec = folder / "chunks.yaml"
    spec.write_text(SPEC)
    command = [sys.executable, "-m", "memtopo", "apply", str(spec), "--machine", "local", "--hold"]
    command += ["--socket", str(folder / "held.sock")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment(), cwd=ROOT) as process:
        assert process.stderr is not None
        try:
            assert next(line for line in process.stderr if "holding" in line)
            yield process
        finally:
            process.terminate()


def free(driver: Driver, context: int) -> int:
    with current(driver, context):
        return driver.mem_get_info()[0]


def test_a_holder_of_chunks_takes_no_memory_but_theirs(local: Target, tmp_path: Path) -> None:
    driver = local.open()
    context = driver.device_primary_ctx_retain(0)
    try:
        before = free(driver, context)
        with held(tmp_path) as holder:
            assert before - free(driver, context) == SIZE
        assert (holder.returncode, free(driver, context)) == (0, before)
    finally:
        driver.device_primary_ctx_release(0)
