"""How the simulator's parts say no, before the facade names the call, or that a call must wait."""

from __future__ import annotations


class Refused(Exception):
    """A rule was broken: the driver's error name, and in a short phrase which rule."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name, self.reason = name, reason


class Outstanding(Exception):
    """The call waits for what somebody else has to do. It has changed nothing, and is made again until it need not."""


def invalid(reason: str) -> Refused:
    """A refusal with `CUDA_ERROR_INVALID_VALUE`, the driver's most common answer."""
    return Refused("CUDA_ERROR_INVALID_VALUE", reason)


def unsupported(reason: str) -> Refused:
    """A refusal with `CUDA_ERROR_NOT_SUPPORTED`."""
    return Refused("CUDA_ERROR_NOT_SUPPORTED", reason)
