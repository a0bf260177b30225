"""Unix sockets: which processes have one open, the users that are accepted, and the limit of open descriptors."""

from __future__ import annotations

import math
import os
import re
import resource
import selectors
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from memtopo.common.errors import ExchangeError
from memtopo.common.processes import process_stat
from memtopo.sharing import sockets
from memtopo.sharing.sockets import PeerProcess, wait_readable
from tests.helpers.python_process import run_python
from tests.helpers.specs import ROOT


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def bound(path: Path, kind: socket.SocketKind = socket.SOCK_SEQPACKET) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, kind)
    sock.bind(str(path))
    return sock


def test_a_listening_socket_is_bound_until_its_process_closes_it(folder: int, tmp_path: Path) -> None:
    assert (sockets.is_listening(folder, "s"), sockets.is_bound(folder, "s")) == (False, False)
    with bound(tmp_path / "s") as sock:
        assert (sockets.is_listening(folder, "s"), sockets.is_bound(folder, "s")) == (False, True)
        sock.listen()
        assert (sockets.is_listening(folder, "s"), sockets.is_bound(folder, "s")) == (True, True)
    assert (sockets.is_listening(folder, "s"), sockets.is_bound(folder, "s")) == (False, False)


def test_a_listener_whose_queue_is_full_listens(folder: int, tmp_path: Path) -> None:
    with bound(tmp_path / "s") as sock:
        sock.listen(0)
        with sockets.connect_at(folder, "s", 0.01):
            for seconds in (0.01, 0.0):
                with pytest.raises(BlockingIOError):
                    sockets.connect_at(folder, "s", seconds)
            assert sockets.is_listening(folder, "s")


def test_a_child_has_no_connection_that_was_accepted_and_is_not_admitted_yet(folder: int, tmp_path: Path) -> None:
    children: list[int] = []

    def admit(accepted: socket.socket) -> None:
        with accepted:
            child = os.fork()
            if not child:
                os._exit(accepted.fileno() != -1)
            children.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            accepted.send(b"served")

    with bound(tmp_path / "s") as sock, selectors.DefaultSelector() as selector:
        sock.listen()
        listener = sockets.Listener(selector, sock, admit)
        sockets.abandon_in_children(listener)
        with sockets.connect_at(folder, "s", 1.0) as client:
            for key, _ in selector.select(1.0):
                key.data(0)
            assert client.recv(16) == b"served"
        listener.close()
    assert children == [0]


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_a_socket_of_another_type_is_bound_and_does_not_listen_for_packets(
    folder: int, tmp_path: Path, kind: socket.SocketKind
) -> None:
    with bound(tmp_path / "s", kind) as sock:
        if kind == socket.SOCK_STREAM:
            sock.listen()
        assert (sockets.is_listening(folder, "s"), sockets.is_bound(folder, "s")) == (False, True)
    assert not sockets.is_bound(folder, "s")


