"""Names of the objects in driver calls, in place of handles and addresses, which a driver uses again."""

from __future__ import annotations

from memtopo.driver.recorder import DriverCall
from memtopo.plans.calls import Entry, Exchange, NamedCall, Object, ObjectAddress, named


def made(method: str, subject: str, result: object = None, error: str | None = None, **arguments: object) -> DriverCall:
    return DriverCall(method, arguments, result, error, "create", "create", subject)


def last(*entries: Entry) -> NamedCall:
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
