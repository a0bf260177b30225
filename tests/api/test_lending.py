"""Elastic chunks that a holder lends: each is mapped by one client at a time, up to the limits of the holder."""

from __future__ import annotations

import copy
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import memtopo
from memtopo.api.attachment import Attached
from memtopo.api.imports import AttachTerms
from memtopo.driver.handles import Handle
from memtopo.drivers.target import Target
from memtopo.kinds.elastic import ELASTIC_POOLS, ElasticChunkPool
from memtopo.run.messages import Lend, Lent
from memtopo.sharing.client import Client, connect
from memtopo.sharing.endpoints import endpoint
from memtopo.sharing.imports import ImportMismatch
from tests.api.child_process import Process
from tests.api.test_apply import failing
from tests.helpers.child_process import PATIENCE
from tests.helpers.elastic import M, batched, offsets
from tests.helpers.held_layouts import Held, Switch, held
from tests.helpers.holders import until
from tests.helpers.machines import invented
from tests.helpers.processes import open_descriptors

LEAST, MOST, QUOTA = 2, 12, 8


def spec(**export: Any) -> dict[str, Any]:
    """A pool of pages that are lent, of which `LEAST` stay with the holder, and an export of others."""
    return {
        "memtopo": 1,
        "name": "pool",
        "ranges": {"kv": {"size": "64MiB", "elastic": {"chunks": ["page"]}}, "w": {"size": "2MiB"}},
        "chunks": {
            "page": {"location": "gpu0", "size": "2MiB", "count": {"min": LEAST, "max": MOST}, "handles": "fd"},
            "w": {"location": "gpu0", "size": "2MiB", "handles": "fd"},
        },
        "map": {"w": ["w"]},
        "access": {"kv": {"gpu0": "rw"}, "w": {"gpu0": "rw"}},
        "exports": {"page": {"chunk": "page", "via": "fd", "quota": QUOTA, **export}, "w": {"chunk": "w", "via": "fd"}},
        "states": {"asleep": {"drop": ["kv"]}},
    }


SPEC = spec()
ENGINE: dict[str, Any] = {
    "memtopo": 1,
    "name": "engine",
    "ranges": {"cache": {"size": "32MiB", "elastic": {"chunks": ["pages"]}}},
    "imports": {"pages": {"from": "pool/page", "location": "gpu0", "size": "2MiB", "count": {"max": 4}}},
    "access": {"cache": {"gpu0": "rw"}},
    "states": {"idle": {"drop": ["cache"]}},
}


@pytest.fixture
def client(layout: Held, machine: Target) -> Iterator[Attached]:
    with attached(machine) as shared:
        yield shared


@pytest.fixture
def borrow(layout: Held, start: Callable[..., Process], tmp_path: Path) -> Callable[[], Borrower]:
    """A function that starts a process which maps lent chunks."""
    del layout
    record = tmp_path / "machine.json"
    record.write_text(memtopo_machine())
    return lambda: Borrower(start("borrower", layout="pool", machine=str(record)))


def memtopo_machine() -> str:
    from memtopo.machine import dump

    return dump(invented(2))


class Borrower:
    """A process that maps lent chunks."""

    def __init__(self, process: Process) -> None:
        self.process, self.kill = process, process.kill
        assert process.read_line() == {"attached": True}

    def __call__(self, *request: Any) -> Any:
        stdin = self.process.process.stdin
        assert stdin
        stdin.write(json.dumps(request).encode() + b"\n")
        stdin.flush()
        answer = self.process.read_line()
        return answer.get("answer", answer.get("code"))


@contextmanager
def attached(machine: Target, **terms: Any) -> Iterator[Attached]:
    with memtopo.attach("pool", machine=machine, **terms) as shared:
        yield shared


def pool_of(layout: Held) -> ElasticChunkPool:
    return layout.run.execution.layout.of(ELASTIC_POOLS)["page"]


def lent() -> tuple[int, int]:
    """Numbers of chunks that are lent, and sealed, as the holder reports them."""
    with connect(endpoint("pool")) as client:
        found = client.offers()["page"].lends
        assert found
        return found.lent, found.sealed


def code(raised: pytest.ExceptionInfo[memtopo.ExchangeError]) -> str:
    return raised.value.code


