"""`memtopo.serve`: a program offers what another API made, beside its own work."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import memtopo
from memtopo.common.errors import MemtopoError, UsageError
from memtopo.sharing import Client, ExchangeError, NoLayout, connect, endpoint
from tests.sharing.holding import PATIENCE, Process, fds, until
from tests.sharing.producer import BYTES

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


def test_what_is_offered(tmp_path: Path) -> None:
    """Memory is offered with its size, its GPU and whether it is dedicated; a semaphore by its type"""
    with given() as exports:
        exports["own"] = memtopo.ExternalMemory(exports["frame"].fd, 4096, gpu=TEXT, dedicated=True)
        exports["flip"] = memtopo.Semaphore(exports["ready"].fd, timeline=False, gpu=UUID.hex())
        with memtopo.serve(tmp_path / "camera.sock", exports) as served, reached(served) as client:
            offers = client.offers()
            assert client.status().name == "camera"
    frame, ready, own, flip = (offers[name] for name in ("frame", "ready", "own", "flip"))
    assert {frame.gpu, own.gpu, flip.gpu} == {UUID.hex()}
    assert (frame.kind, frame.via, frame.count, frame.size, frame.properties) == ("memory", "opaque_fd", 1, 8 << 20, ())
    assert (own.size, own.properties) == (4096, ("dedicated",))
    assert (ready.kind, ready.via, ready.size, ready.gpu) == ("semaphore", "timeline_fd", 0, None)
    assert (flip.kind, flip.via) == ("semaphore", "opaque_fd")


def test_a_client_gets_a_descriptor_of_its_own(tmp_path: Path) -> None:
    """Every client has a new descriptor of the same object, and what was given stays open"""
    with given() as exports:
        with memtopo.serve(tmp_path / "camera.sock", exports) as served, reached(served) as one, reached(served) as two:
            handles = [next(client.handles("frame")) for client in (one, two)]
            numbers = {handle.fd for handle in handles} | {exports["frame"].fd}
            assert len(numbers) == 3
            assert {os.pread(fd, len(BYTES), 0) for fd in numbers if fd is not None} == {BYTES}
            for handle in handles:
                handle.close()
        assert os.pread(exports["frame"].fd, len(BYTES), 0) == BYTES


def test_who_took_what(tmp_path: Path) -> None:
    """A program can wait until an export was asked for, and is told where nobody did in time"""
    with given() as exports, memtopo.serve(tmp_path / "camera.sock", exports) as served:
        assert not served.taken("frame", timeout=0)
        with reached(served) as client:
            taker = threading.Thread(target=lambda: next(client.handles("frame")).close())
            taker.start()
            assert served.taken("frame", timeout=PATIENCE)
            taker.join()
        assert not served.taken("ready", timeout=0)


def test_nothing_is_left(tmp_path: Path) -> None:
    """After the end there is neither a socket nor a thread, and no descriptor more than before; clients see the end"""
    with given() as exports:
        before, threads = fds(), threading.active_count()
        with memtopo.serve(tmp_path / "camera.sock", exports) as served:
            client = reached(served)
            assert not client.gone()
        assert client.gone()
        client.close()
        assert client.gone()
        assert (fds(), threading.active_count(), os.listdir(tmp_path)) == (before, threads, [])


def test_in_another_process(start: Callable[..., Process], tmp_path: Path) -> None:
    """A producer is a process of its own: its memory is seen here, and its descriptors stay open there"""
    wish = {"frame": {"kind": "memory", "size": 4096, "gpu": TEXT}, "flip": {"kind": "semaphore", "timeline": False}}
    producer = start("producer", where=str(tmp_path / "camera.sock"), exports=wish)
    with connect(endpoint(socket=producer.said()["serving"])) as client:
        handle = next(client.handles("frame"))
        assert handle.fd is not None
        assert os.pread(handle.fd, len(BYTES), 0) == BYTES
        handle.close()
        assert client.pid == producer.pid
    producer.go_on()
    assert producer.said() == {"open": True}
    assert producer.ended() == 0


def test_a_name_instead_of_a_path(runtime: Path) -> None:
    """A place without a slash is a name, as a layout has one"""
    with given() as exports, memtopo.serve("camera", exports) as served:
        assert served.path == str(runtime / "memtopo" / "camera.sock")
        with connect(endpoint("camera")) as client:
            assert [*client.offers()] == ["frame", "ready"]


def test_a_place_is_served_once(tmp_path: Path) -> None:
    """A second producer at a place is told so on entering"""
    where = tmp_path / "camera.sock"
    with given() as exports, memtopo.serve(where, exports), pytest.raises(ExchangeError, match="already held"):
        memtopo.serve(where, exports).__enter__()


def test_it_can_be_released(tmp_path: Path) -> None:
    """Who asks for the release gets it; the program sees that nothing is served any more"""
    with given() as exports, memtopo.serve(tmp_path / "camera.sock", exports) as served:
        assert not served.released
        client = reached(served)
        client.release(wait=0)
        until(lambda: served.released)
        client.close()
        with pytest.raises((NoLayout, ExchangeError)):
            reached(served)


def test_there_is_nothing_to_check(tmp_path: Path) -> None:
    """A check of what memtopo did not lay out is refused, and everything goes on"""
    with given() as exports, memtopo.serve(tmp_path / "camera.sock", exports) as served, reached(served) as client:
        with pytest.raises(ExchangeError, match="not laid out by memtopo"):
            client.check()
        assert [*client.offers()] == ["frame", "ready"]


def test_a_descriptor_that_is_closed_meanwhile(tmp_path: Path) -> None:
    """What was given may be closed while it is served: the object is handed out, and not what has its number now"""
    with given() as exports, memtopo.serve(tmp_path / "camera.sock", exports) as served, reached(served) as client:
        with open(os.devnull) as other:  # noqa: PTH123
            os.dup2(other.fileno(), exports["frame"].fd)
            handle = next(client.handles("frame"))
        assert handle.fd is not None
        assert os.pread(handle.fd, len(BYTES), 0) == BYTES
        handle.close()


def test_a_descriptor_that_is_closed_before(tmp_path: Path) -> None:
    """A descriptor that is not open is told on entering, and nothing is served"""
    with given() as exports, pytest.raises(UsageError, match="descriptor of 'gone', 9999, cannot be copied: bad file"):
        memtopo.serve(tmp_path / "camera.sock", exports | {"gone": memtopo.Semaphore(9999)}).__enter__()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("exports", "told"),
    [
        ({"frame": memtopo.ExternalMemory(0, 4096, gpu="gpu0")}, "'gpu0' is not a GPU's UUID"),
        ({"frame": memtopo.ExternalMemory(0, 4096, gpu=b"short")}, "not a GPU's UUID"),
        ({"frame": memtopo.ExternalMemory(0, 0, gpu=UUID)}, "'frame' has a size of 0"),
        ({"ready": memtopo.Semaphore(0, gpu="GPU-")}, "not a GPU's UUID"),
        ({"a/b": memtopo.Semaphore(0)}, "'a/b' is not an export's name"),
        ({"": memtopo.Semaphore(0)}, "is not an export's name"),
    ],
)
def test_what_cannot_be_offered(exports: Mapping[str, Any], told: str, tmp_path: Path) -> None:
    """What is given wrongly is told before anything is served"""
    with pytest.raises(UsageError, match=told):
        memtopo.serve(tmp_path / "camera.sock", exports)


def test_a_place_that_is_none(tmp_path: Path) -> None:
    """A place that there cannot be is told"""
    with given() as exports:
        with pytest.raises(MemtopoError, match="is not a layout's name"):
            memtopo.serve("cam era", exports)
        with pytest.raises(ExchangeError, match="does not exist"):
            memtopo.serve(tmp_path / "nowhere" / "camera.sock", exports).__enter__()
