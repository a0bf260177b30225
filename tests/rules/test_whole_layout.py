"""Limits of a process's address space."""

from __future__ import annotations

import pytest

from memtopo.diagnostics.model import Diagnostic
from tests.helpers.specs import diagnose


def refused(text: str) -> list[Diagnostic]:
    return [each for each in diagnose(text) if each.code == "MT310"]


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        ("chunks: {c: {location: gpu0, size: SIZE}}", "chunk 'c'"),
        ("managed: {c: {size: SIZE}}", "managed memory 'c'"),
        ("imports: {c: {from: l/w, location: gpu0, size: SIZE}}", "import 'c'"),
    ],
)
def test_an_object_ends_before_the_address_space_does(entry: str, named: str) -> None:
    assert refused(entry.replace("SIZE", "131071GiB")) == []
    path = entry.partition(":")[0], "c", "size"
    for size, shown in (("128TiB", "128 TiB"), ("200TiB", "200 TiB")):
        message = f"{named}: {shown} do not fit into 128 TiB of addresses"
        assert refused(entry.replace("SIZE", size)) == [Diagnostic("MT310", message, path, help="lower its size")]


@pytest.mark.parametrize(
    ("last", "shown"),
    [
        ("size: 1020MiB", None),
        ("size: 1GiB", "128 TiB"),
        ("size: 512MiB, count: 2", "128 TiB"),
        ("size: 1TiB", "129.0 TiB"),
    ],
)
def test_all_ranges_together_end_before_the_address_space_does(last: str, shown: str | None) -> None:
    """The first range that is too much is named, and none after it."""
    text = f"ranges: {{a: {{size: 127TiB}}, b: {{size: 1023GiB}}, c: {{{last}}}, d: {{size: 2MiB}}}}"
    message = f"range 'c': {shown} with the ranges before it do not fit into 128 TiB of addresses"
    expected = Diagnostic("MT310", message, ("ranges", "c", "size"), help="lower the size or the count of ranges")
    assert refused(text) == ([expected] if shown else [])


def test_an_import_of_a_sibling_is_the_siblings_fault_alone() -> None:
    text = """
processes:
  a: {chunks: {c: {location: gpu0, size: 128TiB, handles: fd}}, exports: {w: {chunk: c, via: fd}}}
  b: {imports: {w: {from: a.w}}}
"""
    assert [each.path for each in refused(text)] == [("processes", "a", "chunks", "c", "size")]
