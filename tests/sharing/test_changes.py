"""Changes of a held layout: importers let go of released memory before it is made, or are named at the deadline."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from memtopo.common.errors import ExchangeError, MemtopoError
from memtopo.common.processes import RunningClock
from memtopo.driver.handles import Handle, Secret
from memtopo.plans.report import Checks
from memtopo.sharing import messages, wire
from memtopo.sharing.client import connect
from memtopo.sharing.endpoints import endpoint
from memtopo.sharing.holder.clients import ClientConnection
from memtopo.sharing.holder.state import HolderEvent, Supervision
from memtopo.sharing.offers import ChangeFailed
from memtopo.sharing.sockets import peer
from tests.helpers.child_process import PATIENCE
from tests.helpers.holders import asked, heard, holding, next_message, raw, scripted, until
from tests.helpers.memfd_exports import OFFERS, PAGE, PAGES, OneState, PlannedState, secret

CHANGING = {
    "memtopo": 1, "notice": "changing", "generation": 1, "exports": ["page"], "deadline": PATIENCE, "state": "asleep",
}  # fmt: skip
CHANGED = {"memtopo": 1, "notice": "changed", "exports": ["page"]}
ME = f"process {os.getpid()}"
Connect = Callable[[], socket.socket]


@pytest.fixture
def end(runtime: Path, layout: OneState) -> Iterator[Callable[[], None]]:
    """The end of the hold of these exports."""
    with holding(layout) as end:
        yield end


@pytest.fixture
def dial(runtime: Path, end: Callable[[], None]) -> Iterator[Connect]:
    """Connects clients that send and receive packets."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(raw(runtime / "memtopo" / "kv.sock"))


@pytest.fixture
def importer(dial: Connect) -> socket.socket:
    """A client that has handles of `page`."""
    sock = dial()
    import_pages(sock)
    return sock


def import_pages(sock: socket.socket, export: str = "page", count: int = 3) -> None:
    assert "ok" in asked(sock, "handles", export=export, first=0, count=count)


def close_each(handles: Iterator[Handle]) -> None:
    for each in handles:
        each.close()


def switch(sock: socket.socket, state: str = "asleep", *, force: bool = False, wait: float = PATIENCE) -> None:
    """Request a switch, whose answer is not awaited."""
    wire.send(sock, wire.encode({"request": "switch", "state": state, "force": force, "wait": wait}))


def let_go(sock: socket.socket, *exports: str) -> Any:
    return asked(sock, "let_go", exports=exports)["ok"]


def test_a_switch_is_made_once_every_importer_has_let_go(dial: Connect, importer: socket.socket) -> None:
    other, requester = dial(), dial()
    import_pages(other)
    switch(requester)
    for each in (importer, other):
        assert next_message(each) == CHANGING
        assert let_go(each, "page") == {"generation": 1, "exports": ["page"]}
    answer = next_message(requester)["ok"]
    assert (answer["state"], answer["kept"]) == ("asleep", [])
    for each in (importer, other):
        assert next_message(each) == CHANGED | {"generation": 2, "state": "asleep"}
    assert asked(requester, "status")["ok"]["layout_state"] == "asleep"


def test_importers_learn_when_memory_that_they_let_go_of_is_back(dial: Connect, importer: socket.socket) -> None:
    """And after that of no further change, since they have it again."""
    requester = dial()
    switch(requester)
    assert next_message(importer) == CHANGING
    let_go(importer, "page")
    next_message(importer)
    assert asked(importer, "handles", export="page", first=0, count=1)["error"]["code"] == "absent"
    next_message(requester)
    switch(requester, "awake")
    assert next_message(importer) == CHANGED | {"generation": 3, "state": "awake"}
    answer = asked(importer, "handles", export="page", first=0, count=1)["ok"]
    assert answer["generation"] == 2  # in which its memory went
    assert "ok" in next_message(requester)
    assert asked(requester, "importers", after=0)["ok"]["importers"][0]["handles"] == 1
    switch(requester, "awake")
    next_message(requester)
    assert "ok" in asked(importer, "status")  # the next packet is no notice


