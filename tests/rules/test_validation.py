"""Validation: faults of the text, of entries and of rules in one run."""

from __future__ import annotations

import pytest

from memtopo.machine import Cluster, Machine
from memtopo.rules import NeverTried, require_tried
from tests.helpers.machines import invented, noted, with_multicast
from tests.helpers.specs import geometry_of, validate_text

CHUNK = "chunks: {c: {location: gpu0, size: 2MiB}}\n"


def test_faults_of_text_entries_and_rules_are_found_in_one_run() -> None:
    found = validate_text(f"{CHUNK}buffers: {{b: {{size: 1MiB}}}}\nranges: {{a: {{size: 2MiB}}, a: {{size: 2MiB}}}}\n")
    assert [each.code for each in found.diagnostics] == ["MT009", "MT102", "MT501", "MT502"]
    assert found.geometry is None


def test_an_unreadable_text_has_no_faults_but_those_of_its_reading() -> None:
    found = validate_text("memtopo: 1\nname: [\n")
    assert [each.code[:3] for each in found.diagnostics] == ["MT0"]
    assert found.geometry is None


def test_a_warning_leaves_a_geometry_and_an_error_does_not() -> None:
    warned = validate_text(CHUNK)
    assert ([each.code for each in warned.diagnostics], warned.geometry is None) == (["MT501"], False)
    assert validate_text(CHUNK.replace("2MiB", "3MiB")).geometry is None


def test_an_ignored_warning_is_kept_apart_with_its_comment() -> None:
    ignored = validate_text(CHUNK.rstrip() + "  # memtopo: ignore[MT501] for later\n")
    assert (ignored.diagnostics, [each.code for each in ignored.ignored]) == ((), ["MT501"])
    assert len(ignored.used) == 1
    assert ignored.geometry is not None


TEAM = """
    chunks: {part: {location: gpus, size: 2MiB, count: 2}}
    multicast: {team: {devices: gpus, size: 2MiB}}
    bind: {team: [part]}
    ranges: {mc: {size: 2MiB}}
    map: {mc: [team]}
    access: {mc: {gpus: rw}}
"""


@pytest.mark.parametrize(("one", "two"), [("a", "b"), ("b", "a")])
def test_what_is_built_was_tried_on_the_machine_of_each_node(one: str, two: str) -> None:
    works, untried = with_multicast(invented(2)), noted("multicast was never tried")
    assert isinstance(untried, Machine)
    text = f"processes:\n  one:\n    node: {one}{TEAM}  two:\n    node: {two}{TEAM}"
    nodes = Cluster({"a": works, "b": works})
    require_tried(geometry_of(text, nodes), nodes)
    mixed = Cluster({"a": works, "b": untried})
    with pytest.raises(NeverTried, match="never tried") as raised:
        require_tried(geometry_of(text, mixed), mixed)
    assert not raised.value.details
