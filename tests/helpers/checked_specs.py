"""Specs in folders of their own, and checks of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest

from memtopo import machine
from memtopo.machine import Machines
from memtopo.rules import Selection, files
from memtopo.rules.files import Checked, SpecPath, collect

Checking = Callable[..., Checked]

GOOD = """memtopo: 1
name: good
ranges: {kv: {size: 2MiB}}
chunks: {hot: {location: gpu0, size: 2MiB}}
map: {kv: [hot]}
access: {kv: {gpu0: rw}}
"""
BAD = """memtopo: 1
name: bad
chunks:
  hot: {location: gpu0, size: 3MiB}
  cold: {location: gpu0, size: 2MiB}
"""
"""An error on line 4, and a warning on line 5."""
WARNED = "memtopo: 1\nname: warned\nchunks: {hot: {location: gpu0, size: 2MiB}}\n"
TWO_GPUS = GOOD.replace("location: gpu0", "location: gpu1")
"""Fits no machine with one GPU."""


def check(
    sources: Iterable[SpecPath],
    machines: Mapping[str, Machines | None],
    chosen: Selection | None = None,
    *,
    strict: bool = False,
) -> Checked:
    """Every file on every machine."""
    found = [files.check(files.read(each), machines, lambda name, _: machines[name], chosen) for each in sources]
    return Checked.of(found, strict=strict)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, in no CI."""
    for name in ("GITHUB_ACTIONS", "GITHUB_WORKSPACE", "CI_PROJECT_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def checked(folder: Path) -> Checking:
    """A way to check texts, which are written into files by name, on machines that come with memtopo."""

    def run(files: dict[str, str], *machines: str, chosen: Selection | None = None, strict: bool = False) -> Checked:
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        targets = {name: machine.load(name) for name in machines or ("h200x2",)}
        return check(collect(files), targets, chosen, strict=strict)

    return run
