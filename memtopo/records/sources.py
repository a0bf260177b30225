"""Sources of memory, by the stacks of the calls that made it."""

from __future__ import annotations

import re

from memtopo.plans.trace import TracedCall

_RUNTIME = re.compile(r"lib(cuda|cudart|cupti|c|pthread|stdc\+\+|gcc_s|python[0-9.]*)\.so|ld-linux")
_LIBRARY = re.compile(r"(?:lib)?([A-Za-z0-9_+-]+?)(?:[.-][0-9.]+)?\.so")
_PYTHON = re.compile(r"([A-Za-z0-9_-]+)\.py:[0-9]+ (.*)")
_FAMILIES = (("torch", "torch"), ("c10", "torch"), ("nccl", "nccl"), ("cublas", "cublas"), ("cudnn", "cudnn"))


def source_of(call: TracedCall) -> str:
    """Name of the library or Python module that made a call: the first of its stack that is no part of the runtime.

    It is empty for a call without a stack.
    """
    for frame in call.stack:
        if match := _PYTHON.fullmatch(frame):
            return match[1]
        if _RUNTIME.match(frame):
            continue
        if match := _LIBRARY.match(frame):
            return next((name for start, name in _FAMILIES if match[1].lower().startswith(start)), match[1])
    return ""
