"""Python API: plan a spec, build it in this process and use its memory, or attach to a held layout."""

from __future__ import annotations

from memtopo.api.apply import Applied, Held, applied, hold
from memtopo.api.attachment import Attached, Attachment, attach, dma_bufs
from memtopo.api.dmabuf import DmaBuf, DmaBufs
from memtopo.api.elastic import Batch, ElasticChunks, ElasticRange
from memtopo.api.errors import (
    ApiError,
    InvalidSpec,
    NotApplied,
    NotBuilt,
    NotChanged,
    NotJoined,
    NotMapped,
    NotSwitched,
    Unsuitable,
    ViewOutlived,
)
from memtopo.api.joined import Joined, JoinedLayout, join, rank
from memtopo.api.live import Event, Live
from memtopo.api.specs import Loaded, load, plan
from memtopo.api.views import GpuView, HostView, View
from memtopo.run.processes.member import ProcessLost
from memtopo.sharing.external import ExternalMemory, HostMemory, Semaphore, Serving, serve

__all__ = [
    "ApiError",
    "Applied",
    "Attached",
    "Attachment",
    "Batch",
    "DmaBuf",
    "DmaBufs",
    "ElasticChunks",
    "ElasticRange",
    "Event",
    "ExternalMemory",
    "GpuView",
    "Held",
    "HostMemory",
    "HostView",
    "InvalidSpec",
    "Joined",
    "JoinedLayout",
    "Live",
    "Loaded",
    "NotApplied",
    "NotBuilt",
    "NotChanged",
    "NotJoined",
    "NotMapped",
    "NotSwitched",
    "ProcessLost",
    "Semaphore",
    "Serving",
    "Unsuitable",
    "View",
    "ViewOutlived",
    "applied",
    "attach",
    "dma_bufs",
    "hold",
    "join",
    "load",
    "plan",
    "rank",
    "serve",
]
