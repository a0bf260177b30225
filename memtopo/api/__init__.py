"""Python API: plan a spec, build it in this process and use its memory, or attach to a held layout."""

from __future__ import annotations

from memtopo.api.apply import Applied, Held, applied, hold
from memtopo.api.attachment import Attached, Attachment, attach, dma_bufs
from memtopo.api.capture import Capture, capturing, mark
from memtopo.api.elastic import Batch, ElasticChunks, ElasticRange
from memtopo.api.errors import (
    ApiError,
    InvalidSpec,
    MemoryHeld,
    NotApplied,
    NotBuilt,
    NotChanged,
    NotJoined,
    NotMapped,
    NotSwitched,
    OutOfMemory,
    ReadOnlyIgnored,
    Unsuitable,
    ViewOutlived,
)
from memtopo.api.joined import Joined, JoinedLayout, join, rank
from memtopo.api.live import Live
from memtopo.api.objects import DmaBuf, DmaBufs, Event
from memtopo.api.specs import Loaded, load, plan
from memtopo.api.views import GpuView, HostView, View
from memtopo.common.errors import (
    ExchangeError,
    InternalError,
    MemtopoError,
    NoLayout,
    NotWritten,
    Unavailable,
    UsageError,
)
from memtopo.driver.types import DriverError
from memtopo.native.injection import NotCaptured
from memtopo.run.processes.member import ProcessLost
from memtopo.sharing.external import ExternalMemory, HostMemory, Semaphore, Serving, serve
from memtopo.sharing.imports import ImportMismatch
from memtopo.sharing.programs import ProducerFailed
from memtopo.storage.saved import FolderRefused
from memtopo.storage.tensors import BadTensors

__all__ = [
    "ApiError", "Applied", "Attached", "Attachment", "BadTensors", "Batch", "Capture", "DmaBuf", "DmaBufs",
    "DriverError", "ElasticChunks", "ElasticRange", "Event", "ExchangeError", "ExternalMemory", "FolderRefused",
    "GpuView", "Held", "HostMemory", "HostView", "ImportMismatch", "InternalError", "InvalidSpec", "Joined",
    "JoinedLayout", "Live", "Loaded", "MemoryHeld", "MemtopoError", "NoLayout", "NotApplied", "NotBuilt",
    "NotCaptured", "NotChanged", "NotJoined", "NotMapped", "NotSwitched", "NotWritten", "OutOfMemory",
    "ProcessLost", "ProducerFailed", "ReadOnlyIgnored", "Semaphore", "Serving", "Unavailable", "Unsuitable",
    "UsageError", "View", "ViewOutlived", "applied", "attach", "capturing", "dma_bufs", "hold", "join", "load",
    "mark", "plan", "rank", "serve",
]  # fmt: skip
