"""Probing a machine: what it advertises, beside what one real attempt at each thing shows (fact 4).

Trials are made in children of their own, since a trial may hang, and some end the process that makes them (facts 24,
40). `asking` has the table of what is tried, `trials` how, `lab` brings the children together.
"""

from __future__ import annotations

from memtopo.machine.probe.run import Probed, Timing, probe
from memtopo.machine.probe.supervisor import Limits, Stopped

__all__ = ["Limits", "Probed", "Stopped", "Timing", "probe"]
