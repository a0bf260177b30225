"""Places of a holder's clients: their number, and those that make room, within one process."""

from __future__ import annotations

import os
import selectors
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from msgspec.structs import replace

from memtopo.common.errors import ExchangeError
from memtopo.sharing import wire
from memtopo.sharing.holder.clients import IDLE, SPARE, Clients
from memtopo.sharing.holder.state import HolderEvent, HolderEvents
from memtopo.sharing.sockets import SYSTEM, PeerProcess, peer
from tests.helpers.memfd_exports import PAGES

MOST = SPARE + 2
PATIENCE = 60.0
OTHER_USER = os.geteuid() + 1
Admit = Callable[[], socket.socket]


@pytest.fixture
def events() -> list[HolderEvent]:
    return []


@pytest.fixture
def uids() -> list[int]:
    """Users of the next clients, instead of that of this process."""
    return []


@pytest.fixture
def clients(events: list[HolderEvent], uids: list[int]) -> Iterator[Clients]:
    def peer_of(sock: socket.socket) -> PeerProcess:
        return peer(sock)._replace(uid=uids.pop()) if uids else peer(sock)

    with selectors.DefaultSelector() as selector:
        found = Clients(
            selector,
            lambda *_: None,
            most=MOST,
            patience=PATIENCE,
            allow_uids=[OTHER_USER],
            events=HolderEvents(events.append),
            system=replace(SYSTEM, peer=peer_of, epoch=lambda: 7.0),
        )
        yield found
        found.abandon()


@pytest.fixture
def admit(clients: Clients) -> Iterator[Admit]:
    """Connects a client, and returns its end."""
    with ExitStack() as stack:

        def admitted() -> socket.socket:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stack.enter_context(ours).setblocking(False)
            clients.admit(theirs)
            return ours

        yield admitted


def silence(clients: Clients, seconds: dict[int, float]) -> None:
    """Let clients have been silent for a number of seconds, by id."""
    for each in clients.all():
        each.last_received -= seconds.get(each.id, 0.0)


def ids(clients: Clients) -> list[int]:
    return [each.id for each in clients.all()]


def test_the_longest_silent_client_makes_room(clients: Clients, admit: Admit) -> None:
    ends = [admit() for _ in range(MOST)]
    silence(clients, {3: 5.0, 7: 20.0})
    admit()
    assert ids(clients) == [id for id in range(1, MOST + 2) if id != 7]
    assert wire.receive(ends[6]) is None


def test_a_client_that_has_left_makes_room_before_a_silent_one(clients: Clients, admit: Admit) -> None:
    ends = [admit() for _ in range(MOST)]
    silence(clients, {7: 20.0})
    ends[1].close()
    admit()
    assert ids(clients) == [id for id in range(1, MOST + 2) if id != 2]


def test_clients_that_wait_or_were_heard_within_a_second_make_no_room(clients: Clients, admit: Admit) -> None:
    for _ in range(MOST):
        admit()
    importer, releasing, changing, *_ = clients.all()
    importer.record(PAGES, range(1))
    releasing.awaits_release = True
    clients.pause(changing)
    silence(clients, {1: 20.0, 2: 20.0, 3: 20.0})
    refused = wire.receive(admit())
    assert refused
    assert refused.message["error"] == {
        "code": "busy",
        "message": f"{MOST} clients are connected, and that is the limit",
        "hint": "try again in a moment",
    }
    assert ids(clients) == list(range(1, MOST + 1))


def test_no_client_makes_room_for_other_users_beyond_their_share(
    clients: Clients, admit: Admit, uids: list[int]
) -> None:
    for number in range(MOST):
        uids += [OTHER_USER] * (number < MOST // 2)
        admit()
    silence(clients, {MOST: 20.0})
    uids.append(OTHER_USER)
    refused = wire.receive(admit())
    assert refused
    assert refused.message["error"]["message"].startswith(f"{MOST // 2} clients of other users are connected")
    assert ids(clients) == list(range(1, MOST + 1))
    admit()
    assert ids(clients) == [*range(1, MOST), MOST + 1]


def test_a_writer_takes_handles_when_all_places_of_importers_are_taken(clients: Clients, admit: Admit) -> None:
    """Others wait for it."""
    for _ in range(MOST):
        admit()
    writer, other, *importers = clients.all()
    writer.writes.add("page")
    for each in importers[: MOST - SPARE]:
        each.record(PAGES, range(1))
    clients.check_importer(writer)
    with pytest.raises(ExchangeError, match=f"{MOST - SPARE} importers are attached") as refused:
        clients.check_importer(other)
    assert refused.value.code == "full"


def test_a_client_without_handles_is_dropped_after_its_time(clients: Clients, admit: Admit) -> None:
    for _ in range(4):
        admit()
    importer, _, _, writer = clients.all()
    importer.record(PAGES, range(1))
    writer.writes.add("page")
    silence(clients, {1: 2 * IDLE, 2: 2 * IDLE, 3: IDLE / 2, 4: 2 * IDLE})
    clients.drop_unresponsive()
    assert ids(clients) == [1, 3, 4]


def test_a_client_that_does_not_read_is_dropped_after_the_patience(clients: Clients, admit: Admit) -> None:
    for _ in range(3):
        admit()
    one, other, _ = clients.all()
    for each, seconds in ((one, PATIENCE / 2), (other, PATIENCE + 1)):
        while each.flushed:
            each.send({"text": "x" * 5000})
        each.stuck(each.last_received - seconds)
    clients.drop_unresponsive()
    assert ids(clients) == [1, 3]


def test_a_notice_to_a_client_that_waits_for_an_answer_does_not_resume_it(clients: Clients, admit: Admit) -> None:
    end = admit()
    (client,) = clients.all()
    clients.pause(client)
    clients.deliver(client, {"notice": "changed"})
    silence(clients, {1: 2 * IDLE})
    clients.drop_unresponsive()  # it waits, and is not idle
    clients.answer(client, {"ok": {}})
    for key in ("notice", "ok"):
        packet = wire.receive(end)
        assert packet
        assert key in packet.message
    clients.drop_unresponsive()
    assert ids(clients) == []


def test_a_client_that_has_gone_is_dropped_once_by_a_notice(
    clients: Clients, admit: Admit, events: list[HolderEvent]
) -> None:
    """And the event has what it had."""
    ends = [admit() for _ in range(2)]
    gone, _ = tuple(clients.all())
    assert gone.importer.since == 7.0
    gone.record(PAGES, range(3))
    ends[0].close()
    for _ in range(2):
        clients.deliver(gone, {"notice": "changed"})
    clients.drop(gone)
    assert ids(clients) == [2]
    assert [(each.text, each.fields["handles"], each.fields["bytes"]) for each in events] == [
        ("importer detached", 3, 3 * PAGES.size)
    ]
