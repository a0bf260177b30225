"""Answers of a holder to each request, and its records of clients, within one process."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from memtopo.common.errors import BadPacket, ExchangeError, MemtopoError
from memtopo.common.processes import RunningClock, pid_namespace
from memtopo.common.text import first_of, process_name
from memtopo.drivers.target import recorded
from memtopo.sharing import wire
from memtopo.sharing.client import connect
from memtopo.sharing.endpoints import endpoint
from memtopo.sharing.held import survey
from memtopo.sharing.holder.clients import ClientConnection
from memtopo.sharing.holder.responses import Responder, TooManyInFlight
from memtopo.sharing.holder.state import LISTED, HeldNodes, HolderInfo, Supervision, still_bound
from memtopo.sharing.messages import TEXT_CHARACTERS, Request, SourcePart, decode_nodes, read_request
from memtopo.sharing.offers import Lending, Offer, exported_bytes
from memtopo.sharing.sockets import PeerProcess
from memtopo.sharing.status import LocationMemory, NodeStatus, Taken
from memtopo.sharing.wire import LONGEST_SOURCE
from tests.helpers.held_layouts import held
from tests.helpers.machines import invented
from tests.helpers.memfd_exports import MACHINE, OFFERS, PAGE, PAGES, POOL, Memfds, OneState
from tests.helpers.processes import open_descriptors

MIB2 = 2 << 20
BROKEN = Offer("broken", "chunk", "fd", 2, PAGE, "gpu0")
SOURCE = "é" * (TEXT_CHARACTERS + 5)


def requested(request: object, **fields: Any) -> Request:
    """A request as a holder receives it."""
    return read_request(wire.Packet({"memtopo": 1, "request": request, **fields}))


class Client:
    """A client's end of a connection, and the holder's record of it."""

    def __init__(self, id: int, responder: Responder, everyone: list[Client]) -> None:
        self.end, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.connection = ClientConnection(id, theirs, PeerProcess(1000 + id, 50 + id), RunningClock())
        self.responder, self._everyone = responder, everyone
        everyone.append(self)

    def request(self, request: str, **fields: Any) -> None:
        connections = [each.connection for each in self._everyone]
        self.responder.answer(self.connection, requested(request, **fields), connections)

    def answer(self, request: str, **fields: Any) -> Any:
        """The object under `ok`; its descriptors are closed."""
        self.request(request, **fields)
        packet = wire.receive(self.end)
        assert packet
        count = len(packet.fds)
        packet.close()
        return packet.message["ok"] | ({"descriptors": count} if count else {})

    def close(self) -> None:
        self.end.close()
        self.connection.sock.close()


@pytest.fixture
def shelf() -> Iterator[Memfds]:
    found = Memfds(kept=(*OFFERS, BROKEN))
    yield found
    os.close(found.memory)


@pytest.fixture
def responder(shelf: Memfds) -> Responder:
    return Responder(
        shelf, HolderInfo("kv", "/x/" + "y" * 2000, MACHINE, SOURCE), Supervision(), batch=3, deadline=12.5
    )


@pytest.fixture
def clients(responder: Responder) -> Iterator[Callable[[], Client]]:
    """Makes clients with the ids 1, 2, …; no descriptor is kept."""
    found: list[Client] = []
    before = open_descriptors()
    yield lambda: Client(len(found) + 1, responder, found)
    for each in found:
        each.close()
    assert open_descriptors() == before


def refused(make: Callable[[], object]) -> ExchangeError:
    with pytest.raises(ExchangeError) as error:
        make()
    return error.value


def test_a_status_has_name_process_times_state_and_machine(responder: Responder, clients: Callable[[], Client]) -> None:
    status = clients().answer("status")
    assert abs(status.pop("since") - time.time()) < 60
    spec = status.pop("spec")
    assert (spec[:4], len(spec)) == ("/x/y", 1000)
    assert status == {
        "name": "kv", "pid": os.getpid(), "pid_namespace": pid_namespace(), "state": "serving", "deadline": 12.5,
        "machine": to_builtins(MACHINE) | {"devices": list(MACHINE.devices)}, "generation": 1,
    }  # fmt: skip
    responder.releasing = True
    assert clients().answer("status")["state"] == "releasing"


def test_the_source_comes_in_parts(clients: Callable[[], Client]) -> None:
    client = clients()
    parts = [client.answer("source", first=first) for first in (0, TEXT_CHARACTERS, len(SOURCE))]
    assert [each["text"] for each in parts] == [SOURCE[:TEXT_CHARACTERS], "é" * 5, ""]
    assert {each["total"] for each in parts} == {len(SOURCE)}


def test_offers_are_listed_from_a_number_on(clients: Callable[[], Client]) -> None:
    names = [each.name for each in (*OFFERS, BROKEN)]
    client = clients()
    for first in (0, 7, 8, 9, 100):
        answer = client.answer("offers", first=first)
        assert ([each["name"] for each in answer["offers"]], answer["total"]) == (names[first:], 9)


def test_one_answer_has_at_most_a_batch_of_handles(responder: Responder, clients: Callable[[], Client]) -> None:
    client, other = clients(), clients()
    answer = client.answer("handles", export="page", first=995, count=5)
    assert (answer["first"], len(answer["handles"]), answer["descriptors"]) == (995, 3, 3)
    assert answer["offer"]["name"] == "page"
    assert len(client.answer("handles", export="page", first=998, count=2)["handles"]) == 2
    secrets = other.answer("handles", export="block", first=0, count=2)
    assert ([each["offset"] for each in secrets["handles"]], "descriptors" in secrets) == ([0, 512], False)
    assert (responder.counters.handles, responder.counters.clients) == (7, 2)


def test_each_handle_of_an_importer_counts_once(responder: Responder, clients: Callable[[], Client]) -> None:
    first, second, third = clients(), clients(), clients()
    for start in (0, 2, 0):
        first.answer("handles", export="page", first=start, count=3)
    second.answer("handles", export="block", first=1, count=1)
    second.answer("handles", export="hot", first=0, count=1)
    assert (first.connection.attached, third.connection.attached) == (True, False)
    one, two = responder.importers([each.connection for each in (first, second, third)])
    assert (one.id, one.pid, one.uid, one.handles, one.bytes, one.bound) == (1, 1001, 51, 5, 5 * PAGE, False)
    assert one.taken == (Taken("page", "chunk", "fd", 5, 5 * PAGE),)
    assert (two.id, two.handles, two.bytes, two.bound) == (2, 2, 5 * PAGE, True)
    assert [(each.export, each.handles, each.bytes) for each in two.taken] == [("block", 1, PAGE), ("hot", 1, 4 * PAGE)]
    for after, ids in ((0, [1, 2]), (1, [2]), (2, [])):
        listed = third.answer("importers", after=after)
        assert ([each["id"] for each in listed["importers"]], listed["more"]) == (ids, False)


def test_a_record_names_the_first_32_exports_and_counts_all(clients: Callable[[], Client]) -> None:
    connection = clients().connection
    for index in range(40):
        connection.record(Offer(f"x{index}", "chunk", "fd", 4, PAGE, "gpu0"), range(1, 3))
    importer = connection.importer
    assert [each.export for each in importer.taken] == [f"x{index}" for index in range(32)]
    assert (importer.handles, importer.bytes) == (80, 80 * PAGE)


@pytest.mark.parametrize(
    ("fields", "code", "message"),
    [
        ({"export": "page", "first": 1000, "count": 1}, "range", "export 'page' has 1,000 handles, counted from 0"),
        ({"export": "page", "first": 998, "count": 3}, "range", "export 'page' has 1,000 handles, counted from 0"),
        ({"export": "pge", "first": 0, "count": 1}, "unknown", "there is no export 'pge'"),
        ({"export": "page", "first": 0, "count": 0}, "packet",
         "the request needs 'count': input should be greater than or equal to 1"),
        ({"export": "page", "first": -1, "count": 1}, "packet",
         "the request needs 'first': input should be greater than or equal to 0"),
        ({"export": "page", "first": 0, "count": 1, "x": 1}, "request",
         "the request has a key besides memtopo, request, export, first, count"),
    ],
)  # fmt: skip
def test_handles_that_do_not_exist_are_refused(
    clients: Callable[[], Client], fields: dict[str, Any], code: str, message: str
) -> None:
    client = clients()
    error = refused(lambda: client.request("handles", **fields))
    assert (error.code, error.message) == (code, message)
    assert error.hint == ("did you mean 'page'?" if code == "unknown" else None)
    assert not client.connection.attached


def test_the_name_of_an_export_that_a_client_has_invented_is_not_kept(
    responder: Responder, clients: Callable[[], Client]
) -> None:
    client, blocks = clients(), [{"number": 0, "epoch": 1}]
    assert refused(lambda: client.request("let_go", exports=["none"], blocks=blocks)).code == "stale"
    assert not responder.lending._exports


ALLOCATIONS = replace(PAGES, name="pool", kind="allocation")


@contextmanager
def one_process(*exports: Offer, pid: int = 1000) -> Iterator[tuple[Client, Client]]:
    """Two connections of one process to a holder of some exports."""
    shelf, everyone = Memfds(kept=exports), list[Client]()
    responder = Responder(shelf, HolderInfo("kv", None, MACHINE), Supervision(), batch=3, deadline=None)
    first, second = (Client(number, responder, everyone) for number in (1, 2))
    first.connection.peer = second.connection.peer = PeerProcess(pid, 50)
    yield first, second
    for each in everyone:
        each.close()
    os.close(shelf.memory)


@pytest.mark.parametrize(
    ("request_", "fields"),
    [("handles", {"export": "page", "first": 0, "count": 1}), ("lend", {"export": "pool", "count": 1})],
)
def test_handles_are_refused_while_earlier_ones_are_unread_or_the_layout_is_released(
    request_: str, fields: dict[str, Any]
) -> None:
    with one_process(PAGES, POOL) as (client, other):
        client.request(request_, **fields)
        assert refused(lambda: client.request(request_, **fields)).code == "unread"
        other.answer(request_, **fields)
        packet = wire.receive(client.end)
        assert packet
        packet.close()
        client.answer(request_, **fields)
        client.responder.releasing = True
        assert refused(lambda: client.request(request_, **fields)).code == "releasing"


def test_an_allocation_is_imported_again_over_another_connection_once_the_first_has_ended() -> None:
    """Also while the holder has not yet seen its end: the process has freed what it imported (fact 82)."""
    with one_process(ALLOCATIONS) as (first, second):
        first.answer("handles", export="pool", first=0, count=1)
        assert refused(lambda: second.request("handles", export="pool", first=0, count=1)).code == "imported"
        first.end.close()
        assert second.answer("handles", export="pool", first=0, count=1)["descriptors"] == 1


def test_an_allocation_is_imported_once_by_a_process_from_whichever_export() -> None:
    with one_process(ALLOCATIONS, replace(ALLOCATIONS, name="some", first=1, count=2)) as (first, second):
        first.answer("handles", export="pool", first=1, count=1)
        assert refused(lambda: second.request("handles", export="some", first=0, count=1)).code == "imported"
        assert second.answer("handles", export="some", first=1, count=1)["descriptors"] == 1
        first.answer("handles", export="pool", first=10, count=1)
        assert second.answer("handles", export="pool", first=7, count=4)["descriptors"] == 3, "as many as are sent"


def test_processes_of_other_pid_namespaces_which_have_no_number_import_the_same_allocation() -> None:
    with one_process(ALLOCATIONS, pid=0) as (first, second):
        for each in (first, second):
            assert each.answer("handles", export="pool", first=0, count=1)["descriptors"] == 1
            assert each.connection.identity["pid"] == "?"


def test_a_handle_that_cannot_be_made_is_an_error_and_not_counted(
    responder: Responder, clients: Callable[[], Client]
) -> None:
    client = clients()
    with pytest.raises(MemtopoError, match=r"broken\.0 cannot be had"):
        client.request("handles", export="broken", first=0, count=2)
    assert (client.connection.attached, responder.counters.handles, responder.counters.clients) == (False, 0, 0)


def test_nothing_is_known_of_an_empty_provider() -> None:
    shelf = Memfds(kept=())
    client = Client(1, Responder(shelf, HolderInfo("kv", None, MACHINE), Supervision(), batch=3, deadline=None), [])
    assert client.answer("status")["spec"] is None
    error = refused(lambda: client.request("handles", export="x", first=0, count=1))
    assert error.hint == "nothing is exported"
    client.close()
    os.close(shelf.memory)


def test_only_requests_of_the_protocol_are_known() -> None:
    assert requested("check").request == "check"
    for other in ("dance", "", None, 7, ["check"]):
        with pytest.raises(BadPacket) as error:
            requested(other)
        assert error.value.code == "request"


@pytest.mark.parametrize(("count", "more"), [(1, ""), (4, ""), (5, " and 1 more"), (9, " and 5 more")])
def test_a_refused_release_names_four_processes(count: int, more: str) -> None:
    error = still_bound(first_of([process_name(1000 + each) for each in range(1, count + 1)], LISTED))
    assert error.code == "attached"
    assert error.message.endswith(more)
    assert [f"10{each:02}" in error.message for each in range(1, count + 1)] == [
        each <= 4 for each in range(1, count + 1)
    ]


def test_too_many_descriptors_in_flight_are_refused_with_both_remedies() -> None:
    error = TooManyInFlight()
    assert error.code == "limit"
    assert error.hint == "read answers sooner, or raise the holder's limit of open files (RLIMIT_NOFILE)"


def test_a_client_is_stuck_from_when_its_answers_wait(clients: Callable[[], Client]) -> None:
    client = clients()
    assert client.connection.stuck(5.0) == 0.0
    client.request("handles", export="page", first=0, count=1)
    assert [client.connection.stuck(now) for now in (5.0, 6.0, 8.5)] == [0.0, 1.0, 3.5]
    packet = wire.receive(client.end)
    assert packet
    packet.close()
    assert client.connection.stuck(9.0) == 0.0
    client.request("handles", export="page", first=0, count=1)
    assert [client.connection.stuck(now) for now in (10.0, 12.0)] == [0.0, 2.0]


def test_answers_that_do_not_fit_are_queued_in_order(clients: Callable[[], Client]) -> None:
    client = clients()
    sent = 0
    while client.connection.flushed:
        client.connection.send({"number": sent, "text": "x" * 5000})
        sent += 1
    client.connection.send({"number": sent})
    numbers: list[int] = []
    while len(numbers) <= sent:
        client.connection.flush()
        packet = wire.receive(client.end)
        assert packet
        numbers.append(packet.message["number"])
    assert numbers == list(range(sent + 1))
    assert (client.connection.flushed, client.connection.gone()) == (True, False)
    client.end.close()
    assert client.connection.gone()


def test_only_exports_over_ipc_bind_a_client_to_its_holder(clients: Callable[[], Client]) -> None:
    for export, bound in (("page", False), ("woven", False), ("block", True), ("done", True), ("frame", False)):
        client = clients()
        client.answer("handles", export=export, first=0, count=1)
        assert client.connection.bound is bound
    assert PAGES.descriptors


def part(first: int, total: int, text: str, **more: Any) -> object:
    """A part of a source that a client sends."""
    return {"first": first, "total": total, "text": text, **more}


def receiver(client: Client) -> Callable[[object], str | None]:
    """A holder's end that receives parts of a source."""
    return lambda part: client.connection.receive_source(wire.read(SourcePart, part, "a source"))


