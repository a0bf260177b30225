"""The page of `who`, at the widths of terminals."""

from __future__ import annotations

import pytest

from memtopo.driver.types import GpuMemory, ProcessMemory
from memtopo.output import console, usage
from memtopo.usage.procfs import DmaBuffer, OpenDevice
from memtopo.usage.survey import LayoutUse, ProcessUsage, Usage

GIB = 1 << 30
NOW = 1_767_225_600.0
HELD = LayoutUse("kv", "holder", 4711, NOW - 60, GIB, False, "/run/kv.sock")
FULL = Usage(
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
            (DmaBuffer(55, 1, GIB, "nvidia", None),), (HELD,),
        ),
        ProcessUsage(4712, 0, "\x1b[31m", NOW, (), None, None, (LayoutUse("k\nv", "orphan", 9, NOW, *[None] * 3),)),
    ),
    ("descriptors of 3 processes: reading them needs root",),
)  # fmt: skip


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_page_fits_the_width_and_escapes_names(width: int) -> None:
    lines = console.unstyled(usage.page(FULL, NOW), width).splitlines()
    assert max(map(len, lines)) <= width
    assert not any("\x1b" in line for line in lines)


def test_only_what_is_known_is_a_number() -> None:
    text = console.unstyled(usage.page(FULL, NOW), 200)
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line.strip()}
    assert rows["0"][1:] == ["NVIDIA", "H200", "141", "GiB", "3", "GiB", "137", "GiB", "2", "GiB"]
    assert rows["1"] == ["1", "?", "?", "?", "?", "0", "B", "and", "?"]
    assert rows["?"][:4] == ["?", "?", "?", "?"]
    assert rows["4711"][:7] == ["4711", "1000", "python3", "2", "h", "GPU", "0:"]
    assert "GPU 1.3: ?" in text
    assert "dma-buf of nvidia: 1 GiB" in text
    assert "note: not known: descriptors of 3 processes: reading them needs root" in text


def test_no_process_is_said() -> None:
    assert console.unstyled(usage.page(Usage((), (), ()), NOW), 80) == "no process was found that uses GPU memory\n"
