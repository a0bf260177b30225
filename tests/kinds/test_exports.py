"""Exports: kinds, transports, and imports that are exported again."""

from __future__ import annotations

import pytest

from memtopo.kinds.exportable import ExportGroup
from memtopo.kinds.exports import emptied_exports, exported_resources, touched_exports
from memtopo.machine import Trial
from tests.helpers.machines import invented
from tests.helpers.specs import clean_geometry, codes, geometry_of

REQUIRED = ", commit: required"


@pytest.mark.parametrize(
    ("before", "after", "emptied"),
    [(REQUIRED, REQUIRED, ["w"]), ("", REQUIRED, []), (REQUIRED, "", []), ("", "", [])],
)
def test_an_export_that_gets_more_chunks_has_to_be_committed_again(before: str, after: str, emptied: list[str]) -> None:
    text = (
        "chunks: {{w: {{location: gpu0, size: 2MiB, count: {}, handles: fd}}}}\nexports: {{w: {{chunk: w, via: fd{}}}}}"
    )
    old, new = clean_geometry(text.format(2, before)), clean_geometry(text.format(3, after))
    assert list(emptied_exports(old, new, ())) == emptied


@pytest.mark.parametrize(("chunk", "counted"), [("w", True), ("w.0:2", True), ("w.1:2", False), ("w.1", False)])
def test_an_export_of_one_element_is_not_counted(chunk: str, counted: bool) -> None:
    text = "chunks: {w: {location: gpu0, size: 2MiB, count: 2, handles: fd}}\n"
    assert geometry_of(f"{text}exports: {{x: {{chunk: {chunk}, via: fd}}}}").of(ExportGroup)["x"].counted is counted


WHOLE = "chunks: {{w: {{location: gpu0, size: 2MiB, count: {count}, handles: [fd, fabric]}}}}\n"
WHOLE += "exports: {{w: {{chunk: {chunk}, via: {via}{more}}}}}"
BEFORE = {"count": "4", "chunk": "w.1:3", "via": "fd", "more": ""}


@pytest.mark.parametrize(
    ("change", "touched"),
    [
        ({"count": "9"}, False),
        ({"chunk": "w.1:4"}, False),
        ({"chunk": "w.1"}, False),
        ({"chunk": "w.2:4"}, True),
        ({"chunk": "w.0:3"}, True),
        ({"via": "fabric"}, True),
        ({"more": ", commit: required"}, True),
    ],
)
def test_a_change_touches_an_export_whose_first_handles_are_others(change: dict[str, str], touched: bool) -> None:
    works = Trial(advertised=True, works=True)
    machine = invented(1, trials={"fabric": works, "fd+fabric": works})
    old, new = (geometry_of(WHOLE.format(**values), machine) for values in (BEFORE, BEFORE | change))
    assert list(touched_exports(old, new, ())) == ["w"] * touched
    assert list(touched_exports(old, old, {("chunk", "w.0"), ("chunk", "w.3")})) == []
    assert list(touched_exports(old, old, {("chunk", "w.2")})) == ["w"]
    assert list(exported_resources(old, ["w", "x"])) == [("chunk", "w.1"), ("chunk", "w.2")]
    gone = geometry_of("buffers: {b: {location: gpu0, size: 2MiB}}", machine)
    assert list(touched_exports(old, gone, ())) == []
    assert list(touched_exports(old, gone, {("chunk", "w.1")})) == ["w"]
    assert list(emptied_exports(old, old, {("chunk", "w.2")})) == []


ELASTIC = """
ranges: {r: {size: 8MiB, elastic: true}}
chunks: {w: {location: gpu0, size: 2MiB, count: {max: 4}, handles: fd}}
access: {r: {gpu0: rw}}
exports: {w: {chunk: CHUNK, via: fd, quota: 2MORE}}
"""


@pytest.mark.parametrize(
    ("chunk", "more", "expected"),
    [("w", "", []), ("w.0:2", "", ["MT804"]), ("w", ", commit: required", ["MT607"])],
)
def test_all_elastic_chunks_of_an_entry_are_lent_by_its_pool(chunk: str, more: str, expected: list[str]) -> None:
    text = ELASTIC.replace("CHUNK", chunk).replace("MORE", more)
    assert codes(text) == expected
    if not expected:
        group = clean_geometry(text).of(ExportGroup)["w"]
        assert (group.count, group.lends, group.quota, list(group.resources)) == (4, True, 2, [("elastic chunks", "w")])
        renamed = clean_geometry(text.replace("exports: {w:", "exports: {other:"))
        assert list(touched_exports(clean_geometry(text), renamed, ())) == ["w"], "clients may have chunks of it"
    assert codes(text.replace("count: {max: 4}", "count: 4").replace(", elastic: true", "")).count("MT804") == 1
