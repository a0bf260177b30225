"""Several processes that build one layout together: who starts them, and what each of them does.

The process that a person started coordinates: it starts one worker for each process of the spec, has all of them go
through the phases together, hands descriptors from one to the other, and makes one report. Every worker plans for
itself, from the same text and the same facts.
"""

from memtopo.run.processes.coordinator import TIMEOUT, Coordinator, Ensemble, ProcessShelf, apply

__all__ = ["TIMEOUT", "Coordinator", "Ensemble", "ProcessShelf", "apply"]
