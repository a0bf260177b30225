from __future__ import annotations

from pathlib import Path

from memtopo.rules.files import collect
from tests.helpers.checked_specs import BAD, GOOD, TWO_GPUS, Checking, check
from tests.helpers.ci_forms import gitlab, text
from tests.helpers.machines import invented
from tests.helpers.specs import ROOT


def test_gitlab_entry_has_code_line_and_help_in_one_line(checked: Checking) -> None:
    first, second = gitlab(text("gitlab", checked({"./specs/bad.yaml": BAD})))
    assert (first["check_name"], first["severity"], second["severity"]) == ("MT301", "major", "minor")
    assert first["location"] == {"path": "specs/bad.yaml", "lines": {"begin": 4}}
    assert "\n" not in first["description"]
    assert first["description"].endswith("help: write 2MiB or 4MiB, or 'round: up'")


def test_gitlab_entries_of_all_bad_specs_have_unique_fingerprints(folder: Path) -> None:
    assert len(gitlab(text("gitlab", check(collect([str(ROOT / "tests" / "bad")]), {"two": invented(2)})))) > 40


def test_gitlab_reports_shared_diagnostics_once(checked: Checking) -> None:
    """A diagnostic that not all machines share names its machines."""
    found = gitlab(text("gitlab", checked({"x.yaml": TWO_GPUS, "y.yaml": BAD}, "h100x1", "h200x2")))
    assert ["only on h100x1" in entry["description"] for entry in found] == [True, False, False]


def test_gitlab_report_is_an_empty_list_without_diagnostics(checked: Checking) -> None:
    assert gitlab(text("gitlab", checked({"x.yaml": GOOD}))) == []
