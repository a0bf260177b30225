"""`memtopo.serve`: a program offers what another API made, beside its own work."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import memtopo
from memtopo.common.errors import ExchangeError, MemtopoError, NoLayout, UsageError
from memtopo.sharing.client import Client, connect
from memtopo.sharing.endpoints import endpoint
from memtopo.sharing.holder import Background
from tests.helpers.child_process import PATIENCE
from tests.helpers.holders import Process, until
from tests.helpers.processes import open_descriptors
from tests.sharing.children.producer import BYTES

UUID = bytes(range(16))
TEXT = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"


@contextmanager
def given(size: int = 8 << 20) -> Iterator[dict[str, Any]]:
    """Memory and a semaphore of this process, for as long as that lasts."""
    fds_ = [os.memfd_create(name, os.MFD_CLOEXEC) for name in ("memory", "semaphore")]
    os.write(fds_[0], BYTES)
    try:
        yield {"frame": memtopo.ExternalMemory(fds_[0], size, gpu=UUID), "ready": memtopo.Semaphore(fds_[1])}
    finally:
        for fd in fds_:
            with suppress(OSError):
                os.close(fd)


def reached(served: memtopo.api.Serving) -> Client:
    return connect(endpoint(socket=served.path))


def test_offers_have_size_gpu_and_dedication_of_memory_and_type_of_semaphores(tmp_path: Path) -> None:
    with given() as exports:
        exports["own"] = memtopo.ExternalMemory(exports["frame"].fd, 4096, gpu=TEXT, dedicated=True)
        exports["flip"] = memtopo.Semaphore(exports["ready"].fd, timeline=False, gpu=UUID.hex())
        with memtopo.serve(tmp_path / "camera.sock", exports) as served, reached(served) as client:
            offers = client.offers()
            status = client.status()
            assert (status.name, status.machine.devices) == ("camera", (TEXT,))
    frame, ready, own, flip = (offers[name] for name in ("frame", "ready", "own", "flip"))
    assert {frame.gpu, own.gpu, flip.gpu} == {UUID.hex()}
    assert (frame.kind, frame.via, frame.count, frame.size, frame.properties) == ("memory", "opaque_fd", 1, 8 << 20, ())
    assert (own.size, own.properties) == (4096, ("dedicated",))
    assert (ready.kind, ready.via, ready.size, ready.gpu) == ("semaphore", "timeline_fd", 0, None)
    assert (flip.kind, flip.via) == ("semaphore", "opaque_fd")
    assert (ready.location, flip.location, frame.location) == ("any GPU", TEXT, TEXT)


def test_every_client_gets_a_new_descriptor_of_the_same_object(tmp_path: Path) -> None:
    with given() as exports:
        with memtopo.serve(tmp_path / "camera.sock", exports) as served, reached(served) as one, reached(served) as two:
            handles = [next(client.handles("frame")) for client in (one, two)]
            numbers = {handle.fd for handle in handles} | {exports["frame"].fd}
            assert len(numbers) == 3
            assert {os.pread(fd, len(BYTES), 0) for fd in numbers if fd is not None} == {BYTES}
            for handle in handles:
                handle.close()
        assert os.pread(exports["frame"].fd, len(BYTES), 0) == BYTES


def test_taken_waits_for_a_request_of_an_export(tmp_path: Path) -> None:
    with given() as exports, memtopo.serve(tmp_path / "camera.sock", exports) as served:
        assert not served.taken("frame", timeout=0)
        with reached(served) as client:
            taker = threading.Thread(target=lambda: next(client.handles("frame")).close())
            taker.start()
            assert served.taken("frame", timeout=PATIENCE)
            taker.join()
        assert not served.taken("ready", timeout=0)


def test_no_socket_thread_or_descriptor_is_left_after_the_end(tmp_path: Path) -> None:
    with given() as exports:
        before, threads = open_descriptors(), threading.active_count()
        with memtopo.serve(tmp_path / "camera.sock", exports) as served:
            client = reached(served)
            assert not client.gone()
        assert client.gone()
        client.close()
        assert (client.gone(), served.released) == (True, False)
        assert (open_descriptors(), threading.active_count(), os.listdir(tmp_path)) == (before, threads, [])


def test_memory_of_another_process_is_shared_and_stays_open_there(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    wish = {"frame": {"kind": "memory", "size": 4096, "gpu": TEXT}, "flip": {"kind": "semaphore", "timeline": False}}
    producer = start("producer", where=str(tmp_path / "camera.sock"), exports=wish)
    with connect(endpoint(socket=producer.read_line()["serving"])) as client:
        handle = next(client.handles("frame"))
        assert handle.fd is not None
        assert os.pread(handle.fd, len(BYTES), 0) == BYTES
        handle.close()
        assert client.pid == producer.pid
    producer.close_input()
    assert producer.read_line() == {"open": True}
    assert producer.ended() == 0


def test_an_endpoint_without_a_slash_is_a_name(runtime: Path) -> None:
    with given() as exports, memtopo.serve("camera", exports) as served:
        assert served.path == str(runtime / "memtopo" / "camera.sock")
        with connect(endpoint("camera")) as client:
            assert [*client.offers()] == ["frame", "ready"]


def test_a_second_producer_at_an_endpoint_is_refused_on_entering(tmp_path: Path) -> None:
    where = tmp_path / "camera.sock"
    with given() as exports, memtopo.serve(where, exports), pytest.raises(ExchangeError, match="already held"):
        memtopo.serve(where, exports).__enter__()


def test_a_service_is_entered_only_once(tmp_path: Path) -> None:
    with given() as exports:
        served = memtopo.serve(tmp_path / "camera.sock", exports)
        with served, pytest.raises(UsageError, match="only once"):
            served.__enter__()
        with pytest.raises(UsageError, match="only once"):
            served.__enter__()


def test_release_ends_the_service_and_the_program_sees_it(tmp_path: Path) -> None:
    with given() as exports, memtopo.serve(tmp_path / "camera.sock", exports) as served:
        assert not served.released
        client = reached(served)
        client.release(wait=0)
        until(lambda: served.released)
        client.close()
        with pytest.raises((NoLayout, ExchangeError)):
            reached(served)


def test_a_check_of_external_objects_is_refused_and_service_goes_on(tmp_path: Path) -> None:
    with given() as exports, memtopo.serve(tmp_path / "camera.sock", exports) as served, reached(served) as client:
        with pytest.raises(ExchangeError, match="not laid out by memtopo"):
            client.check()
        assert [*client.offers()] == ["frame", "ready"]


def test_closing_a_given_descriptor_does_not_change_the_served_object(tmp_path: Path) -> None:
    with given() as exports, memtopo.serve(tmp_path / "camera.sock", exports) as served, reached(served) as client:
        with open(os.devnull) as other:  # noqa: PTH123
            os.dup2(other.fileno(), exports["frame"].fd)
            handle = next(client.handles("frame"))
        assert handle.fd is not None
        assert os.pread(handle.fd, len(BYTES), 0) == BYTES
        handle.close()


def test_a_closed_descriptor_is_refused_on_entering(tmp_path: Path) -> None:
    with given() as exports:
        before = open_descriptors()
        with pytest.raises(UsageError, match="descriptor of 'gone', 9999, cannot be copied: bad file"):
            memtopo.serve(tmp_path / "camera.sock", exports | {"gone": memtopo.Semaphore(9999)}).__enter__()
        assert (open_descriptors(), os.listdir(tmp_path)) == (before, [])


@pytest.mark.parametrize(
    ("exports", "message"),
    [
        ({"frame": memtopo.ExternalMemory(0, 4096, gpu="gpu0")}, "'gpu0' is not a GPU's UUID"),
        ({"frame": memtopo.ExternalMemory(0, 4096, gpu=b"short")}, "not a GPU's UUID"),
        ({"frame": memtopo.ExternalMemory(0, 0, gpu=UUID)}, "'frame' has a size of 0"),
        ({"ready": memtopo.Semaphore(0, gpu="GPU-")}, "not a GPU's UUID"),
        ({"a/b": memtopo.Semaphore(0)}, "'a/b' is not an export's name"),
        ({"": memtopo.Semaphore(0)}, "is not an export's name"),
    ],
)
def test_invalid_exports_are_refused_before_service(exports: Mapping[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        memtopo.serve(tmp_path / "camera.sock", exports)


def test_an_invalid_endpoint_is_refused(tmp_path: Path) -> None:
    with given() as exports:
        assert memtopo.serve("here/camera.sock", exports).path == f"{Path.cwd()}/here/camera.sock"
        with pytest.raises(MemtopoError, match="is not a layout's name"):
            memtopo.serve("cam era", exports)
        with pytest.raises(ExchangeError, match="does not exist"):
            memtopo.serve(tmp_path / "nowhere" / "camera.sock", exports).__enter__()


@pytest.mark.parametrize("size", [0, -1, True, 1 << 63])
def test_a_size_that_clients_refuse_is_not_served(tmp_path: Path, size: int) -> None:
    with given(size) as exports, pytest.raises(UsageError, match=r"it must be a number of bytes below 2\*\*63"):
        memtopo.serve(tmp_path / "camera.sock", exports)


def test_the_name_of_a_long_socket_is_shortened(tmp_path: Path) -> None:
    with given() as exports, memtopo.serve(tmp_path / ("c" * 200), exports) as served, reached(served) as client:
        assert client.status().name == "c" * 128


@pytest.mark.parametrize("size", [4097, 1 << 40, True])
def test_memory_of_the_host_beyond_the_end_of_its_file_is_not_served(tmp_path: Path, size: int) -> None:
    """An importer that loads from there would be ended by SIGBUS."""
    fd = os.memfd_create("host", os.MFD_CLOEXEC)
    os.ftruncate(fd, 4096)
    assert memtopo.serve(tmp_path / "camera.sock", {"host": memtopo.HostMemory(fd, 4096)}).path
    with pytest.raises(UsageError, match=f"size of {size}; its file has 4,096 bytes"):
        memtopo.serve(tmp_path / "camera.sock", {"host": memtopo.HostMemory(fd, size)})
    os.close(fd)


@pytest.mark.skipif(os.geteuid() == 65534, reason="it is the other user here")
@pytest.mark.parametrize(("users", "mode"), [([], 0o600), ([os.geteuid()], 0o600), ([65534], 0o666)])
def test_others_can_open_a_socket_only_if_other_users_are_allowed(
    tmp_path: Path, runtime: Path, users: list[int], mode: int
) -> None:
    """And one in the runtime folder never."""
    with given() as exports:
        with memtopo.serve(tmp_path / "camera.sock", exports, allow_uids=users) as served:
            assert stat.S_IMODE(Path(served.path).stat().st_mode) == mode
        with memtopo.serve("camera", exports, allow_uids=users) as served:
            assert stat.S_IMODE((runtime / "memtopo" / "camera.sock").stat().st_mode) == 0o600


@pytest.mark.parametrize("serves", [True, False])
def test_an_error_of_a_serving_thread_is_raised_on_entering_or_kept(serves: bool) -> None:
    before, thread, go_on = open_descriptors(), Background("test"), threading.Event()

    def fail() -> None:
        if serves:
            thread.report_ready()
            assert go_on.wait(PATIENCE)
        raise MemtopoError("no more")

    def enter() -> None:
        with thread.running(fail):
            go_on.set()
            assert thread.over.wait(PATIENCE)

    if serves:
        enter()
    else:
        with pytest.raises(MemtopoError, match="no more"):
            enter()
    assert (thread.served, thread.stopping, str(thread.error)) == (serves, True, "no more")
    assert open_descriptors() == before
