"""Layouts in a multi-threaded program."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import memtopo
from memtopo.driver.wrappers import Call, Forwarder
from memtopo.drivers.sim import SimDriver, external_api
from memtopo.drivers.target import Target, uuids
from memtopo.machine import load
from tests.helpers.machines import invented
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


class _Watched(Forwarder):
    """A simulator with a function that is called before memory is unmapped."""

    def __init__(self, driver: SimDriver, unmapping: Callable[[], None]) -> None:
        super().__init__(driver)
        self.close, self.lend, self._unmapping = driver.close, driver.lend, unmapping

    def _wrap(self, method: str, call: Call) -> Call:
        def watched(*args: Any) -> Any:
            self._unmapping()
            return call(*args)

        return watched if method == "mem_unmap" else call


def test_no_thread_is_given_a_view_while_the_layout_is_taken_down() -> None:
    spec = {
        "memtopo": 1,
        "name": "weights",
        "ranges": {"w": {"size": "2MiB"}},
        "chunks": {"w": {"location": "gpu0", "size": "2MiB"}},
        "map": {"w": ["w"]},
        "access": {"w": {"gpu0": "rw"}},
    }
    refused: list[str] = []
    kept: list[Any] = []

    def take() -> None:
        found: tuple[Callable[[], Any], ...] = (lambda: layout.range("w"), lambda: kept[0])
        for view in found:
            try:
                kept.append(np.from_dlpack(view()))
            except (memtopo.Unsuitable, BufferError) as error:
                refused.append(str(error))

    def unmapping() -> None:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(take).result()

    def opened() -> Any:
        driver = SimDriver(invented(1))
        driver.init()
        return _Watched(driver, unmapping)

    machine = Target("watched", invented(1), simulated=True, _opener=opened)
    with pytest.warns(memtopo.ViewOutlived, match="range 'w'"), memtopo.applied(spec, machine) as layout:
        kept.append(layout.range("w"))
    assert refused == [
        "layout 'weights' was taken down",
        "the memory of range 'w' was released: its layout was taken down",
    ]
