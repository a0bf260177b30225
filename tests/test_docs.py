"""Every example in the README and in docs/ is what happens."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs import make_fields
from memtopo import machine
from memtopo.cli import app
from memtopo.diagnostics.model import has_errors
from memtopo.language import read_file
from memtopo.output import schemas
from memtopo.output.blocks import Drawing
from memtopo.output.diagram.build import build_diagram
from memtopo.output.diagram.graph import mermaid
from memtopo.rules import validate
from tests.helpers import pages
from tests.helpers.pages import Block
from tests.helpers.specs import ROOT, document

WITH_COMMANDS = [page for page in pages.PAGES if any(block.language == "console" for block in pages.blocks(page))]
SYNOPSES = re.compile(r"[A-Z]{3,}|…|\.\.\.|\|")
LONGEST = 20_000
LONGER = {
    "driver-facts.md": "read by number; a wheel has it as one file for `memtopo explain fact-15`",
    "errors.md": "read by call; the only copy of what `memtopo explain` prints",
    "gallery.md": "generated: a picture of each spec, with its description as text",
    "simulated-calls.md": "generated: a row for each function of the driver",
}
"""Pages of more than `LONGEST` bytes, with the reason."""
OTHER_YAML = {"github", "gitlab", "pre-commit", "kubernetes", "prometheus"}
"""Words of blocks in YAML that are no specs. tests/cli has tests of the first three."""


def names(of: list[Any]) -> list[str]:
    return [block.where if isinstance(block, Block) else str(block.relative_to(ROOT)) for block in of]


SPECS = [block for block in pages.of("yaml") if block.info not in OTHER_YAML and not (ROOT / block.title).is_file()]


@pytest.mark.parametrize("block", SPECS, ids=names(SPECS))
def test_specs_in_the_docs_are_valid_unless_marked(block: Block) -> None:
    """On four H200s, without a warning."""
    found = validate(document(block.text), machine.load("h200x4")).diagnostics
    if "wrong" in block.info.split():
        assert has_errors(found)
    else:
        assert not found


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=names(WITH_COMMANDS))
def test_commands_in_the_docs_print_the_output_below_them(page: Path, tmp_path: Path) -> None:
    """… matches any text. The commands of a page run in order; one that fails shows an error."""
    for block, command, expected, result in pages.run_page(page, tmp_path):
        shown = f"{block.where}: {command}\n{result.out}{result.err}"
        assert pages.matches(expected, result.out), shown
        assert result.status == 0 or "error" in expected, shown
    assert [*(tmp_path / "run").glob("memtopo/*.sock")] == [], "a layout is still held"


def test_files_of_the_repository_in_the_docs_are_those_files() -> None:
    """A block with the title of such a file is a part of it."""
    shown = [block for block in pages.blocks() if (ROOT / block.title).is_file()]
    assert shown
    assert [block.where for block in shown if block.text not in (ROOT / block.title).read_text()] == []


def test_other_yaml_in_the_docs_is_yaml() -> None:
    for block in pages.of("yaml"):
        if block.info in OTHER_YAML:
            assert yaml.safe_load(block.text), block.where


def test_programs_in_the_docs_are_python() -> None:
    """All of them run, too: here with the commands of their page, or in tests/api/test_docs.py."""
    for block in pages.of("python"):
        ast.parse(block.text, block.where)


@pytest.mark.parametrize("page", pages.PAGES, ids=names(pages.PAGES))
def test_commands_in_the_docs_have_options_that_exist(page: Path) -> None:
    """Those for real GPUs too, which no test runs."""
    group: Any = app.program()
    for line in pages.memtopo_commands(page):
        words = shlex.split(re.split(r" [&|>]| 2>", line)[0], comments=True)[1:]
        known = group.commands.get(words[0])
        assert known, line
        with known.make_context(words[0], words[1:], resilient_parsing=not _complete(words)):
            pass


def _complete(words: list[str]) -> bool:
    """Return whether a command has values in place of placeholders, which stand for several words."""
    return not any(SYNOPSES.search(word) for word in words)


def test_tables_of_fields_are_current() -> None:
    """`make docs` writes them."""
    assert [
        page for page in pages.family("spec") if make_fields.with_tables(page.read_text()) != page.read_text()
    ] == []


def test_pages_are_at_most_20_kb_long_but_for_references() -> None:
    sizes = {page.name: page.stat().st_size for page in pages.PAGES}
    assert {name for name, size in sizes.items() if size > LONGEST} == {*LONGER}


def test_the_map_of_pages_is_one_screen() -> None:
    assert (ROOT / "docs" / "index.md").read_text().count("\n") <= 60


def test_the_cheat_sheet_is_one_page_and_names_every_section_and_field() -> None:
    text = (ROOT / "docs" / "cheat-sheet.md").read_text()
    assert len(text.encode()) <= 8 << 10
    assert [key for key in _keys(schemas.schema("spec")) if not re.search(rf"\b{key}\b", text)] == []


def _keys(node: Any) -> Iterator[str]:
    """Keys of the objects of a JSON Schema."""
    inner = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    yield from node.get("properties", ()) if isinstance(node, dict) else ()
    for each in inner:
        yield from _keys(each)


def test_flowcharts_in_the_docs_are_current() -> None:
    (block,) = pages.of("mermaid")
    facts = machine.load("h200x2")
    found = validate(read_file(ROOT / "specs" / "hand-over.yaml"), facts).geometry
    assert found
    assert mermaid(Drawing(build_diagram(found, facts), found.name)) == block.text


def test_links_in_the_docs_lead_to_files_and_their_headings() -> None:
    every = [*ROOT.glob("*.md"), *pages.PAGES, *ROOT.glob("examples/**/*.md")]
    broken = []
    for page in every:
        text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for path, place in re.findall(r"\]\(([^)#:\s]*)(?:#([^)\s]+))?\)", text):
            target = (page.parent / path) if path else page
            if not target.exists() or (place and target.suffix == ".md" and place not in pages.anchors(target)):
                broken.append(f"{page.name}: {path}#{place}")
    assert broken == []


def test_words_that_the_glossary_leaves_out_are_left_out() -> None:
    """Outside of code. docs/driver-facts.md is for readers of NVIDIA's reference, and has its words."""
    glossary = ROOT / "docs" / "glossary.md"
    table = glossary.read_text().split("\n## ", 1)[1]
    rows = re.findall(r"^\| ([^|`]+) \| [^|]+ \|$", table, re.MULTILINE)[1:]
    words = [word for row in rows for word in row.split(", ")]
    assert len(words) > 10
    pattern = re.compile(rf"\b({'|'.join(map(re.escape, words))})s?\b", re.IGNORECASE)
    kept = {glossary, ROOT / "docs" / "driver-facts.md", *pages.family("hardware")}
    found = [
        (page.name, each[0]) for page in pages.PAGES if page not in kept for each in pattern.finditer(_prose(page))
    ]
    assert found == [("nodes.md", "daemon")]  # that of IMEX


def _prose(page: Path) -> str:
    text = re.sub(r"^```.*?^```$|^ {4}.*?$|`[^`\n]*`", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"\]\([^)]*\)", "]", text)
