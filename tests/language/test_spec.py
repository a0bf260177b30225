"""Reading of specs: every valid form, and the diagnostics of invalid ones."""

from __future__ import annotations

import time
from typing import Any

import pytest

from memtopo import spec as language
from memtopo.common.units import GiB, MiB, Size
from memtopo.diagnostics.model import Path
from memtopo.driver.types import Access, HandleType
from memtopo.kinds.access import AccessPart
from memtopo.kinds.chunks.entry import Chunk
from memtopo.kinds.mappings import MapEntry
from memtopo.kinds.ranges import Range
from memtopo.language import Document
from memtopo.language.names import Reference, parse_reference
from memtopo.language.scalars import LARGEST_COUNT, LARGEST_PROCESSES
from memtopo.rules import validate
from tests.helpers.language import diagnosed, read
from tests.helpers.machines import invented
from tests.helpers.specs import document

CHUNK = {"location": "gpu0", "size": "2MiB"}


def test_entries_of_one_layout_are_typed() -> None:
    """In the order of the text."""
    text = """
memtopo: 1
name: kv-cache
devices: {prefill: 0, decode: GPU-8f}
ranges:
  kv: {size: 96MiB, align: 2MiB, address: 0x7f0000000000, fixed: true, count: 32, round: up}
chunks:
  hot: {location: prefill, size: 4 granules, handles: [fd, fabric], rdma: true, compressible: false}
  page: {location: [prefill, decode], size: 2MiB, count: 16}
map:
  kv: [hot, {chunk: page.0:4, offset: 32MiB}, page.3]
access:
  kv: {prefill: rw, decode: r}
"""
    found, faults = language.read(document(text).root)
    assert faults == []
    assert found.name == "kv-cache"
    assert found.section("devices") == {"prefill": ["0"], "decode": ["GPU-8f"]}
    assert found.section("ranges")["kv"] == Range.model_construct(
        size=Size(96 * MiB), align=Size(2 * MiB), address=0x7F0000000000, fixed=True, count=32, round="up"
    )
    assert list(found.section("chunks")) == ["hot", "page"]
    assert found.section("chunks")["hot"].size == Size(4, in_granules=True)
    assert found.section("chunks")["hot"].handles == [HandleType.FD, HandleType.FABRIC]
    assert (found.section("chunks")["hot"].rdma, found.section("chunks")["hot"].compressible) == (True, False)
    assert (found.section("chunks")["page"].location, found.section("chunks")["page"].count) == (
        ["prefill", "decode"],
        16,
    )
    assert [entry.chunk for entry in found.section("map")["kv"]] == [
        Reference("hot"), Reference("page", 0, 4), Reference("page", 3, 4)
    ]  # fmt: skip
    assert [entry.offset for entry in found.section("map")["kv"]] == [None, Size(32 * MiB), None]
    assert found.section("access")["kv"] == {"prefill": Access.RW, "decode": Access.R}


def test_optional_fields_of_chunks_and_ranges_have_defaults() -> None:
    """A range requires a size, a chunk a location and a size."""
    found = read(ranges={"kv": {"size": "2MiB"}}, chunks={"hot": CHUNK})
    assert dict(found.section("ranges")["kv"]) == {
        "size": Size(2 * MiB), "align": None, "address": None, "fixed": False, "count": None, "round": None,
        "elastic": None, "same_address": False,
    }  # fmt: skip
    hot = found.section("chunks")["hot"]
    assert (hot.count, hot.handles, hot.rdma, hot.compressible, hot.round, hot.parts) == (
        None, [], False, False, None, None
    )  # fmt: skip


@pytest.mark.parametrize("section", language.SECTIONS)
@pytest.mark.parametrize("empty", ["", {}])
def test_a_missing_or_empty_section_has_no_entries(section: str, empty: Any) -> None:
    assert read(**{section: empty}).section(section) == read().section(section) == {}


