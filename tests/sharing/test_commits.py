"""Committed exports of a held layout: one writer, its commit, and the readers that wait for it."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from memtopo.common.errors import ExchangeError, Stopped
from memtopo.driver.handles import Handle
from memtopo.drivers.target import recorded
from memtopo.language import Document
from memtopo.rules import validate
from memtopo.sharing import wire
from memtopo.sharing.client import Client, connect
from memtopo.sharing.endpoints import endpoint
from memtopo.sharing.holder.clients import SPARE
from memtopo.sharing.holder.commits import Contents
from memtopo.sharing.holder.state import HolderEvent, Supervision
from memtopo.sharing.imports import CommitWait, HolderHandles, ImportMismatch, Version
from tests.helpers.child_process import PATIENCE
from tests.helpers.failing_driver import Failing
from tests.helpers.held_layouts import Held, held
from tests.helpers.holders import asked, heard, next_message, raw, until
from tests.helpers.machines import invented
from tests.helpers.processes import open_descriptors

ME = f"process {os.getpid()}"
MACHINE = recorded("invented", invented(1))
Connect = Callable[[], socket.socket]


def spec(**more: Any) -> dict[str, Any]:
    """A layout of weights that are committed, of a cache that is not, and of further exports of weights."""
    names = {"weights": "w", **more}
    return {
        "memtopo": 1,
        "name": "kv",
        "ranges": {**{name: {"size": "4MiB"} for name in names.values()}, "cache": {"size": "2MiB"}},
        "chunks": {
            **{name: {"location": "gpu0", "size": "2MiB", "count": 2, "handles": "fd"} for name in names.values()},
            "cache": {"location": "gpu0", "size": "2MiB", "handles": "fd"},
        },
        "map": {**{name: [name] for name in names.values()}, "cache": ["cache"]},
        "access": {**{name: {"gpu0": "rw"} for name in names.values()}, "cache": {"gpu0": "rw"}},
        "exports": {
            **{export: {"chunk": name, "via": "fd", "commit": "required"} for export, name in names.items()},
            "cache": {"chunk": "cache", "via": "fd"},
        },
        "states": {
            "asleep": {"offload": {"w": "host:0"}},
            "bare": {"offload": {"w": "host:0"}, "drop": ["cache"]},
            "empty": {"drop": ["w"]},
            "gone": {"drop": ["w", "cache"]},
        },
    }


class Closing(Failing):
    """A failing simulator, which is closed at the end of the hold."""

    def __init__(self, driver: Any, **terms: Any) -> None:
        super().__init__(driver, **terms)
        self.close = driver.close


@pytest.fixture
def layout(runtime: Path) -> Iterator[Held]:
    """A held layout whose weights are empty."""
    with held(spec(), MACHINE) as found:
        yield found


@pytest.fixture
def dial(runtime: Path, layout: Held) -> Iterator[Connect]:
    """Connects clients that send and receive packets."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(raw(runtime / "memtopo" / "kv.sock"))


