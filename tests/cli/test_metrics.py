"""`memtopo metrics`, and the option of `apply --hold`."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from memtopo.cli.service import metrics_target
from memtopo.common.errors import ExchangeError, MemtopoError, UsageError
from memtopo.output import monitoring
from tests.cli.conftest import InlineRunner, held
from tests.helpers.holders import until


def test_metrics_prints_those_of_one_layout_or_of_all(
    run_inline: InlineRunner, runtime: Path, start: Callable[..., Any]
) -> None:
    start()
    start(name="other")
    where = {"XDG_RUNTIME_DIR": str(runtime)}
    result = run_inline("metrics", **where)
    assert (result.status, result.err) == (0, "")
    assert 'memtopo_layout_up{layout="kv"} 1' in result.out
    assert 'memtopo_layout_up{layout="other"} 1' in result.out
    one = run_inline("metrics", "kv", **where)
    assert 'memtopo_exports{layout="kv"} 9' in one.out
    assert 'memtopo_handles_total{layout="kv"} 0' in one.out
    assert "other" not in one.out
    folder = runtime / "memtopo"
    assert 'layout="other"' in run_inline("metrics", "--socket", f"{folder}/", XDG_RUNTIME_DIR=str(folder)).out
    by_path = run_inline("metrics", "--socket", folder / "kv.sock").out
    assert ('layout="kv"' in by_path, 'layout="other"' in by_path) == (True, False)
    assert run_inline("metrics", "nobody", **where).status == 3


SPEC = """
memtopo: 1
name: kv
chunks: {a: {location: [gpu0, gpu1], size: 2MiB, count: 3, handles: fd}}
exports: {a: {chunk: a, via: fd}}
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    found = tmp_path / "hold.yaml"
    found.write_text(SPEC)
    return found


def test_a_hold_keeps_a_file_of_metrics_and_removes_it(spec: Path, tmp_path: Path, runtime: Path) -> None:
    """It has the memory of the layout by location."""
    file = tmp_path / "memtopo.prom"
    with held(runtime, spec, "--metrics", file, machine="h200x2") as holder:
        until(file.exists)
        page = file.read_text()
    assert holder.returncode == 0
    assert 'memtopo_memory_bytes{layout="kv",location="gpu0",gpu="",state="awake"} 4194304' in page
    assert 'memtopo_allocations{layout="kv",location="gpu1",gpu="",state="awake"} 1' in page
    assert not file.exists()


def _written_since(file: Path, begun: float) -> bool:
    return file.exists() and file.stat().st_mtime >= begun


def test_the_file_of_a_killed_holder_stays_with_its_last_heartbeat(spec: Path, tmp_path: Path, runtime: Path) -> None:
    """The next holder replaces the file."""
    file = tmp_path / "memtopo.prom"
    for _ in range(2):
        begun = time.time()
        with held(runtime, spec, "--metrics", file, machine="h200x2") as holder:
            until(partial(_written_since, file, begun))
            holder.kill()
            holder.wait()
        page = file.read_text()
        heartbeat = float(re.findall("^memtopo_layout_heartbeat_time_seconds{.*} (.*)$", page, re.MULTILINE)[0])
        assert int(begun) <= heartbeat <= time.time()
        assert 'memtopo_layout_up{layout="kv"} 1' in page


def test_a_file_of_another_program_is_not_replaced(run_inline: InlineRunner, spec: Path, tmp_path: Path) -> None:
    file = tmp_path / "memtopo.prom"
    file.write_text("another program's\n")
    refused = run_inline("apply", spec, "-mh200x2", "--hold", "--metrics", file, XDG_RUNTIME_DIR=str(tmp_path))
    assert (refused.status, file.read_text()) == (2, "another program's\n")
    assert "memtopo did not write it" in refused.err


def test_metrics_are_an_option_of_held_layouts(run_inline: InlineRunner, spec: Path, tmp_path: Path) -> None:
    """The variable has no effect without --hold."""
    place = str(tmp_path / "x")
    assert run_inline("apply", spec, "-mh200x2", "--metrics", place).status == 2
    assert run_inline("apply", spec, "-mh200x2", MEMTOPO_METRICS=place).status == 0


def test_a_file_of_metrics_is_replaced_whole_and_removed_at_the_end(tmp_path: Path) -> None:
    file = tmp_path / "memtopo.prom"
    page = monitoring.metrics([], now=0)
    file.write_text(page)
    with metrics_target(str(file)) as target:
        assert target
        assert target.write
        before = file.stat().st_ino
        target.write(page)
        assert (file.read_text(), file.stat().st_ino != before) == (page, True)
    assert not file.exists()


def test_a_file_of_metrics_is_removed_after_an_error(tmp_path: Path) -> None:
    file = tmp_path / "memtopo.prom"

    def hold() -> None:
        with metrics_target(str(file)) as target:
            assert target
            assert target.write
            target.write(monitoring.metrics([], now=0))
            raise MemtopoError("the layout was lost")

    with pytest.raises(MemtopoError):
        hold()
    assert not file.exists()


def test_a_file_that_another_program_put_there_stays(tmp_path: Path) -> None:
    file = tmp_path / "memtopo.prom"
    with metrics_target(str(file)):
        file.write_text("another program's\n")
    assert file.exists()


def test_a_folder_and_a_socket_in_use_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place, why in (("", "is a folder"), ("pipe", "is not a regular file")):
        with pytest.raises(UsageError, match=why), metrics_target(str(tmp_path / place)):
            pass
    socket = f"unix:{tmp_path}/m.sock"
    with metrics_target(socket), pytest.raises(ExchangeError), metrics_target(socket):
        pass
