from __future__ import annotations

from pathlib import Path

from memtopo.rules.files import check, collect
from tests.ci.conftest import BAD, GOOD, TWO_GPUS, Checking
from tests.ci.forms import gitlab, text
from tests.helpers.machines import invented
from tests.helpers.specs import ROOT


def test_a_fault(checked: Checking) -> None:
    """A fault is an entry with its code, its line, and in one line what to do"""
    first, second = gitlab(text("gitlab", checked({"./specs/bad.yaml": BAD})))
    assert (first["check_name"], first["severity"], second["severity"]) == ("MT301", "major", "minor")
    assert first["location"] == {"path": "specs/bad.yaml", "lines": {"begin": 4}}
    assert "\n" not in first["description"]
    assert first["description"].endswith("help: write 2MiB or 4MiB, or 'round: up'")


def test_every_fault(folder: Path) -> None:
    """Every wrong example can be written, and each fault has a mark of its own"""
    assert len(gitlab(text("gitlab", check(collect([str(ROOT / "tests" / "bad")]), {"two": invented(2)})))) > 40


def test_machines(checked: Checking) -> None:
    """A fault is told once for all machines, and one that not all share says which it is on"""
    found = gitlab(text("gitlab", checked({"x.yaml": TWO_GPUS, "y.yaml": BAD}, "h100x1", "h200x2")))
    assert ["only on h100x1" in entry["description"] for entry in found] == [True, False, False]


def test_nothing(checked: Checking) -> None:
    """Without a fault it is an empty list"""
    assert gitlab(text("gitlab", checked({"x.yaml": GOOD}))) == []
