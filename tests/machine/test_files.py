"""The machines that come with memtopo."""

from __future__ import annotations

import pytest

from memtopo import machine
from tests.helpers.specs import ROOT


@pytest.mark.parametrize("name", machine.shipped())
def test_a_shipped_machine_is_valid(name: str) -> None:
    """A shipped machine is read without being validated, and is what validating it gives, to the byte"""
    text = (ROOT / "memtopo" / "machines" / f"{name}.json").read_bytes()
    valid = machine.parse(text, name)
    assert machine.load(name) == valid
    assert machine.dump(machine.load(name)).encode() == text


def test_what_is_shipped() -> None:
    """There is a machine for each kind that memtopo was run on"""
    assert {"h100x1", "h200x2", "h200x4"} <= set(machine.shipped())