def test_a_client_whose_request_for_handles_was_too_early_learns_when_it_may_repeat_it(
    dial: Connect, importer: socket.socket
) -> None:
    """While the memory is gone, and while importers let go of it; it is not idle then."""
    early, late, requester = dial(), dial(), dial()
    switch(requester)
    next_message(importer)
    assert asked(early, "handles", export="page", first=0, count=1)["error"]["code"] == "changing"
    let_go(importer, "page")
    next_message(requester)
    assert next_message(early) == CHANGED | {"generation": 2, "state": "asleep"}
    for each in (early, late):
        assert asked(each, "handles", export="page", first=0, count=1)["error"]["code"] == "absent"
    importers = asked(requester, "importers", after=0)["ok"]["importers"]
    assert [each["handles"] for each in importers] == [0, 0, 0]
    switch(requester, "awake")
    for each in (early, late):
        assert next_message(each) == CHANGED | {"generation": 3, "state": "awake"}
        import_pages(each)
    next_message(requester)
    assert asked(requester, "metrics")["ok"]["clients"] == 3


def test_a_client_that_lets_go_of_what_went_before_it_asked_for_it_learns_when_it_is_back(dial: Connect) -> None:
    client, requester = dial(), dial()
    switch(requester)
    assert next_message(requester)["ok"]["state"] == "asleep"
    assert let_go(client, "page")["exports"] == []
    switch(requester, "awake")
    assert next_message(client) == CHANGED | {"generation": 3, "state": "awake"}


def test_a_client_awaits_what_it_had_and_a_limited_number_of_other_exports(
    dial: Connect, importer: socket.socket
) -> None:
    for part in range(3):
        let_go(importer, *(f"{part}.{number}" for number in range(4096)))
    assert let_go(importer, "block", "page")["exports"] == ["page"]
    switch(requester := dial())
    awaited: list[str] = []
    while len(awaited) < 3 * 4096 + 1:
        awaited += next_message(importer)["exports"]
    assert (awaited[-1], "block" in awaited) == ("page", False)
    assert "ok" in next_message(requester)


def test_an_importer_that_does_not_let_go_is_named_at_the_deadline(dial: Connect, importer: socket.socket) -> None:
    """With what it keeps; it learns that the change is off, and everything is as before."""
    requester = dial()
    switch(requester, wait=0.01)
    assert next_message(importer) == CHANGING | {"deadline": 0.01}
    error = next_message(requester)["error"]
    assert error["code"] == "attached"
    what = f"{ME} (3 of page, 12 KiB) did not release imported memory within 0.01 s"
    assert error["message"] == f"{what}: the change would leave it allocated"
    assert next_message(importer) == CHANGED | {"generation": 1, "state": "awake", "exports": []}
    assert asked(importer, "handles", export="page", first=0, count=1)["ok"]["generation"] == 1
    assert asked(requester, "status")["ok"]["layout_state"] == "awake"


def test_an_importer_that_let_go_of_a_refused_change_comes_back(dial: Connect, importer: socket.socket) -> None:
    silent, requester = dial(), dial()
    import_pages(silent)
    switch(requester, wait=0.2)
    next_message(importer)
    let_go(importer, "page")
    assert next_message(requester)["error"]["code"] == "attached"
    assert next_message(importer) == CHANGED | {"generation": 1, "state": "awake"}
    import_pages(importer)


def test_without_a_wait_importers_get_no_time(dial: Connect, importer: socket.socket) -> None:
    requester = dial()
    assert asked(requester, "switch", state="asleep", force=False)["error"]["code"] == "attached"
    assert "ok" in asked(importer, "status")  # without a notice before
    assert "ok" in asked(requester, "switch", state="asleep", force=True)
    assert next_message(importer) == CHANGED | {"generation": 2, "state": "asleep"}


def test_a_failed_switch_brings_importers_back(dial: Connect, importer: socket.socket, layout: OneState) -> None:
    layout.failure = ChangeFailed("cuMemUnmap failed", broken=False)
    requester = dial()
    switch(requester)
    next_message(importer)
    let_go(importer, "page")
    assert next_message(requester)["error"]["code"] == "failed"
    assert next_message(importer) == CHANGED | {"generation": 2, "state": "awake"}
    import_pages(importer)


def test_memory_that_a_failed_switch_has_replaced_is_of_the_generation_after_it(
    dial: Connect, importer: socket.socket, layout: OneState
) -> None:
    """An importer that has kept its handles sees by it that they are of memory that is gone."""
    layout.failure = ChangeFailed("cuMemUnmap failed", broken=False)
    requester = dial()
    switch(requester, force=True, wait=0)
    assert next_message(requester)["error"]["code"] == "failed"
    assert next_message(importer) == CHANGED | {"generation": 2, "state": "awake"}
    assert asked(importer, "handles", export="page", first=0, count=1)["ok"]["generation"] == 2


