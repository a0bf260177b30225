"""Held layouts, and processes with GPU memory, as they are shown at the widths of terminals and without colour."""

from __future__ import annotations

import io

import pytest
from msgspec.structs import replace

from memtopo.common.units import NamedPart
from memtopo.driver.types import GpuMemory, ProcessMemory
from memtopo.machine import MachineLine
from memtopo.output import console, held
from memtopo.plans.report import Checks, Difference, Tally
from memtopo.sharing.held import Entry, Survey
from memtopo.sharing.offers import Lending, Offer
from memtopo.sharing.status import (
    Changed,
    HeapUse,
    Importer,
    LayoutEnd,
    Looked,
    MemoryChange,
    NodeStatus,
    Released,
    Status,
    Switched,
    Taken,
)
from memtopo.usage import DmaBuffer, LayoutUse, OpenDevice, ProcessUsage, Usage
from tests.helpers.console import words
from tests.helpers.diagrams import spec_diagram
from tests.helpers.specs import ROOT

GIB = 1 << 30
NOW = 1_767_225_600.0
MACHINE = MachineLine("local", simulated=False, devices=("NVIDIA H200",) * 2, driver="580.65")
IMPORTER = Importer(
    3, 4712, 1000, NOW - 90, 17, 33 * GIB, True,
    (Taken("weights", "chunk", "fd", 16, 32 * GIB), Taken("scratch", "buffer", "ipc", 1, GIB)),
)  # fmt: skip
STATUS = Status(
    "weights-server", "/run/user/1000/memtopo/weights-server.sock", 4711, 1000, NOW - 7500, "serving", NOW + 600,
    "weights.yaml", MACHINE,
    (
        Offer("weights", "chunk", "fd", 16, 2 * GIB, "gpu0", "ab" * 16, ("rdma",)),
        Offer("scratch", "buffer", "ipc", 1, GIB, "gpu1"),
        Offer("ready", "event", "ipc", 1, 0, "gpu1"),
    ),
    (IMPORTER,),
)  # fmt: skip
SURVEY = Survey((
    Entry("kv", "unreachable", "/run/user/1000/memtopo/kv.sock", error="no answer to 'status' within 2 s", hint="why"),
    Entry("weights-server", "serving", STATUS.socket, 4711, NOW - 7500, None, None, MACHINE, 3, 33 * GIB, 1),
))  # fmt: skip
CHECKS = Checks((Tally("access", 32, 31),), (Difference("access", "weights.3", "rw", "nothing"),), 1)


