"""Messages of the protocol: fields by type and range, and records that come back as they were."""

from __future__ import annotations

import os
from typing import Any

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from memtopo.common.errors import BadPacket, ExchangeError, MemtopoError
from memtopo.driver.handles import Handle, Secret
from memtopo.machine import MachineLine
from memtopo.plans.report import Checks, Difference, Tally
from memtopo.sharing import messages, wire
from memtopo.sharing.messages import PAGE_BYTES, HandleEntry, parts
from memtopo.sharing.offers import Offer
from memtopo.sharing.status import Importer, Taken
from memtopo.sharing.wire import LIMIT, MAX_ENTRIES, read

OFFER = Offer("page", "chunk", "fd", 3, 2 << 20, "gpu0", "ab" * 16, ("rdma",))
IMPORTER = Importer(7, 100, 1000, 12.5, 4, 8 << 20, bound=True, taken=(Taken("page", "chunk", "fd", 4, 8 << 20),))
MACHINE = MachineLine("h200x2", simulated=True, devices=("NVIDIA H200",) * 2, driver="13.0")
CHECKS = Checks((Tally("access", 6, 5, 1, "no reason"), Tally("bytes", 2, 2)), (Difference("a", "b", "c", "d"),), 1)


@pytest.mark.parametrize(
    ("kind", "accepted", "refused"),
    [
        (wire.Text, ["", "x" * 4096], [None, 1, "x" * 4097]),
        (wire.Name, ["x" * 262], ["x" * 263, 1]),
        (wire.LayoutName, ["x" * 128], ["x" * 129]),
        (wire.Count, [0, LIMIT - 1], [-1, LIMIT, True, 1.0, "1", None]),
        (wire.Positive, [1, LIMIT - 1], [0, LIMIT, True]),
        (wire.Seconds, [0.0, 1, 1e12], [-0.1, 1.1e12, float("inf"), float("nan"), True, "1", None]),
        (messages.Wait, [0, 3600.0], [3600.5, -1]),
        (wire.Texts, [[], ["a", "x" * 4096]], [["a", 1], ["x" * 4097], ["a"] * 4097, None, {}, "ab"]),
        (messages.Exports, [["a"]], [[], [1]]),
        (bool, [True, False], [0, 1, None, "true"]),
    ],
)
def test_a_field_has_its_type_and_range(kind: Any, accepted: list[Any], refused: list[Any]) -> None:
    for value in accepted:
        found = read(kind, value, "it")
        assert (list(found) if isinstance(found, tuple) else found) == value
    for value in refused:
        with pytest.raises(BadPacket, match=r"^it needs '"):
            read(kind, value, "it")


def test_a_process_of_another_pid_namespace_has_no_number() -> None:
    for pid, known in ((0, None), (7, 7)):
        assert read(Importer, to_builtins(IMPORTER) | {"pid": pid}, "it").pid == known


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"taken": [{}]}, "an importer needs 'taken.0.export': field required"),
        ({"taken": [3]}, "an importer needs 'taken.0': input should be an object"),
        ({"taken": 3}, "an importer needs 'taken': input should be a valid array"),
        ({"bytes": "secret"}, "an importer needs 'bytes': input should be a valid integer"),
    ],
)
def test_a_wrong_field_is_named_by_its_place_and_its_value_is_not_repeated(wrong: dict[str, Any], what: str) -> None:
    with pytest.raises(BadPacket) as error:
        read(Importer, to_builtins(IMPORTER) | wrong, "an importer")
    assert error.value.message == what


def test_an_unknown_key_is_ignored_in_an_answer_and_refused_in_a_request() -> None:
    assert read(Importer, to_builtins(IMPORTER) | {"secret": 1}, "it") == IMPORTER
    with pytest.raises(BadPacket) as error:
        read(messages.ReleaseRequest, {"request": "release", "secret": 1, "force": 7}, "the request")
    assert error.value.code == "request"
    assert error.value.message == "the request has a key besides memtopo, request, force, grace"


@pytest.mark.parametrize(
    ("encoded", "record"),
    [
        (to_builtins(OFFER), OFFER),
        (to_builtins(replace(OFFER, gpu=None, properties=())), replace(OFFER, gpu=None, properties=())),
        (messages.encode_importers([IMPORTER])[0], IMPORTER),
        (messages.encode_machine(MACHINE), MACHINE),
        (messages.encode_checks(CHECKS), CHECKS),
    ],
)
def test_a_record_comes_back_as_it_was_and_needs_each_field(encoded: dict[str, Any], record: Any) -> None:
    kind = type(record)
    assert read(kind, encoded, "it") == record
    for key, value in encoded.items():
        with pytest.raises(BadPacket, match=f"'{key}"):
            read(kind, {**encoded, key: {"a": 1}}, "it")
        if value is not None and key not in {"gpu", "why_not", "parts", "first", "properties"}:
            with pytest.raises(BadPacket, match=f"'{key}'"):
                read(kind, {each: encoded[each] for each in encoded if each != key}, "it")


def test_an_offer_was_not_declared_larger_than_it_is() -> None:
    assert read(Offer, to_builtins(OFFER) | {"declared": OFFER.size}, "it").declared == OFFER.size
    with pytest.raises(BadPacket, match="'declared' is more than its size"):
        read(Offer, to_builtins(OFFER) | {"declared": OFFER.size + 1}, "it")


