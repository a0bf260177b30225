"""Writes docs/rules.md, the index of diagnostics, and docs/rules/MT1xx.md and so on, the explanations by hundreds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from memtopo.diagnostics import CODES, GROUPS
from memtopo.diagnostics.explanations import Explanation, explanation
from memtopo.output.explain import markdown

ROOT = Path(__file__).parent.parent
HEAD = """\
# Diagnostics

Every diagnostic has a code, which is never reused for another meaning. `memtopo explain MT301` prints the explanation
of a code in the terminal. `make docs` writes this page and the pages of explanations.
"""
NOTE = """\
The examples omit the head of a spec, `memtopo: 1` and a name, unless it is relevant. They are right or wrong on a
machine with two GPUs of 80 GiB and a granularity of 2 MiB, which are peers unless stated otherwise. The cited facts are
measurements of [NVIDIA's driver](../driver-facts.md). [All codes](../rules.md) are listed in one table.
"""


def main() -> None:
    """Write every page, and remove those of hundreds that are gone."""
    made = files()
    for old in (ROOT / "docs" / "rules").glob("*.md"):
        if f"docs/rules/{old.name}" not in made:
            old.unlink()
    for name, text in made.items():
        (ROOT / name).parent.mkdir(exist_ok=True)
        (ROOT / name).write_text(text, encoding="utf-8")


def files() -> Mapping[str, str]:
    """Content of every page, by its path in the repository."""
    groups = {prefix: [explanation(code) for code in CODES if code.startswith(prefix)] for prefix in sorted(GROUPS)}
    index = "\n".join([HEAD, *(line for prefix, found in groups.items() for line in _rows(prefix, found))])
    return {"docs/rules.md": index} | {f"docs/rules/{prefix}xx.md": _page(prefix, groups[prefix]) for prefix in groups}


def _rows(prefix: str, found: Sequence[Explanation]) -> Iterator[str]:
    yield from (f"## {GROUPS[prefix]}", "", "| code | severity | title |", "|---|---|---|")
    for each in found:
        link = f"[{each.code}](rules/{prefix}xx.md#{each.code})"
        yield f'| <a id="{each.code}"></a>{link} | {each.severity} | {each.title} |'
    yield ""


def _page(prefix: str, found: Sequence[Explanation]) -> str:
    text = "\n".join([f"# {prefix}xx: {GROUPS[prefix]}", "", NOTE, *markdown(found)]).rstrip() + "\n"
    return re.sub("^### (?=MT)", "## ", text, flags=re.MULTILINE).replace("](driver-facts.md", "](../driver-facts.md")


if __name__ == "__main__":
    main()
