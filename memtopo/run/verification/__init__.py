"""Proof by bytes: what is written through one mapping of a chunk is read back through each of them.

`Samples` does it for the ends of each chunk by the driver's copies, `Whole` for every byte by kernels, and `Sides` for
what the CPU and GPUs share. Only memory that this run created is written. Where several processes have it, they take
turns; in all of them the turns are the same.
"""

from memtopo.run.verification.isolation import isolation
from memtopo.run.verification.prover import Prover, Scene
from memtopo.run.verification.refusals import refusals
from memtopo.run.verification.samples import WINDOW, Samples
from memtopo.run.verification.sides import Sides
from memtopo.run.verification.whole import Whole

__all__ = ["WINDOW", "Prover", "Samples", "Scene", "Sides", "Whole", "isolation", "refusals"]
