"""Held layouts, and processes with GPU memory, as they are shown at the widths of terminals and without colour."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from typing import Any

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
from tests.helpers.console import shown_and_golden, words
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


POOL = Offer("pool", "chunk", "fd", 64, 2 << 20, "gpu0", lends=Lending(16, 4, (), 5, 2))
BORROWER = replace(IMPORTER, bound=False, taken=(IMPORTER.taken[0], Taken("pool", "chunk", "fd", 3, 6 << 20)))
OF_NODES = NodeStatus("a", "one", "serving", "/run/kv.sock", 41, STATUS.offers, STATUS.importers, ())
ALLOCATION = Taken("a", "allocation", "fd", 2, 16 << 20)
END = LayoutEnd("process rank.0 has ended (process 7)", True, {"rank.0": 7}, {"rank.1": 8})
LISTED = (
    Entry("a", "serving", "/a.sock", 41, NOW - 5, layout_state="asleep"),
    Entry("b", "lost", "/b.sock", 42, NOW - 5, layout_state="awake", end=END),
    Entry("kv", "serving", "/kv.sock", 41, NOW - 5, exports=4, nodes=("a", "b")),
)
MOVED = (MemoryChange("gpu0", 3 * GIB, GIB), MemoryChange("host0", 0, 2 * GIB))
AS_DECLARED = Checks((Tally("access", 32, 32),), (), 0)
WITH_STATES = replace(
    STATUS, layout_state="asleep", layout_states=("awake", "asleep", "weights"), memory={"gpu0": GIB}, deadline=None,
    heaps=(HeapUse("rank.0", "w", 2, 8 << 20, 4 << 20), HeapUse("", "kv", 1, 0, 0)), pid_namespace="another",
    offers=(replace(STATUS.offers[0], parts=(NamedPart("k", 0, GIB), NamedPart("v", GIB, GIB // 2))),),
)  # fmt: skip
LET_GO = replace(IMPORTER, handles=0, bytes=0, bound=False, taken=())


def layout(**changes: Any) -> console.Shown:
    return held.layout(replace(STATUS, deadline=None, **changes), NOW)


def released(*lost: Importer, kept: tuple[Importer, ...] = ()) -> console.Shown:
    return held.released(Released("kv", lost, kept, True))


@pytest.fixture
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Times of a layout are local ones."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def layouts() -> dict[str, console.Shown]:
    return {
        "a list has a line for each layout, and the reason if it is unknown": held.layout_list(SURVEY, NOW),
        "a list has the state of a layout, its nodes, and what a lost one left": held.layout_list(Survey(LISTED), NOW),
        "a layout has its holder, its exports and their use by clients": layout(),
        "lent chunks are shown by export and by importer": layout(offers=(POOL,), importers=(BORROWER,)),
        "a layout of several nodes is shown by node, with what is known of each": layout(
            offers=(), importers=(), nodes=(OF_NODES, NodeStatus("b", "", "unreachable"))
        ),
        "a process of another pid namespace has no number": layout(pid=0, importers=(replace(IMPORTER, pid=0),)),
        "an importer that let go of everything has nothing at present": layout(importers=(LET_GO,)),
        "a holder has no contexts": layout(contexts=()),
        "a holder has contexts": layout(contexts=("gpu0", "gpu1", "gpu1")),
        "an export has its writer": layout(offers=(replace(STATUS.offers[0], commit="writing", writer=4713),)),
        "a digest is in one line": layout(digest=f"sha256:{'0123456789abcdef' * 4}"),
        "a layout has its states, its memory, its heaps and the parts of exports": held.layout(WITH_STATES, NOW),
        "without importers nothing is said of their pid namespace": held.layout(
            replace(WITH_STATES, importers=()), NOW
        ),
        "controls in the report of a holder are escaped": layout(
            name="\x1b[31m", spec="\x1b]0;", importers=(replace(IMPORTER, taken=()),)
        ),
        "a release names the allocations that a client lost": released(
            replace(IMPORTER, taken=(ALLOCATION,)), replace(IMPORTER, taken=(*IMPORTER.taken, ALLOCATION))
        ),
        "a release names lost clients and possible remaining users": released(
            IMPORTER, kept=(replace(IMPORTER, pid=4713),)
        ),
        "a release that has not finished": held.released(Released("kv", (), ())),
        "a release names the outcome of a teardown that has failed": held.released(
            Released("kv", (), (), True, outcome="leaked", exit_code=5, reason="2 chunks are left")
        ),
        "a switch has what it freed and took, and names who keeps memory": held.switched(
            Switched("kv", "asleep", AS_DECLARED, (IMPORTER,), MOVED, 0.25)
        ),
        "a change names what has to be committed again": held.changed(
            Changed("kv", 5, CHECKS, (), ("a", "b")), "new.yaml"
        ),
    }


@pytest.mark.usefixtures("_utc")
def test_pages_of_held_layouts() -> None:
    shown, golden = shown_and_golden("held", layouts(), 80)
    assert shown == golden


def test_a_layout_that_ends_has_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = lines(held.layout(STATUS, NOW), monkeypatch, 120)
    assert any(line.startswith("  until ") and line.endswith(", in 10 min") for line in shown)


def test_processes_of_a_layout_that_are_alike_are_drawn_once_unless_all_are_asked_for() -> None:
    shown = replace(STATUS, picture=spec_diagram(ROOT / "specs" / "weights.yaml")[0])
    for every, titles in ((False, ["reader.0 … 1  2 alike, reader.0 is drawn"]), (True, ["reader.0", "reader.1"])):
        text = console.unstyled(held.layout(shown, NOW, every=every), 80)
        assert [line.strip("─ ") for line in text.splitlines() if line.startswith("── reader")] == titles
    for state in (None, "awake", "asleep"):
        text = console.unstyled(held.layout(replace(shown, layout_state=state), NOW), 80)
        assert ("drawn in state" in text) == (state == "asleep")


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


PARTS = (
    LayoutUse("kv", "holder", 9, NOW, GIB, False, "/kv.sock"),
    LayoutUse("kv", "process", 9, NOW, GIB, True, "/kv.sock", "a.0"),
    LayoutUse("kv", "process", 9, NOW, None, False, "/kv.sock", "a.0"),
    LayoutUse("kv", "child", 9, None, None, False, "/kv.sock"),
    LayoutUse("kv", "importer", 9, NOW, GIB, None, None),
    LayoutUse("kv", "importer", None, NOW, None, None, None),
    LayoutUse("kv", "orphan", 9, NOW, None, None, None),
)


def with_memory(size: int | None) -> Usage:
    """The usage, with a further process on gpu0."""
    more = ProcessUsage(4713, memory=(ProcessMemory(0, 4713, ("compute",), size),))
    return replace(USAGE, processes=(*USAGE.processes, more))


USES = {
    "only what is known is a number": USAGE,
    "memory of another process is added": with_memory(GIB),
    "a sum of which a part is unknown is said to be incomplete": with_memory(None),
    "a process has its part in a layout": Usage(
        (), tuple(ProcessUsage(number, layouts=(use,)) for number, use in enumerate(PARTS)), ()
    ),
    "no process is said": Usage((), (), ()),
}


def test_pages_of_processes_with_gpu_memory() -> None:
    pages = {rule: held.usage_page(usage, NOW) for rule, usage in USES.items()}
    shown, golden = shown_and_golden("usage", pages, 200)
    assert shown == golden
