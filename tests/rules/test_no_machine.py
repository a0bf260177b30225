"""Validation without a machine: what is wrong on every machine, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from memtopo.diagnostics.model import Diagnostic
from memtopo.language import read_file
from memtopo.machine import load
from memtopo.rules.no_machine import validate_without_machine
from memtopo.rules.validation import validate
from tests.helpers.machines import noted
from tests.helpers.specs import ROOT, document
from tests.rules.test_bad import BAD


def spec(chunk: str) -> str:
    return (
        f"ranges: {{kv: {{size: 64MiB}}}}\nchunks: {{a: {{{chunk}}}}}\nmap: {{kv: [a]}}\naccess: {{kv: {{gpu0: rw}}}}\n"
    )


def identities(found: tuple[Diagnostic, ...]) -> set[object]:
    return {(each.code, each.path, each.at, each.span) for each in found}


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_everything_that_is_reported_is_reported_on_a_machine_too(path: Path) -> None:
    found = read_file(path)
    machine = noted(path.read_text(errors="replace"))
    without = validate_without_machine(found)
    assert without.geometry is None
    assert identities(without.diagnostics) <= identities(validate(found, machine).diagnostics)


def test_most_wrong_examples_are_wrong_without_a_machine() -> None:
    """Those that remain need granularities, devices, memory or what these support."""
    wrong = [path.stem for path in BAD if validate_without_machine(read_file(path)).diagnostics]
    assert len(wrong) > 0.75 * len(BAD)


def test_no_valid_spec_is_reported() -> None:
    for path in sorted((ROOT / "specs").rglob("*.yaml")):
        assert not validate_without_machine(read_file(path)).diagnostics, path


@pytest.mark.parametrize(
    ("chunk", "code"),
    [
        ("location: gpu0, size: 3MiB", "MT301"),
        ("location: gpu40, size: 2MiB", "MT401"),
        ("location: gpu0, size: 64MiB, handles: [fabric]", "MT404"),
        ("location: gpu0, size: 33 granules", "MT305"),
        ("location: gpus, size: 64MiB", "MT305"),
        ("location: gpu0, size: 90%", "MT305"),
    ],
)
def test_what_depends_on_a_machine_is_not_reported(chunk: str, code: str) -> None:
    found = document(spec(chunk))
    assert [each.code for each in validate(found, load("h200x2")).diagnostics] == [code]
    assert not validate_without_machine(found).diagnostics


def test_arithmetic_of_sizes_is_checked() -> None:
    (found,) = validate_without_machine(document(spec("location: gpu0, size: 66MiB"))).diagnostics
    assert (found.code, found.path) == ("MT305", ("map", "kv", 0))


def test_comments_about_machines_are_not_reported_as_unused() -> None:
    text = spec("location: gpu0, size: 64MiB").replace("\nmap", "  # memtopo: ignore[MT402]\nmap")
    assert [each.code for each in validate(document(text), load("h200x2")).diagnostics] == ["MT505"]
    assert not validate_without_machine(document(text)).diagnostics
