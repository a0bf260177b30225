"""A layout that another process holds, on a simulated machine: real processes, real sockets, real descriptors."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import memtopo
from memtopo.common.errors import MemtopoError
from memtopo.sharing.errors import NoLayout
from tests.api.child_process import Process
from tests.helpers.processes import open_descriptors

HOLD = "specs/hold.yaml"
Start = Callable[..., Process]

MANY = """
memtopo: 1
name: many
ranges: {all: {size: 32MiB}, host: {size: 2MiB}}
chunks:
  page: {location: [gpu0, gpu1], size: 2MiB, count: 15, handles: fd}
  last: {location: gpu1, size: 2MiB, handles: fd}
  shared: {location: "host:0", size: 2MiB, handles: fd}
map: {all: [page, last], host: shared}
access: {all: {gpu0: rw}, host: {host: rw, gpu0: r}}
exports:
  page: {chunk: page, via: fd}
  some: {chunk: "page.2:6", via: fd}
  last: {chunk: last, via: fd}
  shared: {chunk: shared, via: fd}
"""


@pytest.fixture
def many(tmp_path: Path) -> str:
    """A spec with several exports of chunks."""
    file = tmp_path / "many.yaml"
    file.write_text(MANY)
    return str(file)


def test_a_store_is_seen_in_the_other_process(start: Start) -> None:
    """What the holder wrote is read here, and what is written here is read by the holder"""
    holder = start(spec=HOLD, machine="h200x2")
    before = open_descriptors()
    with memtopo.attach("kv-store", machine="h200x2") as shared:
        pages = np.from_dlpack(shared.export("pages", shape=(32, -1)))
        assert bytes(pages[0, :3]) == b"kv."
        pages[0, :5] = list(b"hello")
        assert list(shared.exports) == ["pages", "lengths", "stored"]
        assert shared.exports["pages"].count == 32
        assert shared.notice() is None
        del pages
    assert open_descriptors() == before
    assert shared.report
    assert shared.report.outcome == "ok"
    told, report = holder.end()
    assert bytes.fromhex(told["first"]["kv"]).startswith(b"hello")
    assert report == {"outcome": "ok", "failure": None}


def test_two_importers_share(start: Start) -> None:
    """Two importers in one process, of the same export, see each other's bytes"""
    start(spec=HOLD, machine="h200x2")
    with (
        memtopo.attach("kv-store", ["pages"], machine="h200x2") as one,
        memtopo.attach("kv-store", ["pages"], access="r", machine="h200x2") as two,
    ):
        written = np.from_dlpack(one.export("pages", dtype="int64"))
        seen = np.from_dlpack(two.export("pages", dtype="int64"))
        written[12345] = -7
        assert seen[12345] == -7
        assert not seen.flags.writeable
        del written, seen


def test_buffers_and_events_over_ipc(start: Start) -> None:
    """A buffer is seen as one, and an event that the holder recorded is waited for and recorded again"""
    start(spec=HOLD, machine="h200x2", record=True)
    with memtopo.attach("kv-store", ["lengths", "stored"], machine="h200x2") as shared:
        lengths = np.asarray(shared.export("lengths", dtype="int32", shape=(16,)))
        lengths[:] = range(16)
        event = shared.event("stored")
        event.wait()
        event.synchronize()
        assert event.query()
        event.record()
        with pytest.raises(memtopo.Unsuitable, match="is an event"):
            shared.export("stored")
        del lengths


def test_exports_of_every_place(start: Start, many: str) -> None:
    """Chunks of two GPUs in turn, a slice of them, another GPU's and the host's: each where its holder has it"""
    start(spec=many, machine="h200x2")
    with memtopo.attach("many", machine="h200x2") as shared:
        assert {name: view.size for name, view in shared.ranges.items()} == {
            "page": 30 << 20, "some": 8 << 20, "last": 2 << 20, "shared": 2 << 20,
        }  # fmt: skip
        page, some = (np.asarray(shared.export(name)) for name in ("page", "some"))
        page[(4 << 20) + 9] = 42
        assert some[9] == 42
        assert shared.export("last").device == "gpu1"
        assert shared.export("shared").device == "host"
        assert shared.export("page", device="gpu1").read_only is False
        assert bytes(page[:3]) == b"all"
        del page, some


def test_another_device_is_granted_access(start: Start, many: str) -> None:
    """With a device it alone may use what is imported, in the access that was asked for"""
    start(spec=many, machine="h200x2")
    for device in (0, "gpu0"):
        with memtopo.attach("many", ["last"], device=device, access="r", machine="h200x2") as shared:
            view = shared.export("last")
            assert (view.device, view.read_only) == ("gpu0", True)
            with pytest.raises(memtopo.Unsuitable, match="gpu1 has no access"):
                shared.export("last", device="gpu1")
            del view


