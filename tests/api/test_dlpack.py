"""DLPack capsules and tensors: creation, consumption and deletion."""

from __future__ import annotations

import ctypes
import gc
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import memtopo
from memtopo.api import GpuView, HostView, Live, View, dlpack
from memtopo.api.dlpack import ExportedTensors, ManagedTensor, VersionedTensor, dtype
from memtopo.drivers.target import Target
from tests.api.test_specs import SMALL
from tests.helpers.command_line import ROOT, environment

POINTER = ctypes.pythonapi.PyCapsule_GetPointer
POINTER.restype, POINTER.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
NAME = ctypes.pythonapi.PyCapsule_GetName
NAME.restype, NAME.argtypes = ctypes.c_char_p, [ctypes.py_object]
RENAME = ctypes.pythonapi.PyCapsule_SetName
RENAME.restype, RENAME.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
USED = b"used_dltensor"


class ViewOwner:
    """Owner of views in place of a layout."""

    def __init__(self) -> None:
        self.closed = False
        self.tensors = ExportedTensors()
        self.warned: list[str] = []

    def require_present(self, view: object) -> None:
        """All memory is present."""

    def export(self, name: str, block: int, *, versioned: bool) -> object:
        return self.tensors.export(name, block, versioned=versioned)

    def warn_read_only(self, view: View) -> None:
        self.warned.append(view.name)

    @property
    def in_use(self) -> list[str]:
        return list(self.tensors.in_use())


class Consumer:
    """Consumer of a capsule, which deletes the tensor on request."""

    def __init__(self, capsule: object) -> None:
        self.block = POINTER(capsule, b"dltensor")
        RENAME(capsule, USED)

    def give_back(self) -> None:
        deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(ManagedTensor.from_address(self.block).deleter)
        deleter(self.block)


@pytest.fixture
def layout(machine: Target) -> Iterator[Live]:
    with memtopo.applied(SMALL, machine) as found:
        yield found
        gc.collect()


@pytest.fixture
def owner() -> ViewOwner:
    return ViewOwner()


def gpu_view(owner: ViewOwner, name: str = "kv", typed: str = "float16", *, read_only: bool = False) -> GpuView:
    """A view on gpu3 of memory that is not accessed."""
    at = 0x7F00_0000_0000, (2, 3, 4), dtype(typed), "gpu3"
    return GpuView(name, *at, dl_device=(dlpack.CUDA, 3), read_only=read_only, owner=owner)


def test_a_consumer_without_version_gets_an_unversioned_tensor(owner: ViewOwner) -> None:
    """`DLManagedTensor`, with address, device, type, shape and strides."""
    capsule = gpu_view(owner).__dlpack__(stream=1)
    assert NAME(capsule) == b"dltensor"
    tensor = ManagedTensor.from_address(POINTER(capsule, b"dltensor")).tensor
    assert (tensor.data, tensor.ndim, tensor.byte_offset) == (0x7F00_0000_0000, 3, 0)
    assert (tensor.device.kind, tensor.device.id) == (2, 3)
    assert (tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes) == (2, 16, 1)
    numbers = (ctypes.c_int64 * 3).from_address
    assert list(numbers(tensor.shape)) == [2, 3, 4]
    assert list(numbers(tensor.strides)) == [12, 4, 1]


@pytest.mark.parametrize(("read_only", "flags"), [(False, 0), (True, 1)])
def test_a_consumer_of_version_1_gets_the_read_only_flag(read_only: bool, flags: int, owner: ViewOwner) -> None:
    capsule = gpu_view(owner, read_only=read_only).__dlpack__(max_version=(1, 0))
    assert NAME(capsule) == b"dltensor_versioned"
    managed = VersionedTensor.from_address(POINTER(capsule, b"dltensor_versioned"))
    assert (managed.major, managed.flags, managed.tensor.ndim) == (1, flags, 3)
    assert owner.warned == ["kv"] * flags