def test_a_client_grows_and_shrinks_a_range_of_its_holder(layout: Held, client: Attached) -> None:
    kv, pages, pool = client.range("kv"), client.chunks("page"), pool_of(layout)
    assert (kv.size, kv.address != 0, kv.mappings) == (64 << 20, True, ())
    assert kv.map(4 * M, "page", 3) == ("page.0", "page.1", "page.2")
    np.from_dlpack(kv.view(4 * M, 3 * M))[:] = 7
    assert (pages.created, pages.free, len(pool.created), lent()) == (3, 0, 3, (3, 0))
    kv.unmap(5 * M, 2 * M)
    assert (pages.created, pages.free, lent()) == (3, 2, (3, 0)), "they stay for the next map"
    assert kv.map(0, "page", 4) == ("page.2", "page.1", "page.3", "page.4") or offsets(kv) == [0, 1, 2, 3, 4]
    assert np.from_dlpack(kv.view(4 * M, M))[0] == 7
    kv.unmap(0, 5 * M, release=True)
    assert (pages.created, lent(), len(pool.created), len(pool.free)) == (0, (0, 0), LEAST, LEAST)
    assert client.check().different == layout.run.recheck().different == 0


def test_a_batch_maps_and_unmaps_all_or_nothing(layout: Held, client: Attached) -> None:
    del layout
    kv = client.range("kv")
    batched(kv, [], [(0, 2), (8, 2)])
    assert batched(kv, [(0, 2)], [(4, 3)])
    assert (offsets(kv), lent()) == ([4, 5, 6, 8, 9], (5, 0))
    with pytest.raises(memtopo.Unsuitable, match="is mapped"):
        batched(kv, [], [(16, 2), (5, 1)])
    assert (offsets(kv), lent()) == ([4, 5, 6, 8, 9], (5, 0))


@pytest.mark.parametrize("least", [0, LEAST])
def test_more_chunks_than_one_answer_carries_are_all_or_none(runtime: Path, machine: Target, least: int) -> None:
    large = copy.deepcopy(SPEC)
    large["chunks"]["page"]["count"] = {"min": least, "max": 200}
    large["ranges"]["kv"]["size"], large["exports"]["page"]["quota"] = "1GiB", 150
    with held(large, machine), attached(machine) as shared, attached(machine) as other:
        kv = shared.range("kv")
        assert kv.map(0, "page", 130) == tuple(f"page.{number}" for number in range(130))
        with pytest.raises(memtopo.ExchangeError, match="64 chunks 'page' are requested, and 6 of 200 are left"):
            other.range("kv").map(0, "page", 140)
        assert (lent(), other.range("kv").mappings, len(kv.mappings)) == ((130, 0), (), 130)
        kv.unmap(0, 130 * M, release=True)
        assert lent() == (0, 0)


def test_a_call_that_fails_leaves_the_range_and_gives_back_what_was_lent(runtime: Path) -> None:
    """Each driver call of a batch of the client fails once."""
    target = failing(0)
    with held(SPEC, target), attached(target) as shared:
        kv, driver = shared.range("kv"), shared._session._opened
        kv.map(0, "page", 2)
        np.from_dlpack(kv.view(0, 2 * M))[:] = 3

        def change() -> None:
            batched(kv, [(1, 1)], [(4, 3)])

        first = driver.calls  # type: ignore[attr-defined]
        change()
        calls = driver.calls - first  # type: ignore[attr-defined]
        batched(kv, [(4, 3)], [(1, 1)])
        shared.chunks("page").trim()
        assert (offsets(kv), calls > 8) == ([0, 1], True)
        for at in range(1, calls + 1):
            driver.at = driver.calls + at  # type: ignore[attr-defined]
            with pytest.raises(memtopo.NotMapped):
                change()
            driver.at = 0  # type: ignore[attr-defined]
            assert (offsets(kv), lent(), shared.chunks("page").created) == ([0, 1], (2, 0), 2), at
            assert np.from_dlpack(kv.view(0, M))[0] == 3
        assert shared.check().different == 0


def test_what_a_killed_client_has_sealed_is_adopted_with_its_bytes_and_its_epoch(
    layout: Held, borrow: Callable[[], Borrower], machine: Target
) -> None:
    client = borrow()
    client("map", 0, "page", 4)
    client("write", 0, 3 * M, 9)
    assert client("seal", 0, M, "prompt") == client("seal", M, 2 * M, "prompt") == 1
    client.kill()
    until(lambda: lent() == (0, 3))
    with attached(machine) as other:
        kv = other.range("kv")
        with pytest.raises(memtopo.ExchangeError, match="epoch 1, but epoch 2 is requested") as stale:
            kv.adopt(0, "prompt", epoch=2)
        assert (code(stale), lent()) == ("stale", (0, 3))
        assert kv.adopt(8 * M, "prompt", epoch=1) == ("page.0", "page.1", "page.2")
        assert set(bytes(kv.view(8 * M, 3 * M).memory)) == {9}
        assert (lent(), kv.map(0, "page")) == ((3, 0), ("page.3",))
    until(lambda: lent() == (0, 3))  # they stay sealed for the next successor
    with attached(machine) as third:
        kv = third.range("kv")
        kv.adopt(0, "prompt")
        kv.seal(0, 2 * M, key=None)
        kv.unmap(0, 3 * M, release=True)
        assert (lent(), third.check().different) == ((0, 1), 0), "one of them is still sealed"
    assert len(pool_of(layout).created) == 3