def test_an_importer_of_another_export_is_not_disturbed(dial: Connect) -> None:
    other, requester = dial(), dial()
    import_pages(other, "hot", 1)
    switch(requester)
    assert "ok" in next_message(requester)
    assert "ok" in asked(other, "handles", export="hot", first=0, count=1)
    assert "ok" in asked(other, "status")


def test_other_changes_and_handles_of_what_goes_are_refused_while_importers_let_go(
    dial: Connect, importer: socket.socket
) -> None:
    """Everything else is answered."""
    requester, other = dial(), dial()
    switch(requester)
    next_message(importer)
    second = asked(other, "switch", state="awake", force=True)["error"]
    assert (second["code"], ME in second["message"]) == ("changing", True)
    refused = asked(other, "handles", export="page", first=0, count=1)["error"]
    assert (refused["code"], refused["message"]) == ("changing", f"{ME} is changing export 'page'")
    import_pages(other, "hot", 1)
    assert "ok" in asked(other, "check")
    let_go(importer, "page")
    assert "ok" in next_message(requester)


@pytest.mark.parametrize("closed_by", ["importer", "requester"])
def test_a_client_that_dies_does_not_stand_in_the_way(
    dial: Connect, importer: socket.socket, closed_by: str, layout: OneState
) -> None:
    """A dead importer pins nothing; without its requester, a change is given up."""
    requester, other = dial(), dial()
    switch(requester)
    next_message(importer)
    if closed_by == "importer":
        importer.close()
        assert "ok" in next_message(requester)
        assert layout.state == "asleep"
    else:
        requester.close()
        assert next_message(importer) == CHANGED | {"generation": 1, "state": "awake", "exports": []}
        switch(other, wait=0)
        assert next_message(other)["error"]["code"] == "attached"


def test_letting_go_is_refused_while_handles_are_unread(dial: Connect) -> None:
    """Their descriptors pin memory in the queue."""
    sock, other = dial(), dial()
    wire.send(sock, wire.encode({"request": "handles", "export": "page", "first": 0, "count": 3}))
    wire.send(sock, wire.encode({"request": "let_go", "exports": ["page"]}))
    for _ in range(3):  # of each client one request is answered at a time
        asked(other, "status")
    assert "ok" in next_message(sock)
    assert next_message(sock)["error"]["code"] == "unread"
    assert let_go(sock, "page")["exports"] == ["page"]


@pytest.mark.parametrize("read", [True, False])
def test_an_unread_notice_does_not_count_as_unread_handles(layout: OneState, read: bool) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        connection = ClientConnection(1, ours, peer(ours), RunningClock())
        connection.send_descriptors({"ok": {}}, [layout.memory])
        if read:
            next_message(theirs)
        connection.send(CHANGED)
        assert connection.unread() is not read


def test_notices_for_which_there_is_no_room_are_merged_and_do_not_count_as_unread(layout: OneState) -> None:
    """The last of each kind has the names of those before; an answer for which there is no room counts."""
    del layout
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    names = [f"{'x' * 200}{index}" for index in range(400)]  # more than a packet
    with ours, theirs:
        connection = ClientConnection(1, ours, peer(ours), RunningClock())
        for generation in range(3000):
            for notice in (CHANGING, CHANGED):
                connection.send(notice | {"generation": generation, "exports": [names[generation % 400]]})
        assert [connection.stuck(now) for now in (1.0, 99.0)] == [0.0, 0.0]
        connection.send({"ok": {}})
        assert [connection.stuck(now) for now in (100.0, 101.0)] == [0.0, 1.0]
        received: list[Any] = []
        while not connection.flushed or wire.unread(ours):
            received.append(next_message(theirs))
            connection.flush()
        last = received[received.index({"memtopo": 1, "ok": {}}) + 1 :]
        assert [each["notice"] for each in last] == ["changing", "changing", "changed", "changed"]
        assert {each["generation"] for each in last} == {2999}
        for two in (last[:2], last[2:]):
            assert sorted(name for each in two for name in each["exports"]) == sorted(names)


def test_a_client_requests_again_what_a_notice_between_kept_back() -> None:
    """The holder sent the notice before the client had read the handles before it."""
    offer, handles = messages.page([OFFERS[2]])[0], [Handle(secret=Secret(secret("woven", i))) for i in range(3)]
    answers = [
        {"ok": {"total": 1, "offers": [offer], "generation": 1}},
        CHANGED | {"generation": 2, "state": "asleep", "exports": []},
        {"error": {"code": "unread", "message": "the handles before these were not read", "hint": None}},
        {"ok": {"offer": offer, "first": 0, "generation": 1, "handles": messages.encode_handles(handles)[0]}},
        CHANGED | {"generation": 3, "state": "awake", "exports": []},
        {"error": {"code": "unread", "message": "the handles before these were not read", "hint": None}},
        {"ok": {"generation": 3, "exports": ["woven"]}},
    ]
    with scripted(*((each, ()) for each in answers)) as client:
        assert len([*client.handles("woven")]) == 3
        client.let_go(["woven"])
        assert client.notice(0.0)