def test_a_source_is_complete_with_its_last_part(clients: Callable[[], Client]) -> None:
    receive = receiver(clients())
    assert receive(part(0, 3, "abc")) == "abc"
    assert [receive(part(0, 5, "ab")), receive(part(2, 5, "cd")), receive(part(4, 5, "e"))] == [None, None, "abcde"]
    assert [receive(part(0, 5, "ab")), receive(part(0, 2, "x")), receive(part(1, 2, "y"))] == [None, None, "xy"]
    assert receive(part(0, TEXT_CHARACTERS, "é" * TEXT_CHARACTERS)) == "é" * TEXT_CHARACTERS


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([part(1, 3, "bc")], "a part of the source is missing"),
        ([part(0, 3, "a"), part(2, 3, "c")], "a part of the source is missing"),
        ([part(0, 3, "abcd")], "the source is longer than announced"),
        ([part(0, 0, "")], "'total': input should be greater than or equal to 1"),
        ([part(0, LONGEST_SOURCE + 1, "a")], "'total': input should be less than or equal to"),
        ([part(0, LONGEST_SOURCE, "a" * (TEXT_CHARACTERS + 1))], "'text': string should have at most"),
        ([part(0, 1, "a", last=True)], "has a key besides first, total, text"),
    ],
)
def test_parts_of_a_source_out_of_order_or_too_long_are_refused(
    clients: Callable[[], Client], parts: list[object], why: str
) -> None:
    receive = receiver(clients())
    for each in parts[:-1]:
        assert receive(each) is None
    with pytest.raises(BadPacket) as refused:
        receive(parts[-1])
    assert why in refused.value.message


