"""Layouts of several processes: a worker for each process of the spec, and the conductor's side of all of them.

The conductor starts the workers, sends all of them through the phases together, routes descriptors from one to the
other, and merges their reports. Every worker makes its own plan, from the same text and the same machine record.
"""

from memtopo.run.processes.ensemble import TIMEOUT, Ensemble
from memtopo.run.processes.workers import Workers, apply

__all__ = ["TIMEOUT", "Ensemble", "Workers", "apply"]
