"""Clients that break the protocol, hang, or block the holder: it continues to serve the others."""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from memtopo.common.errors import ExchangeError
from memtopo.driver.handles import Handle
from memtopo.plans.report import Checks
from memtopo.sharing import wire
from memtopo.sharing.client import connect
from memtopo.sharing.endpoints import endpoint
from memtopo.sharing.holder import MOST_CLIENTS
from memtopo.sharing.holder.clients import SPARE
from memtopo.sharing.holder.state import HolderEvent, Supervision
from memtopo.sharing.sockets import SYSTEM, PeerProcess
from tests.helpers.holders import Holder, Process, asked, heard, holding, raw, until
from tests.helpers.memfd_exports import PAGES, OneState
from tests.helpers.processes import open_descriptors

NOBODY = 65534
DEEP = b'{"memtopo":1,"request":' + b"[" * 9 + b"]" * 9 + b"}"


def importers() -> int | None:
    """Number of importers of a holder; None if it refuses the connection as busy."""
    try:
        with connect(endpoint("kv")) as client:
            return len(client.status().importers)
    except ExchangeError as error:
        if error.code != "busy":
            raise
        return None


def close_each(handles: Iterable[Handle]) -> None:
    for handle in handles:
        handle.close()


def request(**fields: Any) -> bytes:
    return json.dumps({"memtopo": 1, **fields}).encode()


@pytest.fixture
def path(runtime: Path, holder: Holder) -> Path:
    """Path of the socket of the holder of kv."""
    return runtime / "memtopo" / "kv.sock"


