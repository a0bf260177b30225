"""A program whose memory calls are captured: it makes the calls that it is given, through the stub of CUPTI.

A parameter is a pair of its kind and its value: u64, u32, i32 and pair lie in the structure of the parameters, as bytes
do; `to_…` is a pointer to such a value.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import Any


class _Pair(ctypes.Structure):
    _fields_ = [("first", ctypes.c_int), ("second", ctypes.c_int)]


Parameter = tuple[str, Any]
Call = tuple[str, Sequence[Parameter], int]

_NUMBERS: dict[str, Any] = {"u64": ctypes.c_uint64, "u32": ctypes.c_uint32, "i32": ctypes.c_int32}


def value(kind: str, given: Any) -> Any:
    """A value of C."""
    if kind in _NUMBERS:
        return _NUMBERS[kind](given)
    if kind == "pair":
        return _Pair(*given)
    data = bytes.fromhex(given)
    return (ctypes.c_ubyte * len(data))(*data)


def layout(parameters: Sequence[Parameter]) -> Any:
    """Structure of the parameters of a call, each a member `p` with its number, as CUPTI's headers declare it."""
    types = [ctypes.c_void_p if kind.startswith("to_") else type(value(kind, given)) for kind, given in parameters]
    fields = [(f"p{index}", kind) for index, kind in enumerate(types)]
    return type("Parameters", (ctypes.Structure,), {"_fields_": fields})


class Driver:
    """The driver, and CUPTI, which reports the calls that are made by `call`."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.cupti = ctypes.CDLL(os.environ["STUB_CUPTI"])

    def init(self, device: int | None = None) -> Driver:
        self.cuda.cuInit(0)
        if device is not None:
            self.use(device)
        return self

    def use(self, device: int) -> None:
        """Make a context of a GPU current."""
        self.cuda.cuCtxSetCurrent(ctypes.c_void_p(device + 1))

    def call(self, name: str, parameters: Sequence[Parameter], result: int = 0) -> int:
        """Make a call with a result; return true if it is reported."""
        values = [value(kind.removeprefix("to_"), given) for kind, given in parameters]
        block = layout(parameters)()
        for index, (each, (kind, _)) in enumerate(zip(values, parameters, strict=True)):
            word = ctypes.addressof(each) if kind.startswith("to_") else getattr(each, "value", each)
            setattr(block, f"p{index}", word)
        return int(self.cupti.stub_call(name.encode(), ctypes.byref(block), result))

    def allocate(self, size: int, address: int = 1 << 40) -> int:
        return self.call("cuMemAlloc_v2", [("to_u64", address), ("u64", size)])
