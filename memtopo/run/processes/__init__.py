"""Multi-process layouts: a coordinator and one worker process for each process of the spec.

The coordinator starts the workers, sends all of them through the phases together, routes descriptors from one to the
other, and merges their reports. Every worker makes its own plan, from the same text and the same machine record.
"""

from memtopo.run.processes.coordinator import Coordinator, apply
from memtopo.run.processes.ensemble import TIMEOUT, Ensemble
from memtopo.run.processes.held import HeldProcesses

__all__ = ["TIMEOUT", "Coordinator", "Ensemble", "HeldProcesses", "apply"]
