"""Every example in the README and in docs/ is what happens."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from memtopo import machine
from memtopo.diagnostics.model import has_errors
from memtopo.language import read_file
from memtopo.output.diagram.build import build_diagram
from memtopo.output.diagram.mermaid import mermaid
from memtopo.rules.validation import validate
from tests.helpers.python_process import run_python
from tests.helpers.specs import ROOT, document

BLOCK = re.compile(r"^```(\S+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [
    ROOT / "README.md",
    *(ROOT / "docs" / name for name in ("spec.md", "drawing.md", "changing.md", "shell-and-editor.md")),
]


class Block(NamedTuple):
    """One fenced example of a page: where it stands, its language, what follows that, and its text."""

    where: str
    language: str
    info: str
    text: str


def blocks() -> list[Block]:
    return [
        Block(f"{page.name}:{text[: match.start()].count(chr(10)) + 1}", match[1], match[2].strip(), match[3])
        for page in PAGES
        for text in [page.read_text()]
        for match in BLOCK.finditer(text)
    ]


def of(language: str) -> list[Block]:
    return [block for block in blocks() if block.language == language]


@pytest.mark.parametrize("block", of("yaml"), ids=lambda block: block.where)
def test_specs_in_the_docs_are_valid_unless_marked(block: Block) -> None:
    """On four H200s, without a warning."""
    found = validate(document(block.text), machine.load("h200x4")).diagnostics
    if block.info == "wrong":
        assert has_errors(found)
    else:
        assert not found


@pytest.mark.parametrize("block", of("console"), ids=lambda block: block.where)
def test_commands_in_the_docs_print_the_output_below_them(block: Block) -> None:
    """… matches any text."""
    command, *expected = block.text.splitlines()
    words = shlex.split(command.removeprefix("$ "))
    assert words[0] == "memtopo"
    environment = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1", "GITHUB_ACTIONS": ""}
    done = run_python(
        [sys.executable, "-m", *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    pattern = ".*".join(re.escape(part) for part in "\n".join(expected).split("…"))
    assert re.fullmatch(pattern, done.stdout.strip(), re.DOTALL), done.stdout + done.stderr


def test_flowcharts_in_the_docs_are_current() -> None:
    (block,) = of("mermaid")
    facts = machine.load("h200x2")
    found = validate(read_file(ROOT / "specs" / "hand-over.yaml"), facts).geometry
    assert found
    assert mermaid(build_diagram(found, facts), found.name) == block.text


def test_links_in_the_docs_lead_to_files() -> None:
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)[^)]*\)", page.read_text()):
            assert (page.parent / Path(target)).exists(), f"{page.name}: {target}"
