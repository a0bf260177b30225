"""Benchmarks: their inputs, and what they need. tests/test_figures.py has what they measured."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench import validation
from tests.helpers.command_line import ROOT, environment, run_memtopo


def test_benchmark_specs_of_1_kb_are_valid_for_both_programs(tmp_path: Path) -> None:
    files = validation.write(tmp_path, 24)
    assert len({file.read_text() for file in files}) == 24
    assert all(900 < file.stat().st_size < 1300 for file in files)
    assert run_memtopo("validate", tmp_path, "-m", "h200x2").out == "24 files on h200x2: 24 ok\n"
    other = [str(Path(sys.executable).parent / "check-jsonschema"), "--schemafile", "docs/spec.schema.json"]
    subprocess.run([*other, *map(str, files)], cwd=ROOT, check=True, capture_output=True)


def test_a_benchmark_without_check_jsonschema_is_skipped_with_a_message(tmp_path: Path) -> None:
    script = "import sys; sys.executable = sys.argv[1]; from bench import validation; validation.main()"
    command = [sys.executable, "-c", script, str(tmp_path / "python")]
    done = subprocess.run(command, env=environment(PATH=str(tmp_path)), capture_output=True, text=True, check=True)
    assert done.stdout == "not run: check-jsonschema is not installed\n"
