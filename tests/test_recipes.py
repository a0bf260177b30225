"""Each recipe of CONTRIBUTING.md lists the files of an example: all of the package that have its words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "memtopo"
TABLE = re.compile(r"^\| files \| (with .+) \|\n\|---\|---\|\n((?:\|.+\|\n)+)", re.MULTILINE)
QUOTED = re.compile(r"`([^`]+)`")
FILE = re.compile(r"`([\w/]+\.\w+)`")
MOST = {"compressible": 10, "EVENTS": 6}
"""Files at most, by the first word of a recipe; a kind of one handle has up to 4 others, for its calls."""


class Recipe(NamedTuple):
    """Table of a recipe: its words, and the rows as the number of files and their names."""

    words: tuple[str, ...]
    rows: tuple[tuple[int, tuple[str, ...]], ...]


def recipes() -> Iterator[Recipe]:
    for words, body in TABLE.findall((ROOT / "CONTRIBUTING.md").read_text()):
        rows = ((int(line.split("|")[1]), tuple(FILE.findall(line))) for line in body.splitlines())
        yield Recipe(tuple(QUOTED.findall(words)), tuple(rows))


RECIPES = {recipe.words[0]: recipe for recipe in recipes()}


def files_with(words: tuple[str, ...]) -> set[str]:
    """Files of the package that have one of some whole words in their text, or as their name."""
    pattern = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, words))})(?!\w)")
    files = (file for file in PACKAGE.rglob("*") if file.is_file() and file.suffix != ".pyc")
    return {file.relative_to(PACKAGE).as_posix() for file in files if file.stem in words or pattern.search(_text(file))}


def _text(file: Path) -> str:
    return file.read_text(errors="replace")


def test_each_recipe_has_a_table() -> None:
    assert [*RECIPES] == ["mem_alloc_managed", "EVENTS", "compressible", "mem_pool_destroy", "MT805", "cannot back it"]


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_lists_the_files_of_its_example(name: str) -> None:
    listed = [file for _, files in RECIPES[name].rows for file in files]
    assert len(listed) == len(set(listed))
    assert set(listed) == files_with(RECIPES[name].words)
    edited = [file for file in listed if not file.startswith("machines/")]  # others are written by `memtopo probe`
    assert len(edited) <= MOST.get(name, len(edited))


@pytest.mark.parametrize("name", RECIPES)
def test_a_row_of_a_recipe_counts_its_files(name: str) -> None:
    assert [number for number, _ in RECIPES[name].rows] == [len(files) for _, files in RECIPES[name].rows]
