"""Files that commands write: complete, or as they were before."""

from __future__ import annotations

import os
import resource
import stat
import threading
from pathlib import Path

import pytest

from memtopo.cli.results import write
from memtopo.common.errors import NotWritten


def test_a_file_that_cannot_be_written_completely_stays_as_it_was(tmp_path: Path) -> None:
    output = tmp_path / "plan.json"
    output.write_text("before")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        with pytest.raises(NotWritten, match="cannot be written: file too large"):
            write(str(output), "x" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert output.read_text() == "before"
    assert [*tmp_path.iterdir()] == [output]


def test_a_file_keeps_its_mode_and_its_links(tmp_path: Path) -> None:
    output, link = tmp_path / "plan.json", tmp_path / "link.json"
    output.write_text("before")
    output.chmod(0o640)
    link.symlink_to(output)
    write(str(link), "after")
    assert link.is_symlink()
    assert output.read_text() == "after"
    assert stat.S_IMODE(output.stat().st_mode) == 0o640


def test_a_pipe_is_written_directly(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    writer = threading.Thread(target=write, args=(str(pipe), "document"))
    writer.start()  # it may be there before its reader
    read.append(pipe.read_text())
    writer.join()
    assert read == ["document"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
