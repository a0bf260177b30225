"""Events of a held layout, and the protocols of systemd beside them."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from memtopo.common.errors import ExchangeError, MemtopoError, UsageError
from memtopo.common.text import process_name
from memtopo.sharing import wire
from memtopo.sharing.client import connect
from memtopo.sharing.endpoints import endpoint
from memtopo.sharing.holder.state import MOST_OF_CLIENTS, PERIOD, HolderEvent, HolderEvents, Supervision
from memtopo.sharing.holder.systemd import Notifier, passed_claim
from memtopo.sharing.sockets import peer
from tests.helpers.child_process import PATIENCE
from tests.helpers.holders import Holder, asked, holding, next_message, raw
from tests.helpers.memfd_exports import OFFERS, OneState
from tests.helpers.python_process import run_python


def test_importers_checks_changes_and_the_end_are_events(runtime: Path) -> None:
    found: list[HolderEvent] = []
    layout = OneState(differences=1)
    with holding(layout, supervision=Supervision(log=found.append)), connect(endpoint("kv")) as client:
        for handle in client.handles("page"):
            handle.close()
        for _ in range(2):
            client.let_go(["page"])
        client.check()
        client.switch("asleep")
        with pytest.raises(ExchangeError, match="has no memory"):
            next(client.handles("page"))
        with pytest.raises(ExchangeError):
            client.switch("nowhere")
        client.close()
    texts = [each.text for each in found]
    assert [text for text in texts if "detached" not in text] == [
        *("serving", "importer attached", "importer let go", "checked"),
        *("switch requested", "switch made", "switch refused", "ending", "ended"),
    ]
    socket_path = str(runtime / "memtopo" / "kv.sock")
    assert found[0].fields == {"layout": "kv", "socket": socket_path, "exports": len(OFFERS)}
    (refused,) = (each.fields for each in found if each.text == "switch refused")
    assert refused["by"] == process_name(os.getpid())
    page = OFFERS[0]
    attached = found[1].fields
    assert (attached["pid"], attached["export"]) == (os.getpid(), "page")
    assert [dict(each.fields) for each in found if each.text == "checked"] == [{"checked": 2000, "different": 1}]
    assert attached["bytes"] == page.size * int(attached["handles"])
    assert {each.text for each in found if each.severity == "warning"} == {"checked", "switch made", "switch refused"}


def test_events_of_clients_are_limited_in_each_period_and_others_are_not() -> None:
    found: list[HolderEvent] = []
    now = [0.0]
    events = HolderEvents(found.append, lambda: now[0])
    for _ in range(MOST_OF_CLIENTS + 5):
        events.add_of_client("importer attached", {})
    events.add("checked", {})
    assert len(found) == MOST_OF_CLIENTS + 1
    now[0] = PERIOD
    events.add_of_client("importer attached", {})
    assert [(each.text, dict(each.fields), each.severity) for each in found[-2:]] == [
        ("client events omitted", {"count": 5}, "warning"),
        ("importer attached", {}, "info"),
    ]


def test_the_watchdog_is_notified_if_systemd_watches_this_process(runtime: Path, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(PATIENCE)
        holder = Holder(runtime, NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="40000")
        try:
            assert systemd.recv(4096).startswith(b"READY=1")
            assert [systemd.recv(4096) for _ in range(3)] == [b"WATCHDOG=1"] * 3
            assert holder.end(signal.SIGTERM)["held"]["notes"] == []
        finally:
            holder.kill()


@pytest.mark.parametrize(("limit", "process", "interval"), [("40000", 0, 0.01), ("40000", 1, None), ("0", 0, None)])
def test_the_watchdog_is_notified_four_times_in_its_period(
    limit: str, process: int, interval: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", limit)
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid() + process))
    assert Notifier().interval == interval


def seqpacket(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.bind(path)
    return sock


def listening(sock: socket.socket) -> socket.socket:
    sock.listen()
    return sock


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda _: listening(socket.create_server(("127.0.0.1", 0))), "is no Unix socket"),
        (lambda _: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM), "is a datagram socket"),
        (lambda _: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), "is a stream socket"),
        (seqpacket, "is a connection, and does not listen"),
        (lambda path: listening(seqpacket(f"\0{path}")), "has no path in the file system"),
        (lambda path: listening(seqpacket(os.path.relpath(path))), "has no path in the file system"),
        (lambda path: open(path, "w"), "is not a socket"),  # noqa: SIM115, PTH123 closed by the test
    ],
)
def test_passed_descriptors_of_other_types_are_refused(tmp_path: Path, make: Callable[[str], Any], why: str) -> None:
    with make(str(tmp_path / "x")) as other:
        given = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}
        with pytest.raises(UsageError, match=why) as refused:
            passed_claim(given, other.fileno())
    assert why == "is not a socket" or "ListenSequentialPacket=" in (refused.value.hint or "")


def test_a_passed_socket_is_for_its_process_and_of_several_by_name(tmp_path: Path) -> None:
    with listening(seqpacket(str(tmp_path / "a"))) as first, listening(seqpacket(str(tmp_path / "b"))) as second:
        base = 200
        for number, sock in enumerate((first, second)):
            os.dup2(sock.fileno(), base + number)
        try:
            given = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "2", "LISTEN_FDNAMES": "metrics:memtopo"}
            found = passed_claim(given, base)
            assert found
            assert not any(map(os.get_inheritable, (base, base + 1)))
            with found:
                assert found.endpoint.path == str(tmp_path / "b")
            assert passed_claim({**given, "LISTEN_PID": "1"}, base) is None
            assert passed_claim({}, base) is None
            with pytest.raises(UsageError, match="2 sockets, but 0 of them are named"):
                passed_claim({**given, "LISTEN_FDNAMES": "a:b"}, base)
        finally:
            os.close(base)
            os.close(base + 1)


def test_the_socket_that_systemd_passed_listens_after_the_end_and_its_file_stays(tmp_path: Path) -> None:
    with listening(seqpacket(str(tmp_path / "kv"))) as passed:
        found = passed_claim({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}, passed.fileno())
        assert found
        ours, theirs = socket.socketpair()
        with found, theirs:
            for _ in range(2):
                found.listen().close()
            found.keep_open(ours)
            with connect(found.endpoint, timeout=5):
                found.unlink_socket()
        assert ours.fileno() == -1
        assert os.listdir(tmp_path) == ["kv"]
        connect(endpoint(socket=str(tmp_path / "kv")), timeout=5).close()


def test_clients_of_a_passed_socket_see_the_process_that_serves_at_it(tmp_path: Path) -> None:
    """Not the one that made it listen before, which is systemd."""
    path = str(tmp_path / "kv")
    with seqpacket(path) as passed:
        code = f"import socket; socket.socket(fileno={passed.fileno()}).listen()"
        run_python([sys.executable, "-c", code], pass_fds=[passed.fileno()], check=True)
        with raw(path) as early:
            assert peer(early).pid != os.getpid()
        found = passed_claim({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}, passed.fileno())
        assert found
        with found, found.listen(), raw(path) as client:
            assert (peer(client).pid, peer(client).uid) == (os.getpid(), os.geteuid())


def test_a_reload_after_the_end_of_a_hold_has_begun_is_not_made(runtime: Path) -> None:
    layout, pending = OneState(), list[Callable[[], str]]()
    supervision = Supervision(reload=lambda: pending.pop() if pending else None)
    with (
        closing(os.fdopen(layout.memory)),
        holding(layout, supervision=supervision, grace=PATIENCE) as end,
        raw(runtime / "memtopo" / "kv.sock") as importer,
    ):
        assert "ok" in asked(importer, "handles", export="block", first=0, count=1)
        end()
        assert next_message(importer)["notice"] == "releasing"
        pending.append(lambda: "{}")
        for _ in range(2):
            assert asked(importer, "status")["ok"]["state"] == "releasing"
        importer.close()
    assert layout.source == ""


def test_a_reload_is_over_for_systemd_when_its_change_is_made_or_refused(
    runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One while importers let go for another change is refused, and over with that; one after it begins no other."""
    found, layout, pending = list[HolderEvent](), OneState(), list[Callable[[], str]]()

    def unreadable() -> str:
        raise MemtopoError("kv.yaml cannot be read")

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd, closing(os.fdopen(layout.memory)):
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(PATIENCE)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))

        def reloaded(read: Callable[[], str], notices: int = 2) -> list[bytes]:
            pending.append(read)
            assert "ok" in asked(other, "status")
            return [systemd.recv(4096).partition(b"=")[0] for _ in range(notices)]

        supervision = Supervision(log=found.append, reload=lambda: pending.pop() if pending else None)
        path = runtime / "memtopo" / "kv.sock"
        with (
            holding(layout, supervision=supervision),
            raw(path) as importer,
            raw(path) as requester,
            raw(path) as other,
        ):
            assert systemd.recv(4096).startswith(b"READY=1")
            assert reloaded(unreadable) == [b"RELOADING", b"READY"]
            assert reloaded(lambda: "{}") == [b"RELOADING", b"READY"]
            assert layout.source == "{}"
            assert "ok" in asked(importer, "handles", export="page", first=0, count=1)
            switch = {"request": "switch", "state": "asleep", "force": False, "wait": PATIENCE}
            wire.send(requester, wire.encode(switch))
            assert next_message(importer)["notice"] == "changing"
            assert reloaded(lambda: "[]", 1) == [b"RELOADING"]
            assert reloaded(lambda: "[]", 0) == []
            assert not select.select([systemd], [], [], 0)[0], "importers have not let go yet"
            assert "ok" in asked(importer, "let_go", exports=["page"])
            assert systemd.recv(4096).startswith(b"READY=1")
        assert layout.source == "{}"
    events = [(each.text, each.severity) for each in found if each.text.startswith("reload")]
    refused, requested, made = ("reload refused", "warning"), ("reload requested", "info"), ("reload made", "info")
    assert events == [refused, requested, made, refused, refused]
