"""GPUs that the environment of a process makes visible to it, as the driver reads CUDA_VISIBLE_DEVICES at `cuInit`.

One H200, and two, gave the answers; that a prefix of a UUID must be unique is from the CUDA programming guide.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from memtopo.drivers.sim.calls import RefusedCall
from memtopo.drivers.sim.devices import SimDevices

VARIABLES = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
LONGEST = 1 << 14
"""Bytes of a variable that are read."""

_ORDERS = (None, "", "FASTEST_FIRST", "PCI_BUS_ID")
_INDEX = re.compile(r"\s*([+-]?[0-9]+)")
_UUID = re.compile(r"\s*(?:GPU|MIG)-([0-9A-Fa-f][0-9A-Fa-f-]*)")
_LARGEST, _WORD = (1 << 63) - 1, 0xFFFF_FFFF


def visible_gpus(devices: SimDevices, listed: str | None, order: str | None) -> Sequence[int]:
    """Return the ordinals of the visible GPUs in the order of the process.

    The list ends at the first entry that names no GPU. Its entries are all indices, or all UUIDs, as the first one is.
    Raises `RefusedCall` if there is no such GPU, if one is listed twice, or for another order than the driver has.
    """
    if order not in _ORDERS:
        raise RefusedCall("CUDA_ERROR_INVALID_DEVICE", f"CUDA_DEVICE_ORDER is {order!r}")
    every = range(devices.device_get_count())
    if listed is None:
        return every
    find: Callable[[str], int | None] = lambda entry: _by_index(entry, every)  # noqa: E731
    if _UUID.match(listed):
        uuids = [devices.device_get_uuid(each).hex() for each in every]
        find = lambda entry: _by_uuid(entry, uuids)  # noqa: E731
    found = list[int]()
    for entry in listed.split(","):
        device = find(entry)
        if device is None:
            break
        found.append(device)
    if not found:
        raise RefusedCall("CUDA_ERROR_NO_DEVICE", f"CUDA_VISIBLE_DEVICES is {listed!r}, which begins with no gpu")
    if len(set(found)) < len(found):
        raise RefusedCall("CUDA_ERROR_INVALID_DEVICE", f"CUDA_VISIBLE_DEVICES is {listed!r}, with a gpu twice")
    return found


def _by_index(entry: str, every: range) -> int | None:
    """GPU whose index begins an entry; other text after it is not looked at, nor are bits above the lower 32."""
    match = _INDEX.match(entry)
    index = min(int(match[1]), _LARGEST) & _WORD if match else -1
    return index if index in every else None


def _by_uuid(entry: str, uuids: Sequence[str]) -> int | None:
    """GPU whose UUID begins with the digits of an entry, if no other one's does."""
    match = _UUID.match(entry)
    digits = match[1].replace("-", "").lower() if match else ""
    found = [device for device, uuid in enumerate(uuids) if digits and uuid.startswith(digits[: len(uuid)])]
    return found[0] if len(found) == 1 else None
