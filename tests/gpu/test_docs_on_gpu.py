"""The tutorial and the how-tos on real GPUs: their commands without `--machine`, and their programs with PyTorch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from memtopo.drivers.target import Target
from tests.helpers import pages
from tests.helpers.specs import ROOT

pytestmark = pytest.mark.gpu
DOCS = ROOT / "docs"
PAGES = [
    DOCS / "tutorial.md",
    *(
        DOCS / "how-to" / f"{name}.md"
        for name in (
            "paged-kv-cache",
            "weights-server",
            "sleep",
            "symmetric-heap",
            "host-offload",
            "containers",
            "tensor-parallel-server",
            "cache-server",
        )
    ),
]


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_commands_of_a_page_succeed_on_gpus_and_its_programs_print_the_same(
    page: Path, local: Target, tmp_path: Path
) -> None:
    """Except for addresses. Commands for more GPUs than there are, and pages that hold such a layout, are left out."""
    pytest.importorskip("torch")
    gpus = len(local.machine.devices)
    held = [command for block in pages.blocks(page) for command, _ in pages.commands(block.text) if "--hold" in command]
    if not all(pages.on_gpus(command, gpus) for command in held):
        pytest.skip("it holds a layout on more GPUs")
    ran = 0
    for block, command, expected, result in pages.run_page(page, tmp_path, gpus):
        shown = f"{block.where}: {command}\n{result.out}{result.err}"
        assert result.status == 0 or "error" in expected, shown
        if "python" in command and "0x" not in expected:
            assert pages.matches(expected, result.out), shown
        ran += 1
    if not ran:
        pytest.skip("its commands are for more GPUs")


def test_programs_that_need_a_gpu_run_there(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "specs").symlink_to(ROOT / "specs")
    programs = [block for block in pages.of("python") if block.title and "gpu" in block.info.split()]
    assert programs
    for block in programs:
        command = [sys.executable, "-c", block.text]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{block.where}\n{done.stderr}"
