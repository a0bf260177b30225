"""Writes the index of calls in docs/driver-facts.md: each driver call that facts name, with these facts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from memtopo.diagnostics.explanations import PAGE as FACTS
from memtopo.diagnostics.explanations import read_facts

PAGE = Path(__file__).parent / FACTS
_CALL = re.compile(r"`(cu[A-Z]\w+)`")
_INDEX = re.compile(r"(?<=<!-- calls -->\n).*?(?=<!-- end of calls -->)", re.DOTALL)


def main() -> None:
    """Write the index anew."""
    PAGE.write_text(with_index(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def with_index(page: str) -> str:
    """Return a page of facts with the index of its calls."""
    rows = [f"| `{call}` | {links(numbers)} |" for call, numbers in sorted(calls(page).items())]
    return _INDEX.sub("\n".join(["| call | facts |", "|---|---|", *rows, ""]), page)


def calls(page: str) -> Mapping[str, list[int]]:
    """Numbers of the facts of a page that name each call."""
    named: dict[str, list[int]] = {}
    for number, fact in read_facts(page).items():
        for call in dict.fromkeys(_CALL.findall(fact.text)):
            named.setdefault(call, []).append(number)
    return named


def links(numbers: list[int], page: str = "") -> str:
    """Links to facts, from another page than their own with its name."""
    return ", ".join(f"[{number}]({page}#fact-{number})" for number in numbers)


if __name__ == "__main__":
    main()
