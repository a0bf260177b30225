"""Metrics of a held layout: what is counted, the file, and the socket with clients that keep to no protocol."""

from __future__ import annotations

import os
import selectors
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from memtopo.common.errors import ExchangeError, MemtopoError
from memtopo.output import monitoring
from memtopo.sharing import wire
from memtopo.sharing.claims import claim
from memtopo.sharing.client import Client, connect
from memtopo.sharing.endpoints import endpoint
from memtopo.sharing.holder.metrics import (
    LONGEST_REQUEST,
    MOST_CONNECTIONS,
    PATIENCE,
    PAUSE,
    REFRESH,
    MetricsFile,
    MetricsServer,
    MetricsTarget,
)
from memtopo.sharing.holder.state import Supervision
from memtopo.sharing.offers import ChangeFailed
from memtopo.sharing.status import CheckResult, LocationMemory, Statistics
from tests.helpers import child_process
from tests.helpers.holders import holding, until
from tests.helpers.memfd_exports import PAGE, POOL, OneState

MEMORY = (LocationMemory("gpu0", "GPU-1", 3 * PAGE, 3), LocationMemory("host:0", None, PAGE, 1))
Dial = Callable[[], socket.socket]


@pytest.fixture
def web(runtime: Path, layout: OneState, tmp_path: Path) -> Iterator[Path]:
    """The socket of the metrics of these exports, while they are held."""
    path = tmp_path / "metrics.sock"
    with (
        claim(endpoint(socket=str(path))) as claimed,
        holding(layout, supervision=Supervision(lambda: MEMORY, MetricsTarget(text, claim=claimed))),
    ):
        yield path
    assert not path.exists()


@pytest.fixture
def dial(web: Path) -> Iterator[Dial]:
    """Connects clients of the socket."""
    with ExitStack() as stack:

        def connected() -> socket.socket:
            sock = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            sock.settimeout(child_process.PATIENCE)
            sock.connect(str(web))
            return sock

        yield connected


@pytest.fixture
def client(web: Path) -> Iterator[Client]:
    with connect(endpoint("kv")) as found:
        yield found


def text(status: Any, statistics: Any, now: float) -> str:
    return monitoring.metrics([(status, statistics)], now=now)


def answer(sock: socket.socket, request: bytes = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n") -> HTTPResponse:
    sock.sendall(request)
    found = HTTPResponse(sock)
    found.begin()
    return found


def values(page: str) -> dict[str, float]:
    """The samples of a page, by name and by the value of the last label but the layout's name."""
    return {
        ":".join([sample.name, *(value for label, value in sample.labels.items() if label in ("location", "result"))]):
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }  # fmt: skip


def read(dial: Dial) -> dict[str, float]:
    return values(answer(dial()).read().decode())


def _without_heartbeat(page: bytes) -> list[bytes]:
    return [line for line in page.splitlines() if not line.startswith(b"memtopo_layout_heartbeat")]


def test_a_standard_client_reads_the_metrics(dial: Dial) -> None:
    """Also with a query; HEAD has the length without the text."""
    found = answer(dial())
    assert (found.status, found.getheader("Content-Type")) == (200, "text/plain; version=0.0.4; charset=utf-8")
    page = found.read()
    assert values(page.decode())["memtopo_memory_bytes:gpu0"] == 3 * PAGE
    other = answer(dial(), b"GET /?x=1 HTTP/1.0\n\n").read()
    assert _without_heartbeat(other) == _without_heartbeat(page)
    sock = dial()
    sock.sendall(b"HEAD / HTTP/1.0\r\n\r\n")
    head = HTTPResponse(sock, method="HEAD")
    head.begin()
    assert (head.status, head.getheader("Content-Length"), head.read()) == (200, str(len(page)), b"")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /secret HTTP/1.0\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.0\r\n\r\n", 405),
        (b"GET /metrics\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"\xff\x00 \x80 HTTP/1.1\r\n\r\n", 405),
        (b"GET / SPDY/3\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nCookie: " + b"x" * LONGEST_REQUEST, 431),
    ],
)
def test_a_wrong_request_gets_its_status_and_the_next_client_an_answer(
    dial: Dial, request_: bytes, status: int
) -> None:
    assert answer(dial(), request_).status == status
    assert answer(dial()).status == 200


def test_clients_that_send_nothing_or_leave_block_no_other(dial: Dial) -> None:
    """The one that is connected longest makes room."""
    silent = [dial() for _ in range(MOST_CONNECTIONS)]
    silent[1].sendall(b"GET ")
    dial().close()
    gone = dial()
    gone.sendall(b"GET / HTTP/1.0\r\n\r\n")
    gone.close()
    assert answer(dial()).status == 200
    assert silent[0].recv(1) == b""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
