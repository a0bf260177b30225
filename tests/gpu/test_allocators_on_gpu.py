"""Arrays of other libraries in a heap, each library in a process of its own: most replace an allocator for good."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

pytestmark = pytest.mark.gpu

COUNT = 16 << 20

PRELUDE = f"""
import numpy, memtopo
from cuda.bindings import driver
from memtopo import allocators
from memtopo.api.errors import OutOfMemory

COUNT = {COUNT}
SPEC = {{
    "memtopo": 1,
    "name": "others",
    "heaps": {{"h": {{"location": "gpu0", "size": "1GiB"}}}},
    "access": {{"h": {{"gpu0": "rw"}}}},
}}


def fill_slowly(address, value, stream):
    for each in range(2000):
        (error,) = driver.cuMemsetD32Async(address, each, COUNT, stream)
        assert error == 0, error
    driver.cuMemsetD32Async(address, value, COUNT, stream)


def idle(stream):
    (error,) = driver.cuStreamQuery(stream)
    return error == 0
"""

BODY = """
with memtopo.applied(SPEC) as layout:
    heap = layout.heap("h")
    start(layout)
    array, address, stream = make()
    assert [each.address for each in heap.allocations] == [address]
    fill_slowly(address, 7, stream)
    del array  # before the stream has done its work
    assert idle(stream)
    assert not heap.allocations
    array, address, stream = make()
    fill_slowly(address, 9, stream)
    driver.cuStreamSynchronize(stream)
    assert (read(array) == 9).all()
    try:
        refused = make(64 * COUNT)
    except OUT_OF_MEMORY as error:
        print("refused:", type(error).__name__)
    else:
        raise SystemExit("4 GiB were allocated in a heap of 1 GiB")
    assert total(array) == 9 * COUNT
    del array
    assert not heap.allocations
print("held")
"""

PROGRAMS = {
    "rmm": """
import rmm

OUT_OF_MEMORY = MemoryError
def start(layout):
    global STREAM
    STREAM = rmm.pylibrmm.stream.Stream()
    rmm.mr.set_current_device_resource(allocators.rmm(layout, "h"))
def make(count=COUNT):
    buffer = rmm.DeviceBuffer(size=4 * count, stream=STREAM)
    return buffer, buffer.ptr, STREAM.__cuda_stream__()[1]
def read(buffer):
    return buffer.copy_to_host().view("int32")
def total(buffer):
    return int(read(buffer).sum(dtype="int64"))
""",
    "cupy": """
import cupy

OUT_OF_MEMORY = cupy.cuda.memory.OutOfMemoryError
def start(layout):
    global STREAM
    STREAM = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.set_allocator(cupy.cuda.MemoryPool(allocators.cupy(layout, "h").malloc).malloc)
class Held:
    def __init__(self, array):
        self.array = array
    def __del__(self):
        del self.array
        cupy.cuda.get_allocator().__self__.free_all_blocks()
def make(count=COUNT):
    with STREAM:
        array = cupy.empty(count, dtype="int32")
    return Held(array), array.data.ptr, STREAM.ptr
def read(held):
    return held.array.get()
def total(held):
    return int(held.array.get().sum(dtype="int64"))
""",
    "cuda.core": """
from cuda.core import Device

OUT_OF_MEMORY = OutOfMemory
def start(layout):
    global STREAM, RESOURCE
    device = Device(0)
    device.set_current()
    STREAM, RESOURCE = device.create_stream(), allocators.cuda_core(layout, "h")
def make(count=COUNT):
    buffer = RESOURCE.allocate(4 * count, stream=STREAM)
    return buffer, int(buffer.handle), int(STREAM.handle)
def read(buffer):
    host = numpy.empty(buffer.size // 4, dtype="int32")
    driver.cuMemcpyDtoH(host.ctypes.data, int(buffer.handle), buffer.size)
    return host
def total(buffer):
    return int(read(buffer).sum(dtype="int64"))
""",
    "numba.cuda": """
from numba import cuda

OUT_OF_MEMORY = OutOfMemory
def start(layout):
    global STREAM
    cuda.set_memory_manager(allocators.numba(layout, "h"))
    STREAM = cuda.stream()
    free, total = cuda.current_context().get_memory_info()
    assert free == total == 1 << 30
def make(count=COUNT):
    array = cuda.device_array(count, dtype="int32", stream=STREAM)
    return array, array.device_ctypes_pointer.value, int(STREAM.handle)
def read(array):
    return array.copy_to_host()
def total(array):
    return int(read(array).sum(dtype="int64"))
""",
    "warp": """
import warp

OUT_OF_MEMORY = OutOfMemory
warp.config.quiet = True
warp.init()
def start(layout):
    global STREAM
    STREAM = warp.Stream("cuda:0")
    warp.set_device_allocator("cuda:0", allocators.warp(layout, "h"))
def make(count=COUNT):
    array = warp.empty(count, dtype=warp.int32, device="cuda:0")
    return array, array.ptr, STREAM.cuda_stream
def read(array):
    return array.numpy()
def total(array):
    return int(read(array).sum(dtype="int64"))
""",
}


@pytest.mark.parametrize("library", PROGRAMS)
def test_arrays_of_a_library_are_allocated_in_a_heap_and_freed_after_the_work_of_their_stream(library: str) -> None:
    if importlib.util.find_spec(library.partition(".")[0]) is None:
        pytest.skip(f"{library} is not installed")
    program = PRELUDE + PROGRAMS[library] + BODY
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.endswith("held\n")
    assert "Error" not in ended.stderr, ended.stderr