@pytest.mark.usefixtures("layout")
def test_the_epoch_of_a_seal_is_the_latest_one_of_its_chunks(client: Attached) -> None:
    """Also if the chunk that was lent last is not mapped last."""
    kv = client.range("kv")
    kv.map(2 * M, "page")
    kv.map(0, "page")
    kv.map(M, "page")
    assert [kv.seal(at, size, key="prompt") for at, size in ((0, 3 * M), (2 * M, M), (0, M))] == [3, 1, 2]


def test_a_view_shows_what_its_range_has_adopted(layout: Held, client: Attached, machine: Target) -> None:
    del layout
    with attached(machine) as first:
        first.range("kv").map(0, "page")
        np.from_dlpack(first.range("kv").view(0, M))[:] = 9
        first.range("kv").seal(0, M, key="prompt")
    until(lambda: lent() == (0, 1))
    kv = client.range("kv")
    kv.map(0, "page")
    page = np.from_dlpack(kv.view(0, M))
    kv.unmap(0, M)
    kv.adopt(0, "prompt")
    assert (page == 9).all()
    del page


def test_an_adoption_that_fails_gives_back_what_it_had(runtime: Path) -> None:
    """It stays sealed. Each driver call of the adoption fails once."""
    target = failing(0)
    with held(SPEC, target), attached(target) as shared:
        with attached(target) as first:
            first.range("kv").map(0, "page", 3)
            first.range("kv").seal(0, 3 * M, key="prompt")
        until(lambda: lent() == (0, 3))
        kv, driver = shared.range("kv"), shared._session._opened
        before = driver.calls  # type: ignore[attr-defined]
        kv.adopt(0, "prompt")
        calls = driver.calls - before  # type: ignore[attr-defined]
        kv.unmap(0, 3 * M, release=True)
        for at in range(1, calls + 1):
            driver.at = driver.calls + at  # type: ignore[attr-defined]
            with pytest.raises(memtopo.NotMapped):
                kv.adopt(0, "prompt")
            driver.at = 0  # type: ignore[attr-defined]
            assert (offsets(kv), lent(), shared.chunks("page").created) == ([], (0, 3), 0), at


def test_a_lease_that_has_ended_is_stale(layout: Held, machine: Target) -> None:
    """Its client gives back, seals or adopts with an epoch that is not that of the chunks any more."""
    with connect(endpoint("pool")) as first:
        (block,) = borrowed(first, 1)
    until(lambda: lent() == (0, 0))
    with connect(endpoint("pool")) as second, attached(machine) as other:
        for request in (second.give_back, partial(second.seal, key="key")):
            with pytest.raises(memtopo.ExchangeError, match="was lent in epoch 1, and is free") as stale:
                request("page", dict([block]))
            assert code(stale) == "stale"
        other.range("kv").map(0, "page")
        with pytest.raises(memtopo.ExchangeError, match="and is of epoch 2, and not this client's") as stale:
            second.give_back("page", dict([block]))
        assert (code(stale), lent()) == ("stale", (1, 0))
        (own,) = borrowed(second, 1)
        with pytest.raises(memtopo.ExchangeError, match="was lent in epoch 2, and is of epoch 3"):
            second.give_back("page", {own[0]: own[1] - 1})
        second.give_back("page", dict([own]))
    until(lambda: not pool_of(layout).lent)


def borrowed(client: Client, count: int) -> list[tuple[int, int]]:
    """Numbers and epochs of chunks that a client is lent, whose handles it closes."""
    blocks, _ = client.lend("page", count)
    for block in blocks:
        block.handle.close()
    return [(block.number, block.epoch) for block in blocks]