@pytest.fixture
def client(layout: Held) -> Iterator[Callable[[], Client]]:
    """Connects clients."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(connect(endpoint("kv")))


def begin(sock: socket.socket, request: str, wait: float = PATIENCE, *exports: str) -> None:
    """Send a request whose answer is not awaited."""
    wire.send(sock, wire.encode({"request": request, "exports": exports or ("weights",), "wait": wait}))


def ask(sock: socket.socket, request: str, *exports: str) -> Any:
    return asked(sock, request, exports=exports or ("weights",))


def commit(sock: socket.socket, generation: int = 1, export: str = "weights") -> Any:
    return asked(sock, "commit", exports=[{"name": export, "generation": generation}])


def read(sock: socket.socket, export: str = "weights") -> Any:
    return asked(sock, "handles", export=export, first=0, count=2)


def code(answer: dict[str, Any]) -> str | None:
    found: str | None = answer.get("error", {}).get("code")
    return found


def states(sock: socket.socket) -> dict[str, Any]:
    return {each["name"]: each["commit"] for each in asked(sock, "offers", first=0)["ok"]["offers"]}


def test_readers_get_handles_once_the_writer_has_committed(dial: Connect) -> None:
    writer, reader, observer = dial(), dial(), dial()
    assert states(observer) == {"weights": "empty", "cache": None}
    assert code(read(writer)) == "uncommitted"
    assert ask(writer, "write")["ok"] == {"generation": 1, "exports": ["weights"]}
    assert states(observer)["weights"] == "writing"
    begin(reader, "await")
    assert len(read(writer)["ok"]["handles"]) == 2
    refused = read(observer)["error"]
    assert refused["code"] == "uncommitted"
    assert refused["message"] == f"export 'weights' is not committed: {ME} is writing it"
    assert commit(writer)["ok"] == {"generation": 1, "exports": ["weights"]}
    assert next_message(reader)["ok"] == {"generation": 1, "exports": ["weights"]}
    assert read(reader)["ok"]["offer"]["commit"] == "committed"
    assert len(read(observer)["ok"]["handles"]) == 2


def test_exports_that_are_not_committed_are_read_at_once(dial: Connect) -> None:
    assert "ok" in asked(dial(), "handles", export="cache", first=0, count=1)
    for request in ("write", "await"):
        assert code(ask(dial(), request, "cache")) == "unknown"
    assert code(commit(dial(), export="cache")) == "unknown"


def test_a_second_writer_is_refused_or_waits_until_the_first_has_ended(dial: Connect, layout: Held) -> None:
    first, second, third = dial(), dial(), dial()
    for _ in range(2):
        assert "ok" in ask(first, "write")
    refused = ask(second, "write")["error"]
    assert (refused["code"], refused["message"]) == ("writing", f"{ME} is writing export 'weights'")
    begin(second, "write")
    begin(third, "write", 0.01)
    assert "(after 0.01 s)" in next_message(third)["error"]["message"]
    first.close()
    assert next_message(second)["ok"]["exports"] == ["weights"]


def test_a_writer_that_waits_is_refused_as_soon_as_the_first_has_committed(dial: Connect) -> None:
    first, second = dial(), dial()
    ask(first, "write")
    begin(second, "write", 3600)
    assert "ok" in asked(first, "status")
    commit(first)
    assert code(next_message(second)) == "committed"


def test_the_memory_of_a_writer_that_is_gone_is_created_anew(dial: Connect, layout: Held) -> None:
    """A reader that waits gets what the next writer commits, of another generation, and never the first bytes."""
    first, reader, second = dial(), dial(), dial()
    ask(first, "write")
    read(first)
    layout.write("w", b"half-written")
    begin(reader, "await")
    begin(second, "write")
    first.close()
    generation = next_message(second)["ok"]["generation"]
    assert generation > 1
    assert layout.bytes_of("w", 0, 12) != b"half-written"
    assert code(commit(second)) == "stale"
    layout.write("w", b"all of it   ")
    assert "ok" in commit(second, generation)
    assert next_message(reader)["ok"]["exports"] == ["weights"]
    assert read(reader)["ok"]["generation"] == generation
    counted = asked(second, "metrics")["ok"]
    assert (counted["changes"], counted["last_check"]["different"]) == (1, 0)
    assert asked(second, "check")["ok"]["different"] == 0


def test_committed_exports_stay_after_the_end_of_their_writer(dial: Connect) -> None:
    writer, reader = dial(), dial()
    ask(writer, "write")
    assert "ok" in commit(writer)
    writer.close()
    assert "ok" in ask(reader, "await")
    assert read(reader)["ok"]["generation"] == 1
    assert code(ask(reader, "write")) == "committed"


def test_only_the_writer_commits(dial: Connect) -> None:
    writer, other = dial(), dial()
    assert code(commit(other)) == "lease"
    ask(writer, "write")
    assert commit(other)["error"]["message"] == f"{ME} is not the writer of export 'weights'"
    assert "ok" in commit(writer)
    assert code(commit(writer)) == "lease"


@pytest.mark.parametrize("request_", ["write", "await"])
def test_a_wait_of_more_than_an_hour_is_refused(dial: Connect, request_: str) -> None:
    error = asked(dial(), request_, exports=["weights"], wait=3600.5)["error"]
    assert (error["code"], "'wait': input should be less than or equal to 3600" in error["message"]) == ("packet", True)


@pytest.mark.parametrize("request_", ["write", "await"])
def test_a_client_that_ends_while_it_waits_leaves_nothing(dial: Connect, request_: str) -> None:
    writer, waiting, next_ = dial(), dial(), dial()
    ask(writer, "write")
    begin(waiting, request_)
    waiting.close()
    begin(next_, "write")
    writer.close()
    assert next_message(next_)["ok"]["exports"] == ["weights"]
    assert commit(next_, asked(next_, "status")["ok"]["generation"])["ok"]["exports"] == ["weights"]


def test_offloaded_content_stays_committed_and_dropped_content_does_not(dial: Connect) -> None:
    writer, reader = dial(), dial()
    ask(writer, "write")
    commit(writer)
    for state in ("asleep", "awake"):
        assert "ok" in asked(reader, "switch", state=state, force=False)
    assert states(reader)["weights"] == "committed"
    for state in ("asleep", "empty", "awake"):
        assert "ok" in asked(reader, "switch", state=state, force=False)
    assert states(reader)["weights"] == "empty"
    assert "ok" in ask(writer, "write")


def test_a_writer_whose_memory_was_replaced_cannot_commit_what_it_wrote(dial: Connect) -> None:
    writer, other = dial(), dial()
    ask(writer, "write")
    for state in ("empty", "awake"):
        assert "ok" in asked(other, "switch", state=state, force=False)
    assert states(other)["weights"] == "writing"
    assert code(commit(writer)) == "stale"
    assert read(writer)["ok"]["generation"] == 2
    assert "ok" in commit(writer, 2)


def test_content_that_was_dropped_while_it_was_offloaded_is_of_another_generation(dial: Connect) -> None:
    writer, other = dial(), dial()
    ask(writer, "write")
    for state in ("asleep", "bare", "empty", "awake"):
        assert "ok" in asked(other, "switch", state=state, force=False)
    assert code(commit(writer, 2)) == "stale"  # of the state asleep
    assert read(writer)["ok"]["generation"] == 4
    assert "ok" in commit(writer, 4)


def test_a_writer_that_has_committed_is_idle(dial: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is disconnected for that, as a client without handles."""
    writer = dial()
    ask(writer, "write")
    monkeypatch.setattr("memtopo.sharing.holder.clients.IDLE", 0.0)
    assert "ok" in asked(writer, "status")
    assert "ok" in commit(writer)
    assert heard(writer) is None


