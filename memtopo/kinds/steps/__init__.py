"""The steps that build a layout: one class per kind, one file per kind, its verbs side by side."""

from memtopo.kinds.steps.advise import Advise
from memtopo.kinds.steps.allocate import AllocateBuffer
from memtopo.kinds.steps.allocate_managed import AllocateManaged
from memtopo.kinds.steps.attach import Attach
from memtopo.kinds.steps.attach_stream import AttachStream
from memtopo.kinds.steps.await_stream import AwaitStream
from memtopo.kinds.steps.base import HandleRequest, Phase, Step, StepDescription
from memtopo.kinds.steps.context import RetainContext
from memtopo.kinds.steps.create import CreateChunk
from memtopo.kinds.steps.drain import Synchronize
from memtopo.kinds.steps.event import CreateEvent
from memtopo.kinds.steps.export_buffer import TryExportBuffer
from memtopo.kinds.steps.export_chunk import TryExportChunk
from memtopo.kinds.steps.export_event import TryExportEvent
from memtopo.kinds.steps.grant import SetAccess
from memtopo.kinds.steps.import_chunk import ImportChunk
from memtopo.kinds.steps.import_memory import ImportMemory
from memtopo.kinds.steps.import_semaphore import ImportSemaphore
from memtopo.kinds.steps.kernels import LoadKernels
from memtopo.kinds.steps.map import MapChunk
from memtopo.kinds.steps.map_memory import MapExternal
from memtopo.kinds.steps.open_buffer import OpenBuffer
from memtopo.kinds.steps.open_event import OpenEvent
from memtopo.kinds.steps.prefetch import Prefetch
from memtopo.kinds.steps.reserve import ReserveRange
from memtopo.kinds.steps.stream import CreateStream
from memtopo.kinds.steps.take import DuplicateDescriptor

__all__ = [
    "Advise",
    "AllocateBuffer",
    "AllocateManaged",
    "Attach",
    "AttachStream",
    "AwaitStream",
    "CreateChunk",
    "CreateEvent",
    "CreateStream",
    "DuplicateDescriptor",
    "HandleRequest",
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
    "ReserveRange",
    "RetainContext",
    "SetAccess",
    "Step",
    "StepDescription",
    "Synchronize",
    "TryExportBuffer",
    "TryExportChunk",
    "TryExportEvent",
]
