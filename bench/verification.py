"""Verification of every byte of a layout that fills a GPU, compared with the driver and a minimal kernel.

Fills are compared with `cuMemsetD32` over the same memory, verifications with a kernel that reads and adds, and that
kernel with the theoretical bandwidth of the memory. Between two GPUs, a verification over NVLink is compared with the
copy engine. A fast check is compared with the build of the same 8,000 chunks.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from bench.build import SPEC as PAGES
from memtopo import language, planner
from memtopo.common.errors import Unavailable
from memtopo.driver.kernels import Area, KernelDriver
from memtopo.driver.ledger import Ledger
from memtopo.driver.types import Access, Grant, Properties, gpu
from memtopo.drivers.target import Target, resolve
from memtopo.machine import MachineLine
from memtopo.rules import validate
from memtopo.run.apply import ThisProcess
from memtopo.run.process_run import ProcessRun
from memtopo.session.composition import RunRequest

GIB = 1 << 30
PAGE = 2 << 20
SPARE = 4 * GIB
MOST = 60 * GIB
PEER = 16 * GIB
ROUNDS = 5

# 256 threads a block; each adds 4 times 16 bytes of each 16 KiB that its block takes.
_READ = """
.version 7.0
.target sm_50
.address_size 64
.visible .entry read(.param .u64 address, .param .u64 size, .param .u64 never)
{
    .reg .pred %p;
    .reg .b32 %r<4>;
    .reg .b64 %rd<20>;
    ld.param.u64 %rd0, [address];
    ld.param.u64 %rd1, [size];
    mov.u32 %r0, %ctaid.x;
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %nctaid.x;
    mul.wide.u32 %rd2, %r0, 16384;
    mul.wide.u32 %rd3, %r1, 16;
    add.u64 %rd2, %rd2, %rd3;
    mul.wide.u32 %rd4, %r2, 16384;
    mov.u64 %rd5, 0;
LOOP:
    setp.ge.u64 %p, %rd2, %rd1;
@%p bra DONE;
    add.u64 %rd6, %rd0, %rd2;
    ld.global.cg.v2.u64 {%rd8, %rd9}, [%rd6];
    ld.global.cg.v2.u64 {%rd10, %rd11}, [%rd6+4096];
    ld.global.cg.v2.u64 {%rd12, %rd13}, [%rd6+8192];
    ld.global.cg.v2.u64 {%rd14, %rd15}, [%rd6+12288];
    add.u64 %rd8, %rd8, %rd9;
    add.u64 %rd10, %rd10, %rd11;
    add.u64 %rd12, %rd12, %rd13;
    add.u64 %rd14, %rd14, %rd15;
    add.u64 %rd8, %rd8, %rd10;
    add.u64 %rd12, %rd12, %rd14;
    add.u64 %rd5, %rd5, %rd8;
    add.u64 %rd5, %rd5, %rd12;
    add.u64 %rd2, %rd2, %rd4;
    bra LOOP;
DONE:
    ld.param.u64 %rd7, [never];
    setp.ne.u64 %p, %rd5, %rd7;
@%p ret;
    st.global.u64 [%rd0], %rd5;
    ret;
}
"""


def main() -> None:
    """Print the rate of each in GB/s, and the ratios of the medians."""
    try:
        local = resolve("local")
    except Unavailable as error:
        print(f"not run: {error.message}")
        return
    driver = local.open()
    contexts = [driver.device_primary_ctx_retain(device) for device in range(len(local.machine.devices))]
    driver.ctx_push_current(contexts[0])
    _whole(driver, len(contexts))
    if len(contexts) > 1:
        _peers(driver, contexts)
    _fast(local)


def _whole(driver: KernelDriver, gpus: int) -> None:
    size = min(MOST, driver.mem_get_info()[0] - SPARE) // GIB * GIB
    with _laid_out(driver, size, gpus) as address, _kernels(driver):
        print(f"{size // GIB} GiB of one GPU, as {size // PAGE:,} areas of 2 MiB")
        pages = [Area(address + at, PAGE, at) for at in range(0, size, PAGE)]
        memset = _measured(driver, "cuMemsetD32", lambda: _memset(address, size), size)
        fill = _measured(driver, "fill", lambda: driver.fill(pages), size)
        read = _measured(driver, "plain read", _reader(address, size), size)
        driver.fill(pages)
        verify = _measured(driver, "verify", lambda: _verify(driver, pages), size)
        parts = [(area.address, area.size) for area in pages]
        fingerprint = _measured(driver, "fingerprint", lambda: driver.fingerprint(parts), size)
        theory = _theoretical()
        print(f"theoretical         {theory / 1e9:8.1f} GB/s")
        print(f"ratio of fill to memset          {fill / memset:.2f}  (at least 0.97)")
        print(f"ratio of verify to plain read    {verify / read:.2f}  (at least 0.97)")
        print(f"ratio of fingerprint to plain read {fingerprint / read:.2f}  (at least 0.90)")
        print(f"ratio of plain read to theory    {read / theory:.2f}  (at least 0.80)")


def _peers(driver: KernelDriver, contexts: Sequence[int]) -> None:
    from cuda.bindings import driver as cuda

    with _laid_out(driver, PEER, len(contexts)) as address, _kernels(driver):
        pages = [Area(address + at, PAGE, at) for at in range(0, PEER, PAGE)]
        driver.fill(pages)
        driver.ctx_synchronize()
        driver.ctx_push_current(contexts[1])
        here = driver.mem_alloc(PEER)
        with _kernels(driver):
            copy = _measured(
                driver, "copy engine", lambda: cuda.cuMemcpyPeer(here, contexts[1], address, contexts[0], PEER), PEER
            )
            verify = _measured(driver, "verify of a peer", lambda: _verify(driver, pages), PEER)
        driver.mem_free(here)
        driver.ctx_pop_current()
        print(f"ratio of a peer's verify to copy {verify / copy:.2f}  (at least 0.97)")


def _fast(local: Target) -> None:
    geometry = validate(language.read_text(PAGES.encode(), "bench"), local.machine).geometry
    assert geometry is not None
    plan = planner.plan(geometry, local.machine)
    line = MachineLine("local", simulated=False, devices=(), driver="")
    built, checked = [], []
    for _ in range(ROUNDS):
        run = ThisProcess(ProcessRun(RunRequest(plan, geometry, line), Ledger(local.open())))
        built.append(_took(run.build))
        checked.append(_took(partial(_check, run)))
        run.take_down()
        assert run.report().exit_code == 0
    one, other = statistics.median(built), statistics.median(checked)
    print(f"8,000 chunks: {one * 1e3:.0f} ms for the build, {other * 1e3:.0f} ms for a fast check")
    print(f"ratio of a fast check to a build  {other / one:.2f}  (at most 0.60)")


def _check(run: ThisProcess) -> None:
    run.check()
    run.verify()


def _verify(driver: KernelDriver, areas: Sequence[Area]) -> None:
    found = driver.verify(areas)
    assert not found.mismatches, found


def _took(do: Callable[[], None]) -> float:
    start = time.perf_counter()
    do()
    return time.perf_counter() - start


def _measured(driver: KernelDriver, name: str, do: Callable[[], object], size: int) -> float:
    """Median bytes a second of several rounds, each with a synchronize."""

    def once() -> None:
        do()
        driver.ctx_synchronize()

    once()
    pace = size / statistics.median(_took(once) for _ in range(ROUNDS))
    print(f"{name:20}{pace / 1e9:8.1f} GB/s", flush=True)
    return pace


@contextmanager
def _laid_out(driver: KernelDriver, size: int, gpus: int) -> Iterator[int]:
    """Memory of the first GPU in chunks of 1 GiB, for all GPUs."""
    address = driver.mem_address_reserve(size)
    handles = []
    for at in range(0, size, GIB):
        handles.append(driver.mem_create(GIB, Properties(gpu(0))))
        driver.mem_map(address + at, GIB, handles[-1])
    driver.mem_set_access(address, size, tuple(Grant(gpu(device), Access.RW) for device in range(gpus)))
    yield address
    driver.mem_unmap(address, size)
    for handle in handles:
        driver.mem_release(handle)
    driver.mem_address_free(address, size)


@contextmanager
def _kernels(driver: KernelDriver) -> Iterator[None]:
    module = driver.module_load_data()
    yield
    driver.module_unload(module)


def _memset(address: int, size: int) -> None:
    from cuda.bindings import driver as cuda

    (error,) = cuda.cuMemsetD32(address, 5, size // 4)
    assert not error


def _reader(address: int, size: int) -> Callable[[], None]:
    from cuda.bindings import driver as cuda

    error, module = cuda.cuModuleLoadData(_READ.encode() + b"\0")
    assert not error
    error, function = cuda.cuModuleGetFunction(module, b"read")
    assert not error
    words = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t

    def read() -> None:
        (error,) = cuda.cuLaunchKernel(function, 2112, 1, 1, 256, 1, 1, 0, 0, ((address, size, 12345), words), 0)
        assert not error

    return read


def _theoretical() -> float:
    """Theoretical bytes a second of the first GPU's memory: twice its clock times the width of its bus."""
    from cuda.bindings import driver as cuda

    _, clock = cuda.cuDeviceGetAttribute(cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 0)
    _, width = cuda.cuDeviceGetAttribute(cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 0)
    return float(2.0 * clock * 1e3 * width / 8)