def test_several_exports_are_leased_and_committed_together(runtime: Path) -> None:
    with held(spec(scales="s"), MACHINE), ExitStack() as stack:
        one, two = (stack.enter_context(raw(runtime / "memtopo" / "kv.sock")) for _ in range(2))
        assert "ok" in ask(one, "write", "scales")
        assert code(ask(two, "write", "weights", "scales")) == "writing"
        assert states(two) == {"weights": "empty", "scales": "writing", "cache": None}
        both = [{"name": name, "generation": 1} for name in ("scales", "weights")]
        assert code(asked(one, "commit", exports=both)) == "lease"
        assert states(two)["scales"] == "writing"


def test_a_reader_waits_until_each_of_its_exports_is_committed(runtime: Path) -> None:
    with held(spec(scales="s"), MACHINE), ExitStack() as stack:
        writer, reader, other = (stack.enter_context(raw(runtime / "memtopo" / "kv.sock")) for _ in range(3))
        assert "ok" in ask(writer, "write", "weights", "scales")
        assert "ok" in commit(writer)
        assert code(asked(other, "await", exports=["weights", "scales"], wait=0)) == "uncommitted"
        begin(reader, "await", PATIENCE, "weights", "scales")
        assert "ok" in commit(writer, export="scales")
        assert next_message(reader)["ok"] == {"generation": 1, "exports": ["weights", "scales"]}