@pytest.mark.parametrize(
    ("name", "code", "bits"),
    [
        ("int8", 0, 8),
        ("uint64", 1, 64),
        ("float64", 2, 64),
        ("bfloat16", 4, 16),
        ("complex64", 5, 64),
        ("bool", 6, 8),
        ("float8_e4m3fn", 10, 8),
        ("float8_e5m2", 12, 8),
    ],
)
def test_types_have_the_codes_of_dlpack(name: str, code: int, bits: int, owner: ViewOwner) -> None:
    """As dlpack.h defines them."""
    capsule = gpu_view(owner, typed=name).__dlpack__()
    found = ManagedTensor.from_address(POINTER(capsule, b"dltensor")).tensor.dtype
    assert (found.code, found.bits) == (code, bits)


def test_a_gpu_view_has_version_3_of_the_cuda_array_interface(owner: ViewOwner) -> None:
    """It has the read-only flag, and NumPy refuses the view."""
    assert gpu_view(owner).__cuda_array_interface__ == {
        "shape": (2, 3, 4), "typestr": "<f2", "data": (0x7F00_0000_0000, False), "strides": None, "version": 3,
        "stream": None,
    }  # fmt: skip
    assert gpu_view(owner, read_only=True).__cuda_array_interface__["data"][1] is True
    assert owner.warned == ["kv"]
    assert not hasattr(gpu_view(owner, typed="bfloat16"), "__cuda_array_interface__")
    assert not hasattr(gpu_view(owner), "__array_interface__")
    with pytest.raises(TypeError, match="CuPy"):
        np.asarray(gpu_view(owner))


def test_a_view_of_simulated_memory_has_no_cuda_array_interface(layout: Live) -> None:
    view = layout.range("kv")
    assert isinstance(view, HostView)
    assert view.__dlpack_device__() == (1, 0)
    assert not hasattr(view, "__cuda_array_interface__")


@pytest.mark.parametrize("stream", [0, -2, "default"])
def test_unknown_streams_are_refused(stream: object, owner: ViewOwner) -> None:
    """Streams that DLPack defines are accepted, without synchronization."""
    with pytest.raises(BufferError, match="stream"):
        gpu_view(owner).__dlpack__(stream)
    for known in (None, -1, 1, 2, 0x5555_0000_1000):
        gpu_view(owner).__dlpack__(stream=known)


def test_copies_other_devices_and_streams_of_host_memory_are_refused(owner: ViewOwner, layout: Live) -> None:
    """With a BufferError."""
    view = layout.range("kv")
    for arguments in ({"copy": True}, {"dl_device": (2, 0)}, {"stream": 1}):
        with pytest.raises(BufferError):
            view.__dlpack__(**arguments)
    assert view.__dlpack__(copy=False, dl_device=(1, 0))
    assert gpu_view(owner).__dlpack__(dl_device=(2, 3))


def test_a_capsule_or_tensor_is_in_use_until_it_is_deleted(owner: ViewOwner) -> None:
    """In whichever order."""
    capsule = gpu_view(owner, "waiting").__dlpack__()
    taken = gpu_view(owner, "taken").__dlpack__()
    consumer = Consumer(taken)
    assert owner.in_use == ["waiting", "taken"]
    del taken
    assert owner.in_use == ["waiting", "taken"]
    del capsule
    assert owner.in_use == ["taken"]
    consumer.give_back()
    assert owner.in_use == []


def test_a_consumed_capsule_is_renamed_and_refused(layout: Live) -> None:
    class Twice:
        def __init__(self, view: Any) -> None:
            self.capsule = view.__dlpack__(max_version=(1, 0))

        def __dlpack__(self, **_: object) -> Any:
            return self.capsule

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    twice = Twice(layout.range("kv"))
    first = np.from_dlpack(twice)
    assert NAME(twice.capsule) == b"used_dltensor_versioned"
    with pytest.raises(Exception, match=r"(?i)capsule|dltensor"):
        np.from_dlpack(twice)
    first[0] = 1


def test_ten_thousand_tensors_and_unused_capsules_leave_memory_unchanged(layout: Live, owner: ViewOwner) -> None:
    view = layout.range("kv")
    for turn in range(20_000):
        np.from_dlpack(view)
        view.__dlpack__()
        gpu_view(owner).__dlpack__()
        if turn == 10_000:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 512
    assert owner.in_use == []


