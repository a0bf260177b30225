"""`memtopo validate --fix` and `--diff`: files that are corrected in place, and what is printed of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from memtopo.cli.validate import write_correction
from memtopo.common.errors import NotWritten
from memtopo.rules.files import Correction
from tests.cli.conftest import InlineRunner
from tests.helpers.command_line import QUICKSTART, ROOT, run_with_input

RIGHT = (ROOT / QUICKSTART).read_text()
WRONG = RIGHT.replace("size: 96MiB", "size: 96MB")
M = "--machine=h200x2"
DIFFERENCE = """\
-  kv: {size: 96MB, align: 2MiB}
+  kv: {size: 96MiB, align: 2MiB}
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    assert RIGHT != WRONG
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "spec.yaml"
    path.write_text(WRONG)
    path.chmod(0o640)
    return path


def test_fix_corrects_a_file_in_place_and_prints_the_difference(run_inline: InlineRunner, spec: Path) -> None:
    """On stderr, so that stdout has one report in any format; a second run changes nothing."""
    result = run_inline("validate", "spec.yaml", M, "--fix", "--json")
    assert (result.status, result.document["errors"]) == (0, 0)
    assert (spec.read_text(), spec.stat().st_mode & 0o777) == (RIGHT, 0o640)
    assert result.err.startswith("--- a/spec.yaml\n+++ b/spec.yaml\n@@")
    assert DIFFERENCE in result.err
    assert result.err.endswith("\nmemtopo: spec.yaml: corrected 1 error\n")
    again = run_inline("validate", "spec.yaml", M, "--fix")
    assert (again.status, again.out, again.err) == (0, "spec.yaml: ok on h200x2\n", "")


def test_fix_reaches_the_value_of_a_parameter(run_inline: InlineRunner, spec: Path) -> None:
    spec.write_text(WRONG.replace("size: 96MB", "size: $size") + "params: {size: 96MB}\n")
    assert run_inline("validate", "spec.yaml", M, "--fix").status == 0
    assert spec.read_text().endswith("params: {size: 96MiB}\n")


def test_fix_reports_what_remains(run_inline: InlineRunner, spec: Path) -> None:
    spec.write_text(WRONG.replace("decode: r}", "decode: write}"))
    result = run_inline("validate", "spec.yaml", M, "--fix")
    assert result.status == 1
    assert "'write' is not an access" in result.out
    assert "96MiB" in spec.read_text()


def test_diff_changes_nothing(run_inline: InlineRunner, spec: Path) -> None:
    for arguments in (["--diff"], ["--diff", "--fix"]):
        result = run_inline("validate", "spec.yaml", M, *arguments)
        assert (result.status, result.err, spec.read_text()) == (1, "", WRONG)
        assert DIFFERENCE in result.out
    spec.write_text(RIGHT)
    result = run_inline("validate", "spec.yaml", M, "--diff")
    assert (result.status, result.out, result.err) == (0, "", "")


def test_a_link_stays_one_and_a_byte_order_mark_stays(run_inline: InlineRunner, spec: Path) -> None:
    spec.write_text(f"\ufeff{WRONG}")
    link = spec.with_name("link.yaml")
    link.symlink_to(spec.name)
    assert run_inline("validate", "link.yaml", "-m", "none", "--fix").status == 0
    assert link.is_symlink()
    assert spec.read_text() == f"\ufeff{RIGHT}"
    assert sorted(os.listdir(spec.parent)) == ["link.yaml", "spec.yaml"]


def test_a_file_that_has_changed_meanwhile_is_not_overwritten(spec: Path) -> None:
    spec.write_text("memtopo: 1\n")
    with pytest.raises(NotWritten, match="has changed"):
        write_correction(Correction(str(spec), WRONG, RIGHT, 1))
    assert spec.read_text() == "memtopo: 1\n"


def test_a_file_that_was_removed_meanwhile_is_not_written_anew(spec: Path) -> None:
    spec.unlink()
    with pytest.raises(NotWritten, match="has changed"):
        write_correction(Correction(str(spec), WRONG, RIGHT, 1))
    assert not spec.exists()


def test_suppressed_and_ignored_errors_are_not_corrected(run_inline: InlineRunner, spec: Path) -> None:
    assert run_inline("validate", "spec.yaml", M, "--fix", "--ignore=MT105").status == 0
    assert spec.read_text() == WRONG
    kept = WRONG.replace("align: 2MiB}", "align: 2MiB}  # memtopo: ignore[MT105]")
    spec.write_text(kept)
    assert run_inline("validate", "spec.yaml", M, "--fix").status == 0
    assert spec.read_text() == kept


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-", "--fix"], "standard input cannot be corrected in place"),
        (["spec.yaml", "--diff", "--json"], "--diff prints a difference, and no report"),
        (["spec.yaml", "--diff", "--report=json=x"], "--diff prints a difference, and no report"),
    ],
)
def test_what_cannot_be_corrected_is_wrong_usage(spec: Path, arguments: list[str], message: str) -> None:
    result = run_with_input(WRONG.encode(), "validate", *arguments, M)
    assert result.status == 2
    assert message in result.err
    assert spec.read_text() == WRONG


def test_a_saved_plan_is_not_corrected(run_inline: InlineRunner, spec: Path) -> None:
    spec.write_text(RIGHT)
    assert run_inline("plan", "spec.yaml", M, "-o", "plan.json").status == 0
    before = Path("plan.json").read_bytes()
    assert run_inline("validate", "plan.json", M, "--fix").status == 0
    assert Path("plan.json").read_bytes() == before
