"""Explanations of all codes: the rule, the driver's behaviour, a wrong and a right example; and the driver facts.

Each code has a file in this folder with its title and the sections `## Rule`, `## Fact`, `## Wrong` and `## Right`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources

from msgspec import Struct

from memtopo.diagnostics import CODES, Severity, read_page

_FORM = re.compile(
    r"# ([^\n]+)\n+## Rule\n(.+?)^## Fact\n(.+?)^## Wrong\n(.+?)^## Right\n(.+)", re.MULTILINE | re.DOTALL
)
_BLOCK = re.compile(r"(?P<note>.*?)(?:^```yaml\n(?P<spec>.*?)^```\s*)?", re.MULTILINE | re.DOTALL)


class Example(Struct, frozen=True):
    """A spec, usually without its first keys (`memtopo: 1` and a name), and a note on further conditions.

    An example that cannot be written as YAML text has a note only.
    """

    note: str
    spec: str


class Explanation(Struct, frozen=True):
    """Explanation of one code. `rule` and `fact` are prose; cited facts (`fact 15`) are in docs/driver-facts.md."""

    code: str
    title: str
    severity: Severity
    rule: str
    fact: str
    wrong: Example
    right: Example


def explanation(code: str) -> Explanation:
    """Return the explanation of a code. Raises `KeyError` for a code that is not in `CODES`."""
    severity = CODES[code]
    found = _FORM.fullmatch(resources.files(__name__).joinpath(f"{code}.md").read_text(encoding="utf-8"))
    assert found, f"{code}.md needs a title, and the sections Rule, Fact, Wrong and Right"
    title, rule, fact, wrong, right = map(str.strip, found.groups())
    return Explanation(code, title, severity, rule, fact, _example(wrong), _example(right))


def _example(text: str) -> Example:
    match = _BLOCK.fullmatch(text + "\n")
    assert match, "an example is a note, a block of YAML, or both"
    return Example(match["note"].strip(), match["spec"] or "")


PAGE = "driver-facts.md"
"""Page with the driver facts, the only copy of them."""

_ANCHOR = r'<a id="fact-(?P<number>[0-9]+)"></a>\*\*(?P=number)\.\*\* '
_ENTRY = re.compile(rf"^{_ANCHOR}(?P<text>.*?)(?=^(?:<a id=|## |<!-- ))", re.MULTILINE | re.DOTALL)
_TOPIC = re.compile(r"^## (.+)$", re.MULTILINE)


class Fact(Struct, frozen=True):
    """Measured behaviour of the driver. `topic` is the heading that it stands under, `text` is Markdown."""

    number: int
    topic: str
    text: str


@cache
def facts() -> Mapping[int, Fact]:
    """Return all facts by number, in order."""
    return read_facts(read_page(PAGE))


def naming(call: str) -> list[Fact]:
    """Return the facts that name a call, in order."""
    return [fact for fact in facts().values() if f"`{call}`" in fact.text]


def read_facts(page: str) -> Mapping[int, Fact]:
    """Return the facts of a page by number."""
    headings = [(match.start(), match[1]) for match in _TOPIC.finditer(page)]
    found: dict[int, Fact] = {}
    for match in _ENTRY.finditer(page + "\n## "):  # a heading at the end closes the last entry
        topic = [title for start, title in headings if start < match.start()][-1]
        found[int(match["number"])] = Fact(int(match["number"]), topic, match["text"].strip())
    return found
