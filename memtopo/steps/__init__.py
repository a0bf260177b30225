"""The steps that build a layout: one class per kind, one file per kind, its verbs side by side."""

from memtopo.steps.advise import Advise
from memtopo.steps.allocate import AllocateBuffer
from memtopo.steps.allocate_managed import AllocateManaged
from memtopo.steps.attach import Attach
from memtopo.steps.attach_stream import AttachStream
from memtopo.steps.await_stream import AwaitStream
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
from memtopo.steps.import_memory import ImportMemory
from memtopo.steps.import_semaphore import ImportSemaphore
from memtopo.steps.kernels import LoadKernels
from memtopo.steps.map import MapChunk
from memtopo.steps.map_memory import MapExternal
from memtopo.steps.open_buffer import OpenBuffer
from memtopo.steps.open_event import OpenEvent
from memtopo.steps.prefetch import Prefetch
from memtopo.steps.reserve import ReserveRange
from memtopo.steps.stream import CreateStream
from memtopo.steps.take import TakeDescriptor

__all__ = [
    "Advise",
    "AllocateBuffer",
    "AllocateManaged",
    "Ask",
    "Attach",
    "AttachStream",
    "AwaitStream",
    "CreateChunk",
    "CreateEvent",
    "CreateStream",
    "Drain",
    "ExportBuffer",
    "ExportChunk",
    "ExportEvent",
    "ImportChunk",
    "ImportMemory",
    "ImportSemaphore",
    "LoadKernels",
    "MapChunk",
    "MapExternal",
    "OpenBuffer",
    "OpenEvent",
    "Phase",
    "Prefetch",
    "Reading",
    "ReserveRange",
    "RetainContext",
    "SetAccess",
    "Step",
    "TakeDescriptor",
]
