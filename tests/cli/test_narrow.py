"""Tables at 80 columns: no word and no number is divided, and none is left out."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

from memtopo.machine import MachineLine, load
from memtopo.output import plan, report
from memtopo.output.blocks import Drawing, Page, Table, columns
from memtopo.output.calls import in_short
from memtopo.output.console import unstyled
from memtopo.output.diagram.build import build_diagram
from memtopo.plans.transition import difference
from memtopo.run import processes
from memtopo.run.planned_calls import count_calls, first_calls
from tests.cli.conftest import InlineRunner
from tests.helpers.command_line import ROOT
from tests.helpers.console import words
from tests.helpers.samples import sampled
from tests.helpers.specs import composed, ensemble

SPECS = sorted([*(ROOT / "specs").glob("*.yaml"), *(ROOT / "specs" / "real").glob("*.yaml")])
MACHINE = load("h200x4")
LINE = MachineLine("h200x4", simulated=True, devices=("NVIDIA H200",) * 4, driver="CUDA 13.0")
NARROW, WIDE = 80, 2000


def require_undivided(page: Page, width: int = NARROW) -> None:
    """Require the words of a page, but for its drawings, at a width."""
    kept = [replace(each, blocks=[b for b in each.blocks if not isinstance(b, Drawing)]) for each in page.sections]
    wide, narrow = (unstyled(replace(page, sections=kept), columns) for columns in (WIDE, width))
    assert max(map(len, narrow.splitlines())) <= width
    assert not words(wide) - words(narrow)
    assert words(narrow).keys() == words(wide).keys()


def pages(spec: Path) -> Iterator[Page]:
    made = composed(spec, MACHINE)
    target, geometry = made.target, made.geometry
    summary = made.plan.summary(build_diagram(geometry, target.machines), made.warnings, None, made.document.values)
    below = {label: [*map(in_short, rows)] for label, rows in first_calls(made.plan, geometry).items()}
    counts = count_calls(made.plan, geometry)
    for every in (False, True):
        yield plan.page(summary, target.line, "", below, every=every)
        yield plan.summary_page(summary, target.line, counts, every=every)


@pytest.mark.parametrize("spec", sampled(SPECS))
def test_plans_have_every_word_undivided(spec: Path) -> None:
    for page in pages(spec):
        require_undivided(page)


def test_differences_of_plans_have_every_word_undivided() -> None:
    """From each spec to the next one."""
    plans = [(spec.stem, composed(spec, MACHINE).plan.steps_by_process) for spec in SPECS]
    for (name, before), (other, after) in pairwise(plans):
        if before.keys() == after.keys():
            found = difference(before, after, (name, other))
            require_undivided(plan.difference(found, LINE))


@pytest.mark.parametrize("name", ["weights", "real/nvshmem", "real/vllm-all-reduce"])
def test_reports_have_every_word_undivided(name: str) -> None:
    found = processes.apply(ensemble(ROOT / "specs" / f"{name}.yaml", MACHINE))
    for every in (False, True):
        require_undivided(report.text_page(found, every=every))


@pytest.mark.parametrize(
    "command",
    [
        ("probe", "-mh200x4"),
        ("probe", "-mh200x4", "--against", "h200x2"),
        ("machines",),
        ("machines", "h200x4"),
        ("budget", *map(str, SPECS[:9]), "-mh200x4"),
    ],
    ids=" ".join,
)
def test_tables_of_commands_have_every_word_undivided(run_inline: InlineRunner, command: tuple[str, ...]) -> None:
    wide, narrow = (run_inline(*command, COLUMNS=columns).out for columns in (str(WIDE), "80"))
    assert max(map(len, narrow.splitlines()), default=0) <= NARROW
    assert not words(wide) - words(narrow)
    assert words(narrow).keys() == words(wide).keys()


def test_columns_give_way_from_the_last_one_on() -> None:
    """First between words, then to a line below the row; what is left stays whole."""
    table = Table(columns("chunk", ">bytes", "where"), [("page.0 … page.15", "16 × 2 MiB", "gpu0 rw, gpu1 rw")])
    assert [unstyled(table, width) for width in (60, 44, 30)] == [
        """\
  chunk                  bytes  where
  page.0 … page.15  16 × 2 MiB  gpu0 rw, gpu1 rw
""",
        """\
  chunk                  bytes  where
  page.0 … page.15  16 × 2 MiB  gpu0 rw,
                                gpu1 rw
""",
        """\
  chunk                  bytes
  page.0 … page.15  16 × 2 MiB
          where: gpu0 rw,
          gpu1 rw
""",
    ]


@pytest.mark.parametrize(
    ("before", "amount"),
    [
        ("8 of", "16 × 2 MiB"),
        ("at", "3.26 TB/s"),
        ("took", "12.3 ms"),
        ("for", "20 min"),
        ("held", "12 d"),
        ("on gpu0,", "gpu1 rw"),
    ],
)
def test_an_amount_and_its_unit_are_in_one_line(before: str, amount: str) -> None:
    table = Table(columns("x"), [(f"{before} {amount}",)])
    for width in range(2 + len(amount), 30):
        assert any(amount in line for line in unstyled(table, width).splitlines())
