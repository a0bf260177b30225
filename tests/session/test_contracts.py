"""Specs of a set are checked against each other: imports from a layout that another spec of the set declares."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from memtopo.language import Document, read_text
from memtopo.rules.files import CheckedFile, Variant, check
from memtopo.session.contracts import SpecSet
from tests.helpers.machines import invented

ENGINE = """memtopo: 1
name: engine
chunks: {c: {location: [gpu0, gpu1], size: 2MiB, count: 4, handles: fd}}
buffers: {b: {location: gpu0, size: 2MiB}}
exports:
  c: {chunk: c, via: fd}
  b: {buffer: b, via: ipc}
"""
READER = """memtopo: 1
name: reader
ranges: {view: {size: 8MiB}}
imports: {c: {from: engine/c, location: [gpu0, gpu1], size: 2MiB, count: 4}}
map: {view: [c]}
access: {view: {gpu0: r}}
"""


PLAIN = Variant()
MACHINES = {"two": invented(2), "four": invented(4)}


def checked(*texts: str, variant: Variant = PLAIN, machines: Sequence[str] = ("two",)) -> list[CheckedFile]:
    documents = [read_text(text.encode(), f"{number}.yaml") for number, text in enumerate(texts)]
    beside = SpecSet(documents).diagnose
    return [check(each, machines, lambda name, _: MACHINES[name], None, [variant], beside) for each in documents]


def errors(found: CheckedFile) -> list[tuple[str, str, str | None, str | None]]:
    """Code, place, places elsewhere and help of each error."""
    every = [each.diagnostic for each in found.diagnostics() if each.diagnostic.severity == "error"]
    document: Document = found.document
    return [
        (each.code, ".".join(map(str, each.path)), next(iter(each.notes), None), each.help)
        for each in every
        if document.span_of(each)
    ]


C = "exported at 1.yaml:6:3"


@pytest.mark.parametrize(
    ("right", "wrong", "expected"),
    [
        ("", "", []),
        ("2MiB, count: 4", "4MiB, count: 2", [
            ("MT604", "imports.c.count", C, "write 'count: 4'"), ("MT604", "imports.c.size", C, "write 'size: 2MiB'"),
        ]),
        ("[gpu0, gpu1], size: 2MiB", "gpu1, size: 2MiB",
            [("MT604", "imports.c.location", C, "write 'location: [gpu0, gpu1]'")]),
        ("engine/c, location: [gpu0, gpu1]", "engine/c, via: ipc, location: gpu0",
            [("MT201", "map.view.0.chunk", None, "share a chunk via fd instead"),
             ("MT604", "imports.c.kind", C, "declare the properties that the holder exports")]),
        ("engine/c", "engine/d", [("MT201", "imports.c.from", None, "write one of c, b")]),
        ("engine/c", "another/c", []),
        ("engine/c", "/run/engine/c", []),
    ],
)  # fmt: skip
def test_an_import_is_compared_with_the_export_of_another_spec(
    right: str, wrong: str, expected: list[tuple[str, str, str | None, str]]
) -> None:
    reader, engine = checked(READER.replace(right, wrong), ENGINE)
    assert (errors(reader), errors(engine)) == (expected, [])


def test_of_processes_the_held_ones_export_by_their_names() -> None:
    body = "".join(f"    {line}\n" for line in ENGINE.splitlines()[2:])
    engine = f"memtopo: 1\nname: engine\nprocesses:\n  server:\n{body}"
    reader = READER.replace("engine/c", "engine/server.c")
    assert [errors(each) for each in checked(reader, engine)] == [[], []]
    (found,) = errors(checked(reader.replace("count: 4", "count: 3"), engine)[0])
    assert found[1:] == ("imports.c.count", "exported at 1.yaml:8:7", "write 'count: 4'")


def test_an_import_has_to_fit_one_of_the_specs_of_a_name() -> None:
    """A folder may have the layout before and after a change."""
    larger = ENGINE.replace("count: 4", "count: 8")
    for count, wrong in ((4, 0), (8, 0), (6, 1)):
        reader = READER.replace("count: 4", f"count: {count}").replace("8MiB", f"{2 * count}MiB")
        assert len(errors(checked(reader, ENGINE, larger)[0])) == wrong


def test_an_import_is_compared_with_the_export_on_the_same_machine() -> None:
    engine = ENGINE.replace("[gpu0, gpu1]", "gpus")
    for machines in (["two", "four"], ["four", "two"]):
        results = checked(READER, engine, machines=machines)[0].results
        assert {each.machine: [found.code for found in each.diagnostics] for each in results} == {
            "two": [],
            "four": ["MT604"],
        }


def test_an_exporter_with_errors_has_only_these() -> None:
    """What it exports is unknown, and compared as far as it is known."""
    engine = ENGINE.replace("location: gpu0", "location: gpu7")
    for reader, wrong in ((READER, 0), (READER.replace("count: 4", "count: 3"), 1), (READER.replace("/c", "/b"), 0)):
        found = checked(reader, engine)
        assert (len(errors(found[0])), [each[0] for each in errors(found[1])]) == (wrong, ["MT401"])


def test_specs_may_import_from_each_other_and_from_themselves() -> None:
    chunk, export = (
        "chunks: {own: {location: gpu0, size: 2MiB, handles: fd}}\n",
        "exports: {own: {chunk: own, via: fd}}\n",
    )
    wanted = "imports: {x: {from: HOLDER/own, location: gpu0, size: 4MiB}}\n"
    one, two = (
        f"memtopo: 1\nname: {name}\n{chunk}{export}{wanted.replace('HOLDER', holder)}"
        for name, holder in (("one", "two"), ("two", "one"))
    )
    assert [[each[:2] for each in errors(found)] for found in checked(one, two)] == [[("MT604", "imports.x.size")]] * 2
    assert errors(checked(one.replace("two/", "one/"), two)[0]) == []


def test_a_comment_ignores_a_difference_from_another_spec() -> None:
    reader = READER.replace("size: 2MiB, count: 4}}", "size: 2MiB, count: 3}}  # memtopo: ignore[MT604]")
    (result,) = checked(reader, ENGINE)[0].results
    assert result.ignored == 1


def test_an_exporter_is_laid_out_once_for_all_of_its_importers() -> None:
    applied: list[str] = []

    def applying(document: Document) -> Document:
        applied.append(document.name)
        return document

    texts = [
        ENGINE,
        *(READER.replace("count: 4", "count: 3").replace("name: reader", f"name: r{n}") for n in range(50)),
    ]
    found = checked(*texts, variant=Variant(applied=applying))
    assert sum(len(errors(each)) for each in found) == 50
    assert applied.count("0.yaml") == 2  # once to be checked itself