def test_a_state_without_the_pool_takes_everything_back(
    layout: Held, client: Attached, switch: Switch, machine: Target
) -> None:
    kv = client.range("kv")
    kv.map(0, "page", 3)
    kv.seal(0, M, key="prompt")
    asleep = switch("asleep")
    until(lambda: bool((notice := client.poll()) and notice.kind == "changing" and notice.state == "asleep"))
    asleep.result(PATIENCE)
    until(lambda: bool(client.poll()))
    assert (set(client.absent), lent()) == ({"page"}, (0, 0))
    with pytest.raises(memtopo.Unsuitable):
        kv.map(0, "page")
    with attached(machine) as late:
        assert late.absent == {"page"}
    switch("awake").result(PATIENCE)
    until(lambda: bool(client.poll()))
    assert (client.absent, kv.mappings, kv.map(0, "page", 2)) == (frozenset(), (), ("page.0", "page.1"))
    with pytest.raises(memtopo.ExchangeError, match="no objects sealed"):
        kv.adopt(8 * M, "prompt")
    assert client.check().different == layout.run.recheck().different == 0


def test_a_client_that_keeps_its_chunks_refuses_a_switch(layout: Held, client: Attached, switch: Switch) -> None:
    del layout
    client.range("kv").map(0, "page", 3)
    with pytest.raises(memtopo.ExchangeError, match=r"\(3 of page, 6 MiB\) did not release"):
        switch("asleep", wait=0).result(PATIENCE)
    switch("asleep", wait=0, force=True).result(PATIENCE)
    kv = client.range("kv")
    np.from_dlpack(kv.view(0, 3 * M))[:] = 1
    until(lambda: bool(client.poll()))
    assert client.absent == {"page"}


def test_chunks_are_unmapped_whose_memory_was_made_anew_without_a_notice_before(
    layout: Held, client: Attached, switch: Switch
) -> None:
    del layout
    kv = client.range("kv")
    kv.map(0, "page", 3)
    for state in ("asleep", "awake"):
        switch(state, wait=0, force=True).result(PATIENCE)
    until(lambda: bool(client.poll()))
    assert (client.absent, kv.mappings, kv.map(0, "page")) == (frozenset(), (), ("page.0",))


def test_another_largest_number_is_followed_by_clients(layout: Held, client: Attached) -> None:
    kv = client.range("kv")
    kv.map(0, "page", 6)

    def changed_to(most: int) -> None:
        changed = copy.deepcopy(SPEC)
        changed["chunks"]["page"]["count"]["max"] = most
        changed["exports"]["page"]["quota"] = 20
        with connect(endpoint("pool")) as other:
            other.change(json.dumps({"spec": json.dumps(changed), "name": "held.yaml", "settings": {}}))

    with pytest.raises(memtopo.ExchangeError, match="6 are lent, and max is 4"):
        changed_to(4)
    changed_to(16)
    until(lambda: bool(client.poll()))
    assert (client.chunks("page").limit, client.exports["page"].count) == (16, 16)
    kv.map(6 * M, "page", 10)
    assert (lent(), client.check().different, layout.run.recheck().different) == ((16, 0), 0, 0)


def changed(location: str = "gpu0", **count: int) -> str:
    """SPEC with other numbers of chunks, or on another GPU, as clients send it."""
    spec = copy.deepcopy(SPEC)
    spec["chunks"]["page"]["count"] |= count
    spec["chunks"]["page"]["location"] = location
    return json.dumps({"spec": json.dumps(spec), "name": "held.yaml", "settings": {}})


def test_nothing_is_lent_of_a_pool_that_a_change_has_moved(layout: Held, client: Attached) -> None:
    """Its importer follows the notice of that later."""
    kv = client.range("kv")
    with connect(endpoint("pool")) as other:
        other.change(changed("gpu1"))
    for _ in range(2):
        with pytest.raises(ImportMismatch, match="gpu1"):
            kv.map(0, "page", 1)
        assert (lent(), client.check().different) == ((0, 0), 0)
    with connect(endpoint("pool")) as other:
        other.seal("page", dict(borrowed(other, 1)), "prompt")
    until(lambda: lent() == (0, 1))
    with pytest.raises(ImportMismatch, match="gpu1"):
        kv.adopt(0, "prompt")
    assert (lent(), kv.mappings) == ((0, 1), ())


def test_a_process_does_not_attach_to_a_pool_that_moves_meanwhile(layout: Held, machine: Target) -> None:
    """Once its offers are read, while it opens its driver"""
    del layout

    def opened() -> Any:
        with connect(endpoint("pool")) as other:
            other.change(changed("gpu1"))
        return machine.open()

    with pytest.raises(memtopo.NotApplied, match="import 'page' declares location gpu0"):
        memtopo.attach("pool", machine=replace(machine, _opener=opened)).__enter__()
    assert lent() == (0, 0)


