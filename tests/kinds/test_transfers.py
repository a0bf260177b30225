"""Transfers between files and mapped memory: their threads, and the locks of their buffers' pages."""

from __future__ import annotations

import os
import threading

import pytest

from memtopo.common.errors import Stopped
from memtopo.driver.wrappers import Forwarder
from memtopo.drivers.sim import SimDriver
from memtopo.kinds.layout import Layout
from memtopo.kinds.transfers import transferring
from memtopo.storage.direct import THREADS, Buffer
from tests.helpers.machines import invented


class Observed(Forwarder):
    """Driver that notes the running threads of transfers whenever pages are unlocked."""

    def __init__(self, driver: SimDriver) -> None:
        super().__init__(driver)
        self.running: list[list[str]] = []

    def mem_host_unregister(self, address: int) -> None:
        names = [thread.name for thread in threading.enumerate()]
        self.running.append([name for name in names if name.startswith("memtopo-files")])
        self._driver.mem_host_unregister(address)


def write(buffer: Buffer) -> None:
    buffer.part(8)[:] = os.urandom(8)


def refuse(_tasks: int) -> None:
    raise ArithmeticError


def test_pages_are_unlocked_after_the_last_copy_also_if_it_is_not_awaited() -> None:
    with SimDriver(invented(1)) as simulator:
        simulator.init()
        driver, layout = Observed(simulator), Layout("kv", extend=refuse)
        layout.contexts[0] = simulator.device_primary_ctx_retain(0)
        with pytest.raises(ArithmeticError), transferring(driver, layout) as transfer:
            transfer.run([write] * 100)
        assert driver.running == [[]] * THREADS


def test_tasks_are_counted_and_a_stop_ends_the_transfers_that_may_stop() -> None:
    counted: list[int] = []
    layout = Layout("kv", stop=lambda: 1, extend=counted.append, advance=counted.append)
    with SimDriver(invented(1)) as driver:
        with transferring(driver, layout) as transfer:
            transfer.run([write] * 3)
        assert (counted[0], sum(counted[1:])) == (3, 3)
        with pytest.raises(Stopped), transferring(driver, layout, stops=True) as transfer:
            transfer.run([write])
