from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from memtopo.diagnostics.model import At, TextSpan
from memtopo.language import Document, Value, read_file, read_text
from memtopo.language.limits import MOST_DIAGNOSTICS
from memtopo.language.reader import MOST_ERRORS
from tests.helpers.language import only_diagnostic_of

SPEC = """\
# a layout
memtopo: 1
name: kv-cache

chunks:
  hot:  {location: gpu0, size: 32MiB, handles: [fd, fabric]}
  cold:
    location: gpu1
    size:

map:
  kv: [hot, {chunk: cold, offset: 32MiB}]
  kw:
  - hot
  # last
"""


def read(text: str) -> Document:
    return read_text(text.encode(), "spec.yaml")


def spanned(document: Document, span: TextSpan | None) -> str:
    assert span
    assert span.line == span.end_line
    return document.line(span.line)[span.column - 1 : span.end_column - 1]


def found(text: str) -> list[tuple[str, str]]:
    """The code of each diagnostic and the text at its position."""
    document = read(text)
    return [(fault.code, spanned(document, fault.span)) for fault in document.diagnostics]


def test_a_scalar_is_its_text() -> None:
    """A value that is not written is an empty text."""
    document = read("a: 010\nb: yes\nc: 1:30\nd: ~\ne: null\nf: 2001-99-99\ng: 'x y'\nh:\non: 1\n")
    assert document.diagnostics == ()
    assert list(document.root) == ["a", "b", "c", "d", "e", "f", "g", "h", "on"]
    assert list(document.root.values()) == ["010", "yes", "1:30", "~", "null", "2001-99-99", "x y", "", "1"]


def test_mappings_and_lists_are_those_of_python() -> None:
    """In the order of the text."""
    assert read(SPEC).root == {
        "memtopo": "1",
        "name": "kv-cache",
        "chunks": {
            "hot": {"location": "gpu0", "size": "32MiB", "handles": ["fd", "fabric"]},
            "cold": {"location": "gpu1", "size": ""},
        },
        "map": {"kv": ["hot", {"chunk": "cold", "offset": "32MiB"}], "kw": ["hot"]},
    }


@pytest.mark.parametrize(
    ("path", "at", "text"),
    [
        (("name",), "value", "kv-cache"),
        (("name",), "key", "name"),
        (("chunks", "hot"), "key", "hot"),
        (("chunks", "hot"), "value", "{location: gpu0, size: 32MiB, handles: [fd, fabric]}"),
        (("chunks", "hot", "handles", 1), "value", "fabric"),
        (("chunks", "hot", "handles", 1), "key", "fabric"),
        (("map", "kv", 1, "offset"), "value", "32MiB"),
        (("map", "kv", 1, "chunk"), "key", "chunk"),
        (("map", "kw", 0), "value", "hot"),
        (("chunks", "cold", "size"), "value", ""),
        # not there: the nearest thing above it
        (("chunks", "cold", "count"), "value", "cold"),
        (("chunks", "cold", "count", "x", 3), "value", "cold"),
        (("chunks", "warm"), "value", "chunks"),
        (("map", "kv", 7), "value", "kv"),
        (("map", "kv", 1, "x"), "value", "{chunk: cold, offset: 32MiB}"),
        (("map", "kv", "x"), "value", "kv"),
        (("name", "x"), "value", "name"),
        (("ranges",), "value", "memtopo"),
        ((), "key", "memtopo"),
    ],
)
def test_a_path_has_the_position_of_its_key_or_value(path: tuple[str | int, ...], at: At, text: str) -> None:
    """Or of the key of its nearest ancestor."""
    document = read(SPEC)
    assert spanned(document, document.span(path, at)) == text


def test_the_only_item_of_a_list_without_brackets_has_the_position_of_its_value() -> None:
    document = read("map:\n  kv: page\n  hot: [a, b]\n")
    for path, text in ((("map", "kv", 0), "page"), (("map", "hot", 0), "a"), (("map", "kv", 1), "kv")):
        assert spanned(document, document.span(path)) == text


def test_a_block_ends_where_its_last_value_ends() -> None:
    """And not after the comments that follow."""
    assert read(SPEC).span(("map",)) == TextSpan(12, 3, 14, 8)
    assert read(SPEC).span(("chunks", "cold")) == TextSpan(8, 5, 9, 10)