def test_memory_outlives_its_holder(start: Start) -> None:
    """What came over fd stays good when the holder is killed, and leaving ends in order"""
    holder = start(spec=HOLD, machine="h200x2")
    with memtopo.attach("kv-store", ["pages"], machine="h200x2") as shared:
        pages = np.from_dlpack(shared.export("pages"))
        holder.kill()
        assert bytes(pages[:2]) == b"kv"
        with pytest.raises(MemtopoError, match="ended the connection"):
            shared.notice(30)
        del pages
    assert shared.report
    assert shared.report.outcome == "ok"


def test_a_notice(start: Start) -> None:
    """A holder that is told to let go says so to those who use something over ipc, and waits for them"""
    holder = start(spec=HOLD, machine="h200x2")
    with memtopo.attach("kv-store", ["lengths"], machine="h200x2") as shared:
        holder.process.terminate()
        notice = shared.notice(30)
        assert notice
        assert notice.kind == "releasing"
    summary = holder.read_line()
    assert summary["why"] == "signal"
    assert holder.process.wait(60) == 0


def test_a_socket_path(start: Start, tmp_path: Path) -> None:
    """A layout at a path of its own is attached to by that"""
    (tmp_path / "own").mkdir(mode=0o700)
    path = tmp_path / "own" / "kv.sock"
    start(spec=HOLD, machine="h200x2", socket=str(path))
    for given in (path, str(path)):
        with memtopo.attach(given, ["pages"], machine="h200x2") as shared:
            assert shared.socket == str(path)
            assert shared.name == "kv-store"


def test_imports_of_a_spec(start: Start, tmp_path: Path) -> None:
    """applied() imports what its spec says, from a holder by name or by the socket that is bound to a name"""
    start(spec=HOLD, machine="h200x2")
    socket = tmp_path / "run" / "memtopo" / "kv-store.sock"
    spec: dict[str, Any] = {
        "memtopo": 1,
        "name": "reader",
        "ranges": {"view": {"size": "64MiB"}},
        "imports": {"w": {"from": "cache/pages", "location": "gpu0", "size": "2MiB", "count": 32}},
        "map": {"view": ["w"]},
        "access": {"view": {"gpu0": "r"}},
    }
    with memtopo.applied(spec, "h200x2", bind={"cache": socket}) as layout:
        assert bytes(np.from_dlpack(layout.range("view"))[:2]) == b"kv"
        gc.collect()
    spec["imports"]["w"]["from"] = "kv-store/pages"
    with memtopo.applied(spec, "h200x2") as layout:
        assert layout.range("view").read_only
    spec["imports"]["w"]["size"] = "4MiB"
    spec["ranges"]["view"]["size"] = "128MiB"
    with pytest.raises(memtopo.NotApplied, match="declares size 4MiB"), memtopo.applied(spec, "h200x2"):
        pass


def test_what_cannot_be_attached_to(start: Start, runtime: Path) -> None:
    """A layout, an export or a GPU that is not there: each is told for what it is, and nothing stays"""
    before = open_descriptors()
    with pytest.raises(NoLayout, match="kv-store"), memtopo.attach("kv-store", machine="h200x2"):
        pass
    start(spec=HOLD, machine="h200x2")
    with pytest.raises(memtopo.Unsuitable, match="did you mean 'pages'"):
        memtopo.attach("kv-store", ["page"], machine="h200x2").__enter__()
    with pytest.raises(memtopo.InvalidSpec, match="gpu7"):
        memtopo.attach("kv-store", "pages", device=7, machine="h200x2").__enter__()
    with memtopo.attach("kv-store", "pages", machine="h200x2") as shared, pytest.raises(memtopo.Unsuitable):
        shared.export("pagees")
    gc.collect()
    assert open_descriptors() <= before + 2  # what the process of the holder takes here: its pipes


def test_a_gpu_of_another_machine(start: Start, tmp_path: Path) -> None:
    """An export of a GPU that this process does not have is refused by its UUID"""
    import json

    from memtopo.machine import dump, load

    facts = json.loads(dump(load("h200x2")))
    for number, device in enumerate(facts["devices"]):
        device["uuid"] = f"GPU-0000000{number}-1111-2222-3333-444455556666"
    other = tmp_path / "other.json"
    other.write_text(json.dumps(facts))
    start(spec=HOLD, machine="h200x2")
    with pytest.raises(memtopo.Unsuitable, match="does not have"), memtopo.attach("kv-store", machine=str(other)):
        pass


def test_two_hundred_rounds(start: Start) -> None:
    """Attaching and leaving two hundred times leaves descriptors where they were, here and at the holder"""
    holder = start(spec=HOLD, machine="h200x2")
    for turn in range(200):
        with memtopo.attach("kv-store", machine="h200x2") as shared:
            seen = np.asarray(shared.export("pages", size=4096))
            seen[100] = turn % 256
            del seen
        if turn == 0:
            before = open_descriptors()
    assert open_descriptors() == before
    assert holder.end()[0]["handles"] == 200 * 34
