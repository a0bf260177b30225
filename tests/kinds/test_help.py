"""Help of diagnostics: what would be right, for forms that users of other tools are likely to write."""

from __future__ import annotations

from pathlib import Path

from memtopo.language import Document
from memtopo.output.diagnostics import text
from tests.helpers.specs import document, validate_text


def test_an_undeclared_name_in_place_of_a_list_is_marked() -> None:
    source = document("ranges: {kv: {size: 4MiB, elastic: {chunks: pages}}}")
    span = source.span(("ranges", "kv", "elastic", "chunks", 0))
    assert span
    assert source.line(span.line)[span.column - 1 :].startswith("pages")


def test_help_for_a_python_path_is_its_text() -> None:
    spec = {"memtopo": 1, "name": "test", "pinned": {"p": {"size": "2MiB", "file": Path("/dev/shm/ring")}}}
    (found,) = Document.from_object(spec).diagnostics
    assert (found.path, found.help) == (("pinned", "p", "file"), "pass its text: str(path)")


def test_a_blank_after_the_colon_of_a_key_is_asked_for() -> None:
    (found,) = document("params: {pages:, page: 2MiB}").diagnostics
    assert found.help == "in braces, a blank follows the ':' of a key; text with ':' needs quotes"


def test_numbers_of_facts_are_explained_once() -> None:
    found = validate_text("managed: {m: {size: 2MiB}, n: {size: 2MiB}}\nmap: {m: [m], n: [n]}")
    shown = text(found.diagnostics, found.document)
    assert sum("docs/driver-facts.md" in line for line in shown) == 1
    plain = validate_text("chunks: {c: {location: gpu9, size: 2MiB}}")
    assert not any("docs/driver-facts.md" in line for line in text(plain.diagnostics, plain.document))
