"""Machine of the tests on real GPUs."""

from __future__ import annotations

import pytest

from memtopo.drivers.target import Target, resolve


@pytest.fixture(scope="session")
def local() -> Target:
    return resolve("local")