def test_no_chunk_that_stays_in_a_pool_is_lent_beneath_the_process_that_has_it(layout: Held, client: Attached) -> None:
    """Another number of chunks that are always there makes the pool anew of the same memory"""
    kv = client.range("kv")
    kv.map(0, "page", 1)
    with connect(endpoint("pool")) as other:
        with pytest.raises(memtopo.ExchangeError, match="which stays in the layout, and which others will write"):
            other.change(changed(min=LEAST + 1), force=True)
        assert (lent(), len(borrowed(other, 1))) == ((1, 0), 1)
        other.let_go(["page"])
        kv.unmap(0, M, release=True)
        assert other.change(changed(min=LEAST + 1)).checks.different == 0
    until(lambda: bool(client.poll()))
    assert (len(pool_of(layout).created), kv.map(0, "page", 2)) == (LEAST + 1, ("page.0", "page.1"))


def test_another_pool_of_the_same_memory_has_nothing_sealed_of_the_one_before(layout: Held) -> None:
    with connect(endpoint("pool")) as first:
        blocks = memory_of(first, "page", LEAST + 1)
        first.seal("page", {number: epoch for _, number, epoch in blocks}, "prompt")
    with connect(endpoint("pool")) as other:
        until(lambda: lent() == (0, LEAST + 1))
        for least in (LEAST + 1, LEAST):
            other.change(changed(min=least))
            assert (lent(), dict(pool_of(layout).lent)) == ((0, 0), {})
            assert len(memory_of(other, "page", QUOTA)) == QUOTA
            other.let_go(["page"])


def test_an_export_of_another_pool_has_nothing_sealed_of_the_one_before(runtime: Path, machine: Target) -> None:
    """Nor what another export has lent of that pool, and the first pool has all of its chunks again."""
    several = copy.deepcopy(SPEC)
    several["chunks"]["other"] = several["chunks"]["page"]
    several["ranges"]["kv"]["elastic"]["chunks"] = ["page", "other"]
    several["exports"]["more"] = {"chunk": "other", "via": "fd"}
    with held(several, machine) as layout, connect(endpoint("pool")) as other:
        with connect(endpoint("pool")) as first:
            blocks = memory_of(first, "page", LEAST + 1)
            first.seal("page", {number: epoch for _, number, epoch in blocks}, "prompt")
        until(lambda: lent() == (0, LEAST + 1))
        ((export, number, epoch),) = memory_of(other, "more", 1)
        several["exports"]["page"]["chunk"] = "other"
        other.change(json.dumps({"spec": json.dumps(several), "name": "held.yaml", "settings": {}}))
        assert (lent(), is_leased(other, export, number, epoch)) == ((0, 0), True)
        assert len(pool_of(layout).free) == len(pool_of(layout).created) == LEAST


def without_export() -> str:
    """Source of a change that removes the export of the pool, whose chunks another one exports."""
    several = copy.deepcopy(SPEC)
    several["exports"]["more"] = several["exports"].pop("page")
    return json.dumps({"spec": json.dumps(several), "name": "held.yaml", "settings": {}})


@pytest.mark.parametrize("force", [False, True])
def test_an_export_is_removed_once_no_client_has_chunks_of_it(layout: Held, force: bool) -> None:
    """What is sealed of it is free then: nobody can request a key of an export that is gone."""
    with connect(endpoint("pool")) as other:
        with connect(endpoint("pool")) as client:
            ((export, number, epoch), *_) = memory_of(client, "page", QUOTA)
            client.seal(export, {number: epoch}, "prompt")
            with pytest.raises(memtopo.ExchangeError, match=f"{QUOTA} of page, 16 MiB.* did not release"):
                other.change(without_export(), force=force)
        until(lambda: lent() == (0, 1))
        other.change(without_export(), force=force)
        assert not pool_of(layout).lent
        assert len(memory_of(other, "more", QUOTA)) == QUOTA


@pytest.mark.parametrize("moved", [False, True])
def test_what_clients_that_ended_left_of_an_export_is_free_after_its_removal(
    runtime: Path, machine: Target, moved: bool
) -> None:
    """Or when it is of another pool. Their process was busy when they ended."""
    several = copy.deepcopy(SPEC)
    several["chunks"]["other"] = several["chunks"]["page"]
    several["ranges"]["kv"]["elastic"]["chunks"] = ["page", "other"]
    with held(several, machine) as layout, connect(endpoint("pool")) as client:
        memory_of(client, "page", 1)
        client.let_go(["page"])
        layout.run.handle(Lend("page", LEAST + 1))
        if moved:
            several["exports"]["page"]["chunk"] = "other"
        else:
            several["exports"]["more"] = several["exports"].pop("page")
        client.change(json.dumps({"spec": json.dumps(several), "name": "held.yaml", "settings": {}}))
        assert not pool_of(layout).lent