@pytest.mark.parametrize(
    "head", ["", "\ufeff", "# 𝒳 é e\u0301\r\n\r\n", "# x\n" * 9000, "𝒳: {é: [1, 'a\r\n\r\n  b', \"\\u00e9\"]}\r\n"]
)
def test_positions_count_characters(head: str) -> None:
    """Independent of their bytes, of a byte order mark, and of earlier line ends."""
    document = read(head + "a𝒳: {é: e\u0301𝒳, b: [c]}\n")
    assert spanned(document, document.span(("a𝒳", "é"))) == "e\u0301𝒳"
    assert spanned(document, document.span(("a𝒳", "b", 0))) == "c"


def test_a_refused_entry_leaves_the_positions_of_others_unchanged() -> None:
    document = read("a: {x: *y, b: 1}\na: {q: 1, r: 2}\n? [k]\n: {l: m}\nc: [1, *z, {d: 2}]\n<<: {e: [f]}\ng: 3\n")
    assert document.root == {"a": {"b": "1"}, "c": ["1", {"d": "2"}], "g": "3"}
    assert spanned(document, document.span(("a", "b"))) == "1"
    assert spanned(document, document.span(("c", 1, "d"))) == "2"
    assert spanned(document, document.span(("g",))) == "3"
    assert document.left_out == {("a", ""), ("a", "x"), ("c",), ("<<",)}
    assert [fault.code for fault in document.diagnostics] == ["MT006", "MT009", "MT103", "MT006", "MT008"]


def test_a_line_has_a_number_from_1_and_no_line_end() -> None:
    """A line that does not exist is empty."""
    document = read("a: 1\r\n\nb: 2")
    assert [document.line(number) for number in range(-1, 5)] == ["", "", "a: 1", "", "b: 2", ""]


@given(st.lists(st.sampled_from(["", "x", "# é", "y" * 999]), max_size=400), st.data())
def test_any_line_and_character_is_found_by_its_position(lines: list[str], data: st.DataObject) -> None:
    text = "a: 1\n" + "".join(f"# {line}\n" for line in lines)
    document = read(text)
    assert [document.line(number + 2) for number in range(len(lines))] == [f"# {line}" for line in lines]
    index = data.draw(st.integers(0, len(text)))
    span = document.lines.span(index, index)
    assert (span.line, span.column) == (text.count("\n", 0, index) + 1, index - text.rfind("\n", 0, index))


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("a: 1\nb: 2\na: 3\n", [("MT009", "a")]),
        ("1: x\n'1': y\n", [("MT009", "'1'")]),
        ("a: &x 1", [("MT006", "&x 1")]),
        ("a: *x", [("MT006", "*x")]),
        ("a: *", [("MT006", "")]),
        ("a: !!str x", [("MT007", "!!str x")]),
        ("a: ! x", [("MT007", "! x")]),
        ("a: !e!x y", [("MT007", "!")]),
        ("a: !<x> {}", [("MT007", "!<x> {")]),
        ("a: {<<: *b}", [("MT008", "<<")]),
        ("'<<': x", []),
        ("? [a]\n: b\n", [("MT103", "[")]),
        ("{a: b}: c\n", [("MT103", "{")]),
        ("*a : c\n", [("MT103", "*a")]),
        ("?\n: c\n", [("MT103", "")]),
        (": c\n", [("MT005", ":")]),
        ('a: "\\e[31m"\n', [("MT004", '"\\e[31m"')]),
        ('"\\0": 1\n', [("MT004", '"\\0"')]),
        ("a: x\u202ey\n", [("MT004", "x\u202ey")]),
        ("# x\u202ey\na: 1\n", []),
        ("a: @x", [("MT005", "@")]),
        ("a: 'x", [("MT005", "")]),
        ("a: [1, 2\nb: 3", [("MT005", ":")]),
        ("a: 1\nfoo\nb: 2", [("MT005", "f")]),
        ("a: b: c", [("MT005", ":")]),
        ("a: 1\n]", [("MT005", "]")]),
        ('a: "\\q"', [("MT005", "\\")]),
        ("%YAML 1.2 # x\n--- # y\na: 1\n...\n# z\n", []),
        ("%YAML 2.0\n---\na: 1\n", [("MT005", "%YAML 2.0")]),
        ("%YAML 1.2\n%YAML 1.2\n---\na: 1\n", [("MT005", "%YAML 1.2")]),
        ("# x\n%TAG ! x\n---\na: 1\n", [("MT005", "%TAG ! x")]),
        ("---\na: 1\n---\nb: 2\n", [("MT010", "")]),
        ("a: 1\n...\nb: 2\n", [("MT010", "")]),
        ("a: 1\n...\n%TAG ! x\n", [("MT005", "%TAG ! x")]),
    ],
)
def test_a_diagnostic_has_a_code_and_a_position(text: str, faults: list[tuple[str, str]]) -> None:
    """For every construct that the language lacks."""
    assert found(text) == faults