def test_a_reader_of_an_export_that_a_change_removes_is_refused_at_once(runtime: Path) -> None:
    with (
        held(spec(scales="s"), MACHINE),
        raw(runtime / "memtopo" / "kv.sock") as reader,
        connect(endpoint("kv")) as operator,
    ):
        begin(reader, "await", 3600, "scales")
        assert operator.status().generation == 1
        operator.change(json.dumps({"spec": json.dumps(spec())}))
        assert code(next_message(reader)) == "unknown"


def test_the_memory_of_each_export_of_a_writer_that_is_gone_is_created_anew(runtime: Path) -> None:
    with held(spec(scales="s"), MACHINE) as layout, ExitStack() as stack:
        first, second = (stack.enter_context(raw(runtime / "memtopo" / "kv.sock")) for _ in range(2))
        before = dict(layout.run.execution.layout.chunks)
        assert "ok" in ask(first, "write", "weights", "scales")
        begin(second, "write", PATIENCE, "weights", "scales")
        first.close()
        assert "ok" in next_message(second)
        now = layout.run.execution.layout.chunks
        assert {name for name in before if now[name] != before[name]} == {"w.0", "w.1", "s.0", "s.1"}


def test_memory_is_created_anew_in_the_state_that_the_layout_is_in(runtime: Path) -> None:
    with held(spec(scales="s"), MACHINE) as layout, ExitStack() as stack:
        first, second = (stack.enter_context(raw(runtime / "memtopo" / "kv.sock")) for _ in range(2))
        assert "ok" in asked(second, "switch", state="asleep", force=False)
        assert "ok" in ask(first, "write", "scales")
        before = dict(layout.run.execution.layout.chunks)
        begin(second, "write", PATIENCE, "scales")
        first.close()
        assert next_message(second)["ok"]["generation"] > 2
        assert asked(second, "status")["ok"]["layout_state"] == "asleep"
        now = layout.run.execution.layout.chunks
        assert now.keys() == before.keys()
        assert {name for name in before if now[name] != before[name]} == {"s.0", "s.1"}


def test_a_release_refuses_clients_that_wait(dial: Connect, layout: Held) -> None:
    sock = dial()
    begin(sock, "await")
    assert "ok" in asked(dial(), "status")
    layout.end()
    assert code(next_message(sock)) == "releasing"


@contextmanager
def failing(runtime: Path, call: str, clients: int) -> Iterator[tuple[Held, Failing, list[socket.socket]]]:
    """A layout whose driver fails at a number of a call, and connected clients."""
    opened: list[Failing] = []

    def open_failing() -> Any:
        opened.append(Closing(MACHINE.open(), only={call}))
        return opened[0]

    with held(spec(), replace(MACHINE, _opener=open_failing)) as layout, ExitStack() as stack:
        path = runtime / "memtopo" / "kv.sock"
        yield layout, opened[0], [stack.enter_context(raw(path)) for _ in range(clients)]


def test_content_is_gone_after_a_switch_that_failed_once_its_memory_was_released(runtime: Path) -> None:
    with failing(runtime, "mem_release", 2) as (_, driver, (writer, other)):
        ask(writer, "write")
        commit(writer)
        driver.at, driver.calls = 2, 0
        assert code(asked(other, "switch", state="empty", force=False)) == "failed"
        assert asked(other, "status")["ok"]["layout_state"] == "awake"
        assert states(other)["weights"] == "empty"
        assert code(read(other)) == "uncommitted"


def test_content_stays_committed_after_a_switch_that_failed_before_it_touched_memory(runtime: Path) -> None:
    with failing(runtime, "mem_unmap", 2) as (_, driver, (writer, other)):
        ask(writer, "write")
        commit(writer)
        driver.at, driver.calls = 1, 0
        assert code(asked(other, "switch", state="empty", force=False)) == "failed"
        assert asked(other, "status")["ok"]["generation"] == 1
        assert states(other)["weights"] == "committed"
        assert read(other)["ok"]["generation"] == 1


