"""Objects that a holder lends, over the protocol: leases, epochs, seals and their ends."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from memtopo.common.errors import ExchangeError, MemtopoError
from memtopo.driver.handles import Handle
from memtopo.plans.report import Checks
from memtopo.sharing import wire
from memtopo.sharing.client import Client, connect
from memtopo.sharing.endpoints import endpoint
from memtopo.sharing.holder.state import HolderEvent, Supervision
from memtopo.sharing.offers import ChangeFailed
from memtopo.sharing.sockets import lease_names
from tests.helpers.holders import Holder, asked, heard, holding, next_message, raw, until
from tests.helpers.memfd_exports import PAGE, POOL, OneState

QUOTA = POOL.lends.quota if POOL.lends else None
Blocks = list[dict[str, int]]


@pytest.fixture
def holder(runtime: Path, start: Callable[..., Holder]) -> Holder:
    """A process that holds a pool of 8 objects, of which each client is lent 6."""
    del runtime
    return start(lends=True)


@pytest.fixture
def dial(runtime: Path, holder: Holder) -> Iterator[Callable[[], socket.socket]]:
    """A function that connects to the holder."""
    del holder
    with ExitStack() as stack:
        yield lambda: stack.enter_context(raw(runtime / "memtopo" / "kv.sock"))


def lend(sock: socket.socket, count: int, **more: Any) -> Any:
    """Request objects, and return the answer, whose descriptors are as many as the objects."""
    wire.send(sock, json.dumps({"memtopo": 1, "request": "lend", "export": "pool", "count": count, **more}).encode())
    packet = heard(sock)
    assert packet
    answer = packet.message.get("ok") or packet.message["error"]["code"]
    assert len(packet.fds) == (len(answer["blocks"]) if isinstance(answer, dict) else 0)
    packet.close()
    return answer


def refusal(sock: socket.socket, request: str, **fields: Any) -> Any:
    return asked(sock, request, **fields)["error"]["code"]


def importer(sock: socket.socket) -> Any:
    """Handles and bytes of the only importer."""
    (found,) = asked(sock, "importers", after=0)["ok"]["importers"]
    return found["handles"], found["bytes"]


def terms(sock: socket.socket) -> tuple[int, int]:
    """Numbers of objects that are lent and sealed."""
    offers = asked(sock, "offers", first=0)["ok"]["offers"]
    lends = next(each["lends"] for each in offers if each["name"] == "pool")
    return lends["lent"], lends["sealed"]


def test_objects_are_lent_with_handles_up_to_the_quota_and_to_the_last_one(dial: Callable[[], socket.socket]) -> None:
    first, second = dial(), dial()
    answer = lend(first, 4)
    assert [each["number"] for each in answer["blocks"]] == [0, 1, 2, 3]
    assert ({each["epoch"] for each in answer["blocks"]}, answer["total"], answer["generation"]) == ({1}, 0, 1)
    assert importer(first) == (4, 4 * PAGE)
    assert lend(first, 3) == "full"
    assert [each["epoch"] for each in lend(first, 2)["blocks"]] == [2, 2]
    assert (lend(second, 3), [each["number"] for each in lend(second, 2)["blocks"]]) == ("full", [6, 7])
    assert (lend(second, 1), terms(second)) == ("full", (8, 0))


def test_what_is_given_back_is_lent_again_in_another_epoch(dial: Callable[[], socket.socket]) -> None:
    sock = dial()
    first, second = lend(sock, 2)["blocks"]
    assert asked(sock, "let_go", exports=["pool"], blocks=[first, first])["ok"] == {
        "generation": 1,
        "exports": ["pool"],
    }
    assert (importer(sock), terms(sock)) == ((1, PAGE), (1, 0))
    assert refusal(sock, "let_go", exports=["pool"], blocks=[second, first]) == "stale", "none of them is given back"
    assert terms(sock) == (1, 0)
    (again,) = lend(sock, 1)["blocks"]
    assert again == {"number": first["number"], "epoch": 2}
    assert refusal(sock, "seal", export="pool", blocks=[first], key="x") == "stale"
    assert asked(sock, "let_go", exports=["pool"])["ok"]["exports"] == ["pool"]
    assert terms(sock) == (0, 0)


def test_sealed_objects_wait_for_a_client_that_names_the_key(dial: Callable[[], socket.socket]) -> None:
    first, second, third = dial(), dial(), dial()
    one, two, three = lend(first, 3)["blocks"]
    assert "ok" in asked(first, "seal", export="pool", blocks=[two], key="k")
    assert "ok" in asked(first, "seal", export="pool", blocks=[one], key="k")
    assert (lend(second, 2, key="k"), lend(second, 0, key="k"), lend(second, 1, key="other")) == (
        "sealed", "sealed", "unknown",
    )  # fmt: skip
    first.close()
    until(lambda: terms(second) == (0, 2))
    assert lend(second, 0, key="k", epoch=1) == {"blocks": [], "total": 2, "handles": [], "generation": 1}
    assert lend(second, 2, key="k", epoch=2) == "stale"
    assert lend(second, 1, key="k")["blocks"] == [two]
    assert lend(second, 2, key="k") == "sealed", "it has the first one"
    assert (lend(third, 1, key="k"), refusal(third, "seal", export="pool", blocks=[three], key="k")) == (
        "sealed", "stale",
    )  # fmt: skip
    assert lend(second, 6, key="k", first=1)["blocks"] == [one], "within the quota"
    (own,) = lend(third, 1)["blocks"]
    assert refusal(third, "seal", export="pool", blocks=[own], key="k") == "sealed"
    assert "ok" in asked(second, "let_go", exports=["pool"], blocks=[one])
    assert terms(third) == (2, 1), "it is given back, and stays sealed"
    assert "ok" in asked(second, "seal", export="pool", blocks=[two], key=None)
    second.close()
    until(lambda: terms(third) == (1, 1))


def test_no_client_seals_under_a_key_whose_objects_wait_for_a_successor(dial: Callable[[], socket.socket]) -> None:
    """A successor would adopt objects of two clients as those of one."""
    first, second, third = dial(), dial(), dial()
    sealed = lend(first, 2)["blocks"]
    assert "ok" in asked(first, "seal", export="pool", blocks=sealed, key="k")
    first.close()
    until(lambda: terms(second) == (0, 2))
    own = lend(second, 1)["blocks"]
    assert refusal(second, "seal", export="pool", blocks=own, key="k") == "sealed"
    second.close()
    until(lambda: terms(third) == (0, 2))
    assert lend(third, 2, key="k")["blocks"] == sealed


@pytest.mark.parametrize(
    ("request_", "fields", "code"),
    [
        ("lend", {"export": "page", "count": 1}, "lease"),
        ("lend", {"export": "none", "count": 1}, "unknown"),
        ("lend", {"export": "pool", "count": -1}, "packet"),
        ("lend", {"export": "pool", "count": 1, "key": ""}, "packet"),
        ("handles", {"export": "pool", "first": 0, "count": 1}, "lease"),
        ("seal", {"export": "none", "blocks": [{"number": 0, "epoch": 1}]}, "unknown"),
        ("seal", {"export": "pool", "blocks": []}, "packet"),
        ("seal", {"export": "pool", "blocks": [{"number": 0, "epoch": 1, "more": 1}]}, "request"),
        ("let_go", {"exports": ["pool", "page"], "blocks": [{"number": 0, "epoch": 1}]}, "lease"),
        ("let_go", {"exports": ["page"], "blocks": [{"number": 0, "epoch": 1}]}, "stale"),
    ],
)
def test_requests_that_make_no_sense_are_refused(
    dial: Callable[[], socket.socket], request_: str, fields: dict[str, Any], code: str
) -> None:
    assert refusal(dial(), request_, **fields) == code


def test_a_client_returns_blocks_with_handles_and_the_total_of_a_key(runtime: Path, holder: Holder) -> None:
    del runtime, holder

    def borrow(client: Client, count: int, **of: Any) -> dict[int, int]:
        blocks, _ = client.lend("pool", count, **of)
        for each in blocks:
            each.handle.close()
        return {each.number: each.epoch for each in blocks}

    with connect(endpoint("kv")) as first:
        own = borrow(first, 3)
        first.seal("pool", own, "k")
        with pytest.raises(ExchangeError) as unknown:
            first.lend("nothing", 1)
        assert unknown.value.code == "unknown"
    with connect(endpoint("kv")) as second:
        until(lambda: terms_of(second) == (0, 3))
        assert borrow(second, 1, key="k") == {0: 1}
        assert borrow(second, 2, key="k", first=1) == {1: 1, 2: 1}
        second.give_back("pool", {1: 1})
        second.seal("pool", {2: 1}, None)
        second.give_back("pool", {2: 1})
        assert borrow(second, 1) == {2: 2}


def test_what_is_lent_to_a_client_is_given_back_beside_an_object_that_is_not(runtime: Path, holder: Holder) -> None:
    del runtime, holder
    with connect(endpoint("kv")) as client:
        blocks, _ = client.lend("pool", 3)
        for each in blocks:
            each.handle.close()
        with pytest.raises(ExchangeError) as refused:
            client.give_back("pool", {0: 1, 1: 7, 2: 1})
        client.fresh_offers()
        assert (refused.value.code, terms_of(client)) == ("stale", (1, 0))
        client.give_back("pool", {1: 1})


def test_a_client_to_which_objects_are_lent_has_their_generation_and_a_name(runtime: Path, holder: Holder) -> None:
    del runtime, holder
    with connect(endpoint("kv")) as client:
        assert client.lend("pool", 0) == ([], 0)
        assert client.generations["pool"] == 1
        assert lease_names(Path("/proc/net/unix"))[os.fstat(client.fileno()).st_ino].layout == "kv"


def test_what_cannot_be_sent_is_not_lent(runtime: Path, layout: OneState) -> None:
    layout.kept = (replace(POOL, name="broken"),)
    with holding(layout), raw(runtime / "memtopo" / "kv.sock") as sock:
        assert "cannot be had" in asked(sock, "lend", export="broken", count=1)["error"]["message"]
        (offer,) = asked(sock, "offers", first=0)["ok"]["offers"]
        assert (offer["lends"]["lent"], layout.out) == (0, set())


def test_the_end_of_a_client_is_an_event_that_counts_freed_and_sealed_objects(runtime: Path, layout: OneState) -> None:
    """A client to which nothing is lent yet is an importer, too."""
    layout.kept, path, found = (POOL,), runtime / "memtopo" / "kv.sock", list[HolderEvent]()
    with holding(layout, supervision=Supervision(log=found.append)), raw(path) as borrower, raw(path) as other:
        blocks = lend(borrower, 3)["blocks"]
        assert "ok" in asked(borrower, "seal", export="pool", blocks=blocks[:1], key="k")
        borrower.close()
        until(lambda: terms(other) == (0, 1))
        assert lend(other, 0)["blocks"] == []
    (ended,) = (each.fields for each in found if each.text == "leases ended")
    assert (ended["export"], ended["freed"], ended["sealed"]) == ("pool", 2, 1)
    assert [each.text for each in found if "importer" in each.text] == ["importer attached", "importer detached"] * 2


def test_a_client_that_has_given_all_back_learns_of_changes_of_the_export(runtime: Path, layout: OneState) -> None:
    """It may be lent objects again once their memory is back."""
    layout.kept, path = (POOL,), runtime / "memtopo" / "kv.sock"
    with holding(layout), raw(path) as borrower, raw(path) as other:
        blocks = lend(borrower, 1)["blocks"]
        asked(borrower, "let_go", exports=["pool"], blocks=blocks)
        assert "ok" in asked(other, "switch", state="asleep", force=False)
        notice = next_message(borrower)
        assert (notice["notice"], notice["exports"], notice["state"]) == ("changed", ["pool"], "asleep")


def test_leases_end_with_the_memory_that_a_change_replaces(runtime: Path, layout: OneState) -> None:
    """A client that has not let go has its whole quota of the new memory, and cannot give the old one back."""
    layout.kept, path = (POOL,), runtime / "memtopo" / "kv.sock"
    with holding(layout), raw(path) as borrower, raw(path) as other:
        blocks = lend(borrower, 1)["blocks"]
        assert "ok" in asked(other, "switch", state="asleep", force=True)
        assert next_message(borrower)["notice"] == "changed"
        assert "ok" in asked(other, "switch", state="awake", force=True)
        assert terms(other) == (0, 0)
        assert refusal(borrower, "let_go", exports=["pool"], blocks=blocks) == "stale"
        assert [each["number"] for each in lend(borrower, 6)["blocks"]] == [0, 1, 2, 3, 4, 5]


@dataclass
class RolledBack(OneState):
    """A pool of which a switch that fails keeps the first object."""

    def lent(self, export: str) -> Collection[int]:
        del export
        return {0}


def test_what_a_change_that_was_rolled_back_has_left_is_lent_and_sealed_as_before(runtime: Path) -> None:
    path, pool = runtime / "memtopo" / "kv.sock", RolledBack((POOL,), failure=ChangeFailed("as before", broken=False))
    with closing(os.fdopen(pool.memory)), holding(pool), raw(path) as borrower, raw(path) as other:
        first, second = lend(borrower, 2)["blocks"]
        assert "ok" in asked(borrower, "seal", export="pool", blocks=[first, second], key="key")
        assert refusal(other, "switch", state="asleep", force=True) == "failed"
        assert (next_message(borrower)["notice"], terms(other)) == ("changed", (1, 0))
        assert lend(other, 1, key="key") == "sealed"
        assert refusal(borrower, "let_go", exports=["pool"], blocks=[second]) == "stale"
        assert "ok" in asked(borrower, "let_go", exports=["pool"], blocks=[first])
        assert (terms(other), lend(other, 2, key="key")["blocks"]) == ((0, 1), [first])


def terms_of(client: Client) -> tuple[int, int]:
    lends = client.status().offers[-1].lends
    assert lends
    client._offers = None  # they are requested once in a generation
    return lends.lent, lends.sealed


@dataclass
class Recorded(OneState):
    """A pool that records the objects whose handles it exports."""

    exported: list[int] = field(default_factory=list)
    pinned: list[int] = field(default_factory=list)
    """Descriptors of its memory at each check, which a change makes at its end."""

    def handle(self, export: str, index: int) -> Handle:
        self.exported.append(index)
        return super().handle(export, index)

    def check(self) -> Checks:
        self.pinned.append(self.descriptors())
        return super().check()

    def descriptors(self) -> int:
        """Number of open descriptors of its memory in this process."""
        found = 0
        for each in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                found += os.path.samestat(os.fstat(int(each)), os.fstat(self.memory))
        return found


@pytest.mark.usefixtures("runtime")
def test_handles_of_objects_that_stay_allocated_are_exported_once_and_closed_before_their_memory_goes() -> None:
    assert POOL.lends
    pool = Recorded((replace(POOL, lends=replace(POOL.lends, kept=2)),))
    with holding(pool), connect(endpoint("kv")) as client:
        for _ in range(3):
            blocks, _ = client.lend("pool", 3)
            for each in blocks:
                each.handle.close()
            client.give_back("pool", {each.number: each.epoch for each in blocks})
        assert (pool.exported, pool.descriptors()) == ([0, 1, 2, 2, 2], 3)
        client.switch("asleep")
        assert (pool.pinned, pool.descriptors()) == ([1], 1)
        client.switch("awake")
        blocks, _ = client.lend("pool", 2)
        for each in blocks:
            each.handle.close()
        assert pool.descriptors() == 3
    assert (pool.exported[5:], pool.descriptors()) == ([0, 1], 1)


@pytest.mark.usefixtures("runtime")
def test_no_handle_stays_open_of_an_object_that_is_released_when_it_is_given_back() -> None:
    """Also while there is room for handles, of another export: an open one would pin the memory."""
    assert POOL.lends
    lends = replace(POOL.lends, kept=2)
    pool = Recorded((replace(POOL, lends=lends), replace(POOL, name="other", lends=lends)))
    with holding(pool), connect(endpoint("kv")) as client:
        blocks, _ = client.lend("pool", 3)
        for each in blocks:
            each.handle.close()
        client.give_back("pool", {each.number: each.epoch for each in blocks})
        assert pool.descriptors() == 1 + lends.kept


@pytest.mark.usefixtures("runtime")
def test_no_more_handles_stay_open_than_there_are_descriptors_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert POOL.lends
    monkeypatch.setattr("memtopo.sharing.holder._MOST_KEPT", 1)
    pool = Recorded((replace(POOL, lends=replace(POOL.lends, kept=3)),))
    with closing(os.fdopen(pool.memory)), holding(pool), connect(endpoint("kv")) as client:
        blocks, _ = client.lend("pool", 3)
        for each in blocks:
            each.handle.close()
        client.give_back("pool", {each.number: each.epoch for each in blocks})
        assert pool.descriptors() == 1 + 1


def test_an_object_is_kept_under_its_last_key_and_a_key_has_the_latest_of_its_epochs(
    dial: Callable[[], socket.socket],
) -> None:
    """The quota of a client counts sealed objects, too."""
    first, second = dial(), dial()
    one, two, three, four = (lend(first, 1)["blocks"][0] for _ in range(4))
    assert "ok" in asked(first, "seal", export="pool", blocks=[one, three, two, four], key="a")
    assert "ok" in asked(first, "seal", export="pool", blocks=[four], key="b")
    first.close()
    until(lambda: terms(second) == (0, 4))
    assert [lend(second, 0, key="a", epoch=epoch) for epoch in (1, 2)] == ["stale", "stale"]
    assert lend(second, 0, key="a", epoch=3)["total"] == 3
    assert [each["number"] for each in lend(second, 4)["blocks"]] == [4, 5, 6, 7]
    assert lend(second, 3, key="a") == "full"
    assert (lend(second, 1, key="a")["blocks"], lend(second, 1, key="b")["blocks"]) == ([one], [four])


@dataclass
class Busy(OneState):
    """A pool that takes nothing back while it is busy."""

    busy: bool = True

    def take_back(self, export: str, numbers: Sequence[int]) -> None:
        if self.busy:
            raise ExchangeError("changing", "nothing was changed")
        super().take_back(export, numbers)


def test_what_could_not_be_taken_back_while_its_process_was_busy_is_lent_again_later(runtime: Path) -> None:
    path, pool = runtime / "memtopo" / "kv.sock", Busy((POOL,))
    with closing(os.fdopen(pool.memory)), holding(pool), raw(path) as first, raw(path) as second:
        blocks = lend(first, 6)["blocks"]
        assert "ok" in asked(first, "let_go", exports=["pool"], blocks=blocks)
        assert (terms(second), lend(second, 2)) == ((0, 0), "changing")
        pool.busy = False
        assert [each["number"] for each in lend(second, 6)["blocks"]] == [0, 1, 2, 3, 4, 5]
        assert (terms(second), [each["number"] for each in lend(first, 2)["blocks"]]) == ((6, 0), [6, 7])


@pytest.mark.usefixtures("runtime")
def test_a_loan_refused_since_a_process_is_busy_ends_neither_the_connection_nor_its_leases() -> None:
    pool = Busy((POOL,))
    with closing(os.fdopen(pool.memory)), holding(pool), connect(endpoint("kv")) as client:
        (kept, given_back), _ = client.lend("pool", 2)
        client.give_back("pool", {given_back.number: given_back.epoch})
        with pytest.raises(ExchangeError) as refused:
            client.lend("pool", 1)
        assert (refused.value.code, client.gone()) == ("changing", False)
        pool.busy = False
        (lent,), _ = client.lend("pool", 1)
        assert (kept.number, lent.number) == (0, 1)


@dataclass
class BusyAfterChange(RolledBack):
    """Such a pool that does not say for a while which of its objects it has kept."""

    busy: bool = True

    def lent(self, export: str) -> Collection[int]:
        if self.busy:
            raise ExchangeError("changing", "nothing was changed")
        return super().lent(export)


def test_leases_are_kept_until_a_busy_process_says_which_of_their_objects_a_failed_change_has_left(
    runtime: Path,
) -> None:
    path, failure = runtime / "memtopo" / "kv.sock", ChangeFailed("as before", broken=False)
    pool = BusyAfterChange((POOL,), failure=failure)
    with closing(os.fdopen(pool.memory)), holding(pool), raw(path) as borrower, raw(path) as other:
        first, second = lend(borrower, 2)["blocks"]
        assert "ok" in asked(borrower, "seal", export="pool", blocks=[first, second], key="key")
        assert refusal(other, "switch", state="asleep", force=True) == "failed"
        assert next_message(borrower)["notice"] == "changed"
        assert (terms(other), lend(other, 1)) == ((2, 0), "changing")
        pool.busy = False
        assert lend(other, 1, key="key") == "sealed"
        assert terms(other) == (1, 0)
        assert refusal(borrower, "let_go", exports=["pool"], blocks=[second]) == "stale"
        assert "ok" in asked(borrower, "let_go", exports=["pool"], blocks=[first])


class EndedInChange(OneState):
    """A pool whose process has ended in a change."""

    def lent(self, export: str) -> Collection[int]:
        raise MemtopoError(f"the process of {export} has ended")


def test_leases_end_with_the_process_that_had_their_objects(runtime: Path) -> None:
    path = runtime / "memtopo" / "kv.sock"
    pool = EndedInChange((POOL,), failure=ChangeFailed("as before", broken=False))
    with closing(os.fdopen(pool.memory)), holding(pool), raw(path) as borrower, raw(path) as other:
        blocks = lend(borrower, 2)["blocks"]
        assert "ok" in asked(borrower, "seal", export="pool", blocks=blocks, key="key")
        assert refusal(other, "switch", state="asleep", force=True) == "failed"
        assert (terms(other), lend(other, 1, key="key")) == ((0, 0), "unknown")


class Unreleasable(OneState):
    """A pool that cannot release the objects that are given back."""

    def take_back(self, export: str, numbers: Sequence[int]) -> None:
        raise MemtopoError(f"{len(numbers)} objects of {export} cannot be released")


def test_leases_end_though_their_memory_cannot_be_released(runtime: Path) -> None:
    """By a return, and by the end of the connections of two clients."""
    found, path, pool = list[HolderEvent](), runtime / "memtopo" / "kv.sock", Unreleasable((POOL,))
    with (
        closing(os.fdopen(pool.memory)),
        holding(pool, supervision=Supervision(log=found.append)),
        raw(path) as first,
        raw(path) as second,
        raw(path) as other,
    ):
        blocks = lend(first, 2)["blocks"]
        assert "ok" in asked(first, "let_go", exports=["pool"], blocks=blocks[:1])
        assert terms(other) == (1, 0)
        lend(second, 1)
        first.close()
        second.close()
        until(lambda: terms(other) == (0, 0))
    events = [(each.severity, each.fields["reason"]) for each in found if each.text == "lent memory not released"]
    assert events == [("error", "1 objects of pool cannot be released")] * 3