class Stateless(OneState):
    """A layout whose spec has no states."""

    @property
    def states(self) -> tuple[str, ...]:
        return ("awake",)


def test_a_layout_without_states_is_switched_to_awake_alone() -> None:
    layout = Stateless()
    responder = Responder(
        layout, HolderInfo("kv", "old", MACHINE), Supervision(contexts=list), batch=3, deadline=None, changeable=layout
    )
    try:
        status = responder.status("", ())
        assert (status.spec, status.layout_state, status.layout_states, status.contexts) == ("kv.yaml", None, (), ())
        assert responder.planned_switch("awake")
        assert refused(lambda: responder.planned_switch("asleep")).message == "layout 'kv' has no states"
    finally:
        os.close(layout.memory)


def test_memory_that_several_exports_have_counts_once(runtime: Path) -> None:
    spec = {
        "memtopo": 1,
        "name": "kv",
        "chunks": {"page": {"location": "gpu0", "size": "2MiB", "count": 4, "handles": "fd"}},
        "exports": {"all": {"chunk": "page", "via": "fd"}, "some": {"chunk": "page.1:3", "via": "fd"}},
    }
    with held(spec, recorded("invented", invented(1))), connect(endpoint("kv")) as client:
        for export, count in (("some", 2), ("all", 2)):
            for handle in client.handles(export, 0, count):
                handle.close()
        status = client.status()
        assert [(each.name, each.entry, each.first) for each in status.offers] == [
            ("all", "page", 0),
            ("some", "page", 1),
        ]
        (importer,) = status.importers
        assert (importer.handles, importer.bytes) == (4, 3 * MIB2)  # 1 and 2, 0 and 1
        (entry,) = survey().layouts
        assert entry.bytes == 4 * MIB2


