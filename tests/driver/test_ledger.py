from __future__ import annotations

from collections.abc import Iterator

import pytest

from memtopo import machine
from memtopo.driver import ledger as ledgers
from memtopo.driver.functions import function
from memtopo.driver.ledger import Ledger
from memtopo.driver.protocol import Driver
from memtopo.driver.types import DriverError, HostFlags, MemAttach
from memtopo.driver.wrappers import METHODS, parameters
from memtopo.drivers.sim import SimDriver, external_api
from tests.contract.external_resources import OPAQUE, TIMELINE
from tests.contract.memory import PLAIN, current
from tests.contract.other_process import Other
from tests.contract.shared_resources import FD, SHARED, SHARED_EVENT, closing
from tests.helpers.machines import invented

M = 2 << 20
NOTHING = {"reservations": 0, "handles": 0, "mappings": 0, "contexts": 0}


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with SimDriver(invented()) as sim:
        ledger = Ledger(sim)
        ledger.init()
        yield ledger


def test_the_ledger_implements_the_protocol(ledger: Ledger) -> None:
    """The ledger satisfies the driver protocol, and forwards the calls that it does not count"""
    driver: Driver = ledger
    assert driver.device_get_count() == 2
    assert [name for name in dir(Driver) if not name.startswith("_") and not callable(getattr(driver, name))] == []


def test_a_batch_counts_the_calls_before_the_one_that_fails(ledger: Ledger) -> None:
    (first, second), error = ledger.each("mem_create", [(M, PLAIN), (M, PLAIN), (M + 1, PLAIN), (M, PLAIN)])
    assert (bool(error), ledger.accounts["handles"]) == (True, {first: 1, second: 1})
    _, error = ledger.each("mem_release", [(first,), (first,), (second,)])
    assert (bool(error), ledger.accounts["handles"]) == (True, {second: 1})
    address = ledger.mem_address_reserve(4 * M)
    _, error = ledger.each("mem_map", [(address, M, second), (address, M, second), (address + M, M, second)])
    assert (bool(error), ledger.accounts["mappings"]) == (True, {address: M})


def test_ledger_counts_everything_open(ledger: Ledger) -> None:
    """Each kind of resource is counted until it is closed, and then the ledger is empty"""
    assert ledger.empty
    address = ledger.mem_address_reserve(2 * M)
    handle = ledger.mem_create(M, PLAIN)
    ledger.mem_map(address, M, handle)
    ledger.device_primary_ctx_retain(1)
    assert ledger.accounts["reservations"] == {address: 2 * M}
    assert ledger.accounts["handles"] == {handle: 1}
    assert ledger.accounts["mappings"] == {address: M}
    assert ledger.accounts["contexts"] == {1: 1}
    assert ledger.counts() == {"reservations": 1, "handles": 1, "mappings": 1, "contexts": 1}
    ledger.device_primary_ctx_release(1)
    ledger.mem_unmap(address, M)
    ledger.mem_release(handle)
    assert not ledger.empty
    ledger.mem_address_free(address, 2 * M)
    assert ledger.empty
    assert ledger.counts() == NOTHING


def test_ledger_counts_references(ledger: Ledger) -> None:
    """A retained handle or context is as many references as it wants releases"""
    address = ledger.mem_address_reserve(M)
    handle = ledger.mem_create(M, PLAIN)
    ledger.mem_map(address, M, handle)
    ledger.mem_retain_allocation_handle(address)
    ledger.device_primary_ctx_retain(0)
    ledger.device_primary_ctx_retain(0)
    assert (ledger.accounts["handles"], ledger.accounts["contexts"]) == ({handle: 2}, {0: 2})
    ledger.mem_release(handle)
    ledger.device_primary_ctx_release(0)
    assert (ledger.accounts["handles"], ledger.accounts["contexts"]) == ({handle: 1}, {0: 1})
    ledger.mem_release(handle)
    ledger.mem_retain_allocation_handle(address)
    assert ledger.accounts["handles"] == {handle: 1}


def test_one_unmap_removes_all_mappings_of_its_range(ledger: Ledger) -> None:
    """One call removes all mappings in its range, also behind holes, and no others"""
    address = ledger.mem_address_reserve(8 * M)
    handle = ledger.mem_create(M, PLAIN)
    for place in (0, 1, 2, 4, 6):
        ledger.mem_map(address + place * M, M, handle)
    ledger.mem_unmap(address + M, 2 * M)
    assert ledger.accounts["mappings"] == {address + place * M: M for place in (0, 4, 6)}
    ledger.mem_unmap(address + 7 * M, M)
    ledger.mem_unmap(address, 6 * M)
    assert ledger.accounts["mappings"] == {address + 6 * M: M}


def test_a_refused_call_changes_no_account(ledger: Ledger) -> None:
    """A call that failed opened and closed nothing"""
    address = ledger.mem_address_reserve(M)
    handle = ledger.mem_create(M, PLAIN)
    ledger.mem_map(address, M, handle)
    before = ledger.counts()
    for refused in (
        lambda: ledger.mem_address_reserve(1),
        lambda: ledger.mem_address_free(address, M),
        lambda: ledger.mem_create(1, PLAIN),
        lambda: ledger.mem_release(handle + 1),
        lambda: ledger.mem_map(address, M, handle),
        lambda: ledger.mem_unmap(address, 1),
        lambda: ledger.mem_retain_allocation_handle(address + M),
        lambda: ledger.device_primary_ctx_retain(5),
        lambda: ledger.device_primary_ctx_release(0),
    ):
        with pytest.raises(DriverError):
            refused()
    assert ledger.counts() == before


