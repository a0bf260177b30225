"""Layouts in a multi-threaded program."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import memtopo
from memtopo.drivers.sim import external_api
from memtopo.drivers.target import uuids
from memtopo.machine import load
from tests.helpers.reports import require_taken_down
from tests.helpers.specs import ROOT

SIZE = 1 << 20


def test_descriptors_of_a_serving_thread_are_no_leak_of_a_layout(tmp_path: Path) -> None:
    """They are opened during the build, and closed after the teardown."""
    gpu = bytes.fromhex(uuids(load("h200x2"))[0])
    spec = {
        "memtopo": 1,
        "name": "viewer",
        "external": {"frame": {"from": "camera", "via": "opaque_fd", "device": "gpu0", "size": "1MiB"}},
    }
    fd = external_api.allocate(gpu, SIZE)
    exports = {"frame": memtopo.ExternalMemory(fd, SIZE, gpu=gpu)}
    for turn in range(20):
        where = tmp_path / f"{turn}.sock"
        with (
            memtopo.serve(where, exports),
            memtopo.applied(spec, machine="h200x2", bind={"camera": str(where)}) as made,
        ):
            assert made.address("frame")
        require_taken_down(made)
    os.close(fd)


@pytest.fixture
def _hasty() -> Iterator[None]:
    """Threads that take turns as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_hasty")
def test_several_threads_may_check_a_layout() -> None:
    with memtopo.applied(ROOT / "specs" / "hold.yaml", machine="h200x2") as layout, ThreadPoolExecutor(8) as threads:
        different = [each.different for each in threads.map(lambda _: layout.check(), range(200))]
    assert different == [0] * 200
