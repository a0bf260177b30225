from __future__ import annotations

import re
from pathlib import Path

import pytest

from memtopo.common.units import exact
from memtopo.geometry.diagram import Diagram, RangeDiagram, Resource
from memtopo.output.blocks import Drawing, Table
from memtopo.output.diagram import page
from memtopo.output.diagram.notation import drawing_context
from memtopo.output.diagram.tables import description, tables
from memtopo.output.html import WIDTHS
from tests.helpers.diagrams import PARTS_AND_HOLES, spec_diagram
from tests.helpers.specs import EVERY_SPEC, ROOT

EVERY = [*EVERY_SPEC, PARTS_AND_HOLES]


def ranges(shown: Diagram) -> list[RangeDiagram]:
    return [*(each for process in shown.processes for each in process.picture.ranges), *shown.ranges]


def heads(table: Table) -> tuple[str, ...]:
    return tuple(column.heading for column in table.columns)


def things(shown: Diagram) -> list[Resource]:
    return [*(each for process in shown.processes for each in process.picture.things), *shown.things]


@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.stem)
def test_each_span_and_share_is_a_row_of_a_table(path: Path) -> None:
    shown, document = spec_diagram(path)
    found = list(tables(shown, drawing_context(Drawing(shown, locate=document.position))))
    rows = [dict(zip(heads(table), row, strict=True)) for table in found for row in table.rows]
    pieces = [span for each in ranges(shown) for span in each.pieces]
    assert [row["at"] for row in rows if "at" in row] == [exact(span.offset) for span in pieces]
    shares = [share for memory in shown.memory for share in memory.shares]
    assert [row["chunk"] for row in rows if "in all" in row] == [share.chunk for share in shares]
    assert all(f"{path.name}:" in str(row["written at"]) for row in rows if row.get("chunk") != "hole")


def test_each_resource_and_part_is_a_row_of_a_table() -> None:
    shown, document = spec_diagram(ROOT / "specs" / "vulkan-frame.yaml")
    (table,) = tables(shown, drawing_context(Drawing(shown, locate=document.position)))
    assert [row[:3] for row in table.rows] == [
        ("external", "frame", "8 MiB, gpu0, from camera/frame, opaque_fd"),
        ("part", "frame.y", "4 MiB at 0"),
        ("part", "frame.uv", "2 MiB at 4 MiB"),
        ("semaphore", "ready", "gpu0, from camera/ready, timeline, waits for 1, signals 2"),
    ]
    managed, document = spec_diagram(ROOT / "specs" / "managed.yaml")
    first = next(tables(managed, drawing_context(Drawing(managed, locate=document.position))))
    assert first.rows[1][:3] == (
        "managed", "table", "64 MiB, gpu0, prefers gpu0, accessed by host, prefetched to gpu0",
    )  # fmt: skip


def test_empty_columns_are_left_out() -> None:
    shown, _ = spec_diagram(ROOT / "specs" / "ring-buffer.yaml")
    first = next(tables(shown, drawing_context(Drawing(shown))))
    assert heads(first) == ("chunk", "at", "size", "on", "access")
    first = next(tables(shown, drawing_context(Drawing(shown, addresses={("", "ring"): 0x100000}))))
    assert heads(first) == ("chunk", "at", "size", "on", "access", "address")
    assert [row[-1] for row in first.rows] == ["0x100000", "0x900000"]


@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.stem)
def test_a_description_names_all_parts_of_a_layout(path: Path) -> None:
    shown, _ = spec_diagram(path)
    words = description(shown)
    lower = words.lower()
    assert all(re.search(rf"ranges? {each.first}[ ,]", lower) for each in ranges(shown))
    assert all(re.search(rf"process {each.first}[ ,:]", lower) for each in shown.processes)
    assert all(re.search(rf"memory of {each.device}[ ,]", lower) for each in shown.memory)
    assert all(re.search(rf"{each.kind}[a-z ]* {each.name}[ ,]", words, re.IGNORECASE) for each in things(shown))
    assert all(f"part {part.name}, " in words for each in things(shown) for part in each.parts)
    assert words.endswith(".")
    assert len(words) < 3000


def test_a_page_has_a_drawing_for_each_width_with_its_own_ids() -> None:
    shown, _ = spec_diagram(EVERY[0])
    text = page(Drawing(shown, "title"))
    assert text.count("<svg ") == len(WIDTHS)
    ids = [part.split('"', 1)[0] for part in text.split(' id="')[1:]]
    assert len(ids) == len(set(ids)) > len(WIDTHS)