def test_memory_that_cannot_be_created_is_created_for_the_next_writer(runtime: Path) -> None:
    with failing(runtime, "mem_create", 3) as (layout, driver, (first, second, third)):
        ask(first, "write")
        driver.at, driver.calls = 2, 0
        begin(second, "write")
        first.close()
        refused = next_message(second)["error"]
        assert refused["code"] == "failed"
        assert refused["message"].endswith("; the memory of weights is created for the next writer")
        assert states(second)["weights"] == "empty"
        assert "w.0" not in layout.run.execution.layout.chunks
        assert code(read(third)) == "uncommitted"
        assert "ok" in ask(third, "write")
        assert "ok" in read(third)
        assert asked(second, "check")["ok"]["different"] == 0


def switch_while_imported(requester: socket.socket, importer: socket.socket) -> None:
    """Request a switch that releases all memory, of which an importer has some."""
    assert "ok" in asked(importer, "handles", export="cache", first=0, count=1)
    terms = {"state": "gone", "wait": PATIENCE, "force": False}
    wire.send(requester, wire.encode({"request": "switch", **terms}))
    assert next_message(importer)["notice"] == "changing"


def test_memory_that_is_created_for_a_writer_while_a_switch_waits_is_released_by_that(runtime: Path) -> None:
    with failing(runtime, "mem_create", 4) as (_, driver, (first, writer, importer, requester)):
        ask(first, "write")
        driver.at, driver.calls = 2, 0
        begin(writer, "write")
        first.close()
        assert code(next_message(writer)) == "failed"
        switch_while_imported(requester, importer)
        assert "ok" in ask(writer, "write")
        assert code(read(writer)) == "changing"
        asked(importer, "let_go", exports=["cache"])
        assert "ok" in next_message(requester)
        made = asked(requester, "switch", state="awake", force=False)["ok"]["generation"]
        assert [next_message(writer)["exports"] for _ in range(2)] == [["weights"]] * 2
        assert read(writer)["ok"]["generation"] == made - 1, "of the switch that has released it"
        assert "ok" in commit(writer, made - 1)


def test_memory_that_could_not_be_created_while_a_switch_waited_is_created_for_the_next_writer(runtime: Path) -> None:
    with failing(runtime, "mem_create", 4) as (_, driver, (first, writer, importer, requester)):
        ask(first, "write")
        switch_while_imported(requester, importer)
        driver.at, driver.calls = 2, 0
        begin(writer, "write")
        first.close()
        assert code(next_message(writer)) == "failed"
        asked(importer, "let_go", exports=["cache"])
        assert "ok" in next_message(requester)
        assert "ok" in asked(requester, "switch", state="awake", force=False)
        assert "ok" in ask(writer, "write")
        assert "ok" in read(writer)


def test_a_client_commits_the_generation_of_its_handles(client: Callable[[], Client]) -> None:
    def take(of: Client) -> list[Handle]:
        handles = list(of.handles("weights"))
        for each in handles:
            each.close()
        return handles

    writer, reader = client(), client()
    with pytest.raises(ExchangeError, match="is not committed") as refused:
        reader.await_commit(["weights"])
    assert refused.value.code == "uncommitted"
    writer.write(["weights"])
    with pytest.raises(ExchangeError, match="is writing export 'weights'"):
        reader.write(["weights"])
    assert len(take(writer)) == 2
    writer.commit(["weights"])
    reader.await_commit(["weights"], wait=PATIENCE)
    assert len(take(reader)) == 2
    assert reader.status().offers[0].commit == "committed"


@pytest.mark.parametrize("write", [False, True])
def test_a_client_waits_longer_than_one_request_may_wait(
    client: Callable[[], Client], monkeypatch: pytest.MonkeyPatch, write: bool
) -> None:
    monkeypatch.setattr("memtopo.sharing.client.LONGEST_WAIT", 0.02)
    writer, other = client(), client()
    writer.write(["weights"])
    begun = time.monotonic()
    with pytest.raises(ExchangeError, match="is writing") as refused:
        (other.write if write else other.await_commit)(["weights"], wait=0.05)
    assert refused.value.code == ("writing" if write else "uncommitted")
    assert time.monotonic() - begun >= 0.05


