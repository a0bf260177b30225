"""Claims within one process: the files of an endpoint while it is claimed, and the errors of further claims."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from fcntl import flock
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from memtopo.common.errors import ExchangeError, NoLayout
from memtopo.common.processes import pid_namespace
from memtopo.plans.report import Checks, Failure, Leak, PlanSummary, Report
from memtopo.sharing import claims, wire
from memtopo.sharing.claims import claim, lock_owner, remove_stale
from memtopo.sharing.client import connect
from memtopo.sharing.endpoints import Endpoint, endpoint
from memtopo.sharing.held import survey
from memtopo.sharing.messages import encode_end
from tests.helpers.memfd_exports import MACHINE
from tests.helpers.processes import open_descriptors


@pytest.fixture
def named(runtime: Path) -> Endpoint:
    """The endpoint of the layout kv, in an empty runtime folder."""
    return endpoint("kv")


def files(of: Endpoint) -> list[str]:
    return sorted(os.listdir(of.folder))


def test_a_claim_has_a_lock_with_its_process_and_removes_it(named: Endpoint) -> None:
    before = open_descriptors()
    with claim(named):
        assert files(named) == ["kv.sock.lock"]
        lock = Path(named.folder, named.lock)
        assert lock.read_text() == f"memtopo lock of process {os.getpid()} in pid namespace {pid_namespace()}\n"
        assert stat.S_IMODE(lock.stat().st_mode) == 0o600
        folder = named.open_folder()
        assert (lock_owner(folder, named.lock), lock_owner(folder, "nothing")) == (os.getpid(), None)
        os.close(folder)
        assert not remove_stale(named)
    assert (files(named), remove_stale(named), open_descriptors()) == ([], True, before)


def test_a_process_of_another_pid_namespace_that_owns_a_lock_has_no_number_here(named: Endpoint) -> None:
    folder = named.open_folder(make=True)
    Path(named.folder, named.lock).write_text(f"memtopo lock of process {os.getpid()} in pid namespace 1\n")
    assert lock_owner(folder, named.lock) == 0
    os.close(folder)


def test_a_claimed_name_cannot_be_claimed_again(named: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "_TRIES", 2)
    with claim(named) as held:
        before = open_descriptors()
        with pytest.raises(ExchangeError) as refused:
            claim(named)
        assert (refused.value.code, refused.value.message) == (
            "held",
            f"layout 'kv' is already held by process {os.getpid()}",
        )
        assert refused.value.hint == "'memtopo release kv' releases it; or use another name"
        with pytest.raises(
            ExchangeError, match=r"^layout 'kv' is being built or taken down, and is not served"
        ) as early:
            connect(named)
        assert (early.value.code, f"holder: process {os.getpid()}" in early.value.message) == ("starting", True)
        assert open_descriptors() == before
        with held.listen():
            assert files(named) == ["kv.sock", "kv.sock.lock"]
            connect(named, timeout=5).close()
        held.unlink_socket()
        assert files(named) == ["kv.sock.lock"]
    assert files(named) == []


@pytest.mark.parametrize("mode", [0o600, 0o666])
def test_a_socket_has_the_mode_that_was_asked_for(tmp_path: Path, mode: int) -> None:
    with claim(endpoint(socket=str(tmp_path / "s"))) as held, held.listen(mode=mode):
        assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == mode
        assert sorted(os.listdir(tmp_path)) == ["s", "s.lock"]


def test_a_folder_that_does_not_exist_is_no_place_for_a_socket(tmp_path: Path) -> None:
    where = endpoint(socket=str(tmp_path / "nothing" / "s"))
    with pytest.raises(ExchangeError) as refused:
        claim(where)
    folder = str(tmp_path / "nothing")
    assert (refused.value.code, refused.value.message) == ("folder", f"folder {folder!r} for a socket does not exist")
    with pytest.raises(NoLayout, match="no layout is held at"):
        connect(where)
    assert remove_stale(where)


def test_a_connection_that_is_kept_open_ends_with_its_claim(named: Endpoint) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        with claim(named) as held:
            held.keep_open(ours)
            assert held.kept_open == 1
            assert ours.fileno() >= 0
        assert ours.fileno() < 0
        assert theirs.recv(1) == b""


def test_a_client_that_has_gone_takes_the_notice_of_the_end_from_no_other(named: Endpoint) -> None:
    report = Report("kv", None, MACHINE, "ok", 0, PlanSummary("kv", (), {}, 0, 0, 0))
    (gone, first), (other, second) = (socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2))
    with claim(named) as held, other:
        held.keep_open(first)
        held.keep_open(second)
        gone.close()
        held.report_end(report)
        assert wire.decode(other.recv(wire.LARGEST, socket.MSG_DONTWAIT))["outcome"] == "ok"


def test_a_claim_that_is_abandoned_leaves_its_files(named: Endpoint) -> None:
    before = open_descriptors()
    held = claim(named)
    sock = held.listen()
    held.abandon()
    held.close()
    held.abandon()
    assert files(named) == ["kv.sock", "kv.sock.lock"]
    sock.close()
    assert open_descriptors() == before
    assert remove_stale(named)
    assert files(named) == []


def test_a_name_that_is_not_held_is_answered_with_the_nearest(runtime: Path) -> None:
    with claim(endpoint("weights")), claim(endpoint("cache")):
        with pytest.raises(NoLayout) as missing:
            connect(endpoint("weight"))
        where = runtime / "memtopo" / "weight.sock"
        assert missing.value.message == f"no layout 'weight' is held (looked for {where})"
        assert f"(hint: {missing.value.hint})" in str(missing.value)
        assert missing.value.hint == "did you mean 'weights'? 'memtopo ls' shows what is held"
        with pytest.raises(NoLayout) as unlike:
            connect(endpoint("zzzzzz"))
        assert unlike.value.hint == "'memtopo ls' shows what is held"


def test_a_stale_lock_can_be_locked_and_a_held_one_cannot(named: Endpoint) -> None:
    with claim(named):
        folder = named.open_folder()
        assert claims.lock_stale(folder, named.lock) is None
        assert claims.make_lock(folder, named.lock) is None
    lock = claims.make_lock(folder, named.lock)
    assert lock is not None
    os.close(lock)
    again = claims.lock_stale(folder, named.lock)
    assert again is not None
    os.close(again)
    os.close(folder)
    assert files(named) == ["kv.sock.lock"]


def test_a_lock_whose_file_was_replaced_before_it_was_locked_is_of_no_use(
    named: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another claim comes between the opening of a stale lock and its locking; the later one removes nothing of it."""
    claim(named).abandon()
    others: list[claims.Claim] = []

    def lock_late(fd: int, how: int) -> None:
        monkeypatch.setattr(claims, "flock", flock)
        others.append(claim(named))
        flock(fd, how)

    monkeypatch.setattr(claims, "flock", lock_late)
    folder = named.open_folder()
    assert claims.lock_stale(folder, named.lock) is None
    with others[0]:
        assert lock_owner(folder, named.lock) == os.getpid()
        assert claims.lock_stale(folder, named.lock) is None
    os.close(folder)


