"""Programs over the driver's C functions that were recorded on a GPU, made again on a GPU."""

from __future__ import annotations

import pytest

from tests.differential import traces
from tests.programs.player import differences
from tests.programs.test_recorded import RECORDED


@pytest.mark.gpu
def test_a_gpu_answers_the_given_programs_as_recorded() -> None:
    _, recorded = traces.read(RECORDED / "h200x1.cases.xz")
    found = differences(recorded, on_gpu=True)
    # Multicast (132) is supported where there are several GPUs.
    assert [each for each in found if not each.step.startswith("cuDeviceGetAttribute 132 ")] == []