def test_an_import_counts_as_a_reference(ledger: Ledger) -> None:
    """An imported handle is counted like a created one; a descriptor is the caller's, and not counted"""
    handle = ledger.mem_create(M, SHARED)
    fd = ledger.mem_export_to_shareable_handle(handle, FD)
    assert isinstance(fd, int)
    with closing(fd):
        another = ledger.mem_import_from_shareable_handle(fd, FD)
    assert ledger.accounts["handles"] == {handle: 1, another: 1}
    ledger.mem_release(handle)
    ledger.mem_release(another)
    assert ledger.empty


def test_rare_accounts_are_reported_after_their_first_entry(ledger: Ledger) -> None:
    """Allocations and events are counted and reported from the first one on, also when none is left"""
    assert ledger.counts() == NOTHING
    with current(ledger):
        address, event = ledger.mem_alloc(100), ledger.event_create(SHARED_EVENT)
        assert (ledger.accounts["allocations"], ledger.accounts["events"]) == ({address: 100}, {event: 1})
        assert ledger.counts() == NOTHING | {"contexts": 1, "allocations": 1, "events": 1}
        ledger.mem_free(0)
        ledger.mem_free(address)
        assert not ledger.empty
        ledger.event_destroy(event)
    assert ledger.empty
    assert ledger.counts() == NOTHING | {"allocations": 0, "events": 0}


def test_ledger_counts_page_locked_memory(ledger: Ledger) -> None:
    """By address and size, from the first allocation on"""
    with current(ledger):
        address = ledger.mem_host_alloc(100, HostFlags.PORTABLE)
        assert ledger.accounts["pinned"] == {address: 100}
        assert ledger.counts() == NOTHING | {"contexts": 1, "pinned": 1}
        ledger.mem_free_host(address)
    assert ledger.empty
    assert ledger.counts() == NOTHING | {"pinned": 0}


def test_ledger_counts_openings_of_shared_memory(ledger: Ledger) -> None:
    """Memory of another process is open as often as it was opened, and its events as often as they were"""
    other = Other(machine.dump(invented()))
    with current(other), current(ledger):
        memory = other.ipc_get_mem_handle(there := other.mem_alloc(100))
        event = other.ipc_get_event_handle(theirs := other.event_create(SHARED_EVENT))
        address = ledger.ipc_open_mem_handle(memory)
        ledger.ipc_open_mem_handle(memory)
        events = {ledger.ipc_open_event_handle(event) for _ in range(2)}
        assert ledger.accounts["opened"] == {address: 2}
        assert ledger.accounts["events"] == dict.fromkeys(events, 1)
        assert ledger.counts() == NOTHING | {"contexts": 1, "opened": 2, "events": 2}
        for _ in range(2):
            assert not ledger.empty
            ledger.ipc_close_mem_handle(address)
            ledger.event_destroy(events.pop())
        other.mem_free(there)
        other.event_destroy(theirs)
    assert ledger.empty
    other.end()


def test_ledger_counts_external_objects(ledger: Ledger) -> None:
    """Objects, their buffers, semaphores, streams and managed memory are counted from their opening to their end"""
    with current(ledger):
        memory = ledger.import_external_memory(external_api.allocate(ledger.device_get_uuid(0), M), OPAQUE, M)
        address = ledger.external_memory_get_mapped_buffer(memory, 0, 100)
        semaphore = ledger.import_external_semaphore(external_api.make_semaphore(timeline=True), TIMELINE)
        stream, managed = ledger.stream_create(), ledger.mem_alloc_managed(200, MemAttach.GLOBAL)
        assert [ledger.accounts[kind] for kind in ("external", "semaphores", "streams")] == [
            {memory: 1},
            {semaphore: 1},
            {stream: 1},
        ]
        assert ledger.accounts["allocations"] == {address: 100, managed: 200}
        rare = {"allocations": 2, "external": 1, "semaphores": 1, "streams": 1}
        assert ledger.counts() == NOTHING | {"contexts": 1} | rare
        for end, what in (
            (ledger.mem_free, address),
            (ledger.mem_free, managed),
            (ledger.destroy_external_memory, memory),
            (ledger.destroy_external_semaphore, semaphore),
            (ledger.stream_destroy, stream),
        ):
            assert not ledger.empty
            with pytest.raises(DriverError):
                end(what + 1)
            end(what)
    assert ledger.empty
    assert ledger.counts() == NOTHING | dict.fromkeys(rare, 0)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_call_has_the_account_of_what_it_opens_or_closes_and_its_key(method: str) -> None:
    found = function(method)
    assert {found.opens, found.closes} <= {"", *ledgers.ACCOUNTS}
    if found.opens:
        assert ledgers.key_of(found.opens, dict.fromkeys(parameters(method), "argument"), "result")
    if found.closes:
        assert parameters(method)[0] in found.arguments


def test_keyword_arguments_are_counted_as_positional_ones(ledger: Ledger) -> None:
    address = ledger.mem_address_reserve(size=2 * M)
    handle = ledger.mem_create(properties=PLAIN, size=M)
    ledger.mem_map(address, handle=handle, size=M)
    assert ledger.counts() == {"reservations": 1, "handles": 1, "mappings": 1, "contexts": 0}
    assert ledger.accounts["mappings"] == {address: M}
    with current(ledger):
        allocation = ledger.mem_alloc(size=100)
        assert ledger.accounts["allocations"] == {allocation: 100}
        ledger.mem_free(address=allocation)
    ledger.mem_unmap(size=M, address=address)
    ledger.mem_release(handle=handle)
    ledger.mem_address_free(address, size=2 * M)
    assert ledger.empty
