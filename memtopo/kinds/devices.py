"""Section `devices`: names for GPUs. `memtopo.kinds.device_names` resolves them."""

from __future__ import annotations

from memtopo.kinds.kind import Kind
from memtopo.language.fields import Identities


class Devices(Kind):
    """Section `devices`, which names locations and has no groups."""

    section = "devices"
    description = "Names for GPUs, each an ordinal, a UUID (GPU-…) or a bus id. gpu0, host and host:0 are built in."
    plural = "devices"
    article = "a device"
    entry = Identities
    model = None


DEVICES = Devices()
