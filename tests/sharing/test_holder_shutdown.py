from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from memtopo.common.errors import ExchangeError, NoLayout
from memtopo.plans.report import Checks
from memtopo.sharing import wire
from memtopo.sharing.claims import claim
from memtopo.sharing.client import Client, connect
from memtopo.sharing.endpoints import endpoint
from memtopo.sharing.holder import hold
from memtopo.sharing.holder.state import HolderInfo
from memtopo.sharing.sockets import System
from tests.helpers.child_process import PATIENCE
from tests.helpers.holders import Holder, asked, heard, holding, next_message, raw, until
from tests.helpers.memfd_exports import MACHINE, OFFERS, PAGES, POOL, Memfds, OneState


def left(runtime: Path) -> list[str]:
    return os.listdir(runtime / "memtopo")


def test_a_status_larger_than_a_packet_comes_in_several(start: Callable[..., Holder]) -> None:
    start(exports=2000)
    with connect(endpoint("kv")) as client:
        assert len(client.status().offers) == len(OFFERS) + 1 + 2000


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_hold_and_leaves_no_descriptor_socket_or_lock(
    runtime: Path, holder: Holder, client: Client, number: signal.Signals
) -> None:
    list(client.handles("woven"))
    report = holder.end(number)
    assert (report["held"]["why"], report["held"]["signal"], report["fds"]) == ("signal", number, 0)
    assert [each["pid"] for each in report["held"]["kept"]] == [os.getpid()]
    assert report["held"]["lost"] == []
    assert left(runtime) == []
    assert client.notice(5) is not None
    with pytest.raises(ExchangeError, match=f"process {holder.pid} .* client: process {os.getpid()}") as gone:
        client.status()
    assert gone.value.code == "gone"


def test_a_signal_ends_an_idle_hold_at_once(start: Callable[..., Holder]) -> None:
    holder = start(patience=1000.0)
    until(lambda: Path(f"/proc/{holder.pid}/stat").read_text().rpartition(")")[2].split()[0] == "S")  # it waits
    assert holder.end()["held"]["seconds"] < 30


def test_stop_is_called_within_the_interval(runtime: Path) -> None:
    """Two hundred times take longer than the deadline if each one waits for the default interval."""
    calls = iter([0] * 200 + [15])
    with claim(endpoint("kv")) as claimed:
        about = HolderInfo("kv", None, MACHINE)
        found = hold(Memfds(), claimed, about, stop=lambda: next(calls), lasting=60, interval=0.001)
    assert found.why == "signal"


def test_a_hold_ends_at_its_deadline_which_its_status_has(runtime: Path, start: Callable[..., Holder]) -> None:
    report = start(lasting=0.5).end(None)
    assert report["held"]["why"] == "deadline"
    assert report["held"]["seconds"] == pytest.approx(0.5, abs=0.4)
    assert left(runtime) == []
    start(name="later", lasting=600)
    with connect(endpoint("later")) as client:
        found = client.status()
    assert found.deadline
    assert found.deadline - found.since == pytest.approx(600, abs=5)


def test_importers_over_ipc_have_the_grace_of_a_hold_at_its_deadline(runtime: Path, layout: OneState) -> None:
    now = [0.0]
    with (
        holding(layout, lasting=10.0, grace=60.0, system=System(now=lambda: now[0])),
        connect(endpoint("kv")) as importer,
        connect(endpoint("kv")) as other,
    ):
        list(importer.handles("block"))
        now[0] = 10.0
        notice = importer.notice(PATIENCE)
        assert notice
        assert (notice.kind, notice.grace) == ("releasing", 60.0)
        assert [each.bound for each in other.status().importers] == [True], "it is still served"


def test_release_returns_after_the_process_its_socket_and_its_lock_are_gone(runtime: Path, holder: Holder) -> None:
    with connect(endpoint("kv")) as client:
        done = client.release()
        assert (done.name, done.lost, done.kept, done.gone) == ("kv", (), (), True)
        assert left(runtime) == []
    assert holder.end(None)["held"]["why"] == "release"


@pytest.mark.parametrize(("export", "bound"), [("block", True), ("done", True), ("page", False), ("woven", False)])
def test_release_is_refused_while_ipc_is_in_use_but_not_for_descriptors(
    start: Callable[..., Any], export: str, bound: bool
) -> None:
    holder, importer = start(), start("importer", export=export)
    importer.read_line()
    with connect(endpoint("kv")) as client:
        if bound:
            with pytest.raises(ExchangeError, match=f"in use by process {importer.pid}") as refused:
                client.release()
            assert refused.value.code == "attached"
            assert "--force" in str(refused.value.hint)
            assert client.status().state == "serving"
        else:
            assert [each.pid for each in client.release().kept] == [importer.pid]
            assert holder.end(None)["held"]["kept"][0]["pid"] == importer.pid


def test_an_importer_that_has_let_go_keeps_nothing(holder: Holder, client: Client) -> None:
    for each in client.handles("page", 0, 1):
        each.close()
    client.let_go(["page"])
    with connect(endpoint("kv")) as other:
        assert other.release().kept == ()
    assert holder.end(None)["held"]["kept"] == []


def test_an_answer_to_a_release_is_awaited_for_the_grace_beyond_the_time_of_other_answers() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    silent = pytest.raises(ExchangeError, match=r"no answer to 'release' within 0\.03 s")
    with theirs, Client(ours, "/silent.sock", timeout=0.01) as client, silent:
        client.release(force=True, grace=0.02)