def test_exported_bytes_are_those_of_the_union_of_exports() -> None:
    page = Offer("a", "chunk", "fd", 4, PAGE, "gpu0", entry="page")
    within, beyond, apart = replace(page, count=2, first=1), replace(page, first=3), replace(page, first=20)
    assert exported_bytes([beyond, within, page, apart]) == (7 + 4) * PAGE
    assert exported_bytes([page, replace(page, entry="other"), replace(page, kind="buffer")]) == 12 * PAGE
    unknown = replace(page, entry=None)
    assert exported_bytes([unknown, replace(unknown, name="b"), replace(page, count=1 << 62)]) == ((1 << 62) + 8) * PAGE


def test_entries_of_one_name_in_two_processes_are_not_the_same_memory() -> None:
    page = Offer("a", "chunk", "fd", 4, PAGE, "gpu0", entry="page")
    assert exported_bytes([page.of_process(label, f"{label}.a") for label in ("one", "two")]) == 8 * PAGE
    lends = POOL.of_process("one", "one.pool").lends
    assert lends
    assert [each.name for each in lends.ranges] == ["one.kv"]


def test_exported_bytes_of_objects_to_lend_are_those_of_the_lent_and_the_sealed_ones() -> None:
    """Each of them is lent through one export, though several have the same objects."""
    lends = replace(POOL, lends=Lending(6, lent=2, sealed=1))
    assert exported_bytes([lends, replace(lends, name="more"), replace(PAGES, count=2)]) == 8 * PAGE