@pytest.mark.parametrize("allowed", [False, True])
def test_users_that_may_connect_may_read_the_metrics(
    layout: OneState, start: Callable[..., Any], shared: Path, allowed: bool
) -> None:
    path, allow_uids = shared / "m.sock", [65534] if allowed else []
    with (
        claim(endpoint(socket=str(path))) as claimed,
        holding(layout, supervision=Supervision(metrics=MetricsTarget(text, claim=claimed)), allow_uids=allow_uids),
    ):
        assert stat.S_IMODE(path.stat().st_mode) == (0o666 if allowed else 0o600)
        found = start("other_user", path=str(path), uid=65534, allow=[], metrics=True).read_line()
        assert ("memtopo_layout_up" in found) is allowed, found
        path.chmod(0o666)
        found = start("other_user", path=str(path), uid=65534, allow=[], metrics=True).read_line()
        assert ("memtopo_layout_up" in found) is allowed, found


def test_a_client_that_sends_half_a_request_is_disconnected_in_time(
    runtime: Path, layout: OneState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time is `PATIENCE`, which is shorter here."""
    assert PATIENCE < 10
    monkeypatch.setattr("memtopo.sharing.holder.metrics.PATIENCE", 0.05)
    path = tmp_path / "m.sock"
    with (
        claim(endpoint(socket=str(path))) as claimed,
        holding(layout, supervision=Supervision(metrics=MetricsTarget(text, claim=claimed))),
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock,
    ):
        sock.settimeout(child_process.PATIENCE)
        sock.connect(str(path))
        sock.sendall(b"GET /metr")
        assert sock.recv(1) == b""


def test_importers_and_what_they_pin_are_counted(client: Client, dial: Dial) -> None:
    for handle in client.handles("page", count=3):
        handle.close()
    found = read(dial)
    assert (found["memtopo_importers"], found["memtopo_importer_handles"]) == (1, 3)
    assert (found["memtopo_importer_bytes"], found["memtopo_importer_bound"]) == (3 * PAGE, 0)
    assert (found["memtopo_clients_total"], found["memtopo_handles_total"]) == (1, 3)


def test_changes_and_their_checks_are_counted(client: Client, dial: Dial, layout: OneState) -> None:
    """The generation and the state are those after the change."""
    assert "memtopo_last_check_time_seconds" not in read(dial)
    layout.differences = 2
    client.switch("asleep")
    found = read(dial)
    assert (found["memtopo_changes_total:made"], found["memtopo_changes_total:rolled_back"]) == (1, 0)
    assert (found["memtopo_layout_generation"], found["memtopo_last_check_differences"]) == (2, 2)
    assert 'memtopo_layout_state{layout="kv",state="asleep"} 1' in answer(dial()).read().decode()
    layout.differences = 0
    client.check()
    again = read(dial)
    assert again["memtopo_last_check_differences"] == 0
    assert again["memtopo_last_check_time_seconds"] >= found["memtopo_last_check_time_seconds"]


def test_a_change_that_was_rolled_back_is_counted_apart(
    client: Client, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: object, **_: object) -> None:
        raise ChangeFailed("cuMemCreate failed; the layout is awake, as before", broken=False)

    monkeypatch.setattr("tests.helpers.memfd_exports.PlannedState.make", fail)
    with pytest.raises(ExchangeError):
        client.switch("asleep")
    found = read(dial)
    assert (found["memtopo_changes_total:made"], found["memtopo_changes_total:rolled_back"]) == (0, 1)


def test_statistics_over_the_protocol_are_those_of_the_holder(client: Client) -> None:
    for handle in client.handles("page", count=2):
        handle.close()
    before = time.time()
    client.check()
    found = client.statistics()
    assert found
    assert (found.memory, found.clients, found.handles, found.changes) == (MEMORY, 1, 2, 0)
    assert found.last_check
    assert found.last_check.different == 0
    assert before <= found.last_check.time <= time.time()


def test_objects_that_are_lent_count_at_their_own_locations(runtime: Path, layout: OneState) -> None:
    """But for those that exist if they are not lent, too."""
    assert POOL.lends
    layout.kept = (replace(POOL, location="gpu0, gpu1", lends=replace(POOL.lends, kept=1)),)
    with holding(layout, supervision=Supervision(lambda: MEMORY)), connect(endpoint("kv")) as client:
        blocks, _ = client.lend("pool", 4)
        for each in blocks:
            each.handle.close()
        found = client.statistics()
    assert found
    memory = {each.location: (each.bytes // PAGE, each.allocations) for each in found.memory}
    assert memory == {"gpu0": (4, 4), "gpu1": (2, 2), "host:0": (1, 1)}


@pytest.mark.parametrize("check", [CheckResult(1234.5, 6), None])
def test_statistics_are_the_same_after_encoding_and_decoding(check: CheckResult | None) -> None:
    found = Statistics(MEMORY, 1, 2, check, 3, 4)
    assert wire.read(Statistics, to_builtins(found), "statistics") == found


def test_a_file_is_written_at_once_when_something_changes_and_now_and_then() -> None:
    """Times are in seconds."""
    written: list[str] = []
    page = ["a"]
    file = MetricsFile(lambda _now: page[0], written.append, time.time)
    file.advance(100)
    assert written == ["a"]
    page[0] = "b"
    file.advance(100 + PAUSE / 2)
    assert written == ["a"]
    file.advance(100 + PAUSE)
    file.advance(100 + 2 * PAUSE)
    assert written == ["a", "b"]
    file.advance(100 + PAUSE + REFRESH)
    assert written == ["a", "b", "b"]


def test_a_file_has_the_time_of_its_last_write_and_is_not_written_for_its_sake() -> None:
    """So the end of a holder that was killed is seen: its heartbeat stays."""
    written: list[str] = []
    epoch = iter([7.0, 8.0])
    file = MetricsFile(repr, written.append, lambda: next(epoch))
    for now in (100, 100 + PAUSE, 100 + 2 * PAUSE):
        file.advance(now)
    assert written == ["7.0"]
    file.advance(100 + REFRESH + PAUSE)
    assert written == ["7.0", "8.0"]


def test_a_failure_to_write_is_kept_until_a_file_is_written() -> None:
    failing = [True]

    def write(_: str) -> None:
        if failing:
            raise MemtopoError("'m.prom' cannot be written: no space left on device")

    file = MetricsFile(lambda _now: "a", write, time.time)
    file.advance(0)
    assert file.failure == "'m.prom' cannot be written: no space left on device"
    failing.clear()
    file.advance(PAUSE)
    assert file.failure is None


def test_a_holder_keeps_a_file_while_it_serves(runtime: Path, layout: OneState, tmp_path: Path) -> None:
    path = tmp_path / "memtopo.prom"

    def write(page: str) -> None:
        path.write_text(page)

    with holding(layout, supervision=Supervision(lambda: MEMORY, MetricsTarget(text, write=write))):
        assert values(path.read_text())["memtopo_importers"] == 0
        with connect(endpoint("kv")) as client:
            for handle in client.handles("page", count=1):
                handle.close()
            until(lambda: values(path.read_text() or "x 1\n").get("memtopo_importers") == 1)


def test_a_request_may_come_in_parts_and_its_first_line_counts(dial: Dial) -> None:
    sock = dial()
    for part in (b"GET /met", b"rics HTTP/1.0\r\n"):
        sock.sendall(part)
        assert answer(dial()).status == 200  # the part was received meanwhile
    assert answer(sock, b"GET /secret HTTP/1.0\r\n\r\n").status == 200


def test_metrics_that_cannot_be_made_are_an_answer_and_the_layout_is_held_on(
    runtime: Path, layout: OneState, tmp_path: Path
) -> None:
    failing, path = [True], tmp_path / "m.sock"

    def text_or_error(*given: Any) -> str:
        if failing:
            raise ValueError("no metrics")
        return text(*given)

    with (
        claim(endpoint(socket=str(path))) as claimed,
        holding(layout, supervision=Supervision(metrics=MetricsTarget(text_or_error, claim=claimed))),
        connect(endpoint("kv")) as client,
    ):
        for status in (500, 200):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
                sock.settimeout(child_process.PATIENCE)
                sock.connect(str(path))
                assert answer(sock).status == status
            failing.clear()
        assert client.status().name == "kv"


def test_a_child_that_is_forked_keeps_no_socket(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener, selectors.DefaultSelector() as selector:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        server = MetricsServer(selector, listener, lambda: "", time.monotonic, ())
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(child_process.PATIENCE)
            client.connect(str(tmp_path / "s"))
            for key, events in selector.select(child_process.PATIENCE):
                key.data(events)
            ours, theirs = socket.socketpair()
            child = os.fork()
            if not child:
                theirs.send(b".")
                theirs.recv(1)
                os._exit(0)
            try:
                ours.recv(1)
                server.close()
                assert client.recv(1) == b""
                with pytest.raises(ConnectionRefusedError), socket.socket(socket.AF_UNIX) as later:
                    later.connect(str(tmp_path / "s"))
            finally:
                ours.send(b".")
                os.waitpid(child, 0)
                ours.close()
                theirs.close()
