"""`memtopo diff`: its exit status, its document, and its refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import InlineRunner, held
from tests.helpers.command_line import ROOT

SLEEP = ROOT / "specs/sleep-mode.yaml"
WEIGHTS = ROOT / "specs/weights.yaml"


def smaller(folder: Path) -> Path:
    found = folder / "smaller.yaml"
    found.write_text(SLEEP.read_text().replace("count: 64", "count: 48"))
    return found


def test_diff_exits_with_1_if_specs_differ_and_with_0_if_not(run_inline: InlineRunner, tmp_path: Path) -> None:
    same = run_inline("diff", SLEEP, SLEEP, "-m", "h100x1")
    assert (same.status, same.out.splitlines()[-1]) == (0, "nothing differs; 198 steps are equal")
    other = run_inline("diff", SLEEP, smaller(tmp_path), "-m", "h100x1")
    assert other.status == 1
    assert "unmap    page.63 … page.48     16" in other.out
    assert other.widest <= 80


def test_diff_names_a_saved_plan_by_its_file(run_inline: InlineRunner, tmp_path: Path) -> None:
    plan = tmp_path / "p.json"
    run_inline("plan", SLEEP, "-m", "h100x1", "-o", plan)
    document = run_inline("diff", plan, SLEEP, "-m", "h100x1", "--json").document
    assert (document["before"], document["after"]) == (str(plan), str(SLEEP))


def test_diff_document_has_rows_memory_and_pictures(run_inline: InlineRunner, tmp_path: Path) -> None:
    found = run_inline("diff", SLEEP, smaller(tmp_path), "-m", "h100x1", "--json")
    assert found.status == 1
    document = found.document
    assert document["memtopo_difference"] == 1
    assert [(row["verb"], row["calls"]) for row in document["undo"]] == [("unmap", 16), ("release", 16)]
    assert document["memory"]["gpu0"] == {"before": 192 << 20, "after": 160 << 20, "peak": 192 << 20}
    assert document["picture_before"]["memory"][0]["used"] - document["picture_after"]["memory"][0]["used"] == 32 << 20


def test_diff_shows_each_process_and_equal_ones_once(run_inline: InlineRunner, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(WEIGHTS.read_text().replace("mine: [gpu0, gpu1]", "mine: gpu1"))
    other.write_text(other.read_text().replace("256MiB, count: 2", "128MiB, count: 4"))
    same = tmp_path / "same.yaml"
    same.write_text(other.read_text().replace("rw", "r"))
    found = run_inline("diff", same, other, "-m", "h200x2")
    assert found.status == 1
    assert [line for line in found.out.splitlines() if line.startswith(("goes", "comes"))] == ["comes in server"]
    assert "  unchanged  reader.0 … reader.1, each" in found.out
    moved = run_inline("diff", WEIGHTS, other, "-m", "h200x2", "--json").document
    assert [each["first"] for each in moved["processes"]] == ["server", "reader.0", "reader.1"]
    assert (moved["undo"], moved["memory"]["gpu0"]["peak"]) == ([], 512 << 20)


def test_diff_names_exports_that_a_writer_has_to_commit_again(run_inline: InlineRunner, tmp_path: Path) -> None:
    before, after = ROOT / "specs/weights-server.yaml", tmp_path / "after.yaml"
    after.write_text(before.read_text().replace("shards: 2", "shards: 3"))
    found = run_inline("diff", before, after, "-m", "h200x2")
    assert found.out.splitlines()[-1] == "  commit lost  export weights: a writer has to commit it again"
    assert run_inline("diff", before, after, "-m", "h200x2", "--json").document["emptied"] == ["weights"]
    after.write_text(before.read_text().replace("chunks:", "chunks:\n  spare: {location: gpu0, size: 2MiB}"))
    assert run_inline("diff", before, after, "-m", "h200x2", "--json").document["emptied"] == []


def test_diff_refuses_an_invalid_spec_and_other_processes(run_inline: InlineRunner) -> None:
    bad = run_inline("diff", SLEEP, ROOT / "tests/bad/no-access.yaml", "-m", "h100x1")
    assert bad.status == 1
    several = run_inline("diff", SLEEP, WEIGHTS, "-m", "h200x2")
    assert several.status == 1
    assert "weights.yaml:8:1: error[MT807]: the layout is one of a single process" in several.err


def test_diff_compares_a_held_layout_with_a_spec(
    run_inline: InlineRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the machine of its holder."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with held(tmp_path, SLEEP):
        equal, other = (run_inline("diff", "sleep-mode", spec) for spec in (SLEEP, smaller(tmp_path)))
    assert (equal.status, other.status) == (0, 1)
    assert "on h100x1 (simulated)" in " ".join(equal.out.split())  # a long path wraps it
