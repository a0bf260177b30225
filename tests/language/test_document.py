from __future__ import annotations

from enum import Enum, IntEnum
from typing import Any

import pytest
from msgspec.structs import replace

from memtopo.language import Document, SpecText, read_text
from memtopo.language.limits import DEEPEST, MOST_ENTRIES


def test_a_python_mapping_gives_the_values_of_the_same_text() -> None:
    given: dict[Any, object] = {"memtopo": 1, "rdma": True, "on": False, "size": None, 7: ("a", ["b"]), "c": {"d": "e"}}
    document = Document.from_object(given)
    assert document.diagnostics == ()
    assert document.name == "<dict>"
    assert document.root == {
        "memtopo": "1",
        "rdma": "true",
        "on": "false",
        "size": "",
        "7": ["a", ["b"]],
        "c": {"d": "e"},
    }
    assert document.span(("c", "d")) is None
    assert document.line(1) == ""


def test_members_of_enumerations_are_their_values() -> None:
    class Word(str, Enum):  # noqa: UP042 whose text is not its value
        FD = "fd"

    class Number(IntEnum):
        TWO = 2

    assert Document.from_object({"a": Word.FD, "b": Number.TWO}).root == {"a": "fd", "b": "2"}


def test_a_list_without_some_of_its_values_is_left_out_as_a_whole() -> None:
    assert Document.from_object({"a": {"b": ["x", "\x1b"]}}).left_out == {("a", "b")}


def _endless() -> dict[str, Any]:
    given: dict[str, Any] = {}
    given["a"] = given
    return given


@pytest.mark.parametrize(
    ("given_object", "code", "path"),
    [
        ({"a": 1.5}, "MT103", ("a",)),
        ({"a": b"x"}, "MT103", ("a",)),
        ({"a": [{"b": object()}]}, "MT103", ("a", 0, "b")),
        ({"a": {1, 2}}, "MT103", ("a",)),
        ({"a": 10**5000}, "MT103", ("a",)),
        ({1.5: "a"}, "MT103", ()),
        ({1: "a", "1": "b"}, "MT009", ("1",)),
        ({"a": "\x1b"}, "MT004", ("a",)),
        ({"a": "\ud800"}, "MT004", ("a",)),
        ({"a": "x" * 70000}, "MT002", ("a",)),
        (_endless(), "MT002", ("a",) * DEEPEST),
    ],
)
def test_an_object_of_another_type_is_a_diagnostic_at_its_path(
    given_object: dict[str, Any], code: str, path: tuple[str | int, ...]
) -> None:
    """And is left out."""
    document = Document.from_object(given_object)
    (fault,) = document.diagnostics
    assert (fault.code, fault.path) == (code, path)
    assert "a" not in document.root or document.root["a"] in ([{}], "a")


def test_a_mapping_has_at_most_as_many_entries_as_a_text() -> None:
    assert Document.from_object({"a": ["1"] * (MOST_ENTRIES - 1)}).diagnostics == ()
    (fault,) = Document.from_object({"a": ["1"] * MOST_ENTRIES}).diagnostics
    assert (fault.code, fault.path) == ("MT002", ("a", MOST_ENTRIES - 1))


def test_the_text_of_a_mapping_has_its_parameters_and_settings() -> None:
    given = {"memtopo": 1, "name": "t", "params": {"n": 3}, "ranges": {"a": {"count": "$n"}}}
    found = SpecText.of(Document.from_object(given, "plan", {"n": "5"})).read()
    assert (found.name, found.values, found.root["ranges"]) == ("plan", {"n": "5"}, {"a": {"count": "5"}})
    for settings, count in (({}, "3"), ({"n": "7"}, "7")):
        assert found.with_settings(settings).root["ranges"] == {"a": {"count": count}}


def test_the_text_of_a_mapping_has_all_characters_that_a_value_may_have() -> None:
    given = {"memtopo": "1", "name": "t", "imports": {"w": {"from": '/run/\U0001f600 é\t\n\\"\xad\ue000\ufffd/s/w'}}}
    found = SpecText.of(Document.from_object(given)).read()
    assert (found.diagnostics, found.root) == ((), given)


def test_other_settings_leave_a_document_with_its_file() -> None:
    for text in (b"memtopo: 1\nparams: {n: 1}\n", b"["):
        found = replace(read_text(text, "spec.yaml"), plan="plan.json")
        assert found.with_settings({"n": "2"}).file == "plan.json"