def test_a_process_that_attaches_knows_the_pool_as_it_is_once_it_is_told_of_changes(layout: Held) -> None:
    """Its offers are of before a change that came between two requests, of which it is not told"""
    del layout
    with connect(endpoint("pool")) as client, connect(endpoint("pool")) as other:
        assert client.offers()["page"].count == MOST
        other.change(changed(max=MOST + 4))
        assert client.notice(0) is None
        offers = AttachTerms.within(0).join(client, "pool", "pool.sock")
        assert (offers["page"].count, client.notice(0)) == (MOST + 4, None)
        other.change(changed(max=MOST))
        assert client.notice(PATIENCE)


def test_a_change_that_fails_leaves_a_block_to_its_client_for_as_long_as_its_memory_exists(runtime: Path) -> None:
    """Each driver call of a switch that releases a pool with two exports fails once."""
    several = copy.deepcopy(SPEC)
    several["exports"] |= {"more": {"chunk": "page", "via": "fd"}}
    several["states"] = {"asleep": {"drop": ["kv"], "offload": {"w": "host"}}}
    with ExitStack() as stack:
        layout = stack.enter_context(held(several, failing(0)))
        one, other, third = (stack.enter_context(connect(endpoint("pool"))) for _ in range(3))
        driver: Any = layout.run.ledger._driver
        first = driver.calls
        third.switch("asleep")
        calls = driver.calls - first
        third.switch("awake")
        for at in range(1, calls - 1):  # the last two query the GPU of each export, after the switch
            before = {**memory_of(one, "page", 1), **memory_of(other, "more", 2)}
            driver.at = driver.calls + at
            with pytest.raises(memtopo.ExchangeError, match="the layout is awake, as before"):
                third.switch("asleep", force=True)
            driver.at = 0
            leased = {each for each in before if is_leased(one if each[0] == "page" else other, *each)}
            rest = memory_of(third, "more", MOST - len(leased))
            assert sorted(number for _, number, _ in (*leased, *rest)) == [*range(MOST)], at
            kept = {each for each, file in before.items() if file == file_of(layout.run.exports.handle(*each[:2]))}
            assert leased == kept, at
            assert not {*before.values()}.intersection(rest.values()), at
            for client, export in ((one, "page"), (other, "more"), (third, "more")):
                client.let_go([export])


def memory_of(client: Client, export: str, count: int) -> dict[tuple[str, int, int], int]:
    """Have objects of an export lent, and return the file of each by export, number and epoch."""
    blocks, _ = client.lend(export, count)
    return {(export, number, epoch): file_of(handle) for number, epoch, handle in blocks}


def file_of(handle: Handle) -> int:
    """Close a handle, and return the number of its file."""
    with closing(handle):
        assert handle.fd is not None
        return os.fstat(handle.fd).st_ino


def is_leased(client: Client, export: str, number: int, epoch: int) -> bool:
    try:
        client.seal(export, {number: epoch}, None)
    except memtopo.ExchangeError as error:
        return error.code != "stale"
    return True


def test_an_export_that_lends_has_no_view_and_no_range_of_its_own(layout: Held, client: Attached) -> None:
    del layout
    assert [*client.exports] == ["page", "w"]
    with pytest.raises(memtopo.Unsuitable, match="export 'page' lends chunks"):
        client.export("page")
    with pytest.raises(memtopo.Unsuitable, match="nothing is mapped"):
        client.range("kv").view(0, M)
    with connect(endpoint("pool")) as other, pytest.raises(memtopo.ExchangeError, match="lends its handles") as refused:
        next(other.handles("page", 0, 1))
    assert code(refused) == "lease"


def test_chunks_of_an_own_layout_are_not_sealed(machine: Target) -> None:
    with memtopo.applied(SPEC, machine) as own:
        kv = own.range("kv")
        kv.map(0, "page")
        with pytest.raises(memtopo.Unsuitable, match="only chunks lent by a holder can be sealed"):
            kv.seal(0, M, key="prompt")
        with pytest.raises(memtopo.Unsuitable, match="only chunks lent by a holder can be sealed"):
            kv.adopt(8 * M, "prompt")