@pytest.fixture(autouse=True)
def unharmed(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test no descriptor is left here or in the holder, which still answers and ends normally."""
    holder = request.getfixturevalue("holder") if "path" in request.fixturenames else None
    before = open_descriptors()
    yield
    assert open_descriptors() == before
    if holder:
        with connect(endpoint("kv")) as client:
            assert client.status().importers == ()
        until(lambda: holder.open_descriptors() == holder.idle)
        assert holder.end()["fds"] == 0


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"garbage", "packet"),
        (b"\xff\xfe", "packet"),
        (b"{" * 60000, "packet"),
        (b"[" * 65536, "packet"),
        (b'\\"' * 32000, "packet"),
        (b'"' * 65000, "packet"),
        (DEEP, "packet"),
        (b"[]", "packet"),
        (b"1", "packet"),
        (b"null", "packet"),
        (b'{"memtopo":1,"memtopo":1,"request":"status"}', "packet"),
        (b'{"memtopo":NaN}', "packet"),
        (b'{"memtopo":1,"request":1e999999}', "request"),
        (b'{"memtopo":1,"request":' + b"9" * 60000 + b"}", "packet"),
        (b"x" * 65537, "packet"),
        (request(request="status") + b" " * 70000, "packet"),
        (b"{}", "version"),
        (b'{"memtopo":2,"request":"status"}', "version"),
        (b'{"memtopo":true,"request":"status"}', "version"),
        (b'{"memtopo":"1","request":"status"}', "version"),
        (request(), "request"),
        (request(request="frobnicate"), "request"),
        (request(request=None), "request"),
        (request(request="status", colour="red"), "request"),
        (request(request="release", forse=True), "request"),
        (request(request="offers"), "packet"),
        (request(request="offers", first=-1), "packet"),
        (request(request="offers", first=True), "packet"),
        (request(request="offers", first=1 << 63), "packet"),
        (request(request="importers", after="1"), "packet"),
        (request(request="handles", export="page", first=0), "packet"),
        (request(request="handles", export="page", first=0, count=0), "packet"),
        (request(request="handles", export=["page"], first=0, count=1), "packet"),
        (request(request="handles", export="p" * 263, first=0, count=1), "packet"),
        (request(request="release", force="yes", grace=1), "packet"),
        (request(request="release", force=True, grace=-1), "packet"),
        (request(request="release", force=True, grace=1e308), "packet"),
    ],
    ids=lambda value: value[:40].decode("latin-1") if isinstance(value, bytes) else value,
)
def test_a_malformed_packet_is_refused_without_repeating_it_and_ends_the_connection(
    path: Path, data: bytes, code: str
) -> None:
    with raw(path) as sock:
        sock.send(data)
        packet = heard(sock)
        assert packet
        assert packet.message["error"]["code"] == code
        assert heard(sock) is None


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"request": "handles", "export": "nothing", "first": 0, "count": 1}, "unknown"),
        ({"request": "handles", "export": "\x1b[31m\ud800", "first": 0, "count": 1}, "unknown"),
        ({"request": "handles", "export": "page", "first": 1000, "count": 1}, "range"),
        ({"request": "handles", "export": "page", "first": (1 << 63) - 1, "count": (1 << 63) - 1}, "range"),
        ({"request": "handles", "export": "broken", "first": 0, "count": 1}, "failed"),
    ],
)
def test_a_refused_request_leaves_the_connection_open(path: Path, fields: dict[str, Any], code: str) -> None:
    with raw(path) as sock:
        assert asked(sock, **fields)["error"]["code"] == code
        assert asked(sock, "offers", first=10**9)["ok"]["offers"] == []
        assert asked(sock, "status")["ok"]["name"] == "kv"


@pytest.mark.parametrize("count", [1, 253])
def test_descriptors_in_a_request_are_refused_and_closed(path: Path, holder: Holder, count: int) -> None:
    with raw(path) as sock, open(os.devnull) as file:  # noqa: PTH123
        wire.send(sock, request(request="status"), [file.fileno()] * count)
        packet = heard(sock)
        assert packet
        assert packet.message["error"]["message"] == "a request came with descriptors"
        assert heard(sock) is None
    until(lambda: holder.open_descriptors() == holder.idle)


def test_an_empty_packet_ends_the_connection(path: Path) -> None:
    for count in (0, 3):
        with raw(path) as sock:
            wire.send(sock, b"", [sock.fileno()] * count)
            found = heard(sock)
            assert found is None or found.message["error"]["code"] == "packet"


def test_a_client_that_never_reads_is_disconnected_while_others_are_served(
    start: Callable[..., Any], runtime: Path
) -> None:
    holder = start(patience=0.5)
    with ExitStack() as stack:
        stuck = [stack.enter_context(raw(runtime / "memtopo" / "kv.sock")) for _ in range(5)]
        for sock in stuck:
            wire.send(sock, request(request="handles", export="page", first=0, count=253))
            with suppress(OSError):
                for _ in range(10_000):  # until neither end takes more
                    wire.send(sock, request(request="offers", first=0))
        with connect(endpoint("kv")) as client:
            for handle in client.handles("page"):
                handle.close()
            until(lambda: {each.pid for each in client.status().importers} == {os.getpid()})
            until(lambda: len(client.status().importers) == 1)
    until(lambda: holder.open_descriptors() == holder.idle)


def test_a_stopped_client_with_unread_handles_is_disconnected(start: Callable[..., Any], runtime: Path) -> None:
    start(patience=0.5)
    stopped = Process("stopped_client", {"path": str(runtime / "memtopo" / "kv.sock")}, runtime)
    try:
        with connect(endpoint("kv")) as client:
            until(lambda: [each.pid for each in client.status().importers] == [stopped.pid])
            until(lambda: client.status().importers == ())
        stopped.send(signal.SIGCONT)
        assert stopped.read_line() == {"descriptors": 253, "then": None}
    finally:
        stopped.kill()


def test_a_stopped_importer_with_nothing_to_read_keeps_its_lease(start: Callable[..., Any]) -> None:
    start(patience=0.2)
    importer = start("importer", count=5)
    importer.read_line()
    importer.send(signal.SIGSTOP)
    with connect(endpoint("kv")) as client:
        for _ in range(3):
            client.notice(0.2)
            assert [each.pid for each in client.status().importers] == [importer.pid]


def test_a_signal_ends_the_hold_among_clients_that_send_without_pause(runtime: Path, holder: Holder) -> None:

    def shout() -> None:
        with suppress(OSError, AssertionError), raw(runtime / "memtopo" / "kv.sock") as sock:
            while asked(sock, "status"):
                pass

    shouting = [threading.Thread(target=shout) for _ in range(4)]
    for each in shouting:
        each.start()
    with connect(endpoint("kv")) as client:
        client.status()
    assert holder.end()["held"]["why"] == "signal"
    for each in shouting:
        each.join(60)
        assert not each.is_alive()


def test_too_many_silent_clients_are_refused_and_the_longest_idle_make_room(path: Path, holder: Holder) -> None:
    with ExitStack() as stack:
        socks = [stack.enter_context(raw(path)) for _ in range(2 * MOST_CLIENTS)]
        report = [heard(sock) for sock in socks if select.select([sock], [], [], 0)[0]]
        assert {packet.message["error"]["code"] for packet in report if packet} <= {"busy"}
        assert holder.open_descriptors() < MOST_CLIENTS + 22

        until(lambda: importers() == 0)


def test_importers_leave_connections_for_a_release(path: Path) -> None:
    with ExitStack() as stack:
        codes = []
        for _ in range(MOST_CLIENTS):
            sock = stack.enter_context(raw(path))
            report = asked(sock, "handles", export="woven", first=0, count=1)
            codes.append(report.get("error", {}).get("code"))
        assert codes == [None] * (MOST_CLIENTS - SPARE) + ["full"] * SPARE
        until(lambda: importers() == MOST_CLIENTS - SPARE)


def test_an_importer_that_ends_before_its_check_is_answered_is_forgotten(path: Path, holder: Holder) -> None:
    with raw(path) as sock:
        assert "ok" in asked(sock, "handles", export="page", first=0, count=1)
        holder.send(signal.SIGSTOP)
        wire.send(sock, request(request="check"))
    holder.send(signal.SIGCONT)
    until(lambda: importers() == 0)


@pytest.mark.parametrize(
    ("hierarchy", "file", "freeze", "thaw"),
    [
        ("freezer", "freezer.state", "FROZEN", "THAWED"),
        ("unified", "cgroup.freeze", "1", "0"),
        (".", "cgroup.freeze", "1", "0"),
    ],
    ids=["version 1", "version 2 beside it", "version 2"],
)
def test_a_holder_in_a_frozen_cgroup_is_not_waited_for(
    holder: Holder, hierarchy: str, file: str, freeze: str, thaw: str
) -> None:
    """`docker pause` freezes the cgroup of a container."""
    parent = Path("/sys/fs/cgroup", hierarchy)
    group = parent / f"memtopo-test-{os.getpid()}"
    if not os.access(parent / "cgroup.procs", os.W_OK):
        pytest.skip("this hierarchy is not mounted here, or not this user's")
    group.mkdir()
    try:
        (group / "cgroup.procs").write_text(str(holder.pid))
        with connect(endpoint("kv"), timeout=0.2) as client:
            (group / file).write_text(freeze)
            with pytest.raises(ExchangeError, match=r"within 0\.2 s") as caught:
                client.check(timeout=3)
        assert (
            caught.value.hint
            == "the holder is frozen with its cgroup, as by 'docker pause', and continues after it is thawed"
        )
    finally:
        (group / file).write_text(thaw)
        (parent / "cgroup.procs").write_text(str(holder.pid))
        group.rmdir()


def test_a_stopped_holder_with_a_full_queue_is_a_timeout(holder: Holder, path: Path) -> None:
    holder.send(signal.SIGSTOP)
    with ExitStack() as stack:
        with suppress(BlockingIOError):
            while True:
                sock = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                sock.setblocking(False)
                sock.connect(str(path))
        with pytest.raises(ExchangeError, match=f"'connect' within 0.3 s .*process {holder.pid}") as error:
            connect(endpoint("kv"), timeout=0.3)
        assert error.value.code == "timeout"
    holder.send(signal.SIGCONT)


def test_handles_stay_usable_after_the_holder_died_between_batches(holder: Holder) -> None:
    before = open_descriptors()
    with connect(endpoint("kv")) as client:
        found = client.handles("page", batch=10)
        first = next(found)
        holder.process.kill()
        with pytest.raises(ExchangeError, match=f"process {holder.pid}") as error:
            close_each(found)
        assert error.value.code == "gone"
        assert first.fd is not None
        assert os.pread(first.fd, 6, 0) == b"memory"
        first.close()
    assert open_descriptors() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_both_ends_refuse_another_user_unless_it_is_allowed(start: Callable[..., Any], shared: Path) -> None:
    path = shared / "shared.sock"
    start(socket=str(path))
    stranger = start("other_user", path=str(path), uid=NOBODY, allow=[0])
    report = stranger.read_line()
    assert report["code"] == "forbidden"
    assert "another user's" in report["error"]  # the socket is 0600
    path.chmod(0o666)
    stranger = start("other_user", path=str(path), uid=NOBODY, allow=[])
    assert f"belongs to uid 0, and this process to uid {NOBODY}" in stranger.read_line()["error"]
    stranger = start("other_user", path=str(path), uid=NOBODY, allow=[0])
    assert f"belongs to uid {NOBODY}, and the holder to uid 0" in (report := stranger.read_line())["error"]
    assert report["hint"].startswith(f"restart the holder with --allow-uid {NOBODY},")
    other = shared / "open.sock"
    start(name="open", socket=str(other), allow_uids=[NOBODY])
    stranger = start("other_user", path=str(other), uid=NOBODY, allow=[0])
    assert stranger.read_line() == {"name": "open", "uids": [NOBODY], "file": "memory of the shelf"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_other_users_have_half_of_the_places(start: Callable[..., Any], shared: Path) -> None:
    path = shared / "open.sock"
    start(name="open", socket=str(path), allow_uids=[NOBODY])
    assert start("other_user", path=str(path), uid=NOBODY, allow=[0], connections=MOST_CLIENTS).read_line() == {
        "connected": MOST_CLIENTS // 2,
        "code": "busy",
    }
    with connect(endpoint(socket=str(path))) as client:
        assert len(client.status().importers) == MOST_CLIENTS // 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_a_client_waits_while_the_system_limits_descriptors_in_flight(start: Callable[..., Any], shared: Path) -> None:
    os.chown(shared, NOBODY, NOBODY)
    path = shared / "kv.sock"
    start(socket=str(path), uid=NOBODY, limit=100, allow_uids=[0])
    with pytest.raises(ExchangeError, match=f"it belongs to uid {NOBODY}"):
        connect(endpoint(socket=str(path)))
    with ExitStack() as stack:
        client = stack.enter_context(connect(endpoint(socket=str(path)), allow_uids=[NOBODY]))
        assert client.uid == NOBODY
        socks = [stack.enter_context(raw(path)) for _ in range(5)]
        for sock in socks:
            wire.send(sock, request(request="handles", export="page", first=0, count=253))
        assert select.select([socks[0]], [], [], 60)[0]
        assert not select.select([socks[-1]], [], [], 0.5)[0]
        for sock in socks:
            packet = heard(sock)
            assert packet
            assert len(packet.fds) == len(packet.message["ok"]["handles"]) > 16
            packet.close()


@pytest.mark.skipif(os.geteuid() == NOBODY, reason="it is the other user here")
def test_another_user_that_may_import_changes_nothing(runtime: Path, layout: OneState) -> None:
    stranger = replace(SYSTEM, peer=lambda _: PeerProcess(os.getpid(), NOBODY))
    layout.kept = (replace(PAGES, commit="empty"), *layout.kept[1:])
    named = [{"name": "page", "generation": 1}]
    requests: dict[str, dict[str, Any]] = {
        "switch": {"state": "asleep", "force": True},
        "change": {"source": {"first": 0, "total": 2, "text": "{}"}, "force": True},
        "write": {"exports": ["page"]},
        "commit": {"exports": named},
        "release": {"force": True, "grace": 0},
    }
    with (
        holding(layout, allow_uids=[NOBODY], system=stranger),
        raw(runtime / "memtopo" / "kv.sock") as sock,
    ):
        for name, fields in requests.items():
            assert (name, asked(sock, name, **fields)["error"]["code"]) == (name, "owner")
        assert asked(sock, "await", exports=["page"])["error"]["code"] == "uncommitted"
        assert "ok" in asked(sock, "handles", export="hot", first=0, count=1)
        assert asked(sock, "status")["ok"]["state"] == "serving"
    assert (layout.state, layout.generation, layout.source) == ("awake", 1, "")


class Limited(OneState):
    """Exports of which one has no handles, since the system limits descriptors in flight."""

    def handle(self, export: str, index: int) -> Handle:
        if export == "hot":
            raise OSError(errno.ETOOMANYREFS, "too many references")
        return super().handle(export, index)


def test_a_client_that_is_found_gone_by_a_notice_while_its_request_is_retried_is_forgotten(runtime: Path) -> None:
    layout, path = Limited(), runtime / "memtopo" / "kv.sock"
    with closing(os.fdopen(layout.memory)), holding(layout), raw(path) as leaving, raw(path) as other:
        assert "ok" in asked(leaving, "handles", export="page", first=0, count=1)
        assert "ok" in asked(leaving, "let_go", exports=["page"])
        wire.send(leaving, request(request="handles", export="hot", first=0, count=1))
        leaving.close()
        assert "ok" in asked(other, "switch", state="asleep", force=False)
        for _ in range(2):
            assert asked(other, "importers", after=0)["ok"]["importers"] == []


def test_a_request_that_is_retried_is_refused_after_the_patience(runtime: Path) -> None:
    layout = Limited()
    with (
        closing(os.fdopen(layout.memory)),
        holding(layout, patience=0.05),
        raw(runtime / "memtopo" / "kv.sock") as sock,
    ):
        assert asked(sock, "handles", export="hot", first=0, count=1)["error"]["code"] == "limit"
        assert "ok" in asked(sock, "handles", export="page", first=0, count=1)


class Failing(OneState):
    """Exports that meet an error of memtopo itself."""

    def handle(self, export: str, index: int) -> Handle:
        raise ValueError(f"{export}.{index} is unknown")

    def check(self) -> Checks:
        raise ValueError("a check of nothing")


def test_an_internal_error_is_the_answer_to_its_request_and_the_layout_is_held_on(runtime: Path) -> None:
    layout, found = Failing(), list[HolderEvent]()
    with (
        closing(os.fdopen(layout.memory)),
        holding(layout, supervision=Supervision(log=found.append)),
        raw(runtime / "memtopo" / "kv.sock") as sock,
        raw(runtime / "memtopo" / "kv.sock") as other,
    ):
        for _ in range(2):
            assert asked(sock, "handles", export="page", first=0, count=1)["error"]["code"] == "internal"
            assert asked(sock, "check")["error"]["code"] == "internal"
        assert asked(sock, "importers", after=0)["ok"]["importers"] == []
        assert asked(other, "status")["ok"]["state"] == "serving"
    events = [(each.text, each.severity) for each in found if each.severity != "info"]
    assert events == [("internal error", "error"), *[("check failed", "warning")] * 2], "an error again is no event"
