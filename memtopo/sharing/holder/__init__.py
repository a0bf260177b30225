"""Holder of a layout: serves its exports to other processes until a signal, a release, or a deadline."""

from memtopo.sharing.holder.loop import INTERVAL
from memtopo.sharing.holder.metrics import MetricsTarget
from memtopo.sharing.holder.responses import HeldNodes, node_status, unreachable
from memtopo.sharing.holder.service import Supervision, hold
from memtopo.sharing.holder.state import Event, HolderInfo, HoldSummary
from memtopo.sharing.holder.systemd import passed_claim

__all__ = [
    "INTERVAL",
    "Event",
    "HeldNodes",
    "HoldSummary",
    "HolderInfo",
    "MetricsTarget",
    "Supervision",
    "hold",
    "node_status",
    "passed_claim",
    "unreachable",
]