@pytest.mark.usefixtures("layout")
def test_a_range_of_several_entries_adopts_chunks_of_the_entry_that_is_named(machine: Target) -> None:
    several = copy.deepcopy(ENGINE)
    several["imports"]["more"] = several["imports"]["pages"]
    several["ranges"]["cache"]["elastic"] = {"chunks": ["pages", "more"]}
    with memtopo.applied(several, machine) as engine:
        with pytest.raises(memtopo.Unsuitable, match="range 'cache' is of chunks pages, more"):
            engine.range("cache").adopt(0, "prompt")
        with pytest.raises(memtopo.ExchangeError, match="no objects sealed under 'prompt'"):
            engine.range("cache").adopt(0, "prompt", "more")


def test_access_and_device_are_those_of_the_range(layout: Held, machine: Target) -> None:
    del layout
    with attached(machine, access="r", device=1, exports=["page"]) as shared:
        kv = shared.range("kv")
        kv.map(0, "page")
        view = kv.view(0, M)
        assert (view.read_only, view.device) == (True, "gpu1")
        del view


def test_a_range_of_another_size_is_reserved(layout: Held, machine: Target) -> None:
    del layout
    with attached(machine, exports=["page"], reserve={"page": "32MiB"}) as shared:
        assert (shared.range("page").size, shared.range("kv").size) == (32 << 20, 64 << 20)
        shared.range("page").map(8 * M, "page", 2)
        shared.range("kv").map(0, "page", 2)
        assert lent() == (4, 0)


def test_a_spec_declares_a_pool_that_is_lent(layout: Held, machine: Target) -> None:
    del layout
    with memtopo.applied(ENGINE, machine) as engine:
        assert engine.range("cache").map(0, "pages", 3) == ("pages.0", "pages.1", "pages.2")
        with pytest.raises(memtopo.Unsuitable, match="2 are requested, and 1 of 4 are left"):
            engine.range("cache").map(8 * M, "pages", 2)
        engine.switch("idle")
        assert lent() == (0, 0), "its own state gives them back"
        engine.switch("awake")
        engine.range("cache").map(0, "pages", 4)
        assert (lent(), engine.check().different) == ((4, 0), 0)
    wrong = copy.deepcopy(ENGINE)
    wrong["imports"]["pages"]["count"] = 4
    wrong["ranges"], wrong["map"] = {"cache": {"size": "8MiB"}}, {"cache": ["pages"]}
    del wrong["states"]
    with pytest.raises(memtopo.NotApplied, match="declares it as not elastic"):
        memtopo.applied(wrong, machine).__enter__()


def test_a_spec_that_imports_what_is_lent_is_its_importer_before_it_maps_any(
    layout: Held, machine: Target, switch: Switch
) -> None:
    del layout
    with memtopo.applied(ENGINE, machine) as engine:
        switch("asleep").result()
        assert (notice := engine.poll(PATIENCE))
        assert (notice.kind, notice.exports, engine.absent) == ("changed", ("page",), frozenset({"pages"}))


def test_processes_that_are_held_lend_by_their_names(runtime: Path) -> None:
    process = {key: SPEC[key] for key in ("ranges", "chunks", "map", "access", "exports", "states")}
    several = {"memtopo": 1, "name": "pools", "processes": {"server": {**process, "count": 2, "held": "true"}}}
    several["processes"]["engine"] = {"ranges": {"w": {"size": "2MiB"}}}  # type: ignore[index]
    with memtopo.hold(several, machine="h200x2"), memtopo.attach("pools") as shared:
        assert [*shared.exports] == ["server.0.page", "server.0.w", "server.1.page", "server.1.w"]
        for index in (0, 1):
            kv = shared.range(f"server.{index}.kv")
            assert kv.map(0, f"server_{index}_page", 3)
            np.from_dlpack(kv.view(0, 3 * M))[:] = index + 1
            with pytest.raises(
                memtopo.ExchangeError, match="lends 8 to one client, which has 3, and requests 6"
            ) as full:
                kv.map(8 * M, f"server_{index}_page", 6)
            assert code(full) == "full"
        assert np.from_dlpack(shared.range("server.0.kv").view(0, 3 * M)).max() == 1
        with connect(endpoint("pools")) as client:
            assert [each.lends and each.lends.lent for each in client.offers().values()] == [3, None, 3, None]
            assert client.check().different == 0
        shared.range("server.0.kv").unmap(0, 3 * M, release=True)
        assert shared.range("server.0.kv").map(0, "server_0_page")
        with connect(endpoint("pools")) as client:
            client.switch("asleep", force=True)
            client.switch("awake", force=True)
            assert [each.lends and each.lends.lent for each in client.offers().values()] == [0, None, 0, None]
            assert client.lend("server.0.page", 0) == ([], 0)


