"""Probe of a machine: what it advertises, and the result of one real trial of each feature (fact 4).

Trials are made in child processes, since a trial may hang, and some end the process that makes them (facts 24, 40).
`trial_table` has the methods, `trials` their functions, and `supervisor` has the children make them.
"""

from __future__ import annotations

from memtopo.probe.run import Probed, probe
from memtopo.probe.supervisor import Limits, ProbeStopped

__all__ = ["Limits", "ProbeStopped", "Probed", "probe"]