@pytest.mark.parametrize(
    ("section", "one", "many"),
    [
        ("chunks", {"hot": CHUNK | {"handles": "fd"}}, {"hot": CHUNK | {"handles": ["fd"]}}),
        ("chunks", {"hot": CHUNK}, {"hot": CHUNK | {"location": ["gpu0"]}}),
        ("map", {"kv": "hot"}, {"kv": ["hot"]}),
        ("map", {"kv": ["hot"]}, {"kv": [{"chunk": "hot"}]}),
        ("map", {"kv": {"chunk": "hot", "offset": "2MiB"}}, {"kv": [{"chunk": "hot", "offset": "2MiB"}]}),
        ("access", {"kv": [{"size": "2MiB", "grant": {}}]}, {"kv": [{"offset": "0", "size": "2MiB", "grant": {}}]}),
    ],
)
def test_a_single_item_needs_no_list_and_no_keys(section: str, one: Any, many: Any) -> None:
    """One item without a list, a chunk without its key, a part without an offset of 0."""
    assert read(**{section: one}).section(section) == read(**{section: many}).section(section)


def test_access_is_a_mapping_or_a_list_of_parts() -> None:
    found = read(access={"kv": [{"offset": "1GiB", "size": "2 granules", "grant": {"gpu0": "none", "host": "r"}}]})
    assert found.section("access")["kv"] == [
        AccessPart.model_construct(
            offset=Size(GiB), size=Size(2, in_granules=True), grant={"gpu0": Access.NONE, "host": Access.R}
        )
    ]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("page", Reference("page")),
        ("page.3", Reference("page", 3, 4)),
        ("page.0:4", Reference("page", 0, 4)),
        ("page.3:4", Reference("page", 3, 4)),
        ("A-b_9", Reference("A-b_9")),
        ("page.1999999", Reference("page", 1999999, 2000000)),
    ],
)
def test_a_reference_is_a_name_an_index_or_a_slice(text: str, meant: Reference) -> None:
    """A slice is half-open, with both ends; its text is the one that was read."""
    assert parse_reference(text) == meant
    assert parse_reference(str(meant)) == meant


@pytest.mark.parametrize("section", ["devices", "ranges", "chunks"])
@pytest.mark.parametrize("name", ["9hot", "", "a.b", "a b", "größe", "-a", "a" * 129, "page.0"])
def test_a_name_is_a_letter_and_up_to_127_word_characters(section: str, name: str) -> None:
    """Letters, digits, `_` and `-`."""
    entry: Any = {"devices": "0", "ranges": {"size": "2MiB"}, "chunks": CHUNK}[section]
    assert diagnosed(**{section: {name: entry}}) == [("MT104", (section, name), "key")]
    assert read(**{section: {"a" * 128: entry}}).section(section)


def test_elastic_counts_and_ranges_are_typed() -> None:
    """A plain count stays a number, and false is no elastic range."""
    chunks = read(chunks={"a": {**CHUNK, "count": {"max": "8"}}, "b": {**CHUNK, "count": "3"}}).section("chunks")
    assert (chunks["a"].count.min, chunks["a"].count.max, chunks["b"].count) == (0, 8, 3)
    written = {"a": "true", "b": "false", "c": {"chunks": "page", "zero": "blank"}}
    ranges = read(ranges={name: {"size": "2MiB", "elastic": value} for name, value in written.items()}).section(
        "ranges"
    )
    assert (ranges["a"].elastic.chunks, ranges["a"].elastic.zero, ranges["b"].elastic) == ([], None, None)
    assert (ranges["c"].elastic.chunks, ranges["c"].elastic.zero) == (["page"], "blank")


