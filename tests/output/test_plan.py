from __future__ import annotations

import pytest
from msgspec.structs import replace

from memtopo.driver.recorder import DriverCall
from memtopo.machine import MachineLine, load
from memtopo.output import plan
from memtopo.output.blocks import Pairs, Stacked, Table
from memtopo.output.calls import CallLines
from memtopo.output.console import unstyled
from memtopo.output.diagram.build import build_diagram
from memtopo.plans import folding
from memtopo.plans.report import PlanDifference, PlanSummary, ProcessDifference, ProcessPlan, Row
from memtopo.run.planned_calls import count_calls
from tests.helpers.console import words, written_to_pipe
from tests.helpers.specs import ROOT, composed

MIB = 1 << 20
MACHINE = MachineLine("h200x2", simulated=True, devices=("NVIDIA H200", "NVIDIA H200"), driver="CUDA 13.0")
PAGES = Row("create", "create", "cuMemCreate", "page.0", "page.7999", 8000, 2 * MIB, ("gpu0", "gpu1"), (), "fd, rdma")
PLAN = PlanSummary(
    "quickstart",
    (
        Row("open", "retain context", "cuDevicePrimaryCtxRetain", "gpu0", "gpu1", 2, 0, ("gpu0", "gpu1"), ()),
        Row("reserve", "reserve", "cuMemAddressReserve", "kv", "kv", 1, 16032 * MIB, (), ()),
        Row("create", "create", "cuMemCreate", "hot", "hot", 1, 32 * MIB, ("gpu0",), (), "fd"),
        PAGES,
        Row("map", "map", "cuMemMap", "hot", "hot", 1, 32 * MIB, ("kv",), ()),
        Row("map", "map", "cuMemMap", "page.0", "page.7999", 8000, 2 * MIB, ("kv",), ()),
        Row("grant", "grant", "cuMemSetAccess", "kv", "kv", 1, 0, ("gpu0 rw, gpu1 r",), ()),
    ),
    {"gpu0": 8032 * MIB, "gpu1": 8000 * MIB},
    16032 * MIB,
    16007,
    16005,
    ("chunk 'hot' is rounded up from 31MiB to 32MiB",),
)


def plan_text(summary: PlanSummary, machine: MachineLine = MACHINE) -> str:
    return written_to_pipe(plan.page(summary, machine))


def named(name: str, where: str = "kv") -> PlanSummary:
    return replace(PLAN, rows=(replace(PAGES, first=f"{name}.0", last=f"{name}.7999", where=(where,), note=""),))


def test_lines_of_calls_are_written_while_calls_are_added() -> None:
    """None is kept for long: a plan of a million ranges has two million calls."""
    written: list[list[str]] = []
    lines = CallLines("reader", written.append)
    for number in range(5000):
        call = DriverCall("mem_create", {"size": 2 * MIB}, number, None, "create", "create", f"page.{number}")
        lines.add(call)
        assert sum(map(len, written)) > number - 2000
    lines.end()
    made = [f"    cuMemCreate(&page.{number}, size=2MiB, properties, flags)" for number in range(5000)]
    assert [line for part in written for line in part] == ["reader", "", "  create", *made, ""]


def test_plan_has_folded_rows_memory_address_space_and_calls() -> None:
    """In 80 columns."""
    assert plan_text(PLAN) == (
        """\
plan  quickstart  on h200x2 (simulated)

  step            what                calls      each     total  where
  retain context  gpu0 … gpu1             2                      gpu0, gpu1
  reserve         kv                      1  15.7 GiB  15.7 GiB
  create          hot                     1    32 MiB    32 MiB  gpu0 (fd)
                  page.0 … page.7999  8,000     2 MiB  15.6 GiB  gpu0, gpu1
                                                                 (fd, rdma)
  map             hot                     1    32 MiB    32 MiB  kv
                  page.0 … page.7999  8,000     2 MiB  15.6 GiB  kv
  grant           kv                      1                      gpu0 rw, gpu1 r

  memory on gpu0   7.8 GiB
  memory on gpu1   7.8 GiB
  address space   15.7 GiB
  steps           16,007 to build, 16,005 to take down

  note: chunk 'hot' is rounded up from 31MiB to 32MiB
"""
    )


def test_only_a_simulated_machine_is_called_simulated() -> None:
    first = plan_text(PLAN, replace(MACHINE, name="local", simulated=False)).splitlines()[0]
    assert first == "plan  quickstart  on local"


def test_the_digest_is_in_one_line_of_80_columns() -> None:
    digest = f"sha256:{'0123456789abcdef' * 4}"
    output = unstyled(plan.page(PLAN, MACHINE, digest), 80)
    assert output.splitlines()[-1] == f"digest  {digest}"


