"""Benchmarks: valid inputs, and documentation of every benchmark with its ratios."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench import validation
from bench.__main__ import BENCHMARKS
from tests.helpers.command_line import ROOT, environment, run_memtopo
from tests.helpers.pages import text_of

PAGE = text_of("performance")


def test_benchmark_specs_of_1_kb_are_valid_for_both_programs(tmp_path: Path) -> None:
    files = validation.write(tmp_path, 24)
    assert len({file.read_text() for file in files}) == 24
    assert all(900 < file.stat().st_size < 1300 for file in files)
    assert run_memtopo("validate", tmp_path, "-m", "h200x2").out == "24 files on h200x2: 24 ok\n"
    other = [str(Path(sys.executable).parent / "check-jsonschema"), "--schemafile", "docs/spec.schema.json"]
    subprocess.run([*other, *map(str, files)], cwd=ROOT, check=True, capture_output=True)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_has_a_section_in_the_docs(name: str) -> None:
    """docs/performance.md"""
    assert f"\n## {name}\n" in PAGE


def test_documented_ratios_are_within_their_bounds() -> None:
    shown = re.findall(r"^.*ratio.* ([0-9.]+) +\(at (most|least) ([0-9.]+)\)$", PAGE, re.MULTILINE)
    assert len(shown) == 13
    for ratio, which, bound in shown:
        assert float(ratio) <= float(bound) if which == "most" else float(ratio) >= float(bound)


def test_a_benchmark_without_check_jsonschema_is_skipped_with_a_message(tmp_path: Path) -> None:
    script = "import sys; sys.executable = sys.argv[1]; from bench import validation; validation.main()"
    command = [sys.executable, "-c", script, str(tmp_path / "python")]
    done = subprocess.run(command, env=environment(PATH=str(tmp_path)), capture_output=True, text=True, check=True)
    assert done.stdout == "not run: check-jsonschema is not installed\n"
