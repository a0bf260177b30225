"""Where a capture looks for CUPTI, and what it sets for the programs that it starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from memtopo.native import CAPTURE
from memtopo.native.injection import VARIABLE, Injection, NotCaptured, _candidates, interpreter, require_free


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The Python of an environment, which is a link; its folder is the only one on the path."""
    file = tmp_path / "venv" / "bin" / "python3"
    file.parent.mkdir(parents=True)
    file.symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(file.parent))
    monkeypatch.chdir(tmp_path)
    return file


def script(folder: Path, first: str) -> str:
    file = folder / f"script{len([*folder.iterdir()])}"
    file.write_text(f"{first}\n")
    file.chmod(0o700)
    return str(file)


def test_the_python_of_a_program_is_that_of_its_environment_whose_link_is_not_followed(python: Path) -> None:
    """By its name, relative to the current folder, and as the first line of a script names it."""
    names = [f"#!{python}", f"#! {python} -I", "#!/usr/bin/env python3"]
    scripts = [script(python.parent.parent, first) for first in names]
    assert {interpreter(each) for each in (str(python), "python3", "venv/bin/python3", *scripts)} == {python}


@pytest.mark.parametrize("first", ["#!/bin/sh", "#!/bin/sh python3", "#!/usr/bin/env", "no script", "#!"])
def test_a_program_of_another_kind_has_no_python(python: Path, first: str) -> None:
    assert interpreter(script(python.parent, first)) is None
    assert interpreter("absent") is None


def test_cupti_is_looked_for_beside_the_python_of_the_program_first_and_by_name_last(
    python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [python.parent.parent / "lib/python3.12/site-packages/nvidia/cu13/lib/libcupti.so.12"]
    files += [python.parent.parent / f"{name}/extras/CUPTI/lib64/libcupti.so.13" for name in ("home", "path")]
    for file, variable in zip(files, ("", "CUDA_HOME", "CUDA_PATH"), strict=True):
        file.parent.mkdir(parents=True)
        file.touch()
        if variable:
            monkeypatch.setenv(variable, str(file.parents[3]))
    found = _candidates(None, [str(python)])
    assert found[0] == str(files[0])
    assert [each for each in found if each in map(str, files)] == [*map(str, files)]
    assert found[-2:] == ["libcupti.so.13", "libcupti.so.12"]


def test_a_cupti_that_is_given_is_a_file_whose_link_is_not_followed_or_a_name_for_the_loader(python: Path) -> None:
    link, folder = Path("cupti.so"), Path.cwd()
    link.symlink_to(python)
    for given, found in (("cupti.so", folder / link), ("./absent", folder / "absent"), ("libcupti.so.12", None)):
        assert _candidates(given, [str(python)]) == [str(found or given)]


def test_the_record_of_started_programs_is_the_path_from_the_current_folder_whose_link_is_not_followed(
    python: Path,
) -> None:
    Path("record").symlink_to(python)
    assert str(Path.cwd() / "record") in Injection("record", "cupti", "c").environment.values()


def test_another_tool_in_programs_is_refused_and_a_capture_around_this_one_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for own in ("", str(CAPTURE.file())):
        monkeypatch.setenv(VARIABLE, own)
        require_free()
    monkeypatch.setenv(VARIABLE, "/opt/profiler.so")
    with pytest.raises(NotCaptured, match=r"'/opt/profiler\.so': another tool"):
        require_free()
