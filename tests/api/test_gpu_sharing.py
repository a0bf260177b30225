"""Attachment on a real GPU by the driver, PyTorch, CuPy and a C program.

PyTorch, CuPy and the compiler are skipped where they are absent.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

import memtopo
from memtopo.api.attachment import Attached
from memtopo.driver.types import DriverError
from memtopo.kinds.layout import current
from memtopo.sharing.client import connect
from memtopo.sharing.endpoints import endpoint
from memtopo.sharing.status import Switched
from tests.api.child_process import Process
from tests.helpers.command_line import MEMTOPO, ROOT, environment
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


SLEEPER = """
memtopo: 1
name: sleeper
ranges: {weights: {size: 64MiB}, kv: {size: 1GiB}}
chunks:
  w: {location: gpu0, size: 2MiB, count: 32, handles: fd}
  page: {location: gpu0, size: 2MiB, count: 512, handles: fd}
map: {weights: [w], kv: [page]}
access: {weights: {gpu0: rw}, kv: {gpu0: rw}}
exports: {w: {chunk: w, via: fd}, page: {chunk: page, via: fd}}
states: {asleep: {offload: {weights: "host:0"}, drop: [kv]}}
"""
GONE = (64 << 20) + (1 << 30)


@contextmanager
def sleeper(folder: Path, machine: str = "local") -> Iterator[None]:
    """The sleeper, held by a process of its own."""
    spec = folder / "sleeper.yaml"
    spec.write_text(SLEEPER)
    command = [*MEMTOPO, "apply", str(spec), "--machine", machine, "--hold"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as holder:
        assert holder.stderr
        assert any(line.startswith("holding ") for line in holder.stderr)
        try:
            yield
        finally:
            holder.terminate()
            _, errors = holder.communicate(timeout=120)
            assert holder.returncode == 0, errors


def switched(state: str) -> Switched:
    with connect(endpoint("sleeper")) as client:
        return client.switch(state, wait=60.0)


def free(shared: Attached) -> int:
    """Free bytes of the GPU."""
    session = shared._session
    with current(session.driver, session.layout.contexts[0]):
        return session.driver.mem_get_info()[0]


def follow_a_sleep(shared: Attached) -> None:
    """Let go, see that the memory is free, and find the bytes of the weights at the same address."""
    weights, pages = shared.address("w"), shared.address("page")
    poke(shared, weights, b"bytes of the importer")
    poke(shared, pages + (1 << 30) - 8, b"dropped!")
    before = free(shared)
    with ThreadPoolExecutor() as pool:
        asleep = pool.submit(switched, "asleep")
        notice = shared.poll(60.0)
        assert notice
        assert (notice.kind, asleep.result().kept) == ("changing", ())
        assert shared.absent == {"w", "page"}
        assert free(shared) - before >= GONE
        assert shared.poll(60.0)
        awake = pool.submit(switched, "awake")
        assert shared.poll(60.0)
        assert awake.result().checks.different == 0
    assert (shared.absent, shared.address("w"), shared.address("page")) == (frozenset(), weights, pages)
    assert peek(shared, weights, 21) == b"bytes of the importer"
    assert before - free(shared) <= 16 << 20
    poke(shared, pages + (1 << 30) - 8, b"new page")
    assert peek(shared, pages + (1 << 30) - 8, 8) == b"new page"


def test_an_importer_follows_a_sleep_and_the_memory_is_free(runtime: Path, tmp_path: Path) -> None:
    """Three times: nothing of it stays."""
    with sleeper(tmp_path), memtopo.attach("sleeper") as shared:
        for _ in range(3):
            follow_a_sleep(shared)
        assert shared.check().different == 0
    assert shared.report
    assert shared.report.exit_code == 0, shared.report


@pytest.mark.skipif(not (shutil.which("cc") and shutil.which("make")), reason="needs a C compiler and make")
def test_the_c_program_follows_a_sleep(runtime: Path, tmp_path: Path) -> None:
    """It reads the same bytes at the same address."""
    subprocess.run(["make", "-C", ROOT / "examples" / "c", f"BUILD={tmp_path}"], check=True, capture_output=True)
    command = [str(tmp_path / "attach"), "--follow", "sleeper", "w.1", "written by C"]
    with sleeper(tmp_path), subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        lines = program.stdout
        assert lines
        mapped = [next(lines) for _ in range(3)][-1]
        assert switched("asleep").kept == ()
        assert [next(lines), next(lines)] == ["let go of w\n", "w has no memory in state asleep\n"]
        switched("awake")
        assert next(lines) == mapped
        with connect(endpoint("sleeper")) as client:
            client.release(force=True)
        assert program.wait(60) == 0


def fnv(data: bytes) -> int:
    """The checksum of examples/c (FNV-1a of 64 bits)."""
    sum = 0xCBF29CE484222325
    for byte in data:
        sum = (sum ^ byte) * 0x100000001B3 & (1 << 64) - 1
    return sum
