"""Results of a validation as text, and the formats by their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from memtopo.common.errors import Unavailable, UsageError
from memtopo.output import formats
from memtopo.output.validation import repository_path
from tests.helpers.checked_specs import BAD, GOOD, TWO_GPUS, WARNED, Checking
from tests.helpers.ci_forms import text


def test_one_file_on_one_machine_has_its_diagnostics_or_is_ok_there(checked: Checking) -> None:
    assert text("text", checked({"a.yaml": GOOD})) == "a.yaml: ok on h200x2\n"
    ignoring = WARNED.rstrip() + "  # memtopo: ignore[MT501]\n"
    assert text("text", checked({"a.yaml": ignoring})) == ("a.yaml: ok on h200x2; 1 diagnostic ignored by comments\n")
    both = text("text", checked({"a.yaml": ignoring, "b.yaml": ignoring}))
    assert both == "2 files on h200x2: 2 ok; 2 diagnostics ignored by comments\n"
    lines = text("text", checked({"a.yaml": BAD})).splitlines()
    assert lines[0].startswith("a.yaml:4:31: error[MT301]: ")
    assert not any(line.startswith(("spec", "1 file")) for line in lines)


def test_several_files_have_a_sum_and_several_machines_a_table(checked: Checking) -> None:
    files = {"a.yaml": GOOD, "b.yaml": TWO_GPUS, "c.yaml": WARNED}
    *_, total = text("text", checked(files)).splitlines()
    assert total == "3 files on h200x2: 2 ok, 1 with warnings"
    lines = text("text", checked(files, "h100x1", "h200x2")).splitlines()
    table = [line.split("  ") for line in lines[-6:-2]]
    assert [[cell.strip() for cell in row if cell.strip()] for row in table] == [
        ["spec", "h100x1", "h200x2"], ["a.yaml", "ok", "ok"], ["b.yaml", "1 error", "ok"],
        ["c.yaml", "1 warning", "1 warning"],
    ]  # fmt: skip
    assert lines[-2:] == ["", "3 files on 2 machines: 1 ok, 1 with warnings, 1 with errors"]


def test_concise_results_have_a_line_for_each_diagnostic_with_its_machine_if_others_have_it_not(
    checked: Checking,
) -> None:
    lines = text("concise", checked({"a.yaml": BAD, "b.yaml": TWO_GPUS}, "h100x1", "h200x2")).splitlines()
    assert [line.split(": ")[1] for line in lines] == ["error[MT301]", "warning[MT501]", "error[MT401]"]
    assert [line.endswith("(only on h100x1)") for line in lines] == [False, False, True]
    assert text("concise", checked({"a.yaml": GOOD})) == ""


def test_an_unknown_format_names_the_nearest_and_an_error_is_no_text() -> None:
    assert [formats.format_named(name) for name in formats.FORMATS] == [*formats.FORMATS]
    with pytest.raises(UsageError, match="there is no format 'sarf'") as refused:
        formats.format_named("sarf")
    assert "sarif" in str(refused.value.hint)
    assert [formats.failure(name, Unavailable("no GPU")) for name in formats.TEXT_FORMATS] == [[], []]
    assert formats.failure("gitlab", Unavailable("no GPU")) == ["[]"]


def test_a_file_is_named_by_its_link_in_the_repository(folder: Path) -> None:
    (folder / "link.yaml").symlink_to("/elsewhere/spec.yaml")
    assert repository_path("link.yaml") == repository_path(str(folder / "link.yaml")) == "link.yaml"
