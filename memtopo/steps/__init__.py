"""The steps that build a layout: one class per kind, one file per kind, its verbs side by side."""

from memtopo.steps.allocate import AllocateBuffer
from memtopo.steps.attach import Attach
from memtopo.steps.base import Ask, Phase, Reading, Step
from memtopo.steps.context import RetainContext
from memtopo.steps.create import CreateChunk
from memtopo.steps.drain import Drain
from memtopo.steps.event import CreateEvent
from memtopo.steps.export_buffer import ExportBuffer
from memtopo.steps.export_chunk import ExportChunk
from memtopo.steps.export_event import ExportEvent
from memtopo.steps.grant import SetAccess
from memtopo.steps.import_chunk import ImportChunk
from memtopo.steps.kernels import LoadKernels
from memtopo.steps.map import MapChunk
from memtopo.steps.open_buffer import OpenBuffer
from memtopo.steps.open_event import OpenEvent
from memtopo.steps.reserve import ReserveRange

__all__ = [
    "AllocateBuffer",
    "Ask",
    "Attach",
    "CreateChunk",
    "CreateEvent",
    "Drain",
    "ExportBuffer",
    "ExportChunk",
    "ExportEvent",
    "ImportChunk",
    "LoadKernels",
    "MapChunk",
    "OpenBuffer",
    "OpenEvent",
    "Phase",
    "Reading",
    "ReserveRange",
    "RetainContext",
    "SetAccess",
    "Step",
]