@pytest.mark.parametrize("names", [[], ["hot"], ["nothing", "\x1b[31m\ud800", ""], ["x" * 4096] * 10, ["a"] * 4096])
def test_letting_go_of_what_one_has_not_changes_nothing(
    dial: Connect, importer: socket.socket, names: list[str]
) -> None:
    assert let_go(importer, *names)["exports"] == []
    assert asked(importer, "importers", after=0)["ok"]["importers"][0]["handles"] == 3
    assert let_go(importer, *names[:9], "page", "page")["exports"] == ["page"]
    assert asked(importer, "importers", after=0)["ok"]["importers"][0]["handles"] == 0


def test_a_change_to_another_spec_sends_its_source(end: Callable[[], None], layout: OneState) -> None:
    with connect(endpoint("kv")) as client:
        assert client.change("{é}" * 20_000, generation=1, wait=1.0, force=True).checks.different == 0
    assert (layout.source, layout.generation) == ("{é}" * 20_000, 2)


def test_importers_of_an_export_learn_that_a_change_offers_it_otherwise(
    dial: Connect, importer: socket.socket, layout: OneState
) -> None:
    """Its memory stays; an export that is new is of the generation in which it was made."""
    import_pages(importer, "hot", 1)
    more = replace(OFFERS[1], count=2)
    layout.kept = (PAGES, more, *OFFERS[2:], replace(more, name="new"))
    with connect(endpoint("kv")) as client:
        assert client.change("{}", generation=1, wait=1.0).kept == ()
    assert next_message(importer) == CHANGED | {"generation": 2, "state": "awake", "exports": ["hot"]}
    generations = {"page": 1, "hot": 1, "new": 2}
    for export, generation in generations.items():
        answer = asked(importer, "handles", export=export, first=0, count=1)
        assert answer["ok"]["generation"] == generation


def test_an_importer_learns_that_an_export_is_back_which_a_change_had_removed(
    dial: Connect, importer: socket.socket, layout: OneState
) -> None:
    for generation, offers in ((1, OFFERS[1:]), (2, OFFERS)):
        layout.kept = offers
        with connect(endpoint("kv")) as client:
            client.change("{}", generation=generation, force=True)
    assert next_message(importer) == CHANGED | {"generation": 3, "state": "awake"}


def test_the_notice_before_a_change_to_another_spec_names_the_present_state(
    dial: Connect, importer: socket.socket
) -> None:
    terms = {"source": {"first": 0, "total": 6, "text": "asleep"}, "force": False, "wait": PATIENCE}
    wire.send(dial(), wire.encode({"request": "change", **terms}))
    assert next_message(importer) == CHANGING | {"state": "awake"}


@pytest.mark.parametrize("exports", [None, "page", [7], [None], ["x" * 4097], ["a"] * 4097, {}])
def test_a_malformed_let_go_ends_the_connection(dial: Connect, importer: socket.socket, exports: Any) -> None:
    assert asked(importer, "let_go", exports=exports)["error"]["code"] == "packet"
    assert heard(importer) is None


@pytest.mark.parametrize("fields", [{"wait": -1}, {"wait": "1"}, {"wait": 3601}, {"check": "some"}, {"check": 1}])
def test_terms_of_a_switch_outside_of_their_limits_are_refused(dial: Connect, fields: dict[str, Any]) -> None:
    assert asked(dial(), "switch", state="asleep", force=False, **fields)["error"]["code"] == "packet"


def test_a_flood_of_requests_neither_delays_nor_makes_a_change(dial: Connect, importer: socket.socket) -> None:
    """An importer lets go of other exports without a pause, and takes handles of them again."""
    flood, requester = dial(), dial()
    switch(requester, wait=0.3)
    next_message(importer)
    flood.setblocking(False)
    sent = 0
    while sent < 2000:
        try:
            wire.send(flood, wire.encode({"request": "let_go", "exports": ["page", "hot"]}))
            sent += 1
        except BlockingIOError:
            next_message(flood)
    assert next_message(requester)["error"]["code"] == "attached"


