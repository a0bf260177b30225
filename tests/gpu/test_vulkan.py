"""Memory and semaphores of Vulkan, and memtopo's chunks in Vulkan, on a real GPU. Needs a Vulkan loader and driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import memtopo
from memtopo.drivers.cuda import open_cuda
from memtopo.kinds.layout import current
from tests.helpers.vulkan import why_unavailable

pytestmark = pytest.mark.gpu

vulkan = pytest.importorskip("memtopo.vulkan", reason="needs the package vulkan", exc_type=ImportError)

ROOT = Path(__file__).parent.parent.parent
FRAME = ROOT / "specs/vulkan-frame.yaml"
CHUNK = ROOT / "specs/vulkan-consumer.yaml"
PRODUCER = ROOT / "examples/vulkan/producer.py"
CONSUMER = ROOT / "examples/vulkan/consumer.py"
SIZE = 8 << 20
DRAWN = 0x00C0FFEE
TURNED = DRAWN ^ 0xFFFFFFFF
ROUNDS = 200


def uuid() -> bytes:
    return open_cuda().device_get_uuid(0)


@pytest.fixture(scope="module", autouse=True)
def _vulkan_works() -> None:
    if reason := why_unavailable(uuid()):
        pytest.skip(reason)


def words(word: int, count: int) -> bytes:
    return word.to_bytes(4, "little") * count


def test_apply_starts_a_vulkan_producer_and_leaves_its_frame_unchanged() -> None:
    """It imports, waits for and signals the producer."""
    command = f"camera={sys.executable} {PRODUCER} --gpu {uuid().hex()}"
    done = subprocess.run(
        [sys.executable, "-m", "memtopo", "apply", str(FRAME), "--with", command, "--json"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the frame is as it was drawn" in done.stderr
    assert json.loads(done.stdout)["outcome"] == "ok"


@contextmanager
def producer(socket: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(PRODUCER), "--socket", str(socket), "--gpu", uuid().hex(), *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            until = time.monotonic() + 30
            while not socket.exists():
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < until
                time.sleep(0.01)
            yield process
        finally:
            process.kill()


def test_cuda_and_vulkan_read_the_bytes_of_each_other_after_a_signal(tmp_path: Path) -> None:
    text = FRAME.read_text().replace("signal: 2", "")
    text = "\n".join(line.replace(", }", "}") for line in text.splitlines())
    spec = tmp_path / "frame.yaml"
    spec.write_text(text)
    socket = tmp_path / "camera.sock"
    driver = open_cuda()
    with producer(socket) as process, memtopo.applied(spec, bind={"camera": socket}) as layout:
        session = layout._session
        address = session.layout.buffers["frame"].address
        with current(driver, session.layout.contexts[0]):
            assert driver.memcpy_dtoh(address, SIZE) == words(DRAWN, SIZE // 4)
            driver.memcpy_htod(address, words(TURNED, SIZE // 4))
            driver.ctx_synchronize()
        layout.semaphore("ready").signal(2)
        assert process.wait(30) == 0
        assert process.stderr
        assert "the frame is turned" in process.stderr.read()


def test_vulkan_imports_a_chunk_of_a_held_layout(tmp_path: Path) -> None:
    """Each API reads the bytes that the other wrote."""
    socket = tmp_path / "held.sock"
    held = subprocess.Popen(
        [sys.executable, "-m", "memtopo", "apply", str(CHUNK), "--hold", "--socket", str(socket)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        until = time.monotonic() + 60
        while not socket.exists():
            assert held.poll() is None
            assert time.monotonic() < until
            time.sleep(0.01)
        driver = open_cuda()
        with memtopo.attach(socket) as shared:
            export = next(iter(shared.exports))
            address, size = shared.ranges[export]
            with current(driver, driver.device_primary_ctx_retain(0)):
                driver.memset_d8(address, 0x5A, size)
                driver.ctx_synchronize()
                done = subprocess.run(
                    [sys.executable, str(CONSUMER), f"{socket}/{export}"],
                    capture_output=True, text=True, timeout=60, check=False,
                )  # fmt: skip
                assert done.returncode == 0, done.stderr
                assert "found 0x5a5a5a5a" in done.stdout
                assert driver.memcpy_dtoh(address, size) == words(0x0B5E55ED, size // 4)
            driver.device_primary_ctx_release(0)
    finally:
        held.terminate()
        held.wait(60)


def go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin
    process.stdin.write("\n")
    process.stdin.flush()


def test_two_hundred_vulkan_imports_leave_descriptors_and_memory_unchanged(tmp_path: Path) -> None:
    """In the producer and in the importer."""
    driver = open_cuda()
    context = driver.device_primary_ctx_retain(0)
    seen = []
    command = [sys.executable, "-m", "tests.gpu.frame_producer", str(tmp_path), uuid().hex(), str(ROUNDS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout
            for turn in range(ROUNDS):
                assert process.stdout.readline() == "serving\n"
                with memtopo.applied(FRAME, bind={"camera": tmp_path / f"{turn}.sock"}) as layout:
                    address = layout.address("frame")
                    with current(driver, context):
                        assert driver.memcpy_dtoh(address, SIZE) == words(turn, SIZE // 4)
                go_on(process)
                theirs = int(process.stdout.readline())
                with current(driver, context):
                    seen.append((theirs, len(os.listdir("/proc/self/fd")), driver.mem_get_info()[0]))
                go_on(process)
            assert process.wait(30) == 0
        finally:
            process.kill()
            driver.device_primary_ctx_release(0)
    assert len(seen) == ROUNDS
    assert seen[1] == seen[-1]


def test_the_vulkan_validation_layer_reports_nothing(tmp_path: Path) -> None:
    try:
        with vulkan.Gpu(uuid(), validation=True):
            pass
    except Exception as error:  # noqa: BLE001 the package's own
        pytest.skip(f"there is no validation layer: {type(error).__name__}")
    socket = tmp_path / "camera.sock"
    with producer(socket, "--validate") as process, memtopo.applied(FRAME, bind={"camera": socket}):
        assert process.wait(30) == 0, process.stderr and process.stderr.read()
