"""Plugin of vLLM (`vllm.general_plugins`), which every process of vLLM loads as it starts.

With `MEMTOPO_VLLM=1`, vLLM's allocator is replaced by that of `memtopo.torch.vllm`, which vLLM's own sleep-mode backend
then calls; it has a second name, `memtopo`. Without the variable, nothing changes but that a worker whose
`sleep_mode_backend` is `memtopo` does not start. What fails here ends the start of vLLM, before memory is allocated; a
module that cannot be imported would not, so this one imports nothing of vLLM at the top.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from copy import copy
from functools import wraps
from typing import Any

from memtopo.api.errors import Unsuitable

BACKEND = "memtopo"
VARIABLE = "MEMTOPO_VLLM"
_RETAIN = "MEMTOPO_RETAIN_HOST_COPIES"
_ON_RAY = "VLLM_RAY_EXTRA_ENV_VARS_TO_COPY"


def requested() -> bool:
    """Return true if a variable requests that vLLM's memory is in heaps."""
    return os.environ.get(VARIABLE) == "1"


def register() -> None:
    """Register the backend, and replace vLLM's allocator if that is requested.

    Raises `Unsuitable` if it is requested, and vLLM lacks an interface or another plugin has replaced the allocator.
    """
    try:
        _register_backend()
        if requested():
            _replace_allocator()
            _offload_graphs()
            # vLLM copies these variables to its workers on Ray.
            listed = os.environ.get(_ON_RAY, "").split(",")
            os.environ[_ON_RAY] = ",".join(dict.fromkeys(filter(None, (*listed, VARIABLE, _RETAIN))))
    except (ImportError, AttributeError) as error:
        if requested():
            hint = f"it needs a GPU and a release of docs/hosts.md; without {VARIABLE}, vLLM uses its own allocator"
            raise Unsuitable(f"memtopo cannot replace the allocator of {_version()}: {error}", hint=hint) from error


def _register_backend() -> None:
    from vllm.device_allocator.sleep_mode_backend import CuMemBackend, SleepModeBackendFactory  # noqa: PLC0415
    from vllm.v1.worker.worker_base import WorkerBase  # noqa: PLC0415

    try:
        SleepModeBackendFactory.register_backend(BACKEND, CuMemBackend.__module__, CuMemBackend.__name__)
    except ValueError:  # by an earlier call, since plugins may be loaded several times
        if SleepModeBackendFactory.get_backend_class(BACKEND) is not CuMemBackend:
            raise
    else:
        WorkerBase.__init__ = _checked(WorkerBase.__init__)


def _checked(start: Callable[..., None]) -> Callable[..., None]:
    """Return a constructor of workers that raises `Unsuitable` if memtopo was chosen, and is not used here."""

    @wraps(start)
    def checked(worker: object, vllm_config: Any, *arguments: Any, **more: Any) -> None:
        chosen = getattr(vllm_config.model_config, "sleep_mode_backend", None) == BACKEND
        if chosen and not requested():
            hint = f"set {VARIABLE}=1 for all processes of vLLM; on Ray, also in the environment of the workers"
            raise Unsuitable(f"sleep_mode_backend is {BACKEND!r}, and a worker has no {VARIABLE}=1", hint=hint)
        if requested():
            _require_not_replaced()
        start(worker, vllm_config, *arguments, **more)

    return checked


def _replace_allocator() -> None:
    """Make memtopo's allocator the one instance of vLLM's `CuMemAllocator`."""
    import vllm.device_allocator.cumem as own  # noqa: PLC0415

    from memtopo.torch.vllm import ALLOCATOR  # noqa: PLC0415

    _require_not_replaced()
    methods = {name for name in vars(own.CuMemAllocator) if not name.startswith("_")} - {"instance", "get_instance"}
    unknown = sorted(methods - {*dir(ALLOCATOR)})
    if unknown:
        hint = f"use a release that docs/hosts.md lists, or unset {VARIABLE}"
        raise Unsuitable(f"{_version()} has {', '.join(unknown)} in its allocator, and memtopo has not", hint=hint)

    def get_instance() -> Any:
        return ALLOCATOR

    ALLOCATOR.retain_host_copies = os.environ.get(_RETAIN) == "1"
    own.CuMemAllocator.instance, own.CuMemAllocator.get_instance = ALLOCATOR, staticmethod(get_instance)


def _require_not_replaced() -> None:
    """Raise `Unsuitable` if vLLM's allocator is not its own, nor memtopo's, or is in use."""
    import vllm.device_allocator.cumem as own  # noqa: PLC0415
    from vllm import device_allocator  # noqa: PLC0415

    from memtopo.torch.vllm import Allocator  # noqa: PLC0415

    allocator = own.CuMemAllocator
    found = {
        "get_mem_allocator_instance": device_allocator.get_mem_allocator_instance,
        "CuMemAllocator": allocator,
        "CuMemAllocator.get_instance": allocator.get_instance,
        "CuMemAllocator.instance": type(allocator.instance),
    }
    allowed = {device_allocator.__name__, own.__name__, __name__, Allocator.__module__, type(None).__module__}
    for name, each in found.items():
        if each.__module__ not in allowed:
            hint = "choose the plugins by VLLM_PLUGINS"
            raise Unsuitable(f"vLLM's {name} has been replaced by {each.__module__}", hint=hint)
    if type(allocator.instance) is allocator:
        hint = "load memtopo's plugin first: VLLM_PLUGINS lists those that are loaded"
        raise Unsuitable("vLLM's own allocator is in use already, by another plugin or the program", hint=hint)


def _offload_graphs() -> None:
    """Let `--sleep-mode-offload-cudagraph` take effect with this backend as with vLLM's own."""
    from vllm.config import VllmConfig  # noqa: PLC0415

    own = VllmConfig.use_cumem_cudagraph_pool.fget

    def use_cumem_cudagraph_pool(config: Any) -> bool:
        if getattr(config.model_config, "sleep_mode_backend", None) == BACKEND:
            config, model = copy(config), copy(config.model_config)
            vars(model)["sleep_mode_backend"] = "cumem"
            vars(config)["model_config"] = model
        return bool(own(config))

    VllmConfig.use_cumem_cudagraph_pool = property(use_cumem_cudagraph_pool, doc=own.__doc__)


def _version() -> str:
    import vllm  # noqa: PLC0415

    return f"vLLM {vllm.__version__}"
