"""`memtopo init`: files that pass, and none that it replaces."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import Distribution
from pathlib import Path

import pytest

from tests.cli.conftest import InlineRunner
from tests.helpers.command_line import environment, write_program
from tests.helpers.specs import ROOT

FILES = [".github/workflows/memtopo.yml", ".pre-commit-config.yaml", "specs/cache.yaml"]


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_init_writes_is_the_sample_and_passes(run_inline: InlineRunner, empty: Path) -> None:
    """The schemas of the sample's files are validated with the sample."""
    result = run_inline("init")
    assert (result.status, result.out.split()) == (0, FILES)
    for name in FILES[:2]:
        assert (empty / name).read_text() == (ROOT / "examples" / "ci" / name).read_text()
    assert run_inline("validate", "specs", "--strict").status == 0
    assert run_inline("validate", "specs", "--strict", "-m", "h100x1", "-m", "h200x2").status == 0


def test_the_hook_of_init_passes(run_inline: InlineRunner, empty: Path) -> None:
    run_inline("init")
    write_program(empty / "bin" / "memtopo")
    variables = environment(PATH=f"{empty / 'bin'}:/usr/bin:/bin", PRE_COMMIT_HOME=str(empty / "home"))
    for command in (["git", "init", "-q"], ["git", "add", *FILES], [sys.executable, "-m", "pre_commit", "run", "-a"]):
        done = subprocess.run(command, cwd=empty, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_exists_is_kept_and_nothing_is_written(run_inline: InlineRunner, empty: Path, name: str) -> None:
    (empty / name).parent.mkdir(parents=True, exist_ok=True)
    (empty / name).write_text("mine")
    result = run_inline("init")
    assert (result.status, repr(name) in result.err) == (2, True)
    assert (empty / name).read_text() == "mine"
    assert [other for other in FILES if (empty / other).exists()] == [name]


@pytest.mark.parametrize(
    ("url", "installed"),
    [
        (
            '{"url": "https://git.test/m.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}}',
            "git+https://git.test/m.git@abc",
        ),
        ('{"url": "file:///m", "dir_info": {"editable": true}}', "./vendor/memtopo"),
        (None, "./vendor/memtopo"),
    ],
)
def test_the_workflow_installs_what_is_installed_here(
    run_inline: InlineRunner, empty: Path, monkeypatch: pytest.MonkeyPatch, url: str | None, installed: str
) -> None:
    own = empty / "site" / "memtopo-0.dist-info"
    own.mkdir(parents=True)
    (own / "METADATA").write_text("Name: memtopo\nVersion: 0\n")
    if url:
        (own / "direct_url.json").write_text(url)
    assert Distribution.at(own).metadata["Name"] == "memtopo"
    monkeypatch.syspath_prepend(str(empty / "site"))
    run_inline("init")
    assert f"pip install --quiet {installed}\n" in (empty / FILES[0]).read_text()