def test_notices_to_a_client_that_does_not_read_do_not_stop_the_others(dial: Connect, importer: socket.socket) -> None:
    stuck, requester = dial(), dial()
    import_pages(stuck)
    for _ in range(400):
        assert "ok" in asked(requester, "switch", state="asleep", force=True)
        next_message(importer)
    assert "ok" in asked(importer, "status")


def test_a_client_that_waits_or_has_let_go_is_not_idle(
    dial: Connect, importer: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    requester = dial()
    switch(requester)
    assert next_message(importer) == CHANGING
    monkeypatch.setattr("memtopo.sharing.holder.clients.IDLE", 0.0)
    for _ in range(2):
        assert "ok" in asked(importer, "status")
    let_go(importer, "page")
    assert "ok" in next_message(requester)
    assert next_message(importer)["notice"] == "changed"
    assert "ok" in asked(importer, "status")


def test_names_of_many_exports_come_in_several_notices(runtime: Path) -> None:
    """Each at most a packet long; an importer of all answers them one by one."""
    many = [replace(PAGES, name=f"{'x' * 200}{index}", count=1) for index in range(400)]
    layout = OneState(kept=many, going=len(many))
    with closing(os.fdopen(layout.memory)), holding(layout), connect(endpoint("kv")) as client:
        for each in many:
            close_each(client.handles(each.name))
        with raw(runtime / "memtopo" / "kv.sock") as requester:
            switch(requester)
            found: list[str] = []
            while len(found) < len(many):
                notice = client.notice(PATIENCE)
                assert notice
                found += notice.exports
                client.let_go(notice.exports)
            assert sorted(found) == sorted(each.name for each in many)
            assert "ok" in next_message(requester)


def test_a_client_requests_offers_again_after_a_change(end: Callable[[], None], layout: OneState) -> None:
    with connect(endpoint("kv")) as client, connect(endpoint("kv")) as requester:
        pages = client.handles("page")
        next(pages).close()
        layout.kept = (replace(PAGES, size=2 * PAGE), *OFFERS[1:])
        requester.switch("asleep", force=True)
        requester.switch("awake")
        with pytest.raises(ExchangeError) as error:
            close_each(pages)
        assert error.value.code == "changed"
        assert client.offers()["page"].size == 2 * PAGE
        assert client.generation == 3
        close_each(client.handles("page", count=70))
        assert client.generations["page"] == 2


def test_handles_of_two_generations_are_not_taken_for_those_of_one_memory(end: Callable[[], None]) -> None:
    """Also where a change leaves the offer as it was."""
    with connect(endpoint("kv")) as client, connect(endpoint("kv")) as requester:
        pages = client.handles("page", count=70)
        next(pages).close()
        requester.switch("asleep", force=True)
        requester.switch("awake")
        with pytest.raises(ExchangeError, match="was changed while its handles were received") as error:
            close_each(pages)
        assert error.value.code == "changed"
        close_each(client.handles("page", count=70))
        assert client.generations["page"] == 2


def test_a_client_waits_for_the_answer_for_as_long_as_importers_have_and_then_its_timeout(
    end: Callable[[], None],
) -> None:
    with connect(endpoint("kv")) as importer, connect(endpoint("kv")) as requester:
        close_each(importer.handles("page", count=1))
        with pytest.raises(ExchangeError, match="imported memory within 1 s") as refused:
            requester.switch("asleep", wait=1.0, timeout=0.95)
        assert refused.value.code == "attached"


def test_a_client_goes_on_after_a_change_of_another_export(end: Callable[[], None]) -> None:
    with connect(endpoint("kv")) as client, connect(endpoint("kv")) as requester:
        woven = client.handles("woven", batch=1)
        next(woven)
        requester.switch("asleep")
        assert len([*woven]) == 2


def test_notices_are_read_with_generation_exports_and_state(end: Callable[[], None]) -> None:
    with connect(endpoint("kv")) as client, connect(endpoint("kv")) as requester:
        close_each(client.handles("page", count=1))
        with pytest.raises(ExchangeError, match=r"did not release imported memory within 0.01 s"):
            requester.switch("asleep", wait=0.01)
        notice, changed = client.notice(PATIENCE), client.notice(PATIENCE)
        assert notice and changed  # noqa: PT018
        assert (notice.kind, notice.grace, notice.exports, notice.generation) == ("changing", 0.01, ("page",), 1)
        assert (changed.kind, changed.exports, changed.state) == ("changed", (), "awake")
        assert str(notice) == "Notice(kind='changing', grace=0.01, generation=1, exports=('page',), state='asleep')"


def test_unknown_notices_are_ignored() -> None:
    with scripted(({"notice": "dinner"}, ()), ({"notice": "releasing", "grace": 2}, ())) as client:
        notice = client.notice(PATIENCE)
        assert notice
        assert notice.kind == "releasing"


def test_an_importer_that_lets_go_after_a_refusal_is_told_that_its_memory_is_there(
    dial: Connect, importer: socket.socket
) -> None:
    """Once; nobody tells one that lets go of its own accord"""
    switch(requester := dial(), wait=0.01)
    assert next_message(importer)["notice"] == "changing"
    assert next_message(importer)["exports"] == []
    assert next_message(requester)["error"]["code"] == "attached"
    assert let_go(importer, "page")["exports"] == ["page"]
    assert next_message(importer) == CHANGED | {"generation": 1, "state": "awake", "exports": ["page"]}
    import_pages(importer)
    assert let_go(importer, "page")["exports"] == ["page"]
    assert "ok" in asked(importer, "metrics")


@dataclass
class Planning(OneState):
    """Exports that record the end of each planned change: given up, or made with its terms."""

    reused: frozenset[str] = frozenset()
    given_up: int = 0
    renewed: list[set[str]] = field(default_factory=list)
    made: list[tuple[bool, frozenset[str]]] = field(default_factory=list)

    def switch(self, state: str) -> Planned:
        return Planned(self, state)

    def renewal(self, exports: frozenset[str]) -> Planned:
        self.renewed.append({*exports})
        return Planned(self, self.state)


@dataclass(frozen=True)
class Planned(PlannedState):
    """A planned change of such exports."""

    layout: Planning

    @property
    def reused(self) -> frozenset[str]:
        return self.layout.reused

    def give_up(self) -> None:
        self.layout.given_up += 1

    def make(self, *, full: bool, in_use: frozenset[str] = frozenset()) -> Checks:
        self.layout.made.append((full, in_use))
        return super().make(full=full, in_use=in_use)


@pytest.fixture
def planning() -> Iterator[Planning]:
    found = Planning()
    yield found
    os.close(found.memory)


@pytest.mark.parametrize("end_of", ["wait", "no wait", "requester", "hold"])
def test_a_change_that_is_not_made_is_given_up_once(runtime: Path, planning: Planning, end_of: str) -> None:
    """It would keep the contexts that its plan has retained."""
    path = runtime / "memtopo" / "kv.sock"
    with holding(planning) as end, raw(path) as importer, raw(path) as requester:
        import_pages(importer)
        switch(requester, wait={"wait": 0.01, "no wait": 0.0}.get(end_of, PATIENCE))
        if end_of != "no wait":
            assert next_message(importer)["notice"] == "changing"
        if end_of == "requester":
            requester.close()
            assert next_message(importer)["notice"] == "changed"
        else:
            if end_of == "hold":
                end()
            assert next_message(requester)["error"]["code"] == ("releasing" if end_of == "hold" else "attached")
        assert (planning.given_up, planning.made) == (1, [])


def test_a_change_is_made_with_its_check_and_the_exports_that_importers_keep(runtime: Path, planning: Planning) -> None:
    planning.going, path = 2, runtime / "memtopo" / "kv.sock"
    with holding(planning), raw(path) as importer, raw(path) as requester:
        import_pages(importer)
        assert "ok" in asked(requester, "switch", state="asleep", force=True, check="full")
        assert "ok" in asked(requester, "switch", state="awake", force=True)
    assert (planning.made, planning.given_up) == ([(True, frozenset({"page"})), (False, frozenset())], 0)


def test_memory_that_the_next_writer_writes_is_not_taken_from_an_importer_by_force(
    runtime: Path, planning: Planning
) -> None:
    """An importer of other memory that goes keeps that."""
    planning.going, planning.reused, path = 2, frozenset({"page"}), runtime / "memtopo" / "kv.sock"
    with holding(planning), raw(path) as importer, raw(path) as requester:
        import_pages(importer)
        import_pages(importer, "hot", 1)
        refused = asked(requester, "switch", state="asleep", force=True)["error"]
        assert (refused["code"], "which others will write" in refused["message"]) == ("attached", True)
        assert (planning.state, planning.given_up, planning.made) == ("awake", 1, [])
        let_go(importer, "page")
        answer = asked(requester, "switch", state="asleep", force=True)["ok"]
        assert [[each["export"] for each in kept["taken"]] for kept in answer["kept"]] == [["hot"]]


@pytest.mark.parametrize(
    ("failure", "code", "words", "severity"),
    [
        (ChangeFailed("cuMemUnmap failed", broken=False), "failed", "rolled back", "warning"),
        (ChangeFailed("cuMemUnmap failed", broken=True), "broken", "has broken the layout", "error"),
        (ValueError("cuMemUnmap failed"), "internal", "met an internal error", "error"),
        (MemtopoError("cuMemUnmap failed"), "failed", "refused", "warning"),
    ],
)
@pytest.mark.parametrize("waits", [True, False])
def test_an_event_says_how_a_change_failed_and_only_a_broken_layout_is_released(
    runtime: Path, planning: Planning, failure: Exception, code: str, words: str, severity: str, waits: bool
) -> None:
    found: list[HolderEvent] = []
    planning.failure, path = failure, runtime / "memtopo" / "kv.sock"
    with (
        holding(planning, supervision=Supervision(log=found.append)),
        raw(path) as importer,
        raw(path) as requester,
    ):
        import_pages(importer)
        switch(requester, wait=PATIENCE if waits else 0, force=True)
        if waits:
            next_message(importer)
            let_go(importer, "page")
        assert next_message(requester)["error"]["code"] == code
        assert code == "broken" or asked(requester, "status")["ok"]["state"] == "serving"
    events = [(each.text, each.severity) for each in found if each.text.startswith("switch")]
    assert events == [("switch requested", "info"), (f"switch {words}", severity)]
    assert [each.fields["why"] for each in found if each.text == "ending"] == [
        "failure" if code == "broken" else "signal"
    ]


def test_a_layout_that_breaks_while_memory_is_created_anew_is_released(runtime: Path, planning: Planning) -> None:
    planning.kept, path = (replace(PAGES, commit="empty"),), runtime / "memtopo" / "kv.sock"
    planning.failure = ChangeFailed("cuMemCreate failed", broken=True)
    with holding(planning), raw(path) as first, raw(path) as second:
        assert "ok" in asked(first, "write", exports=["page"])
        wire.send(second, wire.encode({"request": "write", "exports": ["page"], "wait": PATIENCE}))
        first.close()
        assert next_message(second)["error"]["code"] == "releasing"
        assert len(planning.made) == 1


@pytest.mark.parametrize(("reused", "made", "code"), [({"page"}, 4, "absent"), (set(), 3, None)])
def test_memory_that_a_writer_has_left_is_created_anew_unless_a_change_has_released_all_of_it(
    runtime: Path, planning: Planning, reused: set[str], made: int, code: str | None
) -> None:
    """What the layout keeps of it is tried once in each generation."""
    planning.kept, path = (replace(PAGES, commit="empty"),), runtime / "memtopo" / "kv.sock"
    planning.failure = ChangeFailed("cuMemCreate failed", broken=False)
    with holding(planning), raw(path) as first, raw(path) as second:
        assert "ok" in asked(first, "write", exports=["page"])
        wire.send(second, wire.encode({"request": "write", "exports": ["page"], "wait": PATIENCE}))
        first.close()
        assert next_message(second)["error"]["code"] == "failed"
        planning.failure, planning.reused = None, frozenset(reused)
        for state in ("asleep", "awake"):
            assert "ok" in asked(second, "switch", state=state, force=False)
        for _ in range(2):
            assert asked(second, "write", exports=["page"]).get("error", {}).get("code") == code
        assert len(planning.made) == made


def test_memory_that_importers_keep_since_a_forced_change_that_failed_is_created_anew_before_it_is_written(
    runtime: Path, planning: Planning
) -> None:
    planning.kept, path = (replace(PAGES, commit="empty"),), runtime / "memtopo" / "kv.sock"
    with holding(planning), raw(path) as writer, raw(path) as importer:
        assert "ok" in asked(writer, "write", exports=["page"])
        assert "ok" in asked(writer, "commit", exports=[{"name": "page", "generation": 1}])
        import_pages(importer)
        planning.failure = ChangeFailed("cuMemRelease failed", broken=False)
        assert asked(writer, "switch", state="asleep", force=True)["error"]["code"] == "failed"
        planning.failure = None
        refused = asked(writer, "write", exports=["page"])["error"]
        assert refused["code"] == "absent", "this layout cannot create it anew"
    assert len(planning.made) == 2


def test_memory_that_a_writer_leases_in_a_change_that_fails_is_not_created_anew(
    runtime: Path, planning: Planning
) -> None:
    """Nor is what it commits afterwards, when another writer ends."""
    planning.kept, path = [replace(each, commit="empty") for each in OFFERS[:2]], runtime / "memtopo" / "kv.sock"
    planning.going, planning.failure = 2, ChangeFailed("cuMemRelease failed", broken=False)
    with holding(planning), raw(path) as first, raw(path) as second, raw(path) as third:
        assert "ok" in asked(first, "write", exports=["page"])
        assert "ok" in asked(second, "write", exports=["hot"])
        assert asked(third, "switch", state="asleep", force=True)["error"]["code"] == "failed"
        planning.failure = None
        assert "ok" in asked(first, "commit", exports=[{"name": "page", "generation": 2}])
        second.close()
        until(lambda: len(planning.made) == 2)
        assert asked(third, "write", exports=["page"])["error"]["code"] == "committed"
        assert planning.renewed == [{"hot"}]


def test_a_writer_of_another_export_waits_on_when_memory_cannot_be_created(runtime: Path, planning: Planning) -> None:
    planning.kept, path = [replace(each, commit="empty") for each in OFFERS[:2]], runtime / "memtopo" / "kv.sock"
    planning.failure = ChangeFailed("cuMemCreate failed", broken=False)
    with holding(planning), ExitStack() as stack:
        first, second, owner, waiting = (stack.enter_context(raw(path)) for _ in range(4))
        assert "ok" in asked(first, "write", exports=["page"])
        assert "ok" in asked(owner, "write", exports=["hot"])
        for sock, export in ((waiting, "hot"), (second, "page")):
            wire.send(sock, wire.encode({"request": "write", "exports": [export], "wait": PATIENCE}))
        first.close()
        assert next_message(second)["error"]["code"] == "failed"
        assert "ok" in asked(owner, "commit", exports=[{"name": "hot", "generation": 1}])
        assert next_message(waiting)["error"]["code"] == "committed"


class Waiting(OneState):
    """Exports whose check lasts until the test goes on."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.begun, self.go_on = threading.Event(), threading.Event()

    def check(self) -> Checks:
        self.begun.set()
        assert self.go_on.wait(PATIENCE)
        return super().check()


def test_a_switch_whose_client_has_left_before_it_is_begun_is_not_made(runtime: Path) -> None:
    """The client has reported that it timed out."""
    layout, path = Waiting(), runtime / "memtopo" / "kv.sock"
    with closing(os.fdopen(layout.memory)), holding(layout), raw(path) as checking, raw(path) as requester:
        wire.send(checking, wire.encode({"request": "check"}))
        assert layout.begun.wait(PATIENCE)
        switch(requester)
        requester.close()
        layout.go_on.set()
        assert "ok" in next_message(checking)
        for _ in range(2):
            assert asked(checking, "status")["ok"]["layout_state"] == "awake"
    assert layout.generation == 1


def test_only_importers_are_notified_of_the_end_of_the_hold(
    dial: Connect, importer: socket.socket, end: Callable[[], None]
) -> None:
    watcher = dial()
    assert "ok" in asked(watcher, "status")
    end()
    assert next_message(importer)["notice"] == "releasing"
    assert heard(importer) is None
    assert heard(watcher) is None


def test_each_client_that_requests_the_release_is_answered_at_its_end(dial: Connect) -> None:
    """The later one shortens the grace; what the requesters have imported themselves they know."""
    importer, first, second = dial(), dial(), dial()
    import_pages(importer, "block", 1)
    import_pages(first)
    wire.send(first, wire.encode({"request": "release", "force": True, "grace": PATIENCE}))
    assert next_message(importer)["grace"] == PATIENCE
    wire.send(second, wire.encode({"request": "release", "force": True, "grace": 0.0}))
    for each in (first, second):
        answer = next_message(each)["ok"]
        assert [[taken["export"] for taken in lost["taken"]] for lost in answer["lost"]] == [["block"]]
        assert answer["kept"] == []
        assert heard(each) is None
    assert heard(importer) is None


def test_an_importer_that_has_kept_its_memory_through_a_forced_change_lets_go_of_it_without_another_notice(
    dial: Connect, importer: socket.socket
) -> None:
    switch(requester := dial(), wait=0.01, force=True)
    assert next_message(importer)["notice"] == "changing"
    assert next_message(importer) == CHANGED | {"generation": 2, "state": "asleep"}
    assert "ok" in next_message(requester)
    assert let_go(importer, "page")["exports"] == ["page"]
    assert "ok" in asked(importer, "status")  # the next packet is no notice
