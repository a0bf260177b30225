from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from memtopo.common.errors import Unavailable, UsageError
from memtopo.rules.files import collect
from tests.helpers.checked_specs import GOOD
from tests.helpers.command_line import environment, run_memtopo, run_shell
from tests.helpers.python_process import run_python

M = "--machine=h200x2"


def names(*arguments: str) -> list[str]:
    return [source.name for source in collect(arguments)]


@pytest.fixture
def tree(folder: Path) -> Path:
    """A folder with specs, other files, hidden ones, and links that lead around in circles."""
    for name in ("a/x.yaml", "a/b/y.yml", "a/b/c/z.yaml", "a/notes.md", "a/.hidden.yaml", "a/.git/x.yaml", "x[1].yaml"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    for name in ("a/loop", "a/b/loop"):
        (folder / name).symlink_to(folder / "a")
    (folder / "a" / "gone.yaml").symlink_to("nowhere")
    (folder / "a" / "self.yaml").symlink_to("self.yaml")
    return folder


IN_A = ["a/b/c/z.yaml", "a/b/y.yml", "a/gone.yaml", "a/self.yaml", "a/x.yaml"]


@pytest.mark.parametrize(
    ("argument", "found"),
    [
        ("a", IN_A),
        ("a/", IN_A),
        (".", [*IN_A, "x[1].yaml"]),
        ("a/loop", [f"a/loop/{name[2:]}" for name in IN_A]),
        ("a/*.yaml", ["a/gone.yaml", "a/self.yaml", "a/x.yaml"]),
        ("a/?.yaml", ["a/x.yaml"]),
        ("a/[!x]*.yaml", ["a/gone.yaml", "a/self.yaml"]),
        ("a/.*.yaml", ["a/.hidden.yaml"]),
        ("**/*.yml", ["a/b/y.yml"]),
        ("**/b/**/*.y*ml", ["a/b/c/z.yaml", "a/b/y.yml"]),
        ("a/**", [*IN_A[:3], "a/notes.md", *IN_A[3:]]),
        ("a/*/y.yml", ["a/b/y.yml"]),
        ("a/b/../*.md", ["a/b/../notes.md"]),
        ("./a/*.md", ["a/notes.md"]),
        ("x[1].yaml", ["x[1].yaml"]),
        ("nowhere.yaml", ["nowhere.yaml"]),
    ],
)
def test_folders_patterns_and_paths_select_sorted_files(tree: Path, argument: str, found: list[str]) -> None:
    """Hidden files and links to folders are not followed."""
    assert names(argument) == found


def test_patterns_may_begin_at_the_root(tree: Path) -> None:
    assert names(f"{tree}/**/*.yml") == [f"{tree}/a/b/y.yml"]


def test_a_file_given_twice_is_read_once(tree: Path) -> None:
    """It has its first name and its first position."""
    assert names("a/x.yaml", "-", "a", "./a/x.yaml", f"{tree}/a/x.yaml", "a/*.yaml", "-") == [
        "a/x.yaml",
        "-",
        *IN_A[:4],
    ]


@pytest.mark.parametrize("argument", ["*.yam", "**/no.yaml", "x[2].yaml", "a/**/*.md/x", "empty", "empty/**"])
def test_a_pattern_or_folder_without_files_exits_with_3(tree: Path, argument: str) -> None:
    """This holds even if other arguments select files."""
    (tree / "empty").mkdir()
    with pytest.raises(Unavailable) as refused:
        collect(["a", argument])
    message, hint = f"pattern {argument!r} matches no file", "a pattern is matched from the current folder"
    if argument == "empty":
        message, hint = "folder 'empty' has no spec", "a folder stands for the *.yaml and *.yml files in it and below"
    assert refused.value.message == message
    assert str(refused.value.hint).startswith(hint)
    result = run_memtopo("validate", tree / "a" / "x.yaml", tree / argument, M)
    assert (result.status, result.out) == (3, "")
    assert argument in result.err


def test_an_empty_name_is_wrong_usage(folder: Path) -> None:
    with pytest.raises(UsageError):
        collect([""])


def test_circular_links_and_expensive_patterns_end_quickly(folder: Path) -> None:
    deep = folder / "/".join("d" * 60)
    deep.mkdir(parents=True)
    (deep / "x.yaml").touch()
    for place in (folder, deep):
        for name in "abc":
            (place / name).symlink_to(folder)
    start = time.monotonic()
    assert len(names("/".join(["**", "d*"] * 12) + "/**/*.yaml")) == 1
    assert time.monotonic() - start < 5


def test_deeply_nested_folders_are_traversed(folder: Path) -> None:
    for _ in range(600):
        Path("d").mkdir()
        os.chdir("d")
    Path("x.yaml").touch()
    os.chdir(folder)
    assert len(names("**/x.yaml")) == len(names(".")) == 1


def test_a_named_pipe_is_read_and_one_in_a_folder_is_an_error(folder: Path) -> None:
    os.mkfifo(folder / "p.yaml")
    start = time.monotonic()
    result = run_memtopo("validate", folder, M)
    assert result.status == 1
    assert "p.yaml: error[MT001]" in result.out
    assert time.monotonic() - start < 8
    (folder / "good").write_text(GOOD)
    result = run_shell(f"memtopo validate <(sleep 1; cat good) {M}")
    assert result.status == 0, result


def test_unreadable_folders_are_named_and_others_traversed(folder: Path) -> None:
    (folder / "closed").mkdir(mode=0)
    (folder / "open").mkdir()
    (folder / "open" / "x.yaml").touch()
    folder.chmod(0o755)
    script = (
        "import os; from memtopo.rules.files import collect; os.geteuid() or os.setuid(65534);"
        "print(*(source.name for each in ('.', '**/*.yaml') for source in collect([each])))"
    )
    done = run_python([sys.executable, "-c", script], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["closed", "open/x.yaml"] * 2


@pytest.mark.parametrize("argument", ["specs", "specs/*.yaml", "specs/**/*.yaml"])
def test_a_link_that_leads_out_of_the_folder_is_not_read(folder: Path, argument: str) -> None:
    (folder / "specs").mkdir()
    (folder / "specs" / "x.yaml").symlink_to("y.yaml")
    (folder / "specs" / "y.yaml").write_text(GOOD)
    (folder / "specs" / "secret.yaml").symlink_to(folder / "specs.secret")
    (folder / "specs.secret").write_text("password: 1234\n")
    done = run_memtopo("validate", argument, M)
    assert done.status == 1
    assert "specs/secret.yaml: error[MT001]: it is a link to a file outside of 'specs'" in done.err + done.out
    assert "password" not in done.err + done.out
