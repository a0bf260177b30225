"""Every wrong example in tests/bad/ is answered with exactly the codes that its first line expects."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from memtopo.diagnostics import CODES
from memtopo.language import read_file
from memtopo.rules import Validated, validate
from tests.helpers.answers import INDENT, OF_EXAMPLES, kept, rendered
from tests.helpers.machines import noted

BAD = sorted((Path(__file__).parent.parent / "bad").glob("*.yaml"))


def expected(path: Path) -> list[str]:
    first = path.read_bytes().splitlines()[0].decode()
    return first.removeprefix("# expect: ").split()


@cache
def validated(path: Path) -> Validated:
    return validate(read_file(path), noted(path.read_text(errors="replace")))


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_wrong_example(path: Path) -> None:
    """A wrong spec has the faults that it was made for, each in its place, and no others"""
    found = validated(path)
    assert [diagnostic.code for diagnostic in found.diagnostics] == expected(path), found.diagnostics
    for diagnostic in found.diagnostics:
        assert diagnostic.span or found.document.span(diagnostic.path, diagnostic.at), diagnostic


def test_each_wrong_example_has_the_written_diagnostics() -> None:
    """GOLDEN=write writes them."""
    found = [line for path in BAD for line in [path.name, *(INDENT + line for line in rendered(validated(path)))]]
    assert found == kept(OF_EXAMPLES, "\n".join(found) + "\n").splitlines()


def test_every_code_has_an_example() -> None:
    """No code is without an example that shows it"""
    shown = {code for path in BAD for code in expected(path)}
    of_changes = {"MT806", "MT807", "MT808", "MT810", "MT813"}  # in test_change
    assert shown >= {code for code in CODES if code >= "MT1"} - of_changes - {"MT507"}  # in session/test_machines
