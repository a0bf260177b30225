"""What each code means, beyond its message: the rule, what the driver really does, and an example of wrong and right.

One file a code beside this one: `## Rule`, `## Fact`, `## Wrong`, `## Right`. Whoever adds a code adds its file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import resources

from memtopo.diagnostics.codes import CODES
from memtopo.diagnostics.model import Severity

GROUPS = {
    "MT0": "Reading the text",
    "MT1": "The shape of the entries",
    "MT2": "Names and their use",
    "MT3": "Arithmetic of the layout",
    "MT4": "What the machine can do",
    "MT6": "What is shared between processes",
    "MT7": "Memory of other kinds",
    "MT5": "Valid, and probably not meant",
}
"""The codes by what they begin with."""

_SECTIONS = ("Rule", "Fact", "Wrong", "Right")
_HEADING = re.compile(r"^## (\w+)\n", re.MULTILINE)
_BLOCK = re.compile(r"(?P<note>.*?)(?:^```yaml\n(?P<spec>.*?)^```\s*)?", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Example:
    """A spec, whose head (`memtopo: 1` and a name) is left out where it is not the point; a note says what else holds.

    Of what no YAML text can show there is only the note.
    """

    note: str
    spec: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """One code. `rule` and `fact` are prose; a fact that is cited as `fact 15` stands in docs/driver-facts.md."""

    code: str
    title: str
    severity: Severity
    rule: str
    fact: str
    wrong: Example
    right: Example


def explanation(code: str) -> Explanation:
    """The explanation of one of `CODES`; of another code, `KeyError`."""
    known = CODES[code]
    text = resources.files(__name__).joinpath(f"{code}.md").read_text(encoding="utf-8")
    rule, fact, wrong, right = _sections(text, code)
    return Explanation(code, known.title, known.severity, rule, fact, _example(wrong), _example(right))


def _sections(text: str, code: str) -> list[str]:
    before, *parts = _HEADING.split(text)
    assert not before.strip(), f"{code}.md has text before its first section"
    assert tuple(parts[::2]) == _SECTIONS, f"{code}.md needs the sections {', '.join(_SECTIONS)}"
    return [part.strip() for part in parts[1::2]]


def _example(text: str) -> Example:
    match = _BLOCK.fullmatch(text + "\n")
    assert match, "an example is a note, a block of YAML, or both"
    return Example(match["note"].strip(), match["spec"] or "")
