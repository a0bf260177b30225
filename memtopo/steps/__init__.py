"""The steps that build a layout: one class per kind, one file per kind, its verbs side by side."""

from memtopo.steps.base import Phase, Reading, Step
from memtopo.steps.context import RetainContext
from memtopo.steps.create import CreateChunk
from memtopo.steps.drain import Drain
from memtopo.steps.grant import SetAccess
from memtopo.steps.map import MapChunk
from memtopo.steps.reserve import ReserveRange

__all__ = [
    "CreateChunk",
    "Drain",
    "MapChunk",
    "Phase",
    "Reading",
    "ReserveRange",
    "RetainContext",
    "SetAccess",
    "Step",
]
