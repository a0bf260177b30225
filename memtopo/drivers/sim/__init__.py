"""The simulator: a driver that follows every rule of `docs/driver-facts.md` on a recorded machine, without a GPU.

Where it differs from hardware on purpose is in `docs/simulator.md`, by call.
"""

from __future__ import annotations

from memtopo.drivers.sim.driver import SimDriver
from memtopo.drivers.sim.external_api import SimExternalApi, SimTrialCalls

__all__ = ["SimDriver", "SimExternalApi", "SimTrialCalls"]