# Where each kind of value stands, and what is put around it.
FIELDS: dict[str, list[tuple[Path, Any]]] = {
    "size": [
        (("ranges", "kv", "size"), {}),
        (("ranges", "kv", "align"), {"size": "2MiB"}),
        (("chunks", "hot", "size"), {"location": "gpu0"}),
    ],
    "count": [(("ranges", "kv", "count"), {"size": "2MiB"}), (("buffers", "b", "count"), CHUNK)],
    "elastic count": [(("chunks", "hot", "count"), CHUNK)],
    "boolean": [
        (("ranges", "kv", "fixed"), {"size": "2MiB"}),
        (("chunks", "hot", "rdma"), CHUNK),
        (("chunks", "hot", "compressible"), CHUNK),
    ],
    "address": [(("ranges", "kv", "address"), {"size": "2MiB"})],
    "round": [(("ranges", "kv", "round"), {"size": "2MiB"}), (("chunks", "hot", "round"), CHUNK)],
}
WRONG: dict[str, list[tuple[Any, str]]] = {
    "size": [
        ("64", "MT105"), ("2MB", "MT105"), ("1.5GiB", "MT105"), ("-2MiB", "MT105"), ("0", "MT105"), ("0MiB", "MT105"),
        ("02MiB", "MT105"), ("2  MiB", "MT105"), ("granule", "MT105"), ("99999999999999999999GiB", "MT105"),
        ("1e3B", "MT105"), ("٢MiB", "MT105"), ("", "MT103"), ([], "MT103"), ({}, "MT103"), (["2MiB"], "MT103"),
    ],
    "count": [
        ("0", "MT106"), ("-1", "MT106"), ("010", "MT106"), ("1e3", "MT106"), ("1_000", "MT106"), ("1.0", "MT106"),
        ("true", "MT106"), ("1:30", "MT106"), ("9" * 5000, "MT106"), ("999999999999", "MT109"),
        (str(LARGEST_COUNT + 1), "MT109"), ("", "MT103"), ([], "MT103"), ({"a": "1"}, "MT103"),
    ],
    "elastic count": [
        ("0", "MT106"), ("08", "MT106"), ("1e3", "MT106"), (str(LARGEST_COUNT + 1), "MT109"), ("", "MT103"),
        ([], "MT103"),
    ],
    "boolean": [
        ("yes", "MT107"), ("on", "MT107"), ("True", "MT107"), ("1", "MT107"), ("~", "MT107"), ("", "MT103"),
        ([], "MT103"), ({}, "MT103"),
    ],
    "address": [
        ("4096", "MT106"), ("7f00", "MT106"), ("0x", "MT106"), ("0xg", "MT106"), ("-0x10", "MT106"),
        ("0x" + "1" * 17, "MT106"), ("", "MT103"), ([], "MT103"), ({}, "MT103"),
    ],
    "round": [("down", "MT107"), ("true", "MT107"), ("", "MT103"), (["up"], "MT103"), ({}, "MT103")],
}  # fmt: skip


@pytest.mark.parametrize(
    ("path", "around", "value", "code"),
    [(path, around, value, code) for kind in FIELDS for path, around in FIELDS[kind] for value, code in WRONG[kind]],
)
def test_a_wrong_value_is_one_diagnostic_at_its_field(path: Path, around: Any, value: Any, code: str) -> None:
    section, name, field = path
    assert diagnosed(**{str(section): {str(name): {**around, str(field): value}}}) == [(code, path, "value")]


@pytest.mark.parametrize("value", ["0", "2MiB", "2097152B", "1 granule", "4 granules", "16384KiB", "16777215TiB"])
def test_an_offset_may_be_0(value: str) -> None:
    (entry,) = read(map={"kv": {"chunk": "hot", "offset": value}}).section("map")["kv"]
    assert isinstance(entry, MapEntry)
    assert str(entry.offset) == (value if value != "2097152B" else "2MiB").replace("16384KiB", "16MiB")


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ({}, [("MT102", ()), ("MT102", ())]),
        ({"memtopo": "1"}, [("MT102", ())]),
        ({"name": "a"}, [("MT102", ())]),
        ({"memtopo": "2", "name": "a"}, [("MT108", ("memtopo",))]),
        ({"memtopo": "1.0", "name": "a"}, [("MT108", ("memtopo",))]),
        ({"memtopo": [], "name": "a"}, [("MT108", ("memtopo",))]),
        ({"memtopo": "1", "name": ""}, [("MT104", ("name",))]),
        ({"memtopo": "1", "name": "9"}, [("MT104", ("name",))]),
        ({"memtopo": "1", "name": {"a": "b"}}, [("MT104", ("name",))]),
    ],
)
def test_a_spec_has_a_version_and_a_name(head: Any, expected: list[tuple[str, Path]]) -> None:
    assert [(fault.code, fault.path) for fault in language.read(head)[1]] == expected