def test_an_offer_names_the_process_that_writes_it(dial: Connect) -> None:
    writer, other = dial(), dial()

    def offered() -> tuple[Any, Any]:
        (weights,) = (each for each in asked(other, "offers", first=0)["ok"]["offers"] if each["name"] == "weights")
        return weights["commit"], weights["writer"]

    assert offered() == ("empty", None)
    ask(writer, "write")
    assert offered() == ("writing", os.getpid())
    commit(writer)
    assert offered() == ("committed", None)


def test_writers_their_commits_and_their_ends_are_events(runtime: Path) -> None:
    found: list[HolderEvent] = []
    with (
        held(spec(), MACHINE, supervision=Supervision(log=found.append)),
        raw(runtime / "memtopo" / "kv.sock") as second,
    ):
        with raw(runtime / "memtopo" / "kv.sock") as first:
            ask(first, "write")
        begin(second, "write")
        generation = next_message(second)["ok"]["generation"]
        commit(second, generation)
        assert code(commit(second, generation)) == "lease"
    of_writers = [each for each in found if each.fields.get("export") == "weights"]
    assert [(each.text, each.fields["generation"]) for each in of_writers] == [
        ("writer attached", 1),
        ("writer ended without a commit", 1),
        ("writer attached", generation),
        ("committed", generation),
    ]
    assert {each.fields["pid"] for each in of_writers} == {os.getpid()}


def imports(client: Client, **wait: Any) -> HolderHandles:
    """Source of the handles of a spec that imports the weights."""
    offer = client.offers()["weights"]
    declared = {"from": "kv/weights", "location": "gpu0", "size": "2MiB", "count": 2}
    document = Document.from_object({"memtopo": 1, "name": "reader", "imports": {"w": declared}}, "reader.yaml")
    geometry = validate(document, MACHINE.machine).geometry
    assert geometry
    assert offer.gpu
    return HolderHandles(geometry, [offer.gpu], commits=CommitWait(**wait))


def test_imports_of_a_spec_wait_for_the_commit(layout: Held, client: Callable[[], Client]) -> None:
    writer, reasons, begun = client(), list[str](), threading.Event()
    writer.write(["weights"])
    source = imports(writer, seconds=PATIENCE, report=reasons.append, advance=begun.set)
    with ThreadPoolExecutor() as pool:
        attached = pool.submit(source.attach, "kv")
        assert begun.wait(PATIENCE)
        assert not attached.done()
        writer.commit(["weights"])
        assert attached.result(PATIENCE) == os.getpid()
    (reason,) = reasons
    assert f"export 'weights' is not committed: {ME} is writing it" in reason
    source.take("kv", "weights", 0)
    source.detach("kv")


def test_an_offer_that_changes_while_its_commit_is_awaited_is_compared_again(
    layout: Held, client: Callable[[], Client]
) -> None:
    operator, writer, begun, larger = client(), client(), threading.Event(), spec()
    larger["chunks"]["w"]["count"], larger["ranges"]["w"]["size"] = 4, "8MiB"
    source = imports(writer, seconds=PATIENCE, advance=begun.set)
    with ThreadPoolExecutor() as pool:
        attached = pool.submit(source.attach, "kv")
        assert begun.wait(PATIENCE)
        operator.change(json.dumps({"spec": json.dumps(larger)}), force=True)
        writer.write(["weights"])
        for each in writer.handles("weights"):
            each.close()
        writer.commit(["weights"])
        with pytest.raises(ImportMismatch, match="import 'w' declares count 2; kv/weights has 4"):
            attached.result(PATIENCE)


def test_the_wait_of_imports_ends_at_its_limit_and_by_a_signal(layout: Held, client: Callable[[], Client]) -> None:
    with pytest.raises(ExchangeError, match="no process is writing it") as late:
        imports(client(), seconds=0.01).attach("kv")
    assert late.value.code == "uncommitted"

    def stop() -> None:
        raise Stopped

    with pytest.raises(Stopped):
        imports(client(), seconds=PATIENCE, advance=stop).attach("kv")


@pytest.mark.parametrize("request_", ["write", "await", "commit"])
def test_a_request_that_names_no_export_is_refused(dial: Connect, layout: Held, request_: str) -> None:
    assert code(asked(dial(), request_, exports=[])) == "packet"
    assert states(dial())["weights"] == "empty"