def test_grace_ends_with_the_last_user_of_ipc(start: Callable[..., Any]) -> None:
    holder, importer = start(grace=60.0), start("importer", export="block", notices=1)
    importer.read_line()
    holder.send(signal.SIGTERM)
    assert importer.read_line()["grace"] == 60.0
    with connect(endpoint("kv")) as client:
        assert client.status().state == "releasing"
        with pytest.raises(ExchangeError, match="is being released") as refused:
            list(client.handles("page"))
        assert refused.value.code == "releasing"
    importer.close_input()
    report = holder.end(None)
    assert (report["held"]["why"], report["held"]["lost"]) == ("signal", [])
    assert report["held"]["seconds"] < 50


@pytest.mark.parametrize(
    ("request_", "fields"),
    [
        ("switch", {"state": "asleep", "force": True}),
        ("change", {"source": {"first": 0, "total": 2, "text": "{}"}, "force": True}),
        ("write", {"exports": ["page"], "wait": 3600}),
        ("await", {"exports": ["page"], "wait": 3600}),
        ("handles", {"export": "page", "first": 0, "count": 1}),
        ("lend", {"export": "pool", "count": 1}),
    ],
)
def test_requests_are_refused_at_once_during_the_grace(
    runtime: Path, layout: OneState, request_: str, fields: dict[str, Any]
) -> None:
    layout.kept, path = (replace(PAGES, commit="empty"), POOL, *OFFERS[1:]), runtime / "memtopo" / "kv.sock"
    with holding(layout, grace=PATIENCE) as end, raw(path) as bound, raw(path) as sock:
        assert "ok" in asked(bound, "handles", export="block", first=0, count=1)
        end()
        assert next_message(bound)["notice"] == "releasing"
        assert asked(sock, request_, **fields)["error"]["code"] == "releasing"
        bound.close()
    assert layout.generation == 1


@pytest.mark.parametrize("export", ["block", "page"])
def test_release_does_not_wait_for_its_own_client(holder: Holder, client: Client, export: str) -> None:
    for handle in client.handles(export, 0, 1):
        handle.close()
    released = client.release()
    assert (released.gone, released.lost, released.kept) == (True, (), ())
    assert holder.end(None)["held"]["lost"] == []


class BlockingChecks(Memfds):
    """Exports whose checks wait: the first one until `begin`, the second one until `go_on`."""

    def __init__(self) -> None:
        super().__init__()
        self.begin, self.go_on = threading.Event(), threading.Event()
        self.started = 0

    def check(self) -> Checks:
        self.started += 1
        assert (self.begin if self.started == 1 else self.go_on).wait(PATIENCE)
        return super().check()


def test_clients_that_check_do_not_starve_others(runtime: Path) -> None:
    provider, stop = BlockingChecks(), threading.Event()
    ready = threading.Event()
    about = HolderInfo("kv", None, MACHINE)
    where = runtime / "memtopo" / "kv.sock"
    with claim(endpoint("kv")) as claimed, ExitStack() as stack:
        serving = threading.Thread(
            target=lambda: hold(provider, claimed, about, stop=lambda: int(stop.is_set()), ready=ready.set)
        )
        serving.start()
        stack.callback(serving.join)
        for event in (stop, provider.begin, provider.go_on):
            stack.callback(event.set)
        assert ready.wait(PATIENCE)
        first, *others = checking = [stack.enter_context(raw(where)) for _ in range(30)]
        wire.send(first, wire.encode({"request": "check"}))
        until(lambda: provider.started == 1)
        for sock in others:
            wire.send(sock, wire.encode({"request": "check"}))
        showing = stack.enter_context(raw(where))
        wire.send(showing, wire.encode({"request": "status"}))
        provider.begin.set()
        assert (packet := heard(showing))
        assert packet.message["ok"]["name"] == "kv"
        provider.go_on.set()
        answers = [heard(sock) for sock in checking]
        assert all(answer and answer.message["ok"]["different"] == 0 for answer in answers)
        assert provider.started == 2  # one for all that waited


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_notified_on_a_path_and_on_an_abstract_name(tmp_path: Path, runtime: Path, abstract: bool) -> None:
    address = f"\0memtopo-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(address)
        systemd.settimeout(60)
        holder = Holder(runtime, NOTIFY_SOCKET=address.replace("\0", "@"))
        try:
            assert systemd.recv(4096) == b"READY=1\nSTATUS=holding kv, 9 exports"
            assert holder.end()["held"]["notes"] == []
            assert systemd.recv(4096) == b"STOPPING=1"
        finally:
            holder.kill()


@pytest.mark.parametrize("address", ["/nobody/is/here", "@nobody", "vsock:1:2"])
def test_a_failed_notification_of_systemd_is_a_note(runtime: Path, address: str) -> None:
    holder = Holder(runtime, NOTIFY_SOCKET=address)
    try:
        assert len(holder.end()["held"]["notes"]) == 2
    finally:
        holder.kill()


def test_a_layout_that_is_not_held_is_exit_code_3_and_creates_nothing(runtime: Path) -> None:
    for where in (endpoint("kv"), endpoint(socket=str(runtime / "else.sock"))):
        with pytest.raises(NoLayout) as caught:
            connect(where)
        assert caught.value.exit_code == 3
    assert os.listdir(runtime) == []


def test_a_hold_whose_layout_has_ended_in_part_ends_without_a_signal(runtime: Path) -> None:
    with claim(endpoint("kv")) as claimed:
        found = hold(Memfds(), claimed, HolderInfo("kv", None, MACHINE), stop=lambda: -1)
    assert (found.why, found.signal) == ("ended", 0)
