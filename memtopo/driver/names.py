"""The driver's own names for the protocol's methods."""

from __future__ import annotations

from functools import cache

_LAUNCHED = ("fill", "verify", "store", "load")
_OTHERS = {
    "pointer_is_managed": "cuPointerGetAttribute",
    "signal_external_semaphore": "cuSignalExternalSemaphoresAsync",
    "wait_external_semaphore": "cuWaitExternalSemaphoresAsync",
    "host_write": "the CPU's store",
    "host_read": "the CPU's load",
}
_SPELT = {"p2p": "P2P", "pci": "PCI", "htod": "HtoD", "dtoh": "DtoH", "dtod": "DtoD"}


@cache
def call_name(method: str) -> str:
    """The driver call behind a method: `cuMemMap` for `mem_map`, `cuMemcpyHtoD` for `memcpy_htod`.

    It may be a launch, or what the CPU does itself.
    """
    if method in _LAUNCHED:
        return "cuLaunchKernel"
    if method in _OTHERS:
        return _OTHERS[method]
    return "cu" + "".join(_SPELT.get(word) or word.capitalize() for word in method.split("_"))