def test_an_importer_that_has_let_go_is_notified_of_the_commit_that_brings_its_export_back(dial: Connect) -> None:
    """And an importer that has let go of another export is not."""
    writer, reader, other = dial(), dial(), dial()
    ask(writer, "write")
    commit(writer)
    assert "ok" in read(reader)
    assert "ok" in asked(other, "switch", state="empty", force=True)
    assert next_message(reader)["state"] == "empty"
    assert asked(reader, "let_go", exports=["weights"])["ok"]["exports"] == ["weights"]
    assert "ok" in asked(other, "switch", state="awake", force=False)
    assert next_message(reader)["state"] == "awake"
    assert code(read(reader)) == "uncommitted"
    bystander = dial()
    assert "ok" in asked(bystander, "handles", export="cache", first=0, count=1)
    assert asked(bystander, "let_go", exports=["cache"])["ok"]["exports"] == ["cache"]
    assert "ok" in ask(writer, "write")
    generation = read(writer)["ok"]["generation"]
    assert "ok" in commit(writer, generation)
    notice = next_message(reader)
    assert (notice["notice"], notice["exports"], notice["state"]) == ("changed", ["weights"], "awake")
    assert read(reader)["ok"]["generation"] == generation
    assert "ok" in asked(bystander, "status")  # the next packet is no notice


def test_bytes_that_a_writer_has_abandoned_and_a_state_keeps_are_given_to_no_other_writer(
    dial: Connect, layout: Held
) -> None:
    first, second, other = dial(), dial(), dial()
    ask(first, "write")
    layout.write("w", b"half-written")
    assert "ok" in asked(other, "switch", state="asleep", force=False)
    first.close()
    made = set()
    for _ in range(2):
        refused = ask(second, "write")["error"]
        assert (refused["code"], "has abandoned" in refused["message"]) == ("absent", True)
        made.add(asked(other, "metrics")["ok"]["changes"])
    assert len(made) == 1  # nothing is tried again in the same state
    begin(second, "write")
    assert "ok" in asked(other, "switch", state="awake", force=False)
    generation = next_message(second)["ok"]["generation"]
    assert layout.bytes_of("w", 0, 12) != b"half-written"
    assert "ok" in commit(second, generation)


def test_bytes_that_a_state_keeps_are_given_to_no_other_writer_though_another_export_is_created_anew(
    runtime: Path,
) -> None:
    with held(spec(scales="s"), MACHINE), ExitStack() as stack:
        first, second, other = (stack.enter_context(raw(runtime / "memtopo" / "kv.sock")) for _ in range(3))
        ask(first, "write", "weights", "scales")
        assert "ok" in asked(other, "switch", state="asleep", force=False)
        first.close()
        assert "ok" in ask(second, "write", "scales")
        assert code(ask(second, "write")) == "absent"


def test_memory_that_a_writer_has_left_is_created_anew_also_after_a_change_that_takes_commits() -> None:
    """Which may keep a part of it"""
    contents = Contents()
    contents.follow(["w"], ())
    contents.discard(["w"])
    contents.follow(["w"], ["w"])
    assert contents.discarded() == {"w"}
    contents.renewed(["w"])
    assert not contents.discarded()


def test_a_client_commits_the_generation_of_an_export_and_not_of_the_layout(runtime: Path) -> None:
    def take(of: Client, export: str) -> None:
        for each in of.handles(export):
            each.close()

    with held(spec(scales="s"), MACHINE), connect(endpoint("kv")) as writer, connect(endpoint("kv")) as operator:
        operator.switch("asleep")
        writer.write(["scales"])
        take(writer, "scales")
        assert (writer.generation, writer.generations["scales"]) == (2, 1)
        writer.commit(["scales"])
        operator.switch("awake")
        writer.write(["weights"])
        take(writer, "weights")
        assert writer.generations["weights"] is not None
        assert writer.generations["weights"] > 1
        writer.commit(["weights"])
        operator.await_commit(["weights", "scales"])