def test_a_process_lists_what_it_has_lent(layout: Held, client: Attached) -> None:
    client.range("kv").map(0, "page", 3)
    with connect(endpoint("pool")) as other:
        borrowed(other, 1)
        client.range("kv").unmap(M, M, release=True)
        assert layout.run.handle(Lend("page", listed=True)) == Lent((0, 2, 3))
        assert layout.run.handle(Lend("page", 1)) == Lent((1,))


def test_each_of_two_exports_of_a_pool_lists_what_it_has_lent_itself(runtime: Path, machine: Target) -> None:
    several = copy.deepcopy(SPEC)
    several["exports"]["more"] = {"chunk": "page", "via": "fd"}
    with held(several, machine) as layout, connect(endpoint("pool")) as one, connect(endpoint("pool")) as other:
        lent = {"page": memory_of(one, "page", 2), "more": memory_of(other, "more", 3)}
        for export, blocks in lent.items():
            numbers = tuple(number for _, number, _ in blocks)
            assert layout.run.handle(Lend(export, listed=True)) == Lent(numbers)


def test_what_an_export_lent_that_a_change_has_removed_is_given_back(layout: Held) -> None:
    several = copy.deepcopy(SPEC)
    del several["exports"]["page"]
    with connect(endpoint("pool")) as other:
        assert layout.run.handle(Lend("page", 1)) == Lent((0,))
        other.change(json.dumps({"spec": json.dumps(several), "name": "held.yaml", "settings": {}}))
        assert layout.run.handle(Lend("page", back=(0,))) == Lent()
        assert not pool_of(layout).lent


def test_threads_map_while_another_one_polls(layout: Held, client: Attached, switch: Switch) -> None:
    del layout
    kv, done = client.range("kv"), threading.Event()
    failed: list[BaseException] = []

    def poll() -> None:
        try:
            while not done.is_set():
                client.poll(0.05)
        except BaseException as error:  # noqa: BLE001 raised at the end of the test
            failed.append(error)

    def work(at: int) -> None:
        try:
            for _ in range(40):
                kv.map(at * M, "page", 2)
                kv.unmap(at * M, 2 * M, release=True)
        except BaseException as error:  # noqa: BLE001 as above
            failed.append(error)

    workers = [threading.Thread(target=work, args=(at,)) for at in (0, 4, 8)]
    polling = threading.Thread(target=poll)
    for each in (polling, *workers):
        each.start()
    for each in workers:
        each.join()
    asleep = switch("asleep")
    asleep.result(PATIENCE)
    done.set()
    polling.join()
    assert not failed
    assert (set(client.absent), lent()) == ({"page"}, (0, 0))


def test_an_attachment_maps_anew_from_the_next_holder(runtime: Path, machine: Target) -> None:
    with ExitStack() as reading:
        with held(SPEC, machine):
            shared = reading.enter_context(attached(machine, reattach=True))
            kv = shared.range("kv")
            kv.map(0, "page", 3)
            kv.seal(0, M, key="prompt")
        assert shared.poll() is None or shared.poll() is None
        np.from_dlpack(kv.view(0, 3 * M))[:] = 1
        with held(SPEC, machine):
            until(lambda: bool(shared.poll(1)))
            assert kv.mappings == ()
            with pytest.raises(memtopo.ExchangeError, match="no objects sealed"):
                kv.adopt(0, "prompt")
            kv.map(0, "page", 3)
            assert lent() == (3, 0)
            reading.close()


def test_nothing_is_left_in_a_holder_of_many_clients(layout: Held, machine: Target) -> None:
    def works() -> None:
        with attached(machine) as shared:
            shared.range("kv").map(0, "page", 5)

    works()
    until(lambda: not pool_of(layout).lent)
    before = open_descriptors()
    for _ in range(20):
        works()
    until(lambda: not pool_of(layout).lent and open_descriptors() <= before)
    assert len(pool_of(layout).created) == LEAST


def test_the_release_of_a_layout_names_who_has_its_chunks(runtime: Path, machine: Target) -> None:
    with held(SPEC, machine) as layout, attached(machine) as shared:
        shared.range("kv").map(0, "page", 3)
        with closing(connect(endpoint("pool"))) as client:
            (kept,) = client.release().kept
        taken = {each.export: (each.handles, each.bytes) for each in kept.taken}
        assert taken == {"page": (3, 3 * M), "w": (1, M)}
        np.from_dlpack(shared.range("kv").view(0, 3 * M))[:] = 1
    assert layout.report.leaks == ()
