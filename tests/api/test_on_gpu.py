"""Views of a layout on a real GPU, with PyTorch and CuPy where they are installed."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator

import pytest

import memtopo
from memtopo.api import GpuView, Live
from tests.helpers.device_bytes import SPEC, peek, poke

pytestmark = pytest.mark.gpu
RING = "specs/ring-buffer.yaml"


@pytest.fixture
def layout() -> Iterator[Live]:
    with memtopo.applied(SPEC) as found:
        yield found
        gc.collect()


def test_a_view_has_address_and_device_of_its_range(layout: Live) -> None:
    """The layout is gone after its end."""
    view = layout.range("kv", dtype="float16", shape=(4, -1))
    assert isinstance(view, GpuView)
    assert view.address == layout.address("kv")
    assert view.__dlpack_device__() == (2, 0)
    assert view.__cuda_array_interface__["data"] == (layout.address("kv"), False)
    assert layout.range("read").read_only
    poke(layout, layout.address("kv") + 4096, b"seen twice")
    assert peek(layout, layout.range("read").address + 4096, 10) == b"seen twice"
    with pytest.raises(TypeError, match="CuPy"):
        view.__array__()


def test_twenty_layouts_leave_free_memory_unchanged() -> None:
    """Once the context exists."""
    for turn in range(20):
        with memtopo.applied(SPEC) as layout:
            layout.range("kv").__dlpack__()
        assert layout.report
        assert layout.report.exit_code == 0, layout.report
        assert layout.report.left
        after = [device.after for device in layout.report.left.memory]
        if turn == 0:
            first = after
    assert after == first


def test_an_event_is_recorded_waited_for_and_complete(layout: Live) -> None:
    event = layout.event("e")
    event.record()
    event.wait()
    event.synchronize()
    assert event.query()


def test_a_spec_beyond_the_memory_of_a_gpu_fails_with_a_report() -> None:
    """With the driver's error, or with a rule's diagnostic before it."""
    huge = {**SPEC, "chunks": {"page": {"location": "gpu0", "size": "64GiB", "count": 4}}}
    huge["ranges"] = {name: {"size": "256GiB"} for name in SPEC["ranges"]}
    with pytest.raises((memtopo.NotApplied, memtopo.InvalidSpec)) as raised, memtopo.applied(huge):
        pass
    assert "MT" in str(raised.value) or "CUDA_ERROR_OUT_OF_MEMORY" in str(raised.value)


def test_a_torch_tensor_accesses_the_memory_of_its_view(layout: Live) -> None:
    """The driver reads what a kernel writes."""
    torch = pytest.importorskip("torch")
    seen = torch.from_dlpack(layout.range("kv", dtype="float16", shape=(4, -1)))
    assert (seen.shape, seen.dtype, seen.device.index) == ((4, 1 << 20), torch.float16, 0)
    assert seen.data_ptr() == layout.address("kv")
    seen.fill_(1.5)
    torch.cuda.synchronize()
    assert peek(layout, layout.address("kv") + (8 << 20) - 2, 2) == b"\x00\x3e"
    seen[2, 0] = -2
    torch.cuda.synchronize()
    assert peek(layout, layout.range("kv", offset=4 << 20).address, 2) == b"\x00\xc0"
    buffer = torch.from_dlpack(layout.buffer("b", dtype="int32"))
    buffer.zero_()
    assert buffer.numel() == 1536


@pytest.mark.parametrize("name", ["uint8", "int64", "float32", "bfloat16", "bool", "complex64"])
def test_torch_accepts_every_type(name: str, layout: Live) -> None:
    torch = pytest.importorskip("torch")
    assert torch.from_dlpack(layout.range("kv", dtype=name)).dtype == getattr(torch, name)
    assert torch.from_dlpack(layout.range("kv", dtype=getattr(torch, name))).dtype == getattr(torch, name)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_torch_accepts_or_refuses_float8_by_its_version(name: str, layout: Live) -> None:
    """A PyTorch with DLPack's codes for float8 accepts it; an older one refuses, and accepts uint8."""
    torch = pytest.importorskip("torch")
    try:
        seen = torch.from_dlpack(layout.range("kv", dtype=name))
    except (BufferError, RuntimeError):
        seen = torch.from_dlpack(layout.range("kv")).view(getattr(torch, name))
    assert seen.dtype == getattr(torch, name)
    del seen
    gc.collect()
    assert layout._views.in_use() == []


