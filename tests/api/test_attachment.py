"""`memtopo.attach` to a layout that another process holds on a simulated machine."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import memtopo
from memtopo.api.attachment import build_attachment
from memtopo.api.errors import Unsuitable
from memtopo.api.imports import AttachTerms, device_name, entry_names
from memtopo.common.errors import ExchangeError, NoLayout, UsageError
from memtopo.driver.types import Access, Location, LocationKind
from memtopo.machine import dump, load
from memtopo.plans.report import Leak
from memtopo.sharing.client import connect
from memtopo.sharing.endpoints import endpoint
from memtopo.sharing.sockets import SYSTEM
from tests.api.child_process import Process
from tests.helpers.child_process import PATIENCE
from tests.helpers.command_line import environment
from tests.helpers.processes import open_descriptors
from tests.helpers.python_process import PythonProcess
from tests.helpers.reports import require_taken_down
from tests.run.processes.test_worker_process import REPORT

HOLD = "specs/hold.yaml"
NOBODY = 65534
Start = Callable[..., Process]

MANY = """
memtopo: 1
name: many
ranges: {all: {size: 32MiB}, host: {size: 2MiB}, twice: {size: 10MiB}}
chunks:
  page: {location: [gpu0, gpu1], size: 2MiB, count: 15, handles: fd}
  last: {location: gpu1, size: 2MiB, handles: fd}
  shared: {location: "host:0", size: 2MiB, handles: fd, parts: {flag: 4KiB, data: rest}}
  twice: {location: [gpu0, gpu0, gpu1], size: 2MiB, count: 5, handles: fd}
map: {all: [page, last], host: shared, twice: twice}
access: {all: {gpu0: rw}, host: {host: rw, gpu0: r}, twice: {gpu0: rw}}
exports:
  page: {chunk: page, via: fd}
  some: {chunk: "page.2:6", via: fd}
  last: {chunk: last, via: fd}
  shared: {chunk: shared, via: fd}
  twice: {chunk: twice, via: fd}
"""


@pytest.fixture
def many(tmp_path: Path) -> str:
    """A spec with several exports of chunks."""
    file = tmp_path / "many.yaml"
    file.write_text(MANY)
    return str(file)


def test_holder_and_importer_read_the_stores_of_each_other(start: Start) -> None:
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
    require_taken_down(shared)
    summary, report = holder.end()
    assert bytes.fromhex(summary["first"]["kv"]).startswith(b"hello")
    assert report == {"outcome": "ok", "failure": None}


def test_a_reader_only_reads(start: Start) -> None:
    """By the mappings of chunks, and by the flag of each array."""
    start(spec=HOLD, machine="h200x2")
    with memtopo.attach("kv-store", role="reader") as shared:
        pages = np.from_dlpack(shared.export("pages"))
        assert not pages.flags.writeable
        assert shared.export("lengths").read_only
        assert (shared.machine.name, shared.machine.simulated) == ("h200x2", True), "the machine of its holder"
        location = Location(LocationKind.GPU, 0)
        assert shared._session.driver.mem_get_access(shared.address("pages"), location) == Access.R
        del pages
    with pytest.raises(Unsuitable, match="export 'pages' is read-only for this process: role='reader'"):
        memtopo.attach("kv-store", role="reader", access="rw").__enter__()


def test_buffers_and_events_are_imported_over_ipc(start: Start) -> None:
    """An event that the holder recorded is waited for and recorded again."""
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


def test_chunks_of_gpus_and_host_are_imported_at_their_locations(start: Start, many: str) -> None:
    """Chunks of two GPUs round-robin, a slice of them, a chunk of another GPU, and one of the host."""
    start(spec=many, machine="h200x2")
    with memtopo.attach("many", machine="h200x2") as shared:
        assert {name: view.size for name, view in shared.ranges.items()} == {
            "page": 30 << 20, "some": 8 << 20, "last": 2 << 20, "shared": 2 << 20, "twice": 10 << 20,
        }  # fmt: skip
        page, some = (np.asarray(shared.export(name)) for name in ("page", "some"))
        page[(4 << 20) + 9] = 42
        assert some[9] == 42
        assert shared.export("last").device == "gpu1"
        assert shared.export("shared").device == "host"
        assert shared.export("page", device="gpu1").read_only is False
        assert bytes(page[:3]) == b"all"
        del page, some


def test_parts_and_elements_of_an_export_have_views(start: Start, many: str) -> None:
    start(spec=many, machine="h200x2")
    with memtopo.attach("many") as shared:
        assert [shared.export(f"shared.{part}").size for part in ("flag", "data")] == [4 << 10, (2 << 20) - (4 << 10)]
        assert shared.export("some.1").address == shared.export("some", offset=2 << 20).address
        with pytest.raises(Unsuitable, match=r"no chunk or part 'shared\.date'.*did you mean 'shared\.data'"):
            shared.export("shared.date")
        with pytest.raises(Unsuitable, match=r"there is no export 'sharde'.*did you mean 'shared'"):
            shared.export("sharde")


def test_a_requested_device_alone_is_granted_the_requested_access(start: Start, many: str) -> None:
    start(spec=many, machine="h200x2")
    for device in (0, "gpu0"):
        with memtopo.attach("many", ["last"], device=device, access="r", machine="h200x2") as shared:
            view = shared.export("last")
            assert (view.device, view.read_only) == ("gpu0", True)
            with pytest.raises(memtopo.Unsuitable, match="gpu1 has no access"):
                shared.export("last", device="gpu1")
            del view


class Attempts:
    """Attempts to attach, each with an error of its own, until there is none; `terms` are those of each."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.terms = [*errors], list[AttachTerms]()

    def __call__(self, terms: AttachTerms) -> Any:
        self.terms.append(terms)
        if self.errors:
            raise self.errors.pop(0)
        return self

    def build(self, wait: float = 0.0) -> object:
        system = replace(SYSTEM, pause=lambda _: None)
        return build_attachment(lambda: AttachTerms.within(wait, system=system), self, ExitStack())


