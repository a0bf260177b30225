"""Errors of pydantic as diagnostics."""

from __future__ import annotations

from tests.helpers.language import diagnosed


def test_a_misspelled_key_excuses_the_missing_one_in_its_own_entry_alone() -> None:
    misspelled, missing = {"location": "gpu0", "sise": "2MiB"}, {"location": "gpu0"}
    assert diagnosed(chunks={"a": misspelled, "b": missing}) == [
        ("MT101", ("chunks", "a", "sise"), "key"),
        ("MT102", ("chunks", "b", "size"), "value"),
    ]