def test_a_bad_entry_is_left_out_and_the_rest_is_kept() -> None:
    """All its errors are reported."""
    bad = {"size": "2MB", "count": "0", "rdma": "yes"}
    root = Document.from_object({"memtopo": 1, "name": "test", "chunks": {"bad": bad, "9": CHUNK, "hot": CHUNK}}).root
    found, faults = language.read(root)
    assert sorted(fault.code for fault in faults) == ["MT102", "MT104", "MT105", "MT106", "MT107"]
    assert list(found.section("chunks")) == ["hot"]
    assert found.left_out == {("chunks", "bad"), ("chunks", "9")}
    assert isinstance(found.section("chunks")["hot"], Chunk)


@pytest.mark.parametrize("section", ["chunks", "ranges", "map"])
def test_the_first_thousand_diagnostics_of_a_kind_are_reported_with_a_note(section: str) -> None:
    _, faults = language.read({"memtopo": "1", "name": "a", section: {f"e{index}": "x." for index in range(3000)}})
    assert len(faults) == 1000
    assert "there are more" in faults[-1].notes[-1]
    assert not faults[0].notes


def test_very_many_misspelled_keys_take_as_long_as_other_errors() -> None:
    """A suggestion is computed once for each word, for the first of many words."""
    misspelled = {f"c{index}": {"location": "gpu0", f"sise{index}": "2MiB"} for index in range(40_000)}
    missing = {f"c{index}": {"location": "gpu0"} for index in range(40_000)}
    assert _seconds(misspelled) < 4 * _seconds(missing)


def _seconds(chunks: dict[str, Any]) -> float:
    started = time.process_time()
    assert len(diagnosed(chunks=chunks)) == 1000
    return time.process_time() - started


PROCESSES: list[tuple[Any, list[str]]] = [
    ("", []),
    ({}, []),
    ([], ["MT103"]),
    ("server", ["MT103"]),
    ({"server": ""}, ["MT103"]),
    ({"server": []}, ["MT103"]),
    ({"server": "x"}, ["MT103"]),
    ({"server": {}}, []),
    ({"9": {}}, ["MT104"]),
    ({"a.0": {}}, ["MT104"]),
    ({"": {}}, ["MT104"]),
    ({"server": {"processes": {"inner": {}}}}, ["MT101"]),
    ({"server": {"memtopo": "1"}}, ["MT101"]),
    ({"server": {"visibel": "gpu0"}}, ["MT101"]),
    ({"server": {"count": "0"}}, ["MT106"]),
    ({"server": {"count": "-1"}}, ["MT106"]),
    ({"server": {"count": ""}}, ["MT103"]),
    ({"server": {"count": ["2"]}}, ["MT103"]),
    ({"server": {"count": str(LARGEST_PROCESSES)}}, []),
    ({"server": {"count": "129"}}, ["MT109"]),
    ({"server": {"count": "999999999999"}}, ["MT109"]),
    ({"a": {"count": "100"}, "b": {"count": "28"}}, []),
    ({"a": {"count": "100"}, "b": {"count": "29"}}, ["MT109"]),
    ({"a": {"count": str(LARGEST_PROCESSES)}, "b": {}}, ["MT109"]),
    ({"a": {"node": "x", "nodes": ["x"]}}, ["MT103"]),
    ({"a": {"count": "2", "node": "x", "nodes": ["x", "y"]}}, ["MT103"]),
    ({f"p{index}": {} for index in range(129)}, ["MT109"]),
    ({f"p{index}": {"chunks": []} for index in range(10_000)}, ["MT109"]),
    ({section: {} for section in ("processes", "chunks", "map", "count", "visible", "host", "gpu0")}, []),
]


@pytest.mark.parametrize(("processes", "expected"), PROCESSES, ids=lambda value: str(value)[:40])
def test_processes_are_a_mapping_of_at_most_128_instances(processes: Any, expected: list[str]) -> None:
    document = Document.from_object({"memtopo": 1, "name": "test", "processes": processes})
    found = validate(document, invented(2))
    assert [diagnostic.code for diagnostic in found.diagnostics] == expected