def failed_by(error: Exception, **changes: Any) -> memtopo.NotApplied:
    """An attempt that failed after everything was undone, unless the report says something else."""
    found = memtopo.NotApplied(replace(REPORT, **changes))
    found.__cause__ = error
    return found


CHANGED, GONE = (ExchangeError(code, "the layout is another one") for code in ("changed", "gone"))


def test_an_attempt_to_attach_is_repeated_on_the_same_terms_while_the_layout_changes() -> None:
    attempts = Attempts(CHANGED, failed_by(CHANGED), ExchangeError("absent", "it sleeps"))
    assert attempts.build() is attempts
    assert (len(attempts.terms), len({*map(id, attempts.terms)})) == (4, 1)
    endless = Attempts(*[CHANGED] * 20)
    with pytest.raises(ExchangeError):
        endless.build()
    assert len(endless.terms) == 10
    assert endless.build(PATIENCE) is endless


def test_an_attempt_during_a_release_is_repeated_for_the_next_holder_while_there_is_time_to_wait() -> None:
    attempts = Attempts(*[ExchangeError("releasing", "it is being released")] * 20)
    assert attempts.build(PATIENCE) is attempts


def test_memory_that_goes_at_the_end_of_a_change_does_not_end_the_attempts_that_the_change_has_ended() -> None:
    absent = ExchangeError("absent", "it sleeps")
    attempts = Attempts(*[CHANGED] * 9, *[absent] * 9, failed_by(absent))
    assert attempts.build() is attempts
    assert len(attempts.terms) == 20


@pytest.mark.parametrize("error", [GONE, failed_by(GONE), failed_by(CHANGED, leaks=(Leak("range w", "an error"),))])
def test_an_attempt_to_attach_that_failed_otherwise_or_left_something_is_not_repeated(error: Exception) -> None:
    attempts = Attempts(error, CHANGED)
    with pytest.raises(type(error)) as raised:
        attempts.build()
    assert (raised.value, len(attempts.terms)) == (error, 1)