def test_a_thousand_tensors_stay_valid_while_others_are_created_and_deleted(owner: ViewOwner) -> None:
    kept = [Consumer(gpu_view(owner, str(i)).__dlpack__()) for i in range(1000)]
    for _ in range(2000):
        gpu_view(owner).__dlpack__()
    assert len(owner.in_use) == 1000
    assert all(ManagedTensor.from_address(each.block).tensor.ndim == 3 for each in kept)
    for each in kept[::2]:
        each.give_back()
    assert owner.in_use == [str(i) for i in range(1, 1000, 2)]
    for each in kept[1::2]:
        each.give_back()


def test_a_read_only_view_warns_once_of_a_library_that_writes_to_it_all_the_same() -> None:
    """PyTorch's `from_dlpack` drops the flag of memory of the CPU, too; NumPy keeps it."""
    torch_code: dict[str, Any] = {"__name__": "torch.utils.dlpack"}
    exec("def from_dlpack(view): return view.__dlpack__(max_version=(1, 0))", torch_code)
    with memtopo.applied("specs/read-only-view.yaml", machine="h200x2") as layout:
        read_only = layout.range("view")
        assert not np.from_dlpack(read_only).flags.writeable
        with pytest.warns(memtopo.ReadOnlyIgnored, match="range 'view' is read-only for gpu0.*SIGSEGV"):
            torch_code["from_dlpack"](read_only)
        torch_code["from_dlpack"](read_only)
        del read_only
        gc.collect()


def test_types_that_another_package_declares_for_functions_of_python_do_not_matter() -> None:
    """Nor does memtopo declare any there."""
    script = """
import ctypes, numpy, memtopo
functions = "PyCapsule_New", "PyCapsule_IsValid"
for each in functions:
    getattr(ctypes.pythonapi, each).argtypes = (ctypes.c_char_p, ctypes.c_char_p)
    getattr(ctypes.pythonapi, each).restype = ctypes.c_char
with memtopo.applied("specs/quickstart.yaml", machine="h200x2") as layout:
    numpy.from_dlpack(layout.range(next(iter(layout.ranges))))
for each in functions:
    function = getattr(ctypes.pythonapi, each)
    assert (function.argtypes, function.restype) == ((ctypes.c_char_p, ctypes.c_char_p), ctypes.c_char), each
"""
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment(), check=True)


def test_several_threads_create_and_delete_tensors(layout: Live) -> None:
    view = layout.range("kv")
    faults: list[Exception] = []

    def work() -> None:
        try:
            for _ in range(2000):
                np.from_dlpack(view)[0] = 1
        except Exception as error:  # noqa: BLE001 reported by the test
            faults.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not faults


def test_deletion_preserves_a_pending_exception(owner: ViewOwner) -> None:
    def failing() -> object:
        raise KeyError("ours")

    def unwound() -> None:
        print(gpu_view(owner).__dlpack__(), failing())  # noqa: T201 never reached

    with pytest.raises(KeyError, match="ours"):
        unwound()
    assert owner.in_use == []


def test_an_array_may_outlive_the_interpreter() -> None:
    """Within its layout or after it, without output."""
    script = (
        "import memtopo, numpy, sys, warnings\n"
        "warnings.simplefilter('ignore')\n"
        "made = memtopo.applied('specs/ring-buffer.yaml', machine='h200x2')\n"
        "layout = made.__enter__()\n"
        "sys.kept = [numpy.from_dlpack(layout.range('ring')), layout.range('ring').__dlpack__()]\n"
        "with memtopo.applied('specs/ring-buffer.yaml', machine='h200x2') as other:\n"
        "    kept = numpy.from_dlpack(other.range('ring'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=environment(), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_cuda_core_views_the_same_memory(layout: Live) -> None:
    utils = pytest.importorskip("cuda.core.utils")
    view = layout.range("kv", dtype="float32", shape=(4, -1))
    found = utils.StridedMemoryView.from_dlpack(view, stream_ptr=-1)
    assert (found.ptr, tuple(found.shape), found.readonly) == (view.address, view.shape, False)
    assert found.is_device_accessible is False
