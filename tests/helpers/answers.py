"""Tables of specs with the diagnostics of each, in text files that are read and written here.

A rule begins with `#`. The machine (`described_machine`) follows after `>`, with what is left out of the diagnostics
(`errors only`, or `without` some codes), then the spec after `|`, unless it is that of the block before. Each case is
a line after `-`, with the texts for the holes `<1>`, `<2>`, … of the spec, separated by ` ¦ `; a spec without holes
has the one case `-`. The lines below a case, indented by four spaces, are its diagnostics.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from memtopo.diagnostics.model import Diagnostic
from memtopo.diagnostics.model import Path as Place
from memtopo.rules import Validated
from tests.helpers.described_machines import described_machine
from tests.helpers.specs import validate_text

TABLES = Path(__file__).parent.parent / "answers"
OF_EXAMPLES = TABLES / "bad.txt"
"""Diagnostics of all files of tests/bad."""

INDENT = "    "
SEPARATOR = " ¦ "
ERRORS_ONLY = "errors only"


class Block(NamedTuple):
    """Cases of one spec on one machine."""

    machine: str
    left_out: str
    spec: tuple[str, ...]
    cases: tuple[str, ...]

    def answer(self, case: str) -> Iterator[str]:
        """Yield the lines of all diagnostics of a case."""
        text = "\n".join(line[2:] for line in self.spec) + "\n"
        for number, value in enumerate(case[2:].split(SEPARATOR.rstrip()), 1):
            text = text.replace(f"<{number}>", value.strip())
        yield from rendered(validate_text(text, described_machine(self.machine)), self.left_out)


class Rule(NamedTuple):
    """A rule of a table: its comment, and its cases."""

    title: tuple[str, ...]
    blocks: tuple[Block, ...]

    def lines(self) -> Iterator[str]:
        """Yield the lines of the rule, with the diagnostics that the code gives now."""
        yield from self.title
        spec: tuple[str, ...] = ()
        for block in self.blocks:
            yield f"> {block.machine}{block.left_out and f'; {block.left_out}'}"
            if block.spec != spec:
                yield from block.spec
            spec = block.spec
            for case in block.cases:
                yield case
                yield from (INDENT + line for line in block.answer(case))


def rendered(found: Validated, left_out: str = "") -> Iterator[str]:
    """Yield the lines of the diagnostics of a spec: code, place and message, then all that belongs to it."""
    for each in found.diagnostics:
        if each.code in left_out or (left_out == ERRORS_ONLY and each.severity != "error"):
            continue
        span = each.span or found.document.span(each.path, each.at)
        assert span, each
        yield f"{each.code} {_place(each)}: {each.message}"
        for label in each.labels:
            yield f"  at {_dotted(label.path)}: {label.text}"
        yield from (f"  note: {note}" for note in each.notes)
        if each.help is not None:
            yield f"  help: {each.help}"
        if each.edit is not None:
            yield f"  edit of {_dotted(each.edit.path)}: {each.edit.old!r} becomes {each.edit.new!r}"


def _place(diagnostic: Diagnostic) -> str:
    if diagnostic.span:
        return f"{diagnostic.span.line}:{diagnostic.span.column}"
    return f"{'key ' if diagnostic.at == 'key' else ''}{_dotted(diagnostic.path)}"


def _dotted(path: Place) -> str:
    return "/".join(map(str, path)) or "the spec"


def read_table(text: str) -> list[Rule]:
    """Return the rules of a table."""
    return [_rule(block) for block in re.split(r"\n\n(?=#)", text.strip("\n"))]


def table_text(rules: Iterable[Rule]) -> str:
    """Return the text of a table, with the diagnostics that the code gives now."""
    return "\n\n".join("\n".join(rule.lines()) for rule in rules) + "\n"


def _rule(text: str) -> Rule:
    title, *parts = re.split(r"^> ", text, flags=re.MULTILINE)
    blocks: list[Block] = []
    for part in parts:
        head, *lines = part.splitlines()
        words, _, left_out = head.partition("; ")
        spec = tuple(line for line in lines if line[:1] == "|") or blocks[-1].spec
        cases = tuple(line for line in lines if line[:1] == "-")
        blocks.append(Block(words, left_out, spec, cases))
    return Rule(tuple(title.splitlines()), tuple(blocks))


def kept(path: Path, text: str) -> str:
    """Return the text of a file, written first where GOLDEN=write is set."""
    if os.environ.get("GOLDEN") == "write":
        path.write_text(text)
    return path.read_text()
