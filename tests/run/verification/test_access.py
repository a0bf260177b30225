"""Access that is tried by calls of the driver."""

from __future__ import annotations

from typing import Any

import pytest

from memtopo.driver.ledger import Ledger
from memtopo.driver.types import DriverError
from memtopo.driver.wrappers import Call, Forwarder
from memtopo.drivers.sim import SimDriver
from memtopo.run import apply
from tests.helpers.machines import invented
from tests.helpers.specs import run_request

PAGES = """
ranges: {kv: {size: 8MiB}}
chunks: {page: {location: gpu0, size: 2MiB, count: 4}}
map: {kv: [page]}
access: {kv: {gpu0: GRANT}}
"""


class CountsTries(Forwarder):
    """Counts the fills of one byte that succeed, and those that the driver refuses."""

    def __init__(self, driver: SimDriver) -> None:
        self.accepted = self.refused = 0
        super().__init__(driver)

    def _wrap(self, method: str, call: Call) -> Call:
        if method != "memset_d8":
            return call

        def counted(address: int, value: int, count: int) -> Any:
            try:
                call(address, value, count)
            except DriverError:
                self.refused += count == 1
                raise
            self.accepted += count == 1

        return counted


@pytest.mark.parametrize(("grant", "counted"), [("rw", "accepted"), ("r", "refused")])
def test_tries_of_access_end_after_a_requested_stop(grant: str, counted: str) -> None:
    """The first of four tries requests the stop; the layout is taken down without the other three."""
    with SimDriver(invented(1)) as sim:
        sim.init()
        driver = CountsTries(sim)
        request = run_request(PAGES.replace("GRANT", grant), sim.machine, "full")
        report = apply.apply(request, Ledger(driver), stop=lambda: 2 * (getattr(driver, counted) > 0))
        assert getattr(driver, counted) == 1
        assert (report.outcome, report.leaks) == ("interrupted", ())
