"""memtopo as torch_memory_saver in the processes of SGLang, without a change of SGLang or of a program.

SGLang loads `register` as a plugin (`sglang.srt.plugins`) in each of its processes. Without `--enable-memory-saver`
nothing changes. `SGLANG_PLUGINS` with other names leaves torch_memory_saver in its place.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import torch

from memtopo.api.errors import Unsuitable
from memtopo.torch import saver

_REPLACED = "torch_memory_saver"
_ADAPTER = "sglang.srt.utils.torch_memory_saver_adapter"
_RAY_HOOK = "RAY_RUNTIME_ENV_HOOK"


def register() -> None:
    """Let SGLang import `memtopo.torch.saver` as `torch_memory_saver`, in this process and in those that it starts.

    Raises `Unsuitable` if the process uses torch_memory_saver already, and leaves it in its place.
    """
    if torch.version.hip or torch.xpu.is_available():
        return  # heaps are memory of CUDA devices
    _require_unused()
    names = [each for each in sys.modules if each.split(".")[0] == _REPLACED]
    replaced = {name: sys.modules.pop(name) for name in names}
    sys.modules[_REPLACED] = saver
    if adapter := sys.modules.get(_ADAPTER):
        importlib.reload(adapter)  # schedulers import it before their plugins are loaded
        if getattr(adapter, _REPLACED, None) is not saver:
            del sys.modules[_REPLACED]
            sys.modules.update(replaced)
            message = f"{_ADAPTER} of this SGLang has no {_REPLACED!r}, in which it finds its memory saver"
            raise Unsuitable(message, hint="use a version that docs/hosts.md lists")
    os.environ.setdefault(_RAY_HOOK, f"{__name__}.runtime_env")


def runtime_env(found: dict[str, Any] | None = None) -> dict[str, Any]:
    """Runtime environment for `ray.init`, whose workers import `memtopo.torch.saver` as `torch_memory_saver`."""
    found = dict(found or {})
    variables = found.get("env_vars", {})
    path = variables.get("PYTHONPATH", "${PYTHONPATH}")
    return {**found, "env_vars": {**variables, "PYTHONPATH": f"{saver.STAND_IN}{os.pathsep}{path}"}}


def _require_unused() -> None:
    """Raise `Unsuitable` if torch_memory_saver's library is loaded in this process."""
    module = sys.modules.get(_REPLACED)
    if getattr(getattr(module, _REPLACED, None), "_impl", None) is not None:
        message = "torch_memory_saver has regions in this process, which memtopo cannot take over"
        raise Unsuitable(message, hint="load SGLang's plugins before its first region")
    if _REPLACED in os.environ.get("LD_PRELOAD", ""):
        message = "LD_PRELOAD has the library of torch_memory_saver, which serves this process"
        raise Unsuitable(message, hint="remove it from LD_PRELOAD to use memtopo")
