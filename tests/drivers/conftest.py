"""The simulator that tests of the driver share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from memtopo.drivers.sim import SimDriver
from tests.helpers.machines import invented


@pytest.fixture
def sim() -> Iterator[SimDriver]:
    with SimDriver(invented()) as simulated:
        simulated.init()
        yield simulated
