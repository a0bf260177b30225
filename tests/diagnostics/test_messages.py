"""Errors of pydantic as diagnostics."""

from __future__ import annotations

import pytest

from memtopo.diagnostics.messages import unknown
from tests.helpers.language import diagnosed


def test_a_misspelled_key_excuses_the_missing_one_in_its_own_entry_alone() -> None:
    misspelled, missing = {"location": "gpu0", "sise": "2MiB"}, {"location": "gpu0"}
    assert diagnosed(chunks={"a": misspelled, "b": missing}) == [
        ("MT101", ("chunks", "a", "sise"), "key"),
        ("MT102", ("chunks", "b", "size"), "value"),
    ]


@pytest.mark.parametrize(
    ("key", "help", "edit"),
    [
        ("sise", "did you mean 'size'?", "size"),
        ("bytes", "did you mean 'size'?", None),
        ("page1", "did you mean 'page3'?", None),
        ("ge2", "known are size, page2, page3", None),
    ],
)
def test_a_key_is_replaced_by_the_only_one_that_is_near(key: str, help: str, edit: str | None) -> None:
    """Not by one of two that are near, nor by one that has this name elsewhere."""
    found = unknown(("chunks", key), ("size", "page2", "page3"))
    assert (found.help, found.edit and found.edit.new) == (help, edit)
