"""`memtopo who`."""

from __future__ import annotations

import os
from collections.abc import Callable
from fcntl import LOCK_EX, flock
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import memtopo
from memtopo.common.errors import ExchangeError
from tests.cli.conftest import InlineRunner, held

SPEC = """
memtopo: 1
name: kv
chunks: {page: {location: gpu0, size: 2MiB, handles: fd}}
exports: {pages: {chunk: page, via: fd}}
"""


def test_who_names_holders_importers_and_orphans(
    run_inline: InlineRunner, runtime: Path, start: Callable[..., Any]
) -> None:
    """What is not known has a line of its own."""
    holder, importer = start(), start("importer", count=1)
    importer.read_line()
    result = run_inline("who", XDG_RUNTIME_DIR=str(runtime), COLUMNS="200")
    assert (result.status, result.err) == (0, "")
    rows = {line.split()[0]: line for line in result.out.splitlines() if line.strip()}
    assert "holds kv (simulated)" in rows[str(holder.pid)]
    assert f"imports from kv (simulated) of process {holder.pid}: 4 KiB" in rows[str(importer.pid)]
    assert any(line.lstrip().startswith("note: not known: ") for line in result.out.splitlines())
    folder = f"{runtime}/memtopo/"
    assert "holds kv" in run_inline("who", "--socket", folder, XDG_RUNTIME_DIR=folder, COLUMNS="200").out
    holder.kill()
    orphaned = run_inline("who", XDG_RUNTIME_DIR=str(runtime), COLUMNS="200").out
    assert f"imported from kv, whose holder process {holder.pid} has ended" in orphaned
    document = run_inline("who", "--json", XDG_RUNTIME_DIR=str(runtime)).document
    (entry,) = [each for each in document["processes"] if each["pid"] == importer.pid]
    assert [use["role"] for use in entry["layouts"]] == ["orphan"]


def test_a_layout_outside_of_the_runtime_folder_is_known_by_its_lock(run_inline: InlineRunner, runtime: Path) -> None:
    with (
        TemporaryDirectory(prefix="memtopo-", dir="/tmp") as folder,
        Path(folder, "outside.sock.lock").open("w") as lock,
    ):
        flock(lock, LOCK_EX)
        document = run_inline("who", "--json", XDG_RUNTIME_DIR=str(runtime)).document
        (entry,) = [each for each in document["processes"] if each["pid"] == os.getpid()]
        assert [(use["layout"], use["role"]) for use in entry["layouts"]] == [("outside", "holder")]


def test_a_reader_that_has_seen_the_end_of_its_holder_is_an_orphan_until_it_lets_go(
    run_inline: InlineRunner, runtime: Path, tmp_path: Path
) -> None:
    spec = tmp_path / "kv.yaml"
    spec.write_text(SPEC)

    def roles() -> list[str]:
        document = run_inline("who", "--json", XDG_RUNTIME_DIR=str(runtime)).document
        return [use["role"] for each in document["processes"] if each["pid"] == os.getpid() for use in each["layouts"]]

    with held(runtime, spec) as holder:
        with memtopo.attach("kv") as reader:
            holder.kill()
            holder.wait()
            for _ in range(2):
                with pytest.raises(ExchangeError, match="the holder has ended the connection"):
                    reader.poll(60)
            assert roles() == ["orphan"]
        assert roles() == []