def test_a_page_has_as_many_entries_as_fit_and_at_least_one() -> None:
    entries = [Difference("a", "b", "x" * 10_000, "d")] * 10
    assert len(messages.page(entries)) == 4
    assert len(messages.page([Difference("a", "b", "x" * 60_000, "d")] * 2)) == 1
    assert messages.page([]) == []


def test_importers_that_do_not_fit_are_sent_without_their_exports() -> None:
    taken = (Taken("x" * 200, "chunk", "fd", 1, 1),) * 100
    many = [replace(IMPORTER, id=index, taken=taken) for index in range(5)]
    assert [(each["id"], len(each["taken"])) for each in messages.encode_importers(many)] == [
        (index, 0) for index in range(5)
    ]
    assert [len(each["taken"]) for each in messages.encode_importers(many[:1])] == [100]


def test_long_texts_of_a_machine_a_check_and_an_error_are_shortened() -> None:
    long = "x" * 5000
    machine = messages.encode_machine(MachineLine(long, simulated=False, devices=(long,) * 100, driver=long))
    assert (len(machine["devices"]), {len(each) for each in machine["devices"]}) == (64, {300})
    assert (len(machine["name"]), len(machine["driver"])) == (300, 300)
    (difference,) = messages.encode_checks(Checks((), (Difference(long, long, long, long),), 1))["differences"]
    assert {key: len(value) for key, value in difference.items()} == dict.fromkeys(messages._DIFFERENCE, 300)
    error = messages.encode_error(MemtopoError(long, hint=long))["error"]
    assert (error["code"], len(error["message"]), len(error["hint"])) == ("failed", 1000, 1000)
    assert messages.encode_error(ExchangeError("gone", "it ended"))["error"] == {
        "code": "gone", "message": "it ended", "hint": None,
    }  # fmt: skip


def test_handles_come_back_as_they_were() -> None:
    secrets = [Handle.of(bytes([index]) * 64) for index in range(2)]
    fields, fds = messages.encode_handles(secrets)
    assert fds == []
    entries = [read(HandleEntry, each, "a handle") for each in fields]
    assert [each.shared for each in messages.decode_handles(entries, [], descriptors=False, secrets=True, of="w")] == [
        bytes([index]) * 64 for index in range(2)
    ]
    files = [Handle(fd=os.dup(0), offset=index * 512) for index in range(2)]
    fields, fds = messages.encode_handles(files)
    entries = [read(HandleEntry, each, "a handle") for each in fields]
    assert messages.decode_handles(entries, fds, descriptors=True, secrets=False, of="w") == files
    for each in files:
        each.close()


def test_handles_with_descriptors_and_secrets_come_back_as_they_were() -> None:
    both = [Handle(fd=os.dup(0), secret=Secret(bytes([index]) * 64)) for index in range(2)]
    fields, fds = messages.encode_handles(both)
    entries = [read(HandleEntry, each, "a handle") for each in fields]
    found = messages.decode_handles(entries, fds, descriptors=True, secrets=True, of="a")
    assert [each.fd for each in found] == [each.fd for each in both]
    assert [each.secret.reveal() for each in found if each.secret] == [bytes([index]) * 64 for index in range(2)]
    with pytest.raises(BadPacket):
        messages.decode_handles([HandleEntry(0)], fds[:1], descriptors=True, secrets=True, of="a")
    for each in both:
        each.close()


@pytest.mark.parametrize(
    ("fds", "descriptors"), [([], True), ([1], True), ([1, 2, 3], True), ([1], False), ([1, 2], False)]
)
def test_handles_with_other_descriptors_than_theirs_are_refused(fds: list[int], descriptors: bool) -> None:
    entries = [HandleEntry(0, Secret(b"a" * 64))] * 2
    with pytest.raises(BadPacket) as error:
        messages.decode_handles(entries, fds, descriptors=descriptors, secrets=True, of="w")
    assert error.value.message == f"2 handles of 'w' came with {len(fds)} descriptors"


def test_handles_of_bytes_need_them() -> None:
    with pytest.raises(BadPacket, match=r"^a handle of 'w' has no 'secret'$"):
        messages.decode_handles([HandleEntry(0)], [], descriptors=False, secrets=True, of="w")


@pytest.mark.parametrize(("length", "counts"), [(PAGE_BYTES // 4 - 3, [4, 1]), (PAGE_BYTES // 4 - 2, [3, 2])])
def test_names_are_sent_in_parts_that_fill_a_packet(length: int, counts: list[int]) -> None:
    """Each name takes two quotes and a comma."""
    assert [len(part) for part in parts(["x" * length] * 5)] == counts


def test_a_part_has_at_most_so_many_names_and_an_empty_list_one_part() -> None:
    names = [str(number) for number in range(MAX_ENTRIES + 1)]
    assert list(parts(names)) == [names[:-1], names[-1:]]
    assert list(parts([])) == [[]]


@pytest.mark.parametrize(("code", "status"), [("stale", 7), ("broken", 5), ("busy", 4)])
def test_an_error_of_an_exchange_has_the_exit_code_of_its_kind(code: str, status: int) -> None:
    assert ExchangeError(code, "no").exit_code == status
