"""Messages of the protocol: fields by type and range, and records that come back as they were."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest

from memtopo.common.errors import MemtopoError
from memtopo.driver.handles import Handle, Secret
from memtopo.machine.cluster import MachineLine
from memtopo.plans.report import Checks, Difference, Tally
from memtopo.sharing import messages
from memtopo.sharing.errors import BadPacket, ExchangeError
from memtopo.sharing.messages import LIMIT, LONGEST_TEXT, MAX_ENTRIES, PAGE_BYTES, Fields, parts
from memtopo.sharing.offers import Offer
from memtopo.sharing.status import Importer, Taken

OFFER = Offer("page", "chunk", "fd", 3, 2 << 20, "gpu0", "ab" * 16, ("rdma",))
IMPORTER = Importer(7, 100, 1000, 12.5, 4, 8 << 20, bound=True, taken=(Taken("page", "chunk", "fd", 4, 8 << 20),))
MACHINE = MachineLine("h200x2", simulated=True, devices=("NVIDIA H200",) * 2, driver="13.0")
CHECKS = Checks((Tally("access", 6, 5, 1, "no reason"), Tally("bytes", 2, 2)), (Difference("a", "b", "c", "d"),), 1)


@pytest.mark.parametrize(
    ("read", "accepted", "refused", "required"),
    [
        (lambda f: f.text("k"), ["", "x" * LONGEST_TEXT], [None, 1, "x" * (LONGEST_TEXT + 1)],
         "a text of at most 4096 characters"),
        (lambda f: f.text("k", 3), ["abc"], ["abcd"], "a text of at most 3 characters"),
        (lambda f: f.text_or_none("k"), ["", None], [1, []], "a text of at most 4096 characters"),
        (lambda f: f.word("k", "a", "b"), ["a", "b"], ["c", "", None, 1], "one of a, b"),
        (lambda f: f.number("k"), [0, LIMIT - 1], [-1, LIMIT, True, 1.0, "1", None], "an integer of 0 or more"),
        (lambda f: f.number("k", 1), [1], [0], "an integer of 1 or more"),
        (lambda f: f.number("k", 2, 5), [2, 4], [1, 5], "one of 2 to 4"),
        (lambda f: f.seconds("k"), [0.0, 1e12], [-0.1, 1.1e12, True, "1", None], "seconds, at most 1e+12"),
        (lambda f: f.seconds("k", 9), [9.0], [9.5, float("nan")], "seconds, at most 9"),
        (lambda f: f.seconds_or_none("k"), [0.5, None], [-1, "x"], "seconds, at most 1e+12"),
        (lambda f: f.flag("k"), [True, False], [0, 1, None, "true"], "true or false"),
        (lambda f: f.items("k", 2), [[], [1, "a"]], [[1, 2, 3], None, {}, "ab"], "a list of at most 2"),
        (lambda f: list(f.texts("k", 2)), [[], ["a", "x" * LONGEST_TEXT]], [["a", 1], ["x" * (LONGEST_TEXT + 1)]],
         "a list of texts"),
        (lambda f: list(f.texts("k", 2)), [["a", "b"]], [["a", "b", "c"]], "a list of at most 2"),
    ],
)  # fmt: skip
def test_a_field_has_its_type_and_range(
    read: Callable[[Fields], object], accepted: list[object], refused: list[object], required: str
) -> None:
    for value in accepted:
        assert read(Fields({"k": value}, "it")) == value
    for value in refused:
        with pytest.raises(BadPacket) as error:
            read(Fields({"k": value}, "it"))
        assert error.value.message == f"it needs 'k': {required}"
    assert Fields({"k": 0}, "it").has("k")
    assert not Fields({"k": None}, "it").has("k")


def test_an_infinite_time_is_the_longest() -> None:
    assert Fields({"k": float("inf")}, "it").seconds("k", float("inf")) == float("inf")
    assert Fields({"k": 10**400}, "it").number("k", 0, 10**401) == 10**400


def test_what_is_no_object_is_named_by_its_place() -> None:
    fields = Fields({"o": {"k": 1}, "l": [{"k": 2}, 3], "n": 4}, "an answer")
    assert fields.object("o").number("k") == 1
    found = fields.objects("l", 2)
    assert next(found).number("k") == 2
    reads: list[tuple[Callable[[], object], str]] = [
        (lambda: next(found), "an entry of an answer's 'l' is not an object"),
        (lambda: fields.object("n"), "an answer's 'n' is not an object"),
        (lambda: fields.object("x"), "an answer's 'x' is not an object"),
    ]
    for read, what in reads:
        with pytest.raises(BadPacket) as error:
            read()
        assert error.value.message == what


def test_a_key_besides_those_known_is_a_bad_request() -> None:
    fields = Fields({"memtopo": 1, "a": 1, "b": 2}, "a request")
    fields.allow_only("a", "b", "c")
    with pytest.raises(BadPacket) as error:
        fields.allow_only("a")
    assert (error.value.code, error.value.message) == ("request", "a request has a key besides a")


@pytest.mark.parametrize(
    ("encoded", "decode", "record"),
    [
        (asdict(OFFER), messages.decode_offer, OFFER),
        (
            asdict(replace(OFFER, gpu=None, properties=())),
            messages.decode_offer,
            replace(OFFER, gpu=None, properties=()),
        ),
        (messages.encode_importers([IMPORTER])[0], messages.decode_importer, IMPORTER),
        (messages.encode_machine(MACHINE), messages.decode_machine, MACHINE),
        (messages.encode_checks(CHECKS), messages.decode_checks, CHECKS),
    ],
)
def test_a_record_comes_back_as_it_was_and_needs_each_field(
    encoded: dict[str, Any], decode: Callable[[Fields], object], record: object
) -> None:
    encoded = json.loads(json.dumps(encoded))
    assert decode(Fields(encoded, "it")) == record
    for key, value in encoded.items():
        wrong = {**encoded, key: object()}
        with pytest.raises(BadPacket, match=f"'{key}'"):
            decode(Fields(wrong, "it"))
        if value is not None and key not in {"gpu", "why_not", "parts", "first"}:
            with pytest.raises(BadPacket, match=f"'{key}'"):
                decode(Fields({each: encoded[each] for each in encoded if each != key}, "it"))


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
    entries = [Fields(each, "a handle") for each in fields]
    assert [each.shared for each in messages.decode_handles(entries, [], descriptors=False, secrets=True, of="w")] == [
        bytes([index]) * 64 for index in range(2)
    ]
    files = [Handle(fd=os.dup(0), offset=index * 512) for index in range(2)]
    fields, fds = messages.encode_handles(files)
    entries = [Fields(each, "a handle") for each in fields]
    assert messages.decode_handles(entries, fds, descriptors=True, secrets=False, of="w") == files
    for each in files:
        each.close()


def test_handles_with_descriptors_and_secrets_come_back_as_they_were() -> None:
    both = [Handle(fd=os.dup(0), secret=Secret(bytes([index]) * 64)) for index in range(2)]
    fields, fds = messages.encode_handles(both)
    entries = [Fields(each, "a handle") for each in fields]
    found = messages.decode_handles(entries, fds, descriptors=True, secrets=True, of="a")
    assert [each.fd for each in found] == [each.fd for each in both]
    assert [each.secret.reveal() for each in found if each.secret] == [bytes([index]) * 64 for index in range(2)]
    with pytest.raises(BadPacket):
        messages.decode_handles([Fields({"offset": 0}, "a handle")], fds[:1], descriptors=True, secrets=True, of="a")
    for each in both:
        each.close()


@pytest.mark.parametrize(
    ("fds", "descriptors"), [([], True), ([1], True), ([1, 2, 3], True), ([1], False), ([1, 2], False)]
)
def test_handles_with_other_descriptors_than_theirs_are_refused(fds: list[int], descriptors: bool) -> None:
    entries = [Fields({"offset": 0, "secret": "A" * 86 + "=="}, "a handle")] * 2
    with pytest.raises(BadPacket) as error:
        messages.decode_handles(entries, fds, descriptors=descriptors, secrets=True, of="w")
    assert error.value.message == f"2 handles of 'w' came with {len(fds)} descriptors"


@pytest.mark.parametrize("secret", ["", "A" * 88, "A" * 84, "*" * 88, "A" * 85 + "===", "é" * 88])
def test_a_secret_is_64_bytes_in_base64(secret: str) -> None:
    with pytest.raises(BadPacket, match=r"^a handle is not 64 bytes in base64$"):
        messages.decode_handles(
            [Fields({"offset": 0, "secret": secret}, "it")], [], descriptors=False, secrets=True, of="w"
        )


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
