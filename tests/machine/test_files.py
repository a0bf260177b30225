"""The machines that come with memtopo."""

from __future__ import annotations

import pytest

from memtopo import machine
from tests.helpers.specs import ROOT


@pytest.mark.parametrize("name", machine.shipped())
def test_a_shipped_machine_equals_its_validated_form(name: str) -> None:
    """It is read without validation."""
    text = (ROOT / "memtopo" / "machines" / f"{name}.json").read_bytes()
    valid = machine.parse(text, name)
    assert machine.load(name) == valid
    assert machine.dump(machine.load(name)).encode() == text


def test_every_supported_kind_of_machine_is_shipped() -> None:
    assert {"h100x1", "h200x2", "h200x4"} <= set(machine.shipped())
