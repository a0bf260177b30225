"""Explanations of codes, and driver facts: as text for a terminal, and as Markdown."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from memtopo.diagnostics import CODES, GROUPS
from memtopo.diagnostics.explanations import PAGE, Cause, Example, Explanation, Fact, explanation
from memtopo.output.plain import DEFAULT_WIDTH, WIDEST_PROSE, paint

_INDENT = 9
_MOST_LINES = 12
_FACT = re.compile(r"\bfact ([0-9]+)")
_ITEM = re.compile(r"\n(?=- |\|)")
_MARKUP = re.compile(r"\*\*|\[([^]]+)\]\([^)]*\)")


def code_list() -> list[dict[str, str]]:
    """Every code with its title and severity, for JSON."""
    return [{"code": each.code, "title": each.title, "severity": each.severity} for each in map(explanation, CODES)]


def text(found: Iterable[Explanation | Fact], *, width: int = DEFAULT_WIDTH, colour: bool = False) -> list[str]:
    """Explanations and facts as text, separated by empty lines."""
    widest = min(width, WIDEST_PROSE)
    lines: list[str] = []
    for each in found:
        if isinstance(each, Fact):
            lines += ["", *_fact(each, widest, colour=colour)]
        else:
            lines += ["", *_explanation(each, widest, colour=colour)]
    return lines[1:]


def causes(
    found: Sequence[Cause],
    cited: Sequence[Fact],
    others: Sequence[str] = (),
    *,
    width: int = DEFAULT_WIDTH,
    colour: bool = False,
) -> list[str]:
    """Causes of errors by call, the facts that name the call, and other errors of a message, as text."""
    widest, lines, titles = min(width, WIDEST_PROSE), list[str](), dict.fromkeys(cause.title for cause in found)
    for title in titles:
        lines += ["", paint(title, "strong", colour=colour)]
        for cause in (each for each in found if each.title == title):
            lines += _wrapped(f"- {cause.cause}", widest)
            lines += [f"    {line}" for line in _wrapped(f"check: {cause.check} {_sources(cause)}", widest - 4)]
    if others:
        lines += ["", *textwrap.wrap(f"also named: {', '.join(others[:4])}", widest, subsequent_indent="  ")]
    if cited:
        numbers = " ".join(f"fact-{fact.number}" for fact in cited)
        lines += ["", *textwrap.wrap(f"more: memtopo explain {numbers}", widest, subsequent_indent="  ")]
    return lines[1:]


def first_causes(lines: Sequence[str], count: int) -> list[str]:
    """Return as many whole causes of a list as fit on a screen, and the number of those that are left out."""
    if len(lines) <= _MOST_LINES:
        return [*lines]
    starts = [index for index, line in enumerate(lines) if line.startswith("  - ")]
    ends = [*starts[1:], next((index for index in range(starts[-1], len(lines)) if not lines[index]), len(lines))]
    shown = max(1, sum(end <= _MOST_LINES - 1 for end in ends))
    left = count - shown
    return [*lines[: ends[shown - 1]], *([f"  {left} more: add --all"] if left else [])]


def _sources(cause: Cause) -> str:
    facts = [f"fact {', '.join(map(str, cause.facts))}"] if cause.facts else []
    stated = "; ".join([*facts, *cause.sources])
    return f"({stated})" if stated else ""


def table(*, colour: bool = False) -> list[str]:
    """Every code with its title, grouped."""
    lines: list[str] = []
    for prefix, heading in GROUPS.items():
        lines += ["", paint(heading, "strong", colour=colour)]
        found = map(explanation, (name for name in CODES if name.startswith(prefix)))
        lines += [f"  {paint(each.code, each.severity, colour=colour)}  {each.title}" for each in found]
    more = [
        "'memtopo explain CODE' says more about one of them",
        "'memtopo explain fact-15' prints a driver fact",
        "'memtopo explain cuMemMap INVALID_VALUE' lists the causes of an error of the driver",
    ]
    return [*lines[1:], "", *more]


def markdown(found: Iterable[Explanation | Fact]) -> list[str]:
    """Explanations and facts as Markdown, each with a heading or its number."""
    return [line for each in found for line in (_entry(each) if isinstance(each, Fact) else _section(each))]


def page(found: Iterable[Explanation]) -> list[str]:
    """Explanations of all codes as one Markdown document, grouped."""
    lines = ["# Diagnostics"]
    everything = list(found)
    for prefix, heading in GROUPS.items():
        lines += ["", f"## {heading}", ""]
        lines += markdown(each for each in everything if each.code.startswith(prefix))
        lines.pop()
    return lines


def _explanation(each: Explanation, width: int, *, colour: bool) -> Iterator[str]:
    yield f"{paint(f'{each.severity}[{each.code}]', each.severity, colour=colour)}: {each.title}"
    for label, style, prose, spec in (
        ("rule", "strong", each.rule, ""),
        ("fact", "note", each.fact, ""),
        ("wrong", "error", each.wrong.note, each.wrong.spec),
        ("right", "help", each.right.note, each.right.spec),
    ):
        yield ""
        yield from _labelled(paint(f"{label:>{_INDENT - 2}}", style, colour=colour), prose, spec, width)


def _labelled(label: str, prose: str, spec: str, width: int) -> Iterator[str]:
    lines = [part for each in prose.split("\n\n") for part in textwrap.wrap(each.replace("`", "'"), width - _INDENT)]
    first, *more = [*lines, *spec.splitlines()] or [""]
    yield f"{label}  {first}".rstrip()
    yield from (f"{'':{_INDENT}}{line}".rstrip() for line in more)


def _fact(each: Fact, width: int, *, colour: bool) -> Iterator[str]:
    yield f"{paint(f'fact {each.number}', 'note', colour=colour)}: {each.topic}"
    for block in each.text.split("\n\n"):
        yield ""
        for item in _ITEM.split(block):
            yield from _wrapped(item, width)


def _wrapped(item: str, width: int) -> Iterator[str]:
    """Lines of a paragraph, of an item of a list, or of a row of a table, whose rules are left out."""
    plain = " ".join(_MARKUP.sub(r"\1", item).replace("`", "'").split())
    row = plain.strip("| ") if plain.startswith("|") else plain
    if row.strip("-| "):
        further = "    " if row != plain or plain.startswith("- ") else "  "
        yield from textwrap.wrap(row, width, initial_indent="  ", subsequent_indent=further, break_on_hyphens=False)


def _entry(each: Fact) -> Iterator[str]:
    yield from (f"**{each.number}.** {each.text}".splitlines())
    yield ""


def _section(each: Explanation) -> Iterator[str]:
    yield from (f'<a id="{each.code}"></a>', "", f"### {each.code}: {each.title}", "")
    if each.severity == "warning":
        yield from ("A warning: the spec can be built.", "")
    for prose in (each.rule, each.fact):
        yield from (*_linked(prose).splitlines(), "")
    yield from _example("Wrong", "yaml wrong", each.wrong)
    yield from _example("Right", "yaml", each.right)


def _example(label: str, language: str, example: Example) -> Iterator[str]:
    yield from (*f"{label}: {_linked(example.note)}".rstrip().splitlines(), "")
    if example.spec:
        yield from (f"```{language}", *example.spec.splitlines(), "```", "")


def _linked(prose: str) -> str:
    return _FACT.sub(rf"[fact \1]({PAGE}#fact-\1)", prose)
