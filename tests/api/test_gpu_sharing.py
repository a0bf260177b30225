"""Attachment on a real GPU by the driver, PyTorch, CuPy and a C program.

PyTorch, CuPy and the compiler are skipped where they are absent.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import memtopo
from memtopo.driver.types import DriverError
from tests.api.child_process import Process
from tests.helpers.command_line import ROOT, environment
from tests.helpers.device_bytes import peek, poke

pytestmark = pytest.mark.gpu
HOLD = "specs/hold.yaml"
Start = Callable[..., Process]


def test_holder_and_importer_on_a_gpu_read_the_bytes_of_each_other(start: Start) -> None:
    holder = start(spec=HOLD, machine="local", record=True)
    with memtopo.attach("kv-store") as shared:
        assert peek(shared, shared.address("pages"), 3) == b"kv."
        poke(shared, shared.export("pages").address, b"from the importer")
        shared.event("stored").wait()
        shared.event("stored").synchronize()
        assert shared.event("stored").query()
        poke(shared, shared.export("lengths").address, b"lengths")
        assert shared.notice() is None
    assert shared.report
    assert shared.report.exit_code == 0, shared.report
    summary, report = holder.end()
    assert bytes.fromhex(summary["first"]["kv"]) == b"from the importe"
    assert report["outcome"] == "ok"


def test_an_import_with_access_r_cannot_be_written(start: Start) -> None:
    """The driver refuses writes, and the views are read-only."""
    start(spec=HOLD, machine="local")
    with memtopo.attach("kv-store", "pages", access="r") as shared:
        assert shared.export("pages").read_only
        assert peek(shared, shared.address("pages"), 2) == b"kv"
        with pytest.raises(DriverError, match="INVALID_VALUE"):
            poke(shared, shared.address("pages"), b"no")


def test_a_torch_kernel_writes_memory_of_the_holder(start: Start) -> None:
    torch = pytest.importorskip("torch")
    holder = start(spec=HOLD, machine="local", record=True)
    with memtopo.attach("kv-store") as shared:
        pages = torch.from_dlpack(shared.export("pages", dtype="uint8", shape=(32, -1)))
        shared.event("stored").wait(torch.cuda.current_stream())
        assert pages[0, :2].tolist() == list(b"kv")
        pages[0, :16] = 7
        shared.event("stored").record(torch.cuda.current_stream())
        del pages
    assert bytes.fromhex(holder.end()[0]["first"]["kv"]) == bytes([7] * 16)


@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_every_library_example_attaches_and_sums_a_page(library: str, start: Start, runtime: Path) -> None:
    """Each attaches to specs/hold.yaml, writes a page and reads its sum, without a warning."""
    pytest.importorskip(library)
    start(spec=HOLD, machine="local", record=True)
    command = [sys.executable, "-W", "error::ResourceWarning", f"examples/attach_{library}.py"]
    env = environment(XDG_RUNTIME_DIR=str(runtime))
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert str(float(1 << 20)) in done.stdout
    assert "ViewOutlived" not in done.stderr


@pytest.mark.skipif(not (shutil.which("cc") and shutil.which("make")), reason="needs a C compiler and make")
def test_the_c_program_writes_and_reads_a_chunk(start: Start, runtime: Path, tmp_path: Path) -> None:
    """Its checksum is that of the bytes that this process reads."""
    subprocess.run(["make", "-C", ROOT / "examples" / "c", f"BUILD={tmp_path}"], check=True, capture_output=True)
    holder = start(spec=HOLD, machine="local")
    command = [str(tmp_path / "attach"), "kv-store", "pages.0", "written by C"]
    env = environment(XDG_RUNTIME_DIR=str(runtime))
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    found = re.search(r"checksum ([0-9a-f]{16}) of 2097152 bytes", done.stdout)
    assert found
    with memtopo.attach("kv-store", "pages") as shared:
        data = peek(shared, shared.address("pages"), 2 << 20)
    assert data.startswith(b"written by C")
    assert int(found[1], 16) == fnv(data)
    assert bytes.fromhex(holder.end()[0]["first"]["kv"]).startswith(b"written by C")


def fnv(data: bytes) -> int:
    """The checksum of examples/c (FNV-1a of 64 bits)."""
    sum = 0xCBF29CE484222325
    for byte in data:
        sum = (sum ^ byte) * 0x100000001B3 & (1 << 64) - 1
    return sum
