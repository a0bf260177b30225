"""Writes the tables of docs/performance.md and docs/hardware.md from the records in bench/results."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml

from docs.make_fact_index import PAGE as FACTS
from docs.make_fact_index import links

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "bench" / "results"
LIMIT = re.compile(r"(ratio )?at (most|least) ([\d.]+)")

Run = Mapping[str, Any]
"""One measurement or pass: its own keys, and those that its record has for all of its runs."""


def main() -> None:
    """Write the tables anew."""
    for name in ("performance.md", "hardware.md"):
        page = DOCS / name
        page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")


def with_tables(page: str) -> str:
    """Return a page with the tables between its markers, `<!-- gpu -->` and `<!-- end of gpu -->`."""
    tables = {"gpu": _figures(on_gpu=True), "cpu": _figures(on_gpu=False), "passes": _passes(), "calls": _sequences()}
    for name, (heading, *rows) in tables.items():
        lines = [f"|{'|'.join(row)}|" for row in [heading, ["---"] * len(heading), *rows]]
        pattern = re.compile(rf"(?<=<!-- {name} -->\n).*?(?=<!-- end of {name} -->)", re.DOTALL)
        page = pattern.sub("".join(f"{line}\n" for line in lines), page)
    return page


def read(path: Path) -> dict[str, Any]:
    """Read a record; its numbers are texts, with the digits that were written."""
    return dict(yaml.load(path.read_text(encoding="utf-8"), yaml.BaseLoader))  # noqa: S506 - it makes texts alone


def runs(folder: Path = RESULTS) -> Iterator[tuple[str, Run]]:
    """Yield the runs of all records of a folder, each with the name of its record."""
    for path in sorted(folder.glob("*.yaml")):
        record = read(path)
        for run in record.pop("runs", []):
            yield path.stem, {**record, **run}


def missed(run: Run) -> bool:
    """Return whether a figure is beyond one of its limits."""
    found = [(float(run["ratio" if ratio else "memtopo"]), which, float(limit)) for ratio, which, limit in _limits(run)]
    return any(value > limit if which == "most" else value < limit for value, which, limit in found)


def _limits(run: Run) -> list[tuple[str, str, str]]:
    return LIMIT.findall(run.get("limit", ""))


def _figures(*, on_gpu: bool) -> list[list[str]]:
    rows, before = [["benchmark", "measured", "memtopo", "beside", "ratio", "limit", "GPU"][: 6 + on_gpu]], ("", "")
    for name, run in runs():
        if (run["gpu"] != "none") == on_gpu:
            first = "" if name == before[0] else f'<a id="{name}"></a>{name}'
            second = "" if (name, run["measured"]) == before else run["measured"]
            row = [first, second, _value(run, "memtopo"), _beside(run), run.get("ratio", ""), _bound(run)]
            rows.append([*row, run["gpu"]] if on_gpu else row)
            before = (name, run["measured"])
    return rows


def _value(run: Run, key: str) -> str:
    return f"{Decimal(run[key]):,} {run['unit']}".strip() if key in run else ""


def _beside(run: Run) -> str:
    compared = "base" in run or "ratio" in run
    return ", ".join(filter(None, [_value(run, "base"), run.get("against", "")])) if compared else ""


def _bound(run: Run) -> str:
    shown = [
        f"{'≤' if which == 'most' else '≥'} {limit}{'' if ratio else ' ' + run['unit']}"
        for ratio, which, limit in _limits(run)
    ]
    beyond = f"; **missed**: {run['reason']}" if "reason" in run else "; **missed**"
    return ", ".join(shown) + (beyond if missed(run) else "")


def _passes() -> list[list[str]]:
    rows, before = [["feature", "GPU", "date", "result"]], ""
    for _, run in runs(RESULTS / "passes"):
        rows.append(["" if run["feature"] == before else run["feature"], run["gpu"], run["date"], run["result"]])
        before = run["feature"]
    return rows


def _sequences() -> list[list[str]]:
    rows = [["family", "H100", "2 × H200", "differ", "because", "facts"]]
    for each in read(RESULTS / "sequences.yaml")["families"]:
        numbers = [f"{int(each[key]):,}" for key in ("H100", "2 × H200", "differ")]
        rows.append([each["family"], *numbers, each.get("because", ""), links(each.get("facts", []), Path(FACTS).name)])
    return rows


if __name__ == "__main__":
    main()