def test_states_have_their_memory_by_location() -> None:
    states = {"awake": PLAN.memory, "asleep": {"gpu0": 0, "gpu1": 8000 * MIB}}
    assert plan_text(replace(PLAN, states=states, notes=())).endswith(
        """
memory by state
  state      gpu0     gpu1
  awake   7.8 GiB  7.8 GiB
  asleep      0 B  7.8 GiB
"""
    )


def test_an_empty_plan_is_shown() -> None:
    assert "steps" in plan_text(PlanSummary("nothing", (), {}, 0, 0, 0))


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120])
def test_narrow_plans_have_every_word_undivided(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    text = plan_text(PLAN)
    assert max(map(len, text.splitlines())) <= width
    monkeypatch.setenv("COLUMNS", "200")
    assert not words(plan_text(PLAN)) - words(text)


def test_names_of_23_characters_are_not_folded() -> None:
    assert "weights-of-the-decoder.0" in plan_text(named("weights-of-the-decoder"))


def test_long_names_fold_within_the_width() -> None:
    lines = plan_text(named("z" * 120, "y" * 60)).splitlines()
    assert max(map(len, lines)) <= 80
    assert "".join(lines).count("z") == 120


@pytest.mark.parametrize("evil", ["[red]x[/red]", "[/]", "\x1b[31mx", "\x1b]0;title\x07", "\u202ex", ":smile:"])
def test_names_in_a_plan_inject_nothing(monkeypatch: pytest.MonkeyPatch, evil: str) -> None:
    """No markup, emoji, control sequence or change of direction."""
    monkeypatch.setenv("COLUMNS", "200")
    summary = replace(named(evil, evil), name=evil, memory={evil: 1}, notes=(evil,), states={evil: {evil: 1}})
    text = plan_text(summary, replace(MACHINE, name=evil))
    assert all(char == "\n" or char.isprintable() for char in text)
    assert evil.encode("ascii", "backslashreplace").decode().replace("\x1b", "\\x1b").replace("\x07", "\\x07") in text


def test_names_of_steps_are_not_divided_at_60_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    wide = ("gpu0", "gpu1", "gpu2", "gpu3")
    row = Row("settle", "synchronize", "cuCtxSynchronize", "gpu0", "gpu3", 4, 0, wide, ())
    text = plan_text(replace(PLAN, rows=(*PLAN.rows, row)))
    assert "  synchronize " in text
    assert max(map(len, text.splitlines())) <= 60


def reader(number: int, gpu: str, *more: Row, count: int = 1) -> ProcessPlan:
    """Process that maps what it imports, and grants its GPU access beside gpu0."""
    rows = (
        Row("open", "retain context", "cuDevicePrimaryCtxRetain", gpu, gpu, 1, 0, (gpu,), ()),
        Row("map", "map", "cuMemMap", "shard", "shard", 1, 2 * MIB, ("weights",), ()),
        Row("grant", "grant", "cuMemSetAccess", "weights", "weights", 1, 0, ("gpu0 r", f"{gpu} rw"), ()),
        *more,
    )
    last = f"reader.{number + count - 1}"
    return ProcessPlan(f"reader.{number}", last, count, rows, {gpu: 0}, (f"reads are cached on {gpu}",))


def of_processes(*processes: ProcessPlan) -> str:
    text = plan_text(replace(PLAN, rows=(), processes=processes))
    return text.partition("  memory on")[0]


def test_processes_that_differ_by_their_gpu_are_one() -> None:
    assert of_processes(*(reader(number, f"gpu{number % 4}") for number in range(8))) == (
        """\
plan  quickstart  on h200x2 (simulated)

reader.0 … reader.7, each on its GPU: gpu0, gpu1, gpu2, gpu3
  step            what     calls   each  total  where
  retain context  its GPU      1                its GPU
  map             shard        1  2 MiB  2 MiB  weights
  grant           weights      1                gpu0 r, its GPU rw

  note: reads are cached on its GPU

"""
    )


def test_eight_gpus_in_sequence_are_named_by_the_first_and_the_last() -> None:
    text = of_processes(*(reader(2 * number, f"gpu{number}", count=2) for number in range(8)))
    assert [line for line in text.splitlines() if "reader" in line] == [
        "reader.0 … reader.15, each on its GPU: gpu0 … gpu7"
    ]


def test_processes_that_differ_otherwise_stay_apart() -> None:
    more = Row("grant", "grant", "cuMemSetAccess", "other", "other", 1, 0, ("gpu1 r",), ())
    further = replace(more, where=("gpu3 r",))  # a second GPU that differs
    processes = (reader(0, "gpu0"), reader(1, "gpu1"), reader(2, "gpu2", more), reader(3, "gpu1", further))
    lines = of_processes(*processes).splitlines()
    assert [line for line in lines if line.startswith("reader")] == [
        "reader.0 … reader.1, each on its GPU: gpu0, gpu1",
        "reader.2",
        "reader.3",
    ]


@pytest.mark.parametrize(
    ("spec", "row"),
    [
        ("elastic-kv", ("chunk pool", "page", "", "", "", "gpu0 (16 now, up to 256)")),
        ("elastic-kv", ("map zero page", "kv", "512", "", "", "blank (elastic: page)")),
        ("real/vllm-all-reduce", ("use own buffer", "metas.own", "", "10 MiB", "", "meta")),
    ],
)
def test_steps_without_a_call_have_the_words_of_the_field_and_no_number(spec: str, row: tuple[str, ...]) -> None:
    shown = plan.page(composed(ROOT / "specs" / f"{spec}.yaml", load("h200x4")).plan.summary(None), MACHINE)
    tables = [block for section in shown.sections for block in section.blocks if isinstance(block, Table)]
    cells = [[" ".join(each.lines) if isinstance(each, Stacked) else each for each in row] for row in tables[0].rows]
    assert list(row) in cells


def summary_tables(spec: str, *, every: bool = False) -> list[list[tuple[str, ...]]]:
    """Rows of the tables and pairs of a summary."""
    made = composed(ROOT / "specs" / f"{spec}.yaml", load("h200x4"))
    whole = made.plan.summary(build_diagram(made.geometry, made.target.machines))
    shown = plan.summary_page(whole, MACHINE, count_calls(made.plan, made.geometry), every=every)
    blocks = [block for section in shown.sections for block in section.blocks]
    return [[tuple(map(str, row)) for row in block.rows] for block in blocks if isinstance(block, Table | Pairs)]


def test_a_summary_has_processes_memory_and_calls_and_no_steps() -> None:
    processes, memory, functions, _ = summary_tables("real/nvshmem")
    assert processes == [("pe.0 … pe.3, each on its GPU: gpu0, gpu1, gpu2, gpu3", "23", "1 GiB on its GPU")]
    assert [row[0] for row in summary_tables("real/nvshmem", every=True)[0]] == [f"pe.{number}" for number in range(4)]
    assert [row[:4] for row in memory] == [(f"gpu{number}", "1 GiB", "1 GiB", "139.8 GiB") for number in range(4)]
    assert ("cuMemCreate", "4", "0") in functions
    assert sum(int(row[1]) for row in functions) == 4 * 23


def test_a_summary_has_what_elastic_memory_grows_to() -> None:
    memory, pools, _, _ = summary_tables("elastic-kv")
    assert memory == [("gpu0", "34 MiB", "514 MiB", "139.8 GiB", "page 256 × 2 MiB, blank 2 MiB")]
    assert pools == [("chunk pool page", "gpu0 (16 now, up to 256)")]


def test_bytes_that_a_change_loses_are_shown_with_their_process() -> None:
    rows = (replace(PAGES, calls=1),)
    processes = (
        ProcessDifference("server", "server", 1, rows, rows, 0, ("weights",)),
        ProcessDifference("reader.0", "reader.3", 4, rows, rows, 0, ("page.0", "page.1", "page.2")),
        ProcessDifference("idle", "idle", 1, rows, rows, 0, ()),
    )
    found = PlanDifference("a", "b", (), (), 0, (), {}, processes=processes)
    lines = written_to_pipe(plan.difference(found, MACHINE)).splitlines()
    assert [line.partition("bytes lost  ")[2] for line in lines if "bytes lost" in line] == [
        "weights (1) of server",
        "page.0 … page.2 (3) of reader.0 … reader.3, each",
    ]


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ((1, 2, 3, 0), {"other.next.w"}),
        ((2, 3, 0, 1), {"other.+2.w"}),
        ((3, 0, 1, 2), {"other.previous.w"}),
        ((4, 5, 6, 7), {"other.4.w", "other.5.w", "other.6.w", "other.7.w"}),
        ((0, 2, 1, 3), {"other.0.w", "other.1.w", "other.2.w", "other.3.w"}),
        ((0, 0, 1, 1), {"other.0.w", "other.1.w"}),
    ],
)
def test_numbers_have_words_if_they_go_round_with_the_processes(numbers: tuple[int, ...], words: set[str]) -> None:
    imports = [Row("import", "import", "c", "w", "w", 1, 0, (f"other.{number}.w",), ()) for number in numbers]
    found = folding.alike([reader(number, "gpu0", row) for number, row in enumerate(imports)], {})
    assert {row.where[0] for each in found for row in each.plan.rows if row.verb == "import"} == words