def test_only_a_socket_is_connected_to(folder: int, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("s")
    before = len(os.listdir("/proc/self/fd"))
    with bound(tmp_path / "s") as sock:
        sock.listen()
        for name, error in (("file", "it is no socket"), ("link", "it is no socket"), ("nothing", "No such file")):
            with pytest.raises(OSError, match=error):
                sockets.connect_at(folder, name, 1)
        with sockets.connect_at(folder, "s", 1) as client, sock.accept()[0] as server:
            assert client.send(b"packet") == 6
            assert server.recv(100) == b"packet"
            assert sockets.peer(client) == sockets.peer(server) == PeerProcess(os.getpid(), os.geteuid())
            assert not client.get_inheritable()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(("uid", "allowed"), [(0, ()), (1, (1,)), (1, (2, 1))])
def test_the_own_user_and_those_allowed_are_accepted(uid: int, allowed: tuple[int, ...]) -> None:
    sockets.check_user(PeerProcess(9, os.geteuid() + uid), "it", [os.geteuid() + each for each in allowed])


def test_another_user_is_refused_with_the_option_that_allows_it() -> None:
    ours = os.geteuid()
    with pytest.raises(ExchangeError) as refused:
        sockets.check_user(PeerProcess(9, ours + 1), "the client", [ours + 2])
    assert (refused.value.code, refused.value.message) == (
        "forbidden",
        f"the client belongs to uid {ours + 1}, and this process to uid {ours}",
    )
    assert (refused.value.hint or "").startswith(f"--allow-uid {ours + 1},")


@pytest.fixture
def limits() -> Iterator[tuple[int, int]]:
    """The limits of open descriptors, which are restored; a soft one of 512 for the test."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    yield 512, hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def used() -> int:
    return len(os.listdir("/proc/self/fd")) - 1


def test_descriptors_within_the_limit_leave_it_unchanged(limits: tuple[int, int]) -> None:
    assert sockets.reserve_descriptors(100) == 100
    assert sockets.reserve_descriptors(512 - used() - 64) == 512 - used() - 64
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == limits


def test_the_soft_limit_is_raised_as_far_as_necessary(limits: tuple[int, int]) -> None:
    before = used()
    assert sockets.reserve_descriptors(600) == 600
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before + 600 + 64, limits[1])


LIMITED = """
import os, resource
from memtopo.common.errors import ExchangeError
from memtopo.sharing.sockets import reserve_descriptors

resource.setrlimit(resource.RLIMIT_NOFILE, (256, 300))
used = len(os.listdir("/proc/self/fd")) - 1
assert reserve_descriptors(1000, 1) == reserve_descriptors(1000, 300 - used) == 300 - used
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (300, 300)
try:
    reserve_descriptors(1000, 301 - used)
except ExchangeError as error:
    print(error.code, error.message, error.hint, sep="|")
"""


def test_beyond_the_hard_limit_fewer_are_returned_or_the_error_names_it() -> None:
    """A process of its own, since a hard limit cannot be raised again."""
    done = run_python([sys.executable, "-c", LIMITED], cwd=ROOT, capture_output=True, text=True, check=True)
    code, message, hint = done.stdout.split("|")
    assert code == "limit"
    assert re.fullmatch(r"the limit of open files is 300, and (\d+) are in use; (\d+) more are needed", message)
    assert sum(map(int, re.findall(r"\d+", message)[1:])) == 301
    assert hint.startswith("raise the hard limit (RLIMIT_NOFILE) to 301 or more: ")


def test_the_name_of_a_lease_has_its_layout_and_its_holder_by_number_and_start() -> None:
    own, long = process_stat(os.getpid()), "c" * 60
    assert own
    for path, holder, layout in (("/x/a b.sock", os.getpid(), "a b"), ("/kv.2", 0, "kv.2"), (f"/{long}", 0, long[:40])):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sockets.name_lease(sock, path, holder)
            sockets.name_lease(sock, "/x/other", 0)  # it keeps its name
            found = sockets.lease_names(Path("/proc/self/net/unix"))[os.fstat(sock.fileno()).st_ino]
        assert (found.layout, found.holder, found.start) == (layout, holder, own.start if holder else 0)


def test_a_listener_without_a_free_descriptor_accepts_again_after_its_pause(
    folder: int, tmp_path: Path, limits: tuple[int, int]
) -> None:
    """The connections wait meanwhile; its close is no error then."""
    now, admitted = [5.0], list[socket.socket]()
    with selectors.DefaultSelector() as selector, bound(tmp_path / "s") as sock:
        sock.listen()
        listener = sockets.Listener(selector, sock, admitted.append, most=9, clock=lambda: now[0])
        with sockets.connect_at(folder, "s", 1), sockets.connect_at(folder, "s", 1):
            ready = selector.select(0)
            resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
            for key, events in ready:
                key.data(events)
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            assert (len(ready), admitted, listener.pause) == (1, [], sockets.LISTENER_PAUSE)
            now[0] += sockets.LISTENER_PAUSE / 2
            listener.advance()
            assert selector.select(0) == []
            now[0] += sockets.LISTENER_PAUSE / 2
            listener.advance()
            for key, events in selector.select(0):
                key.data(events)
            assert (len(admitted), listener.pause) == (2, None)
            with sockets.connect_at(folder, "s", 1):
                resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
                for key, events in ready:
                    key.data(events)
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
                listener.close()
            assert (sock.fileno(), len(selector.get_map())) == (-1, 0)
    for each in admitted:
        each.close()


@pytest.mark.parametrize("seconds", [math.inf, 3e6])
def test_a_wait_has_any_limit(seconds: float) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.send(b"x")
        assert wait_readable([theirs], seconds)
