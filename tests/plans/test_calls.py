"""Names of the objects in driver calls, in place of handles and addresses, which a driver uses again."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memtopo.driver.functions import DMA_BUF
from memtopo.driver.recorder import DriverCall
from memtopo.plans.calls import (
    Exchange,
    ListedCall,
    NamedCall,
    Object,
    ObjectAddress,
    PlannedCall,
    listing_entry,
    named,
)


def made(method: str, subject: str, result: object = None, error: str | None = None, **arguments: object) -> DriverCall:
    return DriverCall(method, arguments, result, error, "create", "create", subject)


def last(*entries: PlannedCall) -> NamedCall:
    *_, found = named(entries)
    assert isinstance(found, NamedCall)
    return found


A, B = made("mem_create", "a", 7), made("mem_create", "b", 7)
MAP = made("mem_map", "m", address=0x6000, handle=7)


def test_a_handle_names_the_object_that_has_it_now() -> None:
    """Also after a call that failed, which made nothing."""
    release = made("mem_release", "a", handle=7)
    assert dict(last(A, release).arguments)["handle"] == Object("chunk", "a")
    assert dict(last(A, release, B, MAP).arguments)["handle"] == Object("chunk", "b")
    failed = made("mem_create", "c", 7, "CUDA_ERROR_OUT_OF_MEMORY")
    assert dict(last(A, failed, MAP).arguments)["handle"] == Object("chunk", "a")
    assert last(A, failed).made is None


def test_an_address_is_an_offset_in_the_range_that_was_reserved_there_last() -> None:
    low, high = made("mem_address_reserve", "low", 0x1000), made("mem_address_reserve", "high", 0x5000)
    again = made("mem_address_reserve", "again", 0x5000)
    for entries, place in (
        ((low, high), ("high", 0x1000)), ((high, low), ("high", 0x1000)), ((low,), ("low", 0x5000)),
        ((low, high, again), ("again", 0x1000)), ((high, again, low), ("again", 0x1000)),
    ):  # fmt: skip
        address = dict(last(*entries, MAP).arguments)["address"]
        assert address == ObjectAddress(Object("range", place[0]), place[1])


def test_memory_whose_registration_failed_names_no_address() -> None:
    reserved = made("mem_address_reserve", "low", 0x1000)
    for error, name in ((None, Object("registered", "r")), ("CUDA_ERROR_INVALID_VALUE", Object("range", "low"))):
        registered = made("mem_host_register", "r", error=error, address=0x5000)
        address = dict(last(reserved, registered, MAP).arguments)["address"]
        assert isinstance(address, ObjectAddress)
        assert address.object == name


def test_a_handle_of_another_process_is_that_which_was_received_last() -> None:
    opened = made("mem_import_from_shareable_handle", "w", 9, shared=b"", kind=1)
    first, second = (Exchange("receive", "server", "w", number) for number in range(2))
    assert dict(last(first, opened, second, opened).arguments)["shared"] == second
    assert dict(last(first, Exchange("send", "reader", "w"), opened).arguments)["shared"] == "a handle"


RANGE = made("mem_address_reserve", "kv", 0x4000, size=0x2000, alignment=0, address=0x5000, flags=0)
SENT = Exchange("receive", "server", "w", 1)
OPENED = "import_external_memory"


@pytest.mark.parametrize(
    ("entries", "arguments"),
    [
        ([RANGE, RANGE], {"size": 0x2000, "alignment": 0, "address": 0x5000, "flags": 0}),
        ([RANGE, made("mem_free", "b", address=0x3000)], {"address": 0x3000}),
        ([RANGE, made("mem_free", "b", address=0)], {"address": 0}),
        ([RANGE, made("stream_attach_mem_async", "m", stream=0, address=0x4800, flags=1)],
         {"stream": 0, "address": "kv+2048", "0": "0", "flags": 1}),
        ([A, made("mem_release", "a", handle=7)], {"handle": "a"}),
        ([A, made("mem_release", "a", handle=8)], {"handle": 8}),
        ([SENT, made(OPENED, "w", 3, fd=5, kind=1, size=2, dedicated=False)],
         {"fd": "server/w.1", "kind": 1, "size": 2, "dedicated": False}),
        ([made(OPENED, "w", 3, fd=5, kind=1, size=2, dedicated=False)],
         {"fd": 5, "kind": 1, "size": 2, "dedicated": False}),
        ([RANGE, made("mem_get_handle_for_address_range", "b", 3, address=0x4000, size=2, flags=0)],
         {"address": "kv+0", "size": 2, DMA_BUF: DMA_BUF, "flags": 0}),
    ],
)  # fmt: skip
def test_a_listing_has_names_in_place_of_the_numbers_of_known_objects(
    entries: list[PlannedCall], arguments: dict[str, object]
) -> None:
    found = listing_entry(last(*entries))
    assert isinstance(found, ListedCall)
    assert found.arguments == arguments


def test_a_listed_call_has_its_step_and_what_it_makes_and_a_named_one_its_error() -> None:
    of_nothing, undone = replace(A, verb=""), replace(MAP, undo=True, error="BAD")
    shown = listing_entry(last(A))
    assert isinstance(shown, ListedCall)
    assert shown == ListedCall("create", "create a", False, "cuMemCreate", "a", shown.arguments)
    assert [each.method for each in named([of_nothing, A]) if isinstance(each, NamedCall)] == ["mem_create"]
    assert len([*named([of_nothing, A], steps_only=False)]) == 2
    assert (last(A, undone).undo, last(A, undone).error, last(A).undo) == (True, "BAD", False)


def test_a_handle_that_is_made_and_sent_to_nobody_is_a_test() -> None:
    secret = made("ipc_get_mem_handle", "b", b"", address=0x4000)
    shared = made("mem_export_to_shareable_handle", "c", 5, handle=7, kind=1, flags=0)
    for entry, test in ((secret, True), (shared, True), (replace(shared, verb="send"), False), (A, False)):
        assert last(entry).is_test is test