def test_a_layout_is_attached_by_its_socket_path(start: Start, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir(mode=0o700)
    path = tmp_path / "own" / "kv.sock"
    start(spec=HOLD, machine="h200x2", socket=str(path))
    for given in (path, str(path)):
        with memtopo.attach(given, ["pages"], machine="h200x2") as shared:
            assert shared.socket == str(path)
            assert shared.name == "kv-store"


def test_a_layout_is_attached_in_the_folder_of_the_variable(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own").mkdir(mode=0o700)
    path = tmp_path / "own" / "kv-store.sock"
    start(spec=HOLD, machine="h200x2", socket=str(path))
    monkeypatch.setenv("MEMTOPO_SOCKET", f"{path.parent}/")
    with memtopo.attach("kv-store", ["pages"], machine="h200x2") as shared:
        assert shared.socket == str(path)
    monkeypatch.setenv("MEMTOPO_SOCKET", str(path))  # that of a producer, which may import from others by name
    with pytest.raises(UsageError, match="is no folder"):
        memtopo.attach("kv-store", socket=path)
    with pytest.raises(NoLayout, match=str(tmp_path / "run")):
        memtopo.attach("kv-store", machine="h200x2").__enter__()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
@pytest.mark.parametrize(("build", "processes"), [(memtopo.applied, 0), (memtopo.hold, 0), (memtopo.hold, 2)])
def test_a_layout_imports_from_another_user_who_is_allowed(
    start: Start, build: Callable[..., Any], processes: int
) -> None:
    own = {"imports": {"w": {"from": "kv-store/pages", "location": "gpu0", "size": "2MiB", "count": 32}}}
    content: dict[str, Any] = {"processes": {"rank": {"count": processes, **own}}} if processes else own
    spec = {"memtopo": 1, "name": "reader", **content}
    with TemporaryDirectory(dir="/tmp") as folder:
        os.chown(folder, NOBODY, NOBODY)
        socket = f"{folder}/kv-store.sock"
        start(spec=HOLD, machine="h200x2", socket=socket, uid=NOBODY, allow_uids=[0])
        with build(spec, "h200x2", {"kv-store": socket}, allow_uids=[NOBODY]) as layout:
            pass
        require_taken_down(layout)
        with pytest.raises(memtopo.NotApplied, match=f"it belongs to uid {NOBODY}"):
            build(spec, "h200x2", {"kv-store": socket}).__enter__()


def test_applied_imports_from_a_holder_by_name_or_bound_socket(start: Start, tmp_path: Path) -> None:
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


def test_a_missing_layout_export_or_gpu_is_an_error_and_leaves_nothing(start: Start, runtime: Path) -> None:
    before = open_descriptors()
    with pytest.raises(NoLayout, match="kv-store"), memtopo.attach("kv-store", machine="h200x2"):
        pass
    start(spec=HOLD, machine="h200x2")
    with pytest.raises(memtopo.Unsuitable, match="did you mean 'pages'"):
        memtopo.attach("kv-store", ["page"], machine="h200x2").__enter__()
    with pytest.raises(memtopo.Unsuitable, match="no export is requested"):
        memtopo.attach("kv-store", [], machine="h200x2").__enter__()
    with pytest.raises(memtopo.InvalidSpec, match="gpu7"):
        memtopo.attach("kv-store", "pages", device=7, machine="h200x2").__enter__()
    with memtopo.attach("kv-store", "pages", machine="h200x2") as shared, pytest.raises(memtopo.Unsuitable):
        shared.export("pagees")
    gc.collect()
    assert open_descriptors() <= before + 2  # what the process of the holder takes here: its pipes


def test_an_export_of_an_unknown_gpu_is_refused_by_uuid(start: Start, tmp_path: Path) -> None:
    facts = json.loads(dump(load("h200x2")))
    for number, device in enumerate(facts["devices"]):
        device["uuid"] = f"GPU-0000000{number}-1111-2222-3333-444455556666"
    other = tmp_path / "other.json"
    other.write_text(json.dumps(facts))
    start(spec=HOLD, machine="h200x2")
    with pytest.raises(memtopo.Unsuitable, match="does not have"), memtopo.attach("kv-store", machine=str(other)):
        pass


@pytest.mark.parametrize("count", [30, pytest.param(200, marks=pytest.mark.exhaustive(seconds=3))])
def test_many_attachments_leave_descriptors_unchanged(start: Start, count: int) -> None:
    """At the importer and at the holder."""
    holder = start(spec=HOLD, machine="h200x2")
    for index in range(count):
        with memtopo.attach("kv-store", machine="h200x2") as shared:
            array = np.asarray(shared.export("pages", size=4096))
            array[100] = index % 256
            del array
        if index == 0:
            before = open_descriptors()
    assert open_descriptors() == before
    assert holder.end()[0]["handles"] == count * 34


def hold_processes(runtime: Path, machine: str, spec: str | Path = "specs/weights.yaml") -> subprocess.Popen[str]:
    """Hold a multi-process spec, and wait until it serves."""
    command = [sys.executable, "-m", "memtopo", "apply", str(spec), "--machine", machine, "--hold"]
    env = environment(XDG_RUNTIME_DIR=str(runtime))
    process = PythonProcess(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr
    assert any(line.startswith("holding ") for line in process.stderr)
    return process


@pytest.mark.parametrize("exports", [None, ["server.shards"]])
def test_exports_of_a_multi_process_layout_are_attached_by_process_and_name(
    runtime: Path, exports: list[str] | None
) -> None:
    with hold_processes(runtime, "h200x2") as holder:
        try:
            with memtopo.attach("weights", exports) as shared:
                assert list(shared.exports) == ["server.shards"]
                view = np.from_dlpack(shared.export("server.shards"))
                assert view.nbytes == shared.ranges["server_shards"].size == 512 << 20
                del view
        finally:
            holder.terminate()


TWO_PROCESSES = """
memtopo: 1
name: pair
processes:
  server:
    ranges: {w: {size: 4MiB}}
    chunks: {w: {location: gpu0, size: 2MiB, count: 2, handles: fd}}
    map: {w: [w]}
    access: {w: {gpu0: rw}}
    exports: {w: {chunk: w, via: fd}}
    states: {asleep: {drop: [w]}}
  reader:
    ranges: {v: {size: 4MiB}}
    imports: {w: {from: server.w}}
    map: {v: [w]}
    access: {v: {gpu0: r}}
"""


def test_an_attached_process_follows_a_layout_of_several_processes(runtime: Path, tmp_path: Path) -> None:
    spec = tmp_path / "pair.yaml"
    spec.write_text(TWO_PROCESSES)
    with hold_processes(runtime, "h200x2", spec) as holder, ThreadPoolExecutor() as pool:
        try:
            with memtopo.attach("pair", machine="h200x2") as shared, connect(endpoint("pair")) as client:
                address = shared.address("server_w")
                assert shared.address("server.w") == address
                asleep = pool.submit(client.switch, "asleep", wait=60.0)
                assert shared.poll(60.0)
                assert shared.absent == {"server.w"}
                assert asleep.result().kept == ()
                assert shared.poll(60.0)
                assert client.switch("awake").checks.different == 0
                assert shared.poll(60.0)
                assert (shared.absent, shared.address("server_w")) == (frozenset(), address)
                assert shared.check().different == 0
        finally:
            holder.terminate()


@pytest.mark.parametrize("device", [1, "gpu1", "GPU-00AB00cd-1111-2222-3333-444455556666"])
def test_a_device_is_an_ordinal_a_name_or_a_uuid_as_tools_print_it(device: str | int) -> None:
    assert device_name(device, ["00ff00cd111122223333444455556666", "00ab00cd111122223333444455556666"]) == "gpu1"


def test_entries_of_exports_have_names_of_their_own() -> None:
    exports = ("a.b", "a_b", "a.b_2", "x" * 128 + ".y", "plain")
    assert entry_names(exports) == {
        "a.b": "a_b_2", "a_b": "a_b", "a.b_2": "a_b_2_2", "x" * 128 + ".y": "x" * 100 + "_2", "plain": "plain"
    }  # fmt: skip


def test_a_simulated_layout_is_not_attached_on_gpus(start: Start) -> None:
    start(spec=HOLD, machine="h200x2")
    with (
        pytest.raises(Unsuitable, match="is held on the simulated machine 'h200x2', not on GPUs") as raised,
        memtopo.attach("kv-store", machine="local"),
    ):
        pass
    assert raised.value.hint == "attach to it with machine='h200x2', or without a machine"


@pytest.mark.parametrize(
    "source",
    [
        "",
        "[]",
        "[" * 100_000,
        json.dumps({"spec": "memtopo: 1"}),
        json.dumps({"machine": {"devices": []}}),
        json.dumps({"machine": json.dumps({"memtopo_machine": 1, "devices": [{"name": 7}]})}),
        json.dumps({"machine": dump(load("h200x2")).replace('"peers": [', '"peers": [[],')}),
    ],
    ids=["empty", "list", "deep", "spec alone", "object", "damaged", "unequal peers"],
)
def test_a_machine_that_is_no_valid_record_is_refused(start: Start, source: str) -> None:
    start(spec=HOLD, machine="h200x2", source=source)
    before = open_descriptors()
    with (
        pytest.raises(Unsuitable, match="'h200x2', whose record its holder does not send") as raised,
        memtopo.attach("kv-store"),
    ):
        pass
    assert raised.value.hint == "attach to it with machine='h200x2'"
    assert open_descriptors() == before
