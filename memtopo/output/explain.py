"""Explanations of codes: as text for a terminal, and as the Markdown page of all rules."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator

from memtopo.diagnostics.codes import CODES
from memtopo.diagnostics.explanations import GROUPS, Example, Explanation
from memtopo.output.plain import DEFAULT_WIDTH, paint

WIDEST_PROSE = 100

_INDENT = 9
_FACT = re.compile(r"\bfact ([0-9]+)")
_INTRODUCTION = """\
# Rules

Every diagnostic has a code, which never gets a second meaning. `memtopo explain MT301` shows one of these in the
terminal; this page is made from the same texts by `make docs`.

The examples leave out the head of a spec, `memtopo: 1` and a name, where it is not the point. They are right or wrong
on a machine with two GPUs of 80 GiB and a granularity of 2 MiB, which are peers unless stated otherwise. Facts are
what NVIDIA's driver was [measured to do](driver-facts.md).
"""


def code_list() -> list[dict[str, str]]:
    """Every code with its title and severity, for JSON."""
    return [{"code": name, "title": code.title, "severity": code.severity} for name, code in CODES.items()]


def text(found: Iterable[Explanation], *, width: int = DEFAULT_WIDTH, colour: bool = False) -> list[str]:
    """Explanations as text, separated by empty lines."""
    blocks = [[*_explanation(each, min(width, WIDEST_PROSE), colour=colour)] for each in found]
    return [line for block in blocks for line in ("", *block)][1:]


def table(*, colour: bool = False) -> list[str]:
    """Every code with its title, grouped."""
    lines: list[str] = []
    for prefix, heading in GROUPS.items():
        lines += ["", paint(heading, "strong", colour=colour)]
        lines += [
            f"  {paint(name, code.severity, colour=colour)}  {code.title}"
            for name, code in CODES.items()
            if name.startswith(prefix)
        ]
    return [*lines[1:], "", "'memtopo explain CODE' says more about one of them"]


def markdown(found: Iterable[Explanation]) -> list[str]:
    """Explanations as Markdown, each with a heading."""
    return [line for each in found for line in _section(each)]


def page(found: Iterable[Explanation]) -> list[str]:
    """The Markdown page of all rules, grouped."""
    lines = _INTRODUCTION.splitlines()
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
    return _FACT.sub(r"[fact \1](driver-facts.md#fact-\1)", prose)