def lines(shown: console.Shown, monkeypatch: pytest.MonkeyPatch, width: int) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(width))
    stream = io.StringIO()
    console.show(shown, stream)
    return stream.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize(
    "shown",
    [
        held.layout_list(SURVEY, NOW),
        held.layout(STATUS, NOW),
        held.layout(replace(STATUS, importers=(), deadline=None, spec=None), NOW),
        held.checked(Looked("kv", False, CHECKS)),
        held.released(Released("kv", (IMPORTER,), (replace(IMPORTER, bound=False),), True)),
    ],
)
def test_listings_of_layouts_fit_the_width(shown: console.Shown, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """A pipe has no colour and no trailing blanks, and no word is divided."""
    wide = words("\n".join(lines(shown, monkeypatch, 2000)))
    assert not wide - words("\n".join(lines(shown, monkeypatch, width)))
    for line in lines(shown, monkeypatch, width):
        assert len(line) <= width
        assert line == line.rstrip()
        assert "\x1b" not in line


def test_lent_chunks_are_shown_by_export_and_by_importer(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Offer("pool", "chunk", "fd", 64, 2 << 20, "gpu0", lends=Lending(16, 4, (), 5, 2))
    borrower = replace(IMPORTER, bound=False, taken=(IMPORTER.taken[0], Taken("pool", "chunk", "fd", 3, 6 << 20)))
    shown = lines(held.layout(replace(STATUS, offers=(pool,), importers=(borrower,)), NOW), monkeypatch, 120)
    assert any("chunk, 5 lent, 2 sealed" in line for line in shown)
    assert any(line.endswith("weights, 3 of pool") for line in shown)


def test_list_has_a_line_per_layout_and_the_reason_if_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lines(held.layout_list(SURVEY, NOW), monkeypatch, 80) == [
        "  layout          state        process  exports  importers  for",
        "  kv              unreachable",
        "  weights-server  serving         4711        3          1  2 h",
        "",
        "  note: kv: no answer to 'status' within 2 s; why",
    ]


def test_a_layout_of_several_nodes_is_shown_by_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what is known of each; a list has one line for all of them."""
    first = NodeStatus("a", "one", "serving", "/run/kv.sock", 41, STATUS.offers, STATUS.importers, ())
    status = replace(STATUS, offers=(), importers=(), nodes=(first, NodeStatus("b", "", "unreachable")))
    shown = lines(held.layout(status, NOW), monkeypatch, 80)
    nodes = [line for line in shown if line.startswith("node ")]
    assert nodes == ["node a  one, serving, process 41 at /run/kv.sock", "node b  host unknown, unreachable"]
    exports = {line.split()[0] for line in shown[shown.index(nodes[0]) :] if line.startswith("  ")}
    assert {offer.name for offer in STATUS.offers} < exports
    assert shown[-1] == nodes[1]
    entry = Entry("kv", "serving", "/kv.sock", 41, NOW - 5, exports=4, nodes=("a", "b"))
    assert lines(held.layout_list(Survey((entry,)), NOW), monkeypatch, 80)[-1] == "  note: kv is on nodes a, b"


def test_a_layout_shows_holder_exports_and_use_by_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = lines(held.layout(STATUS, NOW), monkeypatch, 60)
    assert shown[:4] == [
        "show  weights-server  on local",
        "      2 × NVIDIA H200, driver 580.65",
        "",
        "  held by     process 4711, uid 1000",
    ]
    assert "  weights  chunk rdma  fd      16  2 GiB  gpu0" in shown
    assert "  ready    event       ipc      1         gpu1" in shown
    assert shown[-1] == "     4712  1000  90 s       17  33 GiB  weights, scratch"


def test_a_release_names_lost_allocations(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are bound to the holder as memory over ipc is (fact 82)."""
    taken = Taken("a", "allocation", "fd", 2, 16 << 20)
    shown = lines(held.released(Released("kv", (replace(IMPORTER, taken=(taken,)),), (), True)), monkeypatch, 80)
    assert "  note: process 4712 lost a, which it used over ipc, or of pools" in shown
    both = replace(IMPORTER, taken=(*IMPORTER.taken, taken))
    shown = lines(held.released(Released("kv", (both,), (), True)), monkeypatch, 80)
    assert "  note: process 4712 lost scratch, a, which it used over ipc, or of pools" in shown


def test_a_release_names_lost_clients_and_possible_remaining_users(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = replace(IMPORTER, pid=4713)
    assert lines(held.released(Released("kv", (IMPORTER,), (kept,), True)), monkeypatch, 80) == [
        "release  kv",
        "",
        "  note: process 4712 lost scratch, which it used over ipc",
        "  note: process 4713 may keep 33 GiB of memory from being free",
        "",
        "released: taken down",
    ]
    assert "has not finished" in lines(held.released(Released("kv", (), ())), monkeypatch, 80)[-1]


def test_a_release_names_the_outcome_of_a_teardown_that_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    done = Released("kv", (), (), True, outcome="leaked", exit_code=5, reason="2 chunks are left")
    assert lines(held.released(done), monkeypatch, 80)[-1] == "released, leaked: 2 chunks are left"


def test_controls_in_reports_of_a_holder_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    evil = replace(STATUS, name="\x1b[31m", spec="\x1b]0;", importers=(replace(IMPORTER, taken=()),))
    shown = "\n".join(lines(held.layout(evil, NOW), monkeypatch, 80))
    assert "\x1b" not in shown
    assert "\\x1b[31m" in shown


def test_a_process_of_another_pid_namespace_has_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    status = replace(STATUS, pid=0, importers=(replace(IMPORTER, pid=0),))
    found = lines(held.layout(status, NOW), monkeypatch, 100)
    assert any("a process of another pid namespace, uid 1000" in line for line in found)
    assert any(line.split()[:2] == ["?", "1000"] for line in found)


def test_an_importer_that_let_go_of_everything_has_nothing_at_present(monkeypatch: pytest.MonkeyPatch) -> None:
    importer = replace(IMPORTER, handles=0, bytes=0, bound=False, taken=())
    shown = lines(held.layout(replace(STATUS, importers=(importer,)), NOW), monkeypatch, 60)
    assert shown[-1] == "     4712  1000  90 s        0    0 B  nothing at present"


@pytest.mark.parametrize(
    ("contexts", "shown"),
    [
        ((), "none, so that the memory of the layout alone is in use"),
        (("gpu0", "gpu1", "gpu1"), "1 on gpu0, 2 on gpu1; each takes some 500 MiB ('memtopo who' has the bytes)"),
    ],
)
def test_a_layout_has_the_contexts_of_its_holder(
    contexts: tuple[str, ...], shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = lines(held.layout(replace(STATUS, contexts=contexts), NOW), monkeypatch, 120)
    assert f"  contexts    {shown}" in found
    assert not any("contexts" in line for line in lines(held.layout(STATUS, NOW), monkeypatch, 120))


def test_a_layout_names_the_writer_of_an_export(monkeypatch: pytest.MonkeyPatch) -> None:
    offer = replace(STATUS.offers[0], commit="writing", writer=4713)
    found = lines(held.layout(replace(STATUS, offers=(offer,)), NOW), monkeypatch, 120)
    assert any("chunk rdma writing by process 4713" in line for line in found)


def test_the_digest_of_a_shown_layout_is_in_one_line_of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    digest = f"sha256:{'0123456789abcdef' * 4}"
    assert f"digest  {digest}" in lines(held.layout(replace(STATUS, digest=digest), NOW), monkeypatch, 80)


def test_processes_of_a_layout_that_are_alike_are_drawn_once_unless_all_are_asked_for() -> None:
    shown = replace(STATUS, picture=spec_diagram(ROOT / "specs" / "weights.yaml")[0])
    for every, titles in ((False, ["reader.0 … 1  2 alike, reader.0 is drawn"]), (True, ["reader.0", "reader.1"])):
        text = console.unstyled(held.layout(shown, NOW, every=every), 80)
        assert [line.strip("─ ") for line in text.splitlines() if line.startswith("── reader")] == titles
    for state in (None, "awake", "asleep"):
        text = console.unstyled(held.layout(replace(shown, layout_state=state), NOW), 80)
        assert ("drawn in state" in text) == (state == "asleep")


def test_a_list_has_the_state_of_a_layout_and_what_is_left_of_a_lost_one(monkeypatch: pytest.MonkeyPatch) -> None:
    end = LayoutEnd("process rank.0 has ended (process 7)", True, {"rank.0": 7}, {"rank.1": 8})
    asleep = Entry("a", "serving", "/a.sock", 41, NOW - 5, layout_state="asleep")
    lost = Entry("b", "lost", "/b.sock", 42, NOW - 5, layout_state="awake", end=end)
    shown = "\n".join(lines(held.layout_list(Survey((asleep, lost)), NOW), monkeypatch, 200))
    for text in ("serving, asleep", "lost, awake", "rank.1 (process 8) still has memory", "or end with 'kill 8'"):
        assert text in shown


def test_a_switch_and_a_change_name_what_is_kept_and_what_has_to_be_committed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    as_declared = Checks((Tally("access", 32, 32),), (), 0)
    moved = (MemoryChange("gpu0", 3 * GIB, GIB), MemoryChange("host0", 0, 2 * GIB))
    done = Switched("kv", "asleep", as_declared, (IMPORTER,), moved, 0.25)
    shown = lines(held.switched(done), monkeypatch, 80)
    assert shown[-7:-4] == ["  freed  2 GiB on gpu0", "  taken  2 GiB on host0", "  in     250 ms"], shown
    assert "  note: process 4712 keeps 33 GiB of memory from being free" in shown
    assert (shown[0], shown[-1]) == ("switch  kv to asleep", "ok: state asleep is as declared")
    shown = lines(held.changed(Changed("kv", 5, CHECKS, (), ("a", "b")), "new.yaml"), monkeypatch, 80)
    emptied = " is not committed any more: a writer has to commit it again"
    assert [line for line in shown if "note" in line] == [f"  note: export {name}{emptied}" for name in "ab"]
    assert (shown[0], shown[-1]) == ("change  kv to new.yaml", "different: generation 5 is not as declared")


def test_a_layout_shows_its_states_its_memory_its_heaps_and_the_parts_of_exports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = NamedPart("k", 0, GIB), NamedPart("v", GIB, GIB // 2)
    status = replace(
        STATUS, layout_state="asleep", layout_states=("awake", "asleep", "weights"), memory={"gpu0": GIB},
        heaps=(HeapUse("rank.0", "w", 2, 8 << 20, 4 << 20), HeapUse("", "kv", 1, 0, 0)), pid_namespace="another",
        offers=(replace(STATUS.offers[0], parts=parts),),
    )  # fmt: skip
    shown = lines(held.layout(status, NOW), monkeypatch, 120)
    assert {"  memory      asleep; other states: awake, weights", "  in use      1 GiB on gpu0"} < {*shown}
    assert any(line.startswith("  until ") and line.endswith(", in 10 min") for line in shown)
    assert "  weights  chunk rdma (k 1 GiB, v 512 MiB)  fd      16  2 GiB  gpu0" in shown
    rows = [line.split() for line in shown]
    assert ["rank.0.w", "2", "8", "MiB", "4", "MiB"] in rows
    assert ["kv", "1", "0", "B", "0", "B"] in rows
    assert "importers have the numbers of the holder's pid namespace" in shown[-1]
    assert "pid namespace" not in lines(held.layout(replace(status, importers=()), NOW), monkeypatch, 120)[-1]


@pytest.mark.parametrize(
    ("use", "shown"),
    [
        (LayoutUse("kv", "holder", 9, NOW, GIB, False, "/kv.sock"), "holds kv: 1 GiB"),
        (LayoutUse("kv", "process", 9, NOW, GIB, True, "/kv.sock", "a.0"), "a.0 of kv (simulated): 1 GiB in heaps"),
        (LayoutUse("kv", "process", 9, NOW, None, False, "/kv.sock", "a.0"), "a.0 of kv"),
        (LayoutUse("kv", "child", 9, None, None, False, "/kv.sock"), "child of the holder of kv"),
        (LayoutUse("kv", "importer", 9, NOW, GIB, None, None), "imports from kv of process 9: 1 GiB"),
        (LayoutUse("kv", "importer", None, NOW, None, None, None), "imports from kv of another pid namespace"),
        (LayoutUse("kv", "orphan", 9, NOW, None, None, None), "imported from kv, whose holder process 9 has ended"),
    ],
)
def test_a_process_has_its_part_in_a_layout(use: LayoutUse, shown: str) -> None:
    text = console.unstyled(held.usage_page(Usage((), (ProcessUsage(7, layouts=(use,)),), ()), NOW), 200)
    assert text.splitlines()[-1].endswith(f"  {shown}")


HOLDER = LayoutUse("kv", "holder", 4711, NOW - 60, GIB, False, "/run/kv.sock")
USAGE = Usage(
    (GpuMemory(0, "NVIDIA H200", "GPU-1", 141 * GIB, 3 * GIB, GIB, 137 * GIB), GpuMemory(1, *[None] * 6)),
    (
        ProcessUsage(
            None, None, None, None, (), None, None,
            (LayoutUse("kv", "importer", None, NOW - 5, GIB, True, "/run/kv.sock"),),
        ),
        ProcessUsage(
            4711, 1000, "python3", NOW - 7500,
            (ProcessMemory(0, 4711, ("compute",), 2 * GIB), ProcessMemory(1, 4711, ("compute",), None, 3)),
            (OpenDevice("/dev/nvidia0", 3), OpenDevice("/dev/nvidiactl", 1200)),
            (DmaBuffer(55, 1, GIB, "nvidia", None),), (HOLDER,),
        ),
        ProcessUsage(4712, 0, "\x1b[31m", NOW, (), None, None, (LayoutUse("k\nv", "orphan", 9, NOW, *[None] * 3),)),
    ),
    ("descriptors of 3 processes: reading them needs root",),
)  # fmt: skip


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_page_fits_the_width_and_escapes_names(width: int) -> None:
    text = console.unstyled(held.usage_page(USAGE, NOW), width)
    assert not words(console.unstyled(held.usage_page(USAGE, NOW), 2000)) - words(text)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert not any("\x1b" in line for line in lines)


def test_only_what_is_known_is_a_number() -> None:
    text = console.unstyled(held.usage_page(USAGE, NOW), 200)
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line.strip()}
    assert rows["0"][1:] == ["NVIDIA", "H200", "141", "GiB", "3", "GiB", "137", "GiB", "2", "GiB"]
    assert rows["1"] == ["1", "?", "?", "?", "?", "0", "B", "and", "?"]
    assert rows["?"][:4] == ["?", "?", "?", "?"]
    assert rows["4711"][:7] == ["4711", "1000", "python3", "2", "h", "GPU", "0:"]
    assert "GPU 1.3: ?" in text
    assert "dma-buf of nvidia: 1 GiB" in text
    assert "note: not known: descriptors of 3 processes: reading them needs root" in text


@pytest.mark.parametrize(("other", "shown"), [(GIB, "3 GiB"), (None, "2 GiB and ?")])
def test_a_sum_of_which_a_part_is_unknown_is_said_to_be_incomplete(other: int | None, shown: str) -> None:
    more = ProcessUsage(4713, memory=(ProcessMemory(0, 4713, ("compute",), other),))
    text = console.unstyled(held.usage_page(replace(USAGE, processes=(*USAGE.processes, more)), NOW), 200)
    (row,) = [line for line in text.splitlines() if line.split()[:2] == ["0", "NVIDIA"]]
    assert row.split("137 GiB")[1].strip() == shown


def test_no_process_is_said() -> None:
    assert (
        console.unstyled(held.usage_page(Usage((), (), ()), NOW), 80) == "no process was found that uses GPU memory\n"
    )