def a_file(path: Path) -> None:
    path.write_text("notes")


def a_listener(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.bind(str(path))
    sock.listen(1)
    return sock


def a_bound_socket(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.bind(str(path))
    return sock


def a_dead_socket(path: Path) -> None:
    a_bound_socket(path).close()


ELSEWHERE = "remove it if no program needs it; or use another socket"


def a_folder_as_lock(path: Path) -> None:
    path.with_name("s.sock.lock").mkdir()


@pytest.mark.parametrize(
    ("make", "code", "message", "hint"),
    [
        (a_file, "folder", "'{path}' exists, but is not a socket of this user", ELSEWHERE),
        (a_listener, "held", "socket '{path}' is already held by another process",
         "'memtopo release --socket {path}' releases it; or use another socket"),
        (a_bound_socket, "folder", "socket '{path}' is in use by another program",
         "its program must end first; or use another socket"),
        (a_dead_socket, "folder", "socket '{path}' exists, but memtopo did not create it",
         ELSEWHERE),
        (a_folder_as_lock, "folder", "lock '{path}.lock' cannot be acquired: it is not a file of this user", ELSEWHERE),
    ],
)  # fmt: skip
def test_what_stands_in_the_way_of_a_claim_is_named_and_stays(
    tmp_path: Path, make: Callable[[Path], socket.socket | None], code: str, message: str, hint: str | None
) -> None:
    path = tmp_path / "s.sock"
    made = make(path)
    before, left = open_descriptors(), sorted(each.name for each in tmp_path.iterdir())
    with pytest.raises(ExchangeError) as refused:
        claim(endpoint(socket=str(path)))
    assert (refused.value.code, refused.value.message) == (code, message.format(path=path))
    assert refused.value.hint == (hint and hint.format(path=path))
    assert open_descriptors() == before
    assert sorted(each.name for each in tmp_path.iterdir()) == left
    if made:
        made.close()


def test_a_dead_socket_in_the_runtime_folder_is_replaced_though_its_lock_was_removed(named: Endpoint) -> None:
    """Only memtopo writes to this folder."""
    os.close(named.open_folder(make=True))
    a_dead_socket(Path(named.folder, named.file))
    with claim(named) as held, held.listen():
        connect(named, timeout=5).close()
    assert files(named) == []


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ({}, None),
        ({"checks": Checks((), (), 3)}, "3 not as declared"),
        ({"checks": Checks((), (), 3), "failure": Failure("map", "cuMemMap failed")}, "cuMemMap failed"),
        (
            {"failure": Failure("map", "cuMemMap failed"), "leaks": (Leak("chunk a", "no"), Leak("chunk b", "no"))},
            "left behind: chunk a, chunk b",
        ),
    ],
)
def test_the_notice_of_the_end_has_the_gravest_reason(found: dict[str, Any], reason: str | None) -> None:
    report = Report("kv", None, MACHINE, "ok", 0, PlanSummary("kv", (), {}, 0, 0, 0))
    assert encode_end(replace(report, **found))["reason"] == reason


def test_a_survey_removes_files_that_dead_processes_left_beside_a_layout(named: Endpoint) -> None:
    """And nothing of a process that lives."""
    dead, living = (Endpoint(named.folder, f"kv.{name}.sock", "kv") for name in ("join", "engine.0"))
    left = claim(dead)
    left.listen().close()
    left.abandon()
    with claim(living) as held, held.listen():
        assert survey().layouts == ()
        assert files(named) == ["kv.engine.0.sock", "kv.engine.0.sock.lock"]


def test_a_socket_that_a_dead_holder_has_left_in_a_named_folder_is_replaced(tmp_path: Path) -> None:
    where = endpoint(socket=str(tmp_path / "kv"))
    dead = claim(where)
    dead.listen().close()
    dead.abandon()
    assert sorted(os.listdir(tmp_path)) == ["kv", "kv.lock"]
    with claim(where) as claimed, claimed.listen():
        connect(where).close()
    assert os.listdir(tmp_path) == []