def test_a_client_takes_the_place_of_an_importer_while_it_waits_for_a_commit(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memtopo.sharing.holder.MOST_CLIENTS", SPARE + 1)
    with held(spec(), MACHINE), ExitStack() as stack:
        writer, first, second = (stack.enter_context(raw(runtime / "memtopo" / "kv.sock")) for _ in range(3))
        assert "ok" in ask(writer, "write")
        begin(first, "await")
        assert "ok" in asked(writer, "status")
        assert code(ask(second, "await")) == "full"
        assert code(asked(second, "handles", export="cache", first=0, count=1)) == "full"
        assert "ok" in commit(writer)
        assert "ok" in next_message(first)
        assert "ok" in ask(second, "await")
        assert "ok" in read(second)


def test_an_export_is_available_while_its_holder_has_it_committed_and_as_declared(
    layout: Held, client: Callable[[], Client]
) -> None:
    """One that stays imported may have another count meanwhile; no handle stays open."""
    operator, writer, larger = client(), client(), spec()
    larger["chunks"]["w"]["count"], larger["ranges"]["w"]["size"] = 4, "8MiB"

    def commit_weights() -> None:
        writer.write(["weights"])
        for each in writer.handles("weights"):
            each.close()
        writer.commit(["weights"])
        writer.let_go(["weights"])

    commit_weights()
    source = imports(operator)
    source.attach("kv")
    before = open_descriptors()
    assert source.available("kv", "weights", imported=None)
    assert not source.available("kv", "nothing", imported=None)
    assert source.take("kv", "weights", 0).fd is not None
    source.settle()  # the handle that was taken, and the one after it
    until(lambda: open_descriptors() == before)  # the holder, in this process, closes its own descriptor
    for state in ("empty", "awake"):
        operator.switch(state, force=True)
        assert source.notice(PATIENCE)
        assert not source.available("kv", "weights", imported=None)
        source.let_go("kv", ["weights"])
    commit_weights()
    assert source.notice(PATIENCE)
    assert source.available("kv", "weights", imported=None)
    source.let_go("kv", ["weights"])
    operator.change(json.dumps({"spec": json.dumps(larger)}), force=True)
    assert source.notice(PATIENCE)
    assert not source.available("kv", "weights", imported=source.version("kv", "weights"))
    with pytest.raises(ImportMismatch, match="declares count 2; kv/weights has 4"):
        source.available("kv", "weights", imported=None)
    source.detach("kv")


def test_a_handle_of_another_version_than_the_required_one_is_closed(
    layout: Held, client: Callable[[], Client]
) -> None:
    writer = client()
    writer.write(["weights"])
    for each in writer.handles("weights"):
        each.close()
    writer.commit(["weights"])
    source = imports(writer)
    source.attach("kv")
    before, other = open_descriptors(), Version(writer, 1)
    with source.requiring({("kv", "weights"): other}), pytest.raises(ExchangeError, match="has other memory now"):
        source.take("kv", "weights", 0)
    source.let_go("kv", ["weights"])
    assert open_descriptors() == before
    source.detach("kv")


def test_memory_that_is_new_after_a_state_without_it_is_not_created_once_more_for_a_writer(
    dial: Connect, layout: Held
) -> None:
    first, second, other = dial(), dial(), dial()
    ask(first, "write")
    assert "ok" in asked(other, "switch", state="asleep", force=False)
    first.close()
    assert code(ask(second, "write")) == "absent"
    for state in ("empty", "awake"):
        assert "ok" in asked(other, "switch", state=state, force=False)
    chunks, generation = dict(layout.run.execution.layout.chunks), asked(other, "status")["ok"]["generation"]
    assert ask(second, "write")["ok"]["generation"] == generation
    assert layout.run.execution.layout.chunks == chunks
    assert "ok" in commit(second, read(second)["ok"]["generation"])


def test_a_switch_to_the_state_of_the_layout_is_made_and_counted_as_no_change(dial: Connect) -> None:
    sock = dial()
    for state, changes in (("awake", 0), ("asleep", 1), ("asleep", 1)):
        assert "ok" in asked(sock, "switch", state=state, force=False)
        assert asked(sock, "metrics")["ok"]["changes"] == changes
        assert asked(sock, "status")["ok"]["generation"] == 1 + changes