def test_of_a_text_with_many_syntax_errors_the_first_one_is_reported_alone() -> None:
    document = read("a: 1\na: 2\nb: *x\n" + "c: ]\n" * (MOST_ERRORS + 1))
    assert [fault.code for fault in document.diagnostics] == ["MT005"]
    assert document.root == {}


def test_a_duplicate_key_has_both_positions() -> None:
    """The second is the error, the first a label."""
    document = read("chunks: {a: 1, b: 2, a: 3}\n")
    fault = only_diagnostic_of(document)
    assert fault.path == ("chunks", "a")
    assert fault.span == TextSpan(1, 22, 1, 23)
    (label,) = fault.labels
    assert label.text == "first given here"
    assert document.span(label.path, label.at) == TextSpan(1, 10, 1, 11)
    assert document.root == {"chunks": {"a": "1", "b": "2"}}


def test_the_first_of_very_many_diagnostics_are_reported_and_the_rest_counted() -> None:
    document = read("a: 1\n" * (MOST_DIAGNOSTICS + 51))
    assert len(document.diagnostics) == MOST_DIAGNOSTICS
    assert document.diagnostics[-1].notes == ("and 50 more like these",)


def test_an_unclosed_bracket_is_a_label_of_its_diagnostic() -> None:
    (label,) = only_diagnostic_of(read("a: {b: 1\n")).labels
    assert (label.text, label.span) == ("'{' opens here", TextSpan(1, 4, 1, 5))


def test_a_document_has_the_given_name(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text("a: 1\n")
    assert read_file(path).name == str(path)
    assert read_file(path, name="<it>").name == "<it>"
    assert read_file(path).root == {"a": "1"}


NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9_-]{0,8}", fullmatch=True)
VALUES: st.SearchStrategy[Value] = st.recursive(
    st.text(st.characters(min_codepoint=32, max_codepoint=126, exclude_characters="$"), max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=25,
)


@given(st.dictionaries(NAMES, VALUES, min_size=1, max_size=5), st.sampled_from([True, False, None]), st.booleans())
def test_output_of_a_yaml_writer_is_read_as_the_same_values(
    root: dict[str, Value], flow: bool | None, unicode: bool
) -> None:
    """And every scalar has its position."""
    text = yaml.dump(root, default_flow_style=flow, allow_unicode=unicode, width=10**6, Dumper=_Plain)
    document = read(text)
    assert document.diagnostics == ()
    assert document.root == root
    for path, value in _scalars(root, ()):
        span = document.span(path)
        assert span
        assert yaml.safe_load(spanned(document, span)) is not None or value in {"", "~", "null", "Null", "NULL"}


class _Plain(yaml.SafeDumper):
    def ignore_aliases(self, _data: object) -> bool:
        return True


def _scalars(value: Value, path: tuple[str | int, ...]) -> list[tuple[tuple[str | int, ...], str]]:
    if isinstance(value, str):
        return [(path, value)]
    pairs: Any = value.items() if isinstance(value, dict) else enumerate(value)
    return [pair for step, inner in pairs for pair in _scalars(inner, (*path, step))]


def test_20_000_chunks_with_positions_take_less_than_40_mib() -> None:
    """The collector runs as before."""
    text = "chunks:\n" + "".join(f"  c{i}: {{location: gpu0, size: 2MiB}}\n" for i in range(20_000))
    tracemalloc.start()
    try:
        document = read(text)
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()
    assert spanned(document, document.span(("chunks", "c19999", "location"))) == "gpu0"
    assert gc.isenabled()
