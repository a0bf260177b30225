"""Views of pinned memory, and memory of the host that a program serves."""

from __future__ import annotations

import fcntl
import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import memtopo
from memtopo.common.errors import UsageError
from memtopo.common.units import KiB, MiB
from tests.helpers.reports import require_taken_down

SIZE = 64 * KiB


@pytest.fixture
def file() -> Iterator[int]:
    fd = os.memfd_create("memtopo-test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.truncate(fd, SIZE)
    os.pwrite(fd, bytes(range(256)) * (SIZE // 256), 0)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    yield fd
    os.close(fd)


def spec(pinned: dict[str, object]) -> dict[str, object]:
    return {"memtopo": 1, "name": "pinned", "devices": {"d": 1}, "pinned": pinned}


def test_the_host_and_gpus_view_the_same_bytes() -> None:
    made = spec({"p": {"size": "2MiB", "count": 2, "accessed_by": ["gpu0", "d"]}})
    with memtopo.applied(made, machine="h200x2") as layout:
        views = [layout.pinned("p.1", dtype="int32", device=each) for each in (None, "host", "d", 0)]
        assert [view.device for view in views] == ["host", "host", "gpu1", "gpu0"]
        arrays = [np.from_dlpack(view) for view in views]
        arrays[0][5] = 7
        assert [array[5] for array in arrays] == [7, 7, 7, 7]
        assert np.from_dlpack(layout.pinned("p.0", dtype="int32"))[5] != 7
        assert layout.address("p.0") != layout.address("p.1")
        del views, arrays
        gc.collect()
    require_taken_down(layout)


def test_a_view_of_a_file_is_the_file(file: int) -> None:
    """At one address for the CPU and all GPUs"""
    path = f"/proc/{os.getpid()}/fd/{file}"
    made = spec({"f": {"file": path, "size": "4KiB", "count": 3, "offset": "8KiB"}})
    with memtopo.applied(made, machine="h200x2") as layout:
        host, device = (layout.pinned("f.1", device=each) for each in ("host", "gpu0"))
        assert host.address == device.address == layout.address("f.1") == layout.address("f.0") + 4 * KiB
        assert bytes(host.memory[:256]) == bytes(range(256))
        os.pwrite(file, b"other", 12 * KiB)
        assert bytes(device.memory[:5]) == b"other"
        host.memory[:4] = b"mine"
        assert os.pread(file, 5, 12 * KiB) == b"miner"
        del host, device
        gc.collect()


def test_a_view_of_a_file_that_is_only_read_is_read_only(file: int) -> None:
    path = f"/proc/{os.getpid()}/fd/{file}"
    with memtopo.applied(spec({"f": {"file": path, "size": "4KiB", "read_only": True}}), machine="h200x2") as layout:
        view = layout.pinned("f")
        assert view.read_only
        with pytest.raises(TypeError, match="read-only"):
            view.memory[0] = 1
        del view
        gc.collect()


@pytest.mark.parametrize(
    ("name", "device", "message"),
    [
        ("x", None, "no pinned memory 'x'"),
        ("p", None, "no pinned memory 'p'"),
        ("p.0", "d", "pinned memory 'p' is declared for the host and gpu0, and not for gpu1"),
    ],
)
def test_a_missing_object_or_device_is_refused(name: str, device: str | None, message: str) -> None:
    made = spec({"p": {"size": "2MiB", "count": 2, "accessed_by": "gpu0"}})
    with memtopo.applied(made, machine="h200x2") as layout, pytest.raises(memtopo.Unsuitable, match=message):
        layout.pinned(name, device=device)


def test_a_program_serves_memory_of_the_host_to_layouts_and_by_attach(file: int, tmp_path: Path) -> None:
    """Each importer maps the file itself"""
    exports = {"ring": memtopo.HostMemory(file, SIZE)}
    with memtopo.serve(f"{tmp_path}/engine.sock", exports) as served:
        made = spec({"ring": {"from": "engine", "size": "64KiB"}})
        with memtopo.applied(made, machine="h200x2", bind={"engine": served.path}) as layout:
            view = layout.pinned("ring")
            assert bytes(view.memory[:256]) == bytes(range(256))
            view.memory[:4] = b"mine"
            assert os.pread(file, 4, 0) == b"mine"
            del view
            gc.collect()
        require_taken_down(layout)
        with memtopo.attach(served.path, machine="h200x2") as shared:
            view = shared.export("ring")
            assert bytes(view.memory[:4]) == b"mine"
            del view
            gc.collect()


@pytest.mark.parametrize("size", ["32KiB", "128KiB"])
def test_a_size_that_the_producer_does_not_offer_is_refused(file: int, tmp_path: Path, size: str) -> None:
    message = f"declares size {size}; engine/ring has 64KiB"
    with memtopo.serve(f"{tmp_path}/engine.sock", {"ring": memtopo.HostMemory(file, SIZE)}) as served:
        made = spec({"ring": {"from": "engine", "size": size}})
        with pytest.raises(memtopo.NotApplied, match=message):
            memtopo.applied(made, machine="h200x2", bind={"engine": served.path}).__enter__()


PRODUCER = """
import os, signal, sys
from pathlib import Path
import memtopo

Path(sys.argv[1]).write_text(str(os.getpid()))
ring = os.memfd_create("ring")
os.ftruncate(ring, 64 << 10)
with memtopo.serve(os.environ["MEMTOPO_SOCKET"], {"ring": memtopo.HostMemory(ring, 64 << 10)}):
    signal.pause()
"""


def test_a_program_that_was_started_ends_if_the_layout_is_not_built(tmp_path: Path) -> None:
    made = spec({"ring": {"from": "engine", "size": "128KiB"}})
    command = [sys.executable, "-c", PRODUCER, str(tmp_path / "pid")]
    with pytest.raises(memtopo.NotApplied, match="declares size 128KiB; engine/ring has 64KiB"):
        memtopo.applied(made, machine="h200x2", bind={"engine": command}).__enter__()
    assert not Path("/proc", (tmp_path / "pid").read_text()).exists()


def test_a_program_that_was_started_ends_after_the_layout_is_taken_down(tmp_path: Path) -> None:
    """Or the report would note that it ended before."""
    made = spec({"ring": {"from": "engine", "size": "64KiB"}})
    command = [sys.executable, "-c", PRODUCER, str(tmp_path / "pid")]
    with memtopo.applied(made, machine="h200x2", bind={"engine": command}) as layout:
        pass
    require_taken_down(layout)
    assert layout.report
    assert "while its layout was in use" not in " ".join(layout.report.notes)
    assert not Path("/proc", (tmp_path / "pid").read_text()).exists()


def test_host_memory_that_is_no_file_of_that_size_is_refused(file: int, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    try:
        for fd, size, message in (
            (file, 0, "has a size of 0"),
            (file, SIZE + 1, "its file has 65,536 bytes"),
            (reading, 1, "is not a file"),
            (10_000, 1, "is not open"),
            (1 << 40, 1, "is not open"),
        ):
            with pytest.raises(UsageError, match=message):
                memtopo.serve(f"{tmp_path}/engine.sock", {"ring": memtopo.HostMemory(fd, size)})
    finally:
        os.close(reading)
        os.close(writing)


def test_a_change_keeps_pinned_memory_with_its_bytes(file: int) -> None:
    path = f"/proc/{os.getpid()}/fd/{file}"
    kept: dict[str, object] = {"p": {"size": "2MiB"}, "f": {"file": path, "size": "4KiB"}}
    with memtopo.applied(spec(kept), machine="h200x2") as layout:
        before = {name: layout.address(name) for name in kept}
        layout.pinned("p").memory[:4] = b"kept"
        layout.change(spec({**kept, "q": {"size": "1MiB"}}), check="full")
        assert {name: layout.address(name) for name in kept} == before
        assert bytes(layout.pinned("p").memory[:4]) == b"kept"
        layout.change(spec({"p": {"size": "4MiB"}}))
        assert len(layout.pinned("p").memory) == 4 * MiB
        with pytest.raises(memtopo.Unsuitable):
            layout.address("f")
        gc.collect()
    require_taken_down(layout)
