"""The wheel and the source distribution: installed, and run outside of the checkout; the version that the docs pin."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from memtopo.common import __version__
from tests.helpers.command_line import environment, run_memtopo
from tests.helpers.specs import ROOT
from tests.helpers.tools import path_with_quick_compiler

NAME = f"memtopo-{__version__}"
WHEEL = re.compile(r"memtopo-([0-9.]+[0-9])-py3-none-any\.whl")
PLACEHOLDER = re.compile(r"\bOWNER\b|github\.com/[^/\s]+/memtopo|\bmemtopo@v")


def run(*command: str | Path, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command without the checkout on the path of modules."""
    variables = environment(**more)
    del variables["PYTHONPATH"]
    done = subprocess.run([*map(str, command)], cwd=cwd, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def build(source: Path, target: Path, *kinds: str) -> None:
    """Build distributions as `make dist` does, without a network."""
    path = path_with_quick_compiler(target / "bin")
    run(
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "-d",
        target,
        *(f"-t{kind}" for kind in kinds),
        cwd=source,
        PATH=path,
    )


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the wheel and the source distribution of the checkout."""
    target = tmp_path_factory.mktemp("dist")
    build(ROOT, target, "sdist", "wheel")
    return target


@pytest.fixture(scope="module")
def installed(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of programs of a new environment with the wheel, and with the dependencies of this environment."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    python = folder / "bin" / "python"
    (packages,) = folder.glob("lib/python*/site-packages")
    # Files of the form *.pth in a folder that such a file adds are not read: the checkout is not among the modules.
    (packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    offline = (
        "--no-index",
        "--no-deps",
        "--quiet",
        "--no-compile",
        "--ignore-installed",
        "--disable-pip-version-check",
    )
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        *offline,
        dist / f"{NAME}-py3-none-any.whl",
        cwd=folder,
    )
    return folder / "bin"


def test_installed_wheel_applies_a_spec_outside_of_the_checkout(installed: Path, tmp_path: Path) -> None:
    """With the modules of the wheel alone."""
    where = run(installed / "python", "-c", "import memtopo; print(memtopo.__file__)", cwd=tmp_path).stdout
    assert Path(where).is_relative_to(installed.parent)
    spec = tmp_path / "quickstart.yaml"
    spec.write_text((ROOT / "specs" / "quickstart.yaml").read_text())
    report = run(installed / "memtopo", "apply", spec, "--machine", "h200x2", "--json", cwd=tmp_path).stdout
    assert json.loads(report)["outcome"] == "ok"


@pytest.mark.parametrize("command", ["machines", "explain MT301 fact-15", "schema spec"])
def test_installed_wheel_has_its_data(installed: Path, tmp_path: Path, command: str) -> None:
    """Recorded machines, explanations and schemas: the output is that of the checkout."""
    found = run(installed / "memtopo", *command.split(), cwd=tmp_path).stdout
    assert found == run_memtopo(*command.split()).out


def test_the_libraries_of_a_wheel_are_compiled_where_no_package_is_installed(tmp_path: Path) -> None:
    compiled = "[each.compile('cc', each.source.__class__(sys.argv[2], each.name)) for each in LIBRARIES]"
    program = f"import sys; sys.path.insert(0, sys.argv[1]); from memtopo.native import LIBRARIES; {compiled}"
    subprocess.run([sys.executable, "-I", "-S", "-c", program, ROOT, tmp_path], check=True)
    assert len([*tmp_path.iterdir()]) == 3


def test_wheel_of_the_source_distribution_is_that_of_the_checkout(dist: Path, tmp_path: Path) -> None:
    """So the source distribution leaves out no file that the build needs."""
    with tarfile.open(dist / f"{NAME}.tar.gz") as packed:
        packed.extractall(tmp_path, filter="data")
    build(tmp_path / NAME, tmp_path, "wheel")
    first, second = (zipfile.ZipFile(folder / f"{NAME}-py3-none-any.whl") for folder in (dist, tmp_path))
    with first, second:
        assert sorted(first.namelist()) == sorted(second.namelist())


def test_source_distribution_has_what_the_tests_read(dist: Path) -> None:
    with tarfile.open(dist / f"{NAME}.tar.gz") as packed:
        kept = set(packed.getnames())
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    if not tracked:
        pytest.skip("this checkout has no index of git")
    missing = {name for name in tracked.splitlines() if (ROOT / name).exists() and f"{NAME}/{name}" not in kept}
    assert missing <= {".ci/run"}


def test_pages_install_a_copy_of_the_repository() -> None:
    """They name no wheel, repository or tag, which nobody could install from."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "action.yml"]
    pages += [page for page in ROOT.glob("examples/**/*") if page.suffix in (".md", ".yml", ".yaml")]
    texts = [page.read_text() for page in pages]
    assert {version for text in texts for version in WHEEL.findall(text)} == set()
    assert [match[0] for text in texts for match in PLACEHOLDER.finditer(text)] == []


def test_changelog_has_a_section_for_the_version() -> None:
    assert f"\n## {__version__}\n" in (ROOT / "CHANGELOG.md").read_text()


def test_nothing_is_installed_from_a_registry_by_name() -> None:
    """A name in a package index that memtopo is not in is anybody's."""
    texts = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*"), *ROOT.glob("memtopo/**/*.py")]
    by_name = re.compile(
        r"pip3? install (?:-\S+ )*['\"]?memtopo(?:\[[a-z,]+\])?['\"]?(?: *$|[`'\"), ]|==)(?! ?@)", re.MULTILINE
    )
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in texts
        if path.is_file()
        for match in by_name.finditer(_text(path))
    ]
    assert found == []


def _text(path: Path) -> str:
    return path.read_bytes().decode(errors="replace").replace(os.linesep, "\n")


def test_an_installed_wheel_has_the_libraries_of_c_and_needs_no_compiler(installed: Path, tmp_path: Path) -> None:
    program = "from memtopo.native import LIBRARIES, loaded; [print(loaded(each)._name) for each in LIBRARIES]"
    done = run(
        "env", f"XDG_CACHE_HOME={tmp_path}", "CC=/nonexistent", installed / "python", "-c", program, cwd=tmp_path
    )
    names = [Path(line).name for line in done.stdout.splitlines()]
    assert names == [f"{name}-{platform.machine()}.so" for name in ("heaps", "capture", "libcuda")]
    assert not [*tmp_path.iterdir()], "it was compiled"