def test_a_client_receives_the_nodes_as_they_were_at_its_first_part(shelf: Memfds) -> None:
    """Another client receives them as they are at its own."""
    now = [[NodeStatus("a", "x" * 4096, "serving"), NodeStatus("b", "y" * 4096, "serving")]]
    supervision = Supervision(nodes=HeldNodes(("a", "b"), lambda: now[0]))
    responder = Responder(shelf, HolderInfo("kv", None, MACHINE), supervision, batch=3, deadline=None)
    everyone: list[Client] = []
    first, second = (Client(number, responder, everyone) for number in (1, 2))

    def text(client: Client, begin: int = 0) -> str:
        found: str = client.answer("nodes", first=begin)["text"]
        return found

    before = text(first)
    assert len(before) == TEXT_CHARACTERS
    now[0] = [NodeStatus("a", "z" * 4096, "unreachable")]
    assert [each.host for each in decode_nodes(text(second))] == ["z" * 4096]
    assert [each.state for each in decode_nodes(before + text(first, len(before)))] == ["serving", "serving"]
    assert [each.state for each in decode_nodes(text(first))] == ["unreachable"]
    for each in everyone:
        each.close()


def test_memory_is_counted_again_after_each_change_of_the_layout() -> None:
    memory, layout = [LocationMemory("gpu0", None, 3 * PAGE, 3)], OneState()
    responder = Responder(
        layout,
        HolderInfo("kv", None, MACHINE),
        Supervision(lambda: tuple(memory)),
        batch=3,
        deadline=None,
        changeable=layout,
    )
    for count in (2, 1):
        layout.switch("asleep").make(full=False)
        memory[0] = LocationMemory("gpu0", None, count * PAGE, count)
        assert [each.allocations for each in responder.statistics().memory] == [count]
    os.close(layout.memory)
