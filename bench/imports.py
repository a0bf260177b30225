"""Imports from another process, compared with bare driver calls and the same messages.

Another process holds 1,000 chunks of 2 MiB, a buffer and an event. Both importers connect to it, request the handles in
batches of 64, import them all, and release them: memtopo by its plan, executor and ledger, the other by a plain loop
over sockets and cuda.bindings.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from memtopo import language, planner
from memtopo.common.errors import Unavailable
from memtopo.driver.kernels import KernelDriver
from memtopo.driver.ledger import Ledger
from memtopo.drivers.target import resolve
from memtopo.executor import Execution
from memtopo.kinds.step import Phase
from memtopo.rules import validate
from memtopo.sharing.imports import HolderHandles

CHUNKS = 1000
ROUNDS = 7
ONE_BY_ONE = 200
BATCH = 64
HELD = f"""
memtopo: 1
name: bench
chunks: {{page: {{location: gpu0, size: 2MiB, count: {CHUNKS}, handles: fd}}}}
buffers: {{buffer: {{location: gpu0, size: 2MiB}}}}
events: {{event: {{device: gpu0}}}}
exports:
  page: {{chunk: page, via: fd}}
  buffer: {{buffer: buffer, via: ipc}}
  event: {{event: event, via: ipc}}
"""
READER = f"""
memtopo: 1
name: reader
imports: {{page: {{from: holder/page, location: gpu0, size: 2MiB, count: {CHUNKS}}}}}
"""


def main() -> None:
    """Print both times in µs a handle, the median ratio of the pairs, and the latency of a handle by each transport."""
    try:
        local = resolve("local")
    except Unavailable as error:
        print(f"not run: {error.message}")
        return
    driver = local.open()
    driver.ctx_push_current(driver.device_primary_ctx_retain(0))
    geometry = validate(language.read_text(READER.encode(), "bench"), local.machine).geometry
    assert geometry is not None
    plan = planner.plan(geometry, local.machine)
    gpus = [driver.device_get_uuid(0).hex()]
    with held(HELD) as path:
        pairs = [
            (_plain(path, CHUNKS), _memtopo(plan, driver, lambda: HolderHandles(geometry, gpus, {"holder": path})))
            for _ in range(ROUNDS + 1)
        ][1:]
        latencies = {way: _latency(path, *how) for way, how in _WAYS.items()}
    driver.ctx_pop_current()
    driver.device_primary_ctx_release(0)
    plain, ours = (statistics.median(times) * 1e6 / CHUNKS for times in zip(*pairs, strict=True))
    ratio = statistics.median(mine / loop for loop, mine in pairs)
    print(f"{local.machine.devices[0].name}, {CHUNKS:,} chunks of 2 MiB, connect, import and release, {ROUNDS} rounds")
    print(f"plain loop over sockets and cuda.bindings  {plain:6.1f} µs a handle")
    print(f"memtopo                                    {ours:6.1f} µs a handle")
    print(f"ratio, median of the pairs                 {ratio:6.3f}   (at most 1.25)")
    for way, seconds in latencies.items():
        print(f"one handle, requested and imported, {way:12} {seconds * 1e6:6.0f} µs")


@contextmanager
def held(text: str, *options: str) -> Iterator[str]:
    """Hold a spec in another process; yields the path of its socket."""
    with tempfile.TemporaryDirectory() as folder:
        path, spec = str(Path(folder, "bench.sock")), Path(folder, "bench.yaml")
        spec.write_text(text)
        command = [sys.executable, "-m", "memtopo", "apply", str(spec), "--hold", "--socket", path, *options]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr
            for line in process.stderr:
                if line.startswith("holding "):
                    break
            try:
                yield path
            finally:
                process.terminate()


def _memtopo(plan: planner.Plan, driver: KernelDriver, handle_source: Callable[[], HolderHandles]) -> float:
    ledger = Ledger(driver)
    execution = Execution(plan, ledger)
    execution.layout.handle_source = handle_source()
    start = time.perf_counter()
    execution.build(Phase.IMPORT)
    execution.layout.handle_source.settle()
    teardown = execution.take_down()
    took = time.perf_counter() - start
    assert ledger.empty
    assert not teardown.leaks
    return took


def _plain(path: str, count: int) -> float:
    from cuda.bindings import driver as cuda

    kind = cuda.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    start = time.perf_counter()
    handles: list[Any] = []
    with connected(path) as sock:
        ask(sock, {"request": "offers", "first": 0})
        while len(handles) < count:
            requested = min(BATCH, count - len(handles))
            _, fds = ask(sock, {"request": "handles", "export": "page", "first": len(handles), "count": requested})
            for fd in fds:
                error, handle = cuda.cuMemImportFromShareableHandle(fd, kind)
                assert not error
                handles.append(handle)
            for fd in fds:
                os.close(fd)
        for handle in handles:
            (error,) = cuda.cuMemRelease(handle)
            assert not error
    return time.perf_counter() - start


def _latency(path: str, export: str, use: Callable[[Any, list[int]], None]) -> float:
    """Median seconds to request, import and release one handle over an open connection."""
    times = []
    with connected(path) as sock:
        for _ in range(ONE_BY_ONE):
            start = time.perf_counter()
            use(*ask(sock, {"request": "handles", "export": export, "first": 0, "count": 1}))
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def _use_fd(_: Any, fds: list[int]) -> None:
    from cuda.bindings import driver as cuda

    kind = cuda.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    error, handle = cuda.cuMemImportFromShareableHandle(fds[0], kind)
    assert not error
    os.close(fds[0])
    cuda.cuMemRelease(handle)


def _use_buffer(answer: Any, _: list[int]) -> None:
    from memtopo.drivers.cuda.driver import CudaDriver

    driver = CudaDriver()
    driver.ipc_close_mem_handle(driver.ipc_open_mem_handle(_secret(answer)))


def _use_event(answer: Any, _: list[int]) -> None:
    from memtopo.drivers.cuda.driver import CudaDriver

    driver = CudaDriver()
    driver.event_destroy(driver.ipc_open_event_handle(_secret(answer)))


_WAYS: dict[str, tuple[str, Callable[[Any, list[int]], None]]] = {
    "fd": ("page", _use_fd), "ipc buffer": ("buffer", _use_buffer), "ipc event": ("event", _use_event),
}  # fmt: skip


def _secret(answer: Any) -> bytes:
    import base64

    return base64.b64decode(answer["handles"][0]["secret"])


@contextmanager
def connected(path: str) -> Iterator[socket.socket]:
    """Connect to a holder, without a client of memtopo."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect(path)
        yield sock


def ask(sock: socket.socket, request: dict[str, Any]) -> tuple[Any, list[int]]:
    """Answer to a request, and its descriptors."""
    sock.send(json.dumps({"memtopo": 1, **request}).encode())
    data, fds, _, _ = socket.recv_fds(sock, 1 << 16, 253, socket.MSG_CMSG_CLOEXEC)
    return json.loads(data)["ok"], fds
