"""Explanations of all codes: the rule, the driver's behaviour, a wrong and a right example; facts; causes of errors.

Each code has a file in this folder with its title and the sections `## Rule`, `## Fact`, `## Wrong` and `## Right`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources

from msgspec import Struct

from memtopo.diagnostics import CODES, Severity, read_page

_FORM = re.compile(r"(?ms)# ([^\n]+)\n+## Rule\n(.+?)^## Fact\n(.+?)^## Wrong\n(.+?)^## Right\n(.+)")
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


ERRORS_PAGE = "errors.md"
"""Page with the causes, the only copy of them."""

EVERY = "Every call"
"""Heading of the causes that any call may have."""

_PART = re.compile(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_ROW = re.compile(r"^\| ([A-Z0-9_, ]+) \| (.+?) \| (.+?) \| (.+?) \| ([^|]+) \|$", re.MULTILINE)


class Cause(Struct, frozen=True):
    """Cause of an error of a call, with what to check and the numbers of the facts that it rests on.

    `error` is without `CUDA_ERROR_`; `cause` and `check` are Markdown. `reasons` are those that the simulator states
    for it, where `…` stands for any text; it states none for a cause that is not a fact. `sources` are `doc` for
    NVIDIA's reference or a manual page, and `reports` for public reports.
    """

    call: str
    error: str
    cause: str
    reasons: tuple[str, ...]
    check: str
    facts: tuple[int, ...]
    sources: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Call and error."""
        return f"{self.call}: {self.error}"

    def is_stated(self, text: str) -> bool:
        """Return whether a text, such as a message of the simulator, has one of the reasons in parentheses."""
        patterns = (re.escape(each).replace("…", "[^\n]+?") for each in self.reasons)
        found = re.search(rf"\((?:{'|'.join(patterns)})(?!\w)", text, re.IGNORECASE)
        return bool(self.reasons) and found is not None


@cache
def causes() -> tuple[Cause, ...]:
    """Return all causes, those of a call and an error by likelihood.

    A part of the page may be that of several calls, and a row that of several errors: each has a cause of its own.
    """
    return tuple(
        Cause(call, error, cause, _reasons(reasons), check, *_sources(sources))
        for calls, rows in _PART.findall(read_page(ERRORS_PAGE))
        for errors, cause, reasons, check, sources in _ROW.findall(rows)
        for call in calls.split(", ")
        for error in errors.split(", ")
    )


def _reasons(cell: str) -> tuple[str, ...]:
    return () if cell == "—" else tuple(cell.split(" / "))


def _sources(cell: str) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Numbers of facts, and other sources, of the last cell of a row."""
    return tuple(map(int, re.findall(r"\d+", cell))), tuple(re.findall(r"\[(\w+)\]", cell))


def causes_of(call: str | None, error: str | None) -> list[Cause]:
    """Return the causes of a call, of an error, or of both, in order; none if nothing is known.

    Those of an error that the call has no row for are those that any call may have.
    """
    found = [each for each in causes() if error in {None, each.error}]
    own = [each for each in found if call in {None, each.call}]
    return own or [each for each in found if error and each.call == EVERY]


def causes_with_reason(call: str, error: str, reason: str) -> list[Cause]:
    """Return the causes of an error of a call for which the simulator states a reason; none for a reason without."""
    found = [*causes_of(call, error), *causes_of(EVERY, error)]
    return [each for each in dict.fromkeys(found) if each.is_stated(f"({reason})")]
