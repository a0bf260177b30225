"""Holder of a layout: serves its exports to other processes until a signal, a release, or a deadline."""

from memtopo.sharing.holder.loop import INTERVAL
from memtopo.sharing.holder.metrics import MetricsTarget
from memtopo.sharing.holder.responses import node_status, unreachable
from memtopo.sharing.holder.service import hold
from memtopo.sharing.holder.state import HeldNodes, HolderEvent, HolderInfo, HoldSummary, Supervision
from memtopo.sharing.holder.systemd import passed_claim

__all__ = [
    "INTERVAL",
    "HeldNodes",
    "HoldSummary",
    "HolderEvent",
    "HolderInfo",
    "MetricsTarget",
    "Supervision",
    "hold",
    "node_status",
    "passed_claim",
    "unreachable",
]
