"""The hook for pre-commit: its form, and what it does in a repository."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from pre_commit.clientlib import load_config, load_manifest

from tests.helpers.checked_specs import BAD, GOOD
from tests.helpers.command_line import environment, write_program
from tests.helpers.specs import ROOT

MANIFEST = ROOT / ".pre-commit-hooks.yaml"
SAMPLE = ROOT / "examples" / "ci" / ".pre-commit-config.yaml"


def test_pre_commit_accepts_the_hook() -> None:
    (hook,) = load_manifest(MANIFEST)
    assert (hook["id"], hook["language"], hook["entry"]) == ("memtopo", "python", "memtopo validate")


def test_pre_commit_accepts_the_sample_configuration() -> None:
    """Its hook is that of the manifest, but for the memtopo that it runs."""
    (hook,) = load_config(SAMPLE)["repos"][0]["hooks"]
    (other,) = yaml.safe_load(MANIFEST.read_text())
    assert {key: hook[key] for key in ("id", "name", "files", "require_serial")}.items() <= other.items()


@pytest.fixture
def repository(folder: Path) -> Path:
    """Repository with the hook of the sample, which runs memtopo as installed here."""
    write_program(folder / "bin" / "memtopo")
    (folder / SAMPLE.name).write_text(SAMPLE.read_text())
    _run(folder, "git", "init", "--quiet")
    return folder


def _run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    path = f"{folder / 'bin'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = environment(PATH=path, PRE_COMMIT_HOME=str(folder / "cache"), HOME=str(folder))
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)


def _hooked(folder: Path, files: dict[str, str]) -> subprocess.CompletedProcess[str]:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    _run(folder, "git", "add", ".")
    return _run(folder, sys.executable, "-m", "pre_commit", "run", "--color=never")


def test_valid_specs_can_be_committed(repository: Path) -> None:
    """Other YAML files are not checked."""
    done = _hooked(repository, {"specs/a.yaml": GOOD, "deploy/values.yaml": "a: 1\n", "layouts/b/c.yml": GOOD})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Passed" in done.stdout


def test_invalid_specs_cannot_be_committed_and_are_reported_with_their_line(repository: Path) -> None:
    done = _hooked(repository, {"specs/a.yaml": GOOD, "sub/specs/b.yaml": BAD})
    assert done.returncode == 1
    assert "sub/specs/b.yaml:4:31: error[MT301]" in done.stdout
    assert "2 files on h200x2: 1 ok, 1 with errors" in done.stdout


def test_hook_does_not_run_without_changed_specs(repository: Path) -> None:
    done = _hooked(repository, {"deploy/values.yaml": "a: 1\n"})
    assert done.returncode == 0
    assert "Skipped" in done.stdout
