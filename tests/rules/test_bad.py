"""Every wrong example in tests/bad/ is answered with exactly the codes that its first line expects."""

from __future__ import annotations

from pathlib import Path

import pytest

from memtopo.diagnostics import CODES
from memtopo.language import read_file
from memtopo.rules.validation import validate
from tests.helpers.machines import noted

BAD = sorted((Path(__file__).parent.parent / "bad").glob("*.yaml"))


def expected(path: Path) -> list[str]:
    first = path.read_bytes().splitlines()[0].decode()
    return first.removeprefix("# expect: ").split()


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_wrong_example(path: Path) -> None:
    """A wrong spec has the faults that it was made for, each in its place, and no others"""
    document = read_file(path)
    found = validate(document, noted(path.read_text(errors="replace"))).diagnostics
    assert [diagnostic.code for diagnostic in found] == expected(path), found
    for diagnostic in found:
        assert diagnostic.span or document.span(diagnostic.path, diagnostic.at), diagnostic


def test_every_code_has_an_example() -> None:
    """No code is without an example that shows it"""
    shown = {code for path in BAD for code in expected(path)}
    of_changes = {"MT806", "MT807", "MT808", "MT810", "MT813"}  # in test_change
    assert shown >= {code for code in CODES if code >= "MT1"} - of_changes - {"MT507"}  # in session/test_machines
