"""On a simulated machine a producer is played that makes, fills, serves and signals what the spec takes from it."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import memtopo
from memtopo.common.decoding import decode, encode
from memtopo.common.errors import UsageError
from memtopo.common.processes import python_command
from memtopo.drivers import target
from memtopo.drivers.sim import external_api
from memtopo.drivers.target import Target
from memtopo.sharing.claims import claim
from memtopo.sharing.client import connect
from memtopo.sharing.endpoints import endpoint
from memtopo.sharing.imports import HolderHandles
from memtopo.sharing.producers import (
    FILLED,
    PERIOD,
    Producers,
    ProducerSpec,
    SimulatedFile,
    SimulatedMemory,
    SimulatedSemaphore,
    holders,
    producer_specs,
    resolve,
    simulated_serving,
    start_producers,
)
from tests.helpers.child_process import PATIENCE
from tests.helpers.command_line import ROOT, environment
from tests.helpers.holders import until
from tests.helpers.machines import invented
from tests.helpers.python_process import PythonProcess, run_python
from tests.helpers.specs import geometry_of

MACHINE = invented(2)
GPUS = target.uuids(MACHINE)
SPEC = """
external:
  frame: {from: camera, via: opaque_fd, device: gpu1, size: 8MiB, dedicated: true}
  depth: {from: lidar/points, via: opaque_fd, device: gpu0, size: 64KiB}
semaphores:
  ready: {from: camera, via: timeline_fd, device: gpu1, wait: 5, signal: 6}
  done: {from: camera, via: timeline_fd, device: gpu1, signal: 1}
  flip: {from: camera, via: opaque_fd, device: gpu1, wait: true}
  flop: {from: camera, via: opaque_fd, device: gpu1, signal: true}
"""


@contextmanager
def attached(spec: str, played: Producers) -> Iterator[HolderHandles]:
    """Holders of a spec, attached to the started programs."""
    found, names = (
        HolderHandles(geometry_of(spec, MACHINE), GPUS, played.sockets),
        sorted(holders(geometry_of(spec, MACHINE))),
    )
    for name in names:
        found.attach(name)
    try:
        yield found
    finally:
        for name in names:
            found.detach(name)


def taken(found: HolderHandles, holder: str, export: str) -> int:
    fd = found.take(holder, export, 0).fd
    assert fd is not None
    return fd


def test_each_holder_is_a_process_with_all_exports_that_the_spec_declares() -> None:
    with start_producers(geometry_of(SPEC, MACHINE), {}, MACHINE) as played, attached(SPEC, played):
        assert played.simulated == ["camera", "lidar"]
        pids = set()
        for path in played.sockets.values():
            with connect(endpoint(socket=path)) as client:
                pids.add(client.pid)
        assert len(pids - {os.getpid()}) == 2


def test_byte_n_of_simulated_memory_is_n_modulo_251() -> None:
    with start_producers(geometry_of(SPEC, MACHINE), {}, MACHINE) as played, attached(SPEC, played) as found:
        for holder, export, size in (("camera", "frame", 8 << 20), ("lidar", "points", 64 << 10)):
            fd = taken(found, holder, export)
            for at in (0, 12345, size - 100):
                assert external_api.read(fd, at, 100) == bytes(n % PERIOD for n in range(at, at + 100))


def test_only_the_beginning_of_a_large_object_takes_memory(tmp_path: Path) -> None:
    spec = "external: {frame: {from: camera, via: opaque_fd, device: gpu0, size: 8GiB}}"
    with start_producers(geometry_of(spec, MACHINE), {}, MACHINE) as played, attached(spec, played) as found:
        fd = taken(found, "camera", "frame")
        assert external_api.read(fd, FILLED - 1, 1) == bytes([(FILLED - 1) % PERIOD])
        assert os.fstat(fd).st_blocks * 512 < 2 * FILLED


def test_semaphores_are_prepared_for_each_importer() -> None:
    with start_producers(geometry_of(SPEC, MACHINE), {}, MACHINE) as played:
        for value in (5, 6):
            with attached(SPEC, played) as found:
                fds = {name: taken(found, "camera", name) for name in ("ready", "flip", "flop")}
                assert {name: external_api.counter(fd) for name, fd in fds.items()} == {
                    "ready": value,
                    "flip": 1,
                    "flop": 0,
                }
                external_api.signal(fds["ready"], 6)
                assert external_api.wait(fds["flip"], timeout=0)
                external_api.signal(fds["flop"])


def test_a_holder_has_the_exports_for_all_processes_of_a_spec() -> None:
    spec = """
processes:
  one: {external: {frame: {from: camera, via: opaque_fd, device: gpu0, size: 4KiB}}}
  two: {count: 2, semaphores: {ready: {from: camera, via: timeline_fd, device: gpu0, wait: 1}}}
