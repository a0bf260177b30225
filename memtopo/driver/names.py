"""The driver's own names for the protocol's methods."""

from __future__ import annotations

from functools import cache

_LAUNCHED = ("fill", "verify", "store", "load")
_SPELT = {"p2p": "P2P", "pci": "PCI", "htod": "HtoD", "dtoh": "DtoH", "dtod": "DtoD"}


@cache
def call_name(method: str) -> str:
    """The driver call behind a method: `cuMemMap` for `mem_map`, `cuMemcpyHtoD` for `memcpy_htod`; or a launch."""
    if method in _LAUNCHED:
        return "cuLaunchKernel"
    return "cu" + "".join(_SPELT.get(word) or word.capitalize() for word in method.split("_"))