def test_torch_accepts_or_refuses_read_only_memory_by_its_version(layout: Live) -> None:
    """A PyTorch that supports the read-only flag accepts it, others refuse; kernels read it."""
    torch = pytest.importorskip("torch")
    poke(layout, layout.address("kv"), bytes(range(16)))
    try:
        with pytest.warns(memtopo.ReadOnlyIgnored, match="ends the process"):
            seen = torch.from_dlpack(layout.range("read"))
    except BufferError as error:
        assert "read-only" in str(error)  # noqa: PT017
        return
    assert seen[:16].tolist() == list(range(16))


def test_a_torch_tensor_of_a_ring_buffer_has_its_bytes_twice() -> None:
    torch = pytest.importorskip("torch")
    with memtopo.applied(RING) as layout:
        ring = torch.from_dlpack(layout.range("ring", dtype="float32"))
        half = len(ring) // 2
        ring[half - 1 : half + 1] = torch.tensor([1.0, 2.0], device=ring.device)
        assert (ring[0].item(), ring[-1].item()) == (2.0, 1.0)
        del ring


def test_ten_thousand_torch_tensors_are_deleted(layout: Live) -> None:
    torch = pytest.importorskip("torch")
    view = layout.range("kv")
    for _ in range(10_000):
        torch.from_dlpack(view)
    gc.collect()
    assert list(layout._views._tensors.in_use()) == []


def test_a_torch_tensor_in_use_at_the_end_of_its_layout_is_named() -> None:
    torch = pytest.importorskip("torch")
    with pytest.warns(memtopo.ViewOutlived, match="range 'kv'"), memtopo.applied(SPEC) as layout:
        kept = torch.from_dlpack(layout.range("kv"))
    del kept


def test_cupy_arrays_access_the_memory_of_their_view(layout: Live) -> None:
    """By either interface."""
    cupy = pytest.importorskip("cupy")
    one = cupy.from_dlpack(layout.range("kv", dtype="float32", shape=(4, -1)))
    two = cupy.asarray(layout.range("kv", dtype="float32", shape=(4, -1)))
    assert one.data.ptr == two.data.ptr == layout.address("kv")
    one[...] = 3
    two[3, 0] = 4
    assert (float(two[2, 5]), float(one[3, 0])) == (3.0, 4.0)
    with pytest.warns(memtopo.ReadOnlyIgnored):
        read = cupy.asarray(layout.range("read", dtype="float32"))
    assert float(read[0]) == 3.0
    event = layout.event("e")
    event.record(cupy.cuda.get_current_stream())
    event.wait(cupy.cuda.get_current_stream())
    del one, two, read


def test_a_chunk_of_another_gpu_is_viewed_by_a_gpu_with_access(layout: Live) -> None:
    """The view's device is the requested one. Needs two GPUs."""
    count = ctypes.c_int(0)
    ctypes.CDLL("libcuda.so.1").cuDeviceGetCount(ctypes.byref(count))
    if count.value < 2:
        pytest.skip("needs two GPUs")
    spec = {**SPEC, "access": {"kv": {"gpu1": "rw"}, "read": {"gpu0": "r"}}}
    with memtopo.applied(spec) as both:
        view = both.range("kv", dtype="int32")
        assert view.__dlpack_device__() == (2, 1)
        torch = pytest.importorskip("torch")
        seen = torch.from_dlpack(view)
        assert seen.device.index == 1
        seen.fill_(9)
        torch.cuda.synchronize(1)
        assert peek(both, both.range("read").address, 1) == b"\x09"
        del seen, view
