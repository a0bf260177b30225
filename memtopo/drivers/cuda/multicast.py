"""Multicast calls, none of which is made: a team of GPUs takes a slot of a switch that others may share (fact 87).

Nothing below this package names a multicast function of the driver. No trial and no option changes that.
"""

from __future__ import annotations

from memtopo.driver.protocol import call_name
from memtopo.driver.types import DriverError, HandleType

_REASON = "memtopo makes no multicast call on GPUs: it was never tried, and others may share the switch (fact 87)"


class RefusedMulticast:
    """Multicast calls of the protocol. Each raises `DriverError` without a call of the driver."""

    def multicast_create(self, devices: int, size: int, handles: HandleType, flags: int = 0) -> int:
        del devices, size, handles, flags
        raise _refused("multicast_create")

    def multicast_add_device(self, handle: int, device: int) -> None:
        del handle, device
        raise _refused("multicast_add_device")

    def multicast_bind_mem(
        self, handle: int, offset: int, chunk: int, chunk_offset: int, size: int, flags: int = 0
    ) -> None:
        del handle, offset, chunk, chunk_offset, size, flags
        raise _refused("multicast_bind_mem")

    def multicast_bind_addr(self, handle: int, offset: int, address: int, size: int, flags: int = 0) -> None:
        del handle, offset, address, size, flags
        raise _refused("multicast_bind_addr")

    def multicast_unbind(self, handle: int, device: int, offset: int, size: int) -> None:
        del handle, device, offset, size
        raise _refused("multicast_unbind")

    def multicast_get_granularity(
        self, devices: int, size: int, handles: HandleType, *, recommended: bool = False
    ) -> int:
        del devices, size, handles, recommended
        raise _refused("multicast_get_granularity")


def _refused(method: str) -> DriverError:
    return DriverError(call_name(method), "CUDA_ERROR_NOT_SUPPORTED", _REASON)