"""
    with (
        start_producers(geometry_of(spec, MACHINE), {}, MACHINE) as played,
        connect(endpoint(socket=played.sockets["camera"])) as client,
    ):
        assert [*client.offers()] == ["frame", "ready"]


def test_a_bound_holder_is_not_simulated(tmp_path: Path) -> None:
    fd = os.memfd_create("frame")
    with memtopo.serve(tmp_path / "lidar.sock", {"points": memtopo.ExternalMemory(fd, 1 << 16, GPUS[0])}) as served:
        bound = {"lidar": resolve("lidar", served.path), "radar": ("false",)}
        with start_producers(geometry_of(SPEC, MACHINE), bound, MACHINE) as played:
            assert (played.simulated, played.sockets["lidar"]) == (["camera"], served.path)
            assert played.sockets.keys() == {"camera", "lidar"}
    os.close(fd)


def test_a_running_holder_is_not_simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    fd = os.memfd_create("frame")
    with (
        memtopo.serve("lidar", {"points": memtopo.ExternalMemory(fd, 1 << 16, GPUS[0])}),
        start_producers(geometry_of(SPEC, MACHINE), {}, MACHINE) as played,
    ):
        assert played.simulated == ["camera"]
    os.close(fd)


def test_a_holder_that_does_not_serve_yet_is_not_simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with claim(endpoint("camera")), start_producers(geometry_of(SPEC, MACHINE), {}, MACHINE) as played:
        assert played.simulated == ["lidar"]


def test_no_holder_is_simulated_on_a_real_machine() -> None:
    with (
        pytest.raises(UsageError, match="'camera', which is neither bound nor running"),
        start_producers(geometry_of(SPEC, MACHINE), {}, None),
    ):
        pass


def test_a_simulated_producer_ends_with_its_standard_input(tmp_path: Path) -> None:
    script = ProducerSpec("test", (SimulatedMemory("frame", 4096, GPUS[0], dedicated=False),))
    command = python_command("memtopo.sharing.producers:main")
    where = str(tmp_path / "camera.sock")
    env = environment(MEMTOPO_SOCKET=where)
    with PythonProcess(command, stdin=subprocess.PIPE, cwd=ROOT, env=env) as process:
        assert process.stdin
        process.stdin.write(encode(script) + b"\n")
        process.stdin.flush()
        until(Path(where).exists)
        process.stdin.close()
        assert process.wait(PATIENCE) == 0
    assert os.listdir(tmp_path) == []


def test_a_simulated_producer_that_cannot_serve_prints_one_line(tmp_path: Path) -> None:
    script = ProducerSpec("test", ())
    command = python_command("memtopo.sharing.producers:main")
    env = environment(MEMTOPO_SOCKET=str(tmp_path / "missing" / "camera.sock"))
    done = run_python(command, input=encode(script) + b"\n", cwd=ROOT, env=env, capture_output=True, check=False)
    (line,) = done.stderr.decode().splitlines()
    assert (done.returncode, line.startswith("memtopo: simulated producer: folder ")) == (1, True)


def test_a_specification_is_the_same_after_encoding_and_decoding() -> None:
    for script in producer_specs([geometry_of(SPEC, MACHINE)], "h200x2", GPUS).values():
        assert decode(encode(script), ProducerSpec) == script
        assert json.loads(encode(script))["machine"] == "h200x2"


def test_of_several_declarations_of_a_semaphore_the_highest_values_count() -> None:
    entry = "{from: camera/s, via: timeline_fd, device: gpu1, %s}"
    values = "signal: 4", "wait: 3, signal: 9", "wait: 7", "wait: 5, signal: 6"
    entries = (f"  s{number}: {entry % each}\n" for number, each in enumerate(values))
    frame = "external: {frame: {from: camera, via: opaque_fd, device: gpu1, size: 4KiB}}\n"
    found = producer_specs([geometry_of(f"{frame}semaphores:\n{''.join(entries)}", MACHINE)], "h200x2", GPUS)
    assert found["camera"].objects[1:] == (SimulatedSemaphore("s", True, GPUS[1], 7, 9),)


def test_the_report_of_an_applied_layout_notes_its_simulated_producers() -> None:
    opened = target.resolve("h200x2")
    machine = Target("h200x2", opened.machine, simulated=True, _opener=opened.open)
    with memtopo.applied(SPEC_OF_ONE, machine=machine) as layout:
        assert layout.buffers["frame"].size == 4096
    assert layout.report
    assert layout.report.outcome == "ok"
    assert "camera is simulated by a built-in producer: this machine is simulated" in layout.report.notes


def test_a_name_in_bind_that_the_spec_does_not_use_is_refused() -> None:
    layout = memtopo.applied(SPEC_OF_ONE, "h200x2", bind={"camra": "/run/camera.sock"})
    with pytest.raises(memtopo.Unsuitable, match=r"nothing from 'camra' \(hint: did you mean 'camera'\?\)"):
        layout.__enter__()


SPEC_OF_ONE = {
    "memtopo": 1,
    "name": "one",
    "external": {"frame": {"from": "camera", "via": "opaque_fd", "device": "gpu0", "size": "4KiB"}},
}


def test_a_simulated_file_has_its_bytes_and_cannot_shrink(tmp_path: Path) -> None:
    spec, size = ProducerSpec("test", (SimulatedFile("host", 10_000),)), 10_000
    with (
        simulated_serving(spec, str(tmp_path / "camera.sock")) as served,
        connect(endpoint(socket=served.path)) as client,
    ):
        (handle,) = client.handles("host")
        assert handle.fd is not None
        assert os.pread(handle.fd, 2 * size, 0) == bytes(n % PERIOD for n in range(size))
        assert fcntl.fcntl(handle.fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
        with pytest.raises(PermissionError):
            os.ftruncate(handle.fd, 1)
        handle.close()


def test_of_several_declarations_of_external_memory_the_first_counts() -> None:
    spec = "external: {%s: {from: camera/f, via: opaque_fd, device: gpu%d, size: %s, dedicated: %s}}"
    members = [geometry_of(spec % each, MACHINE) for each in (("a", 1, "8KiB", "true"), ("b", 0, "4KiB", "false"))]
    found = producer_specs(members, "h200x2", GPUS)
    assert found["camera"].objects == (SimulatedMemory("f", 8192, GPUS[1], dedicated=True),)
