"""Starts of vLLM with memtopo's plugin, each in a fork: prints how each ended."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

sys.modules["vllm.cumem_allocator"] = None  # type: ignore[assignment]  # the C library needs a driver of CUDA

import vllm.config  # noqa: E402
import vllm.device_allocator.cumem as own  # noqa: E402
import vllm.platforms  # noqa: E402
from vllm import plugins  # noqa: E402
from vllm.device_allocator import get_mem_allocator_instance  # noqa: E402
from vllm.ray.ray_env import get_env_vars_to_copy  # noqa: E402
from vllm.v1.worker import worker_base  # noqa: E402


def register() -> None:
    """Load the plugins, as each process of vLLM does."""
    plugins.plugins_loaded = False
    plugins.load_general_plugins()


def start_worker(backend: str) -> None:
    model = SimpleNamespace(sleep_mode_backend=backend)
    config: Any = SimpleNamespace(model_config=model)
    try:
        worker_base.WorkerBase(config, 0, 0, "")
    except AttributeError:  # what a worker reads of a whole configuration
        print("started")


def names_of_before() -> None:
    register()
    type(vllm.platforms.current_platform).is_cuda_alike = lambda _: True
    register()
    print(type(get_mem_allocator_instance()).__module__, own.CuMemAllocator.instance is get_mem_allocator_instance())


def graphs(backend: str, *, offload: bool) -> None:
    register()
    type(vllm.platforms.current_platform).is_cuda_alike = lambda _: True
    config: Any = object.__new__(vllm.config.VllmConfig)
    model = SimpleNamespace(sleep_mode_backend=backend, enable_sleep_mode=True, sleep_mode_offload_cudagraph=offload)
    vars(config).update(model_config=model, compilation_config=SimpleNamespace(cudagraph_mode="FULL"))
    print(config.use_cumem_cudagraph_pool, model.sleep_mode_backend)


def variables() -> None:
    os.environ["VLLM_RAY_EXTRA_ENV_VARS_TO_COPY"] = "OF_THE_USER"
    register()
    print(sorted(each for each in get_env_vars_to_copy() if each.startswith(("MEMTOPO", "OF_THE_USER"))))


def earlier_plugin(replace: Callable[[], None]) -> None:
    replace()
    register()
    print("started")


def later_plugin() -> None:
    register()
    own.CuMemAllocator.get_instance = staticmethod(nullcontext)
    start_worker("memtopo")


def replace_instance() -> None:
    own.CuMemAllocator.instance = own.CuMemAllocator()


def replace_function() -> None:
    import vllm.device_allocator

    vllm.device_allocator.get_mem_allocator_instance = nullcontext


def add_method() -> None:
    own.CuMemAllocator.release_host_memory = lambda _: None


def remove_name() -> None:
    import vllm.device_allocator

    del vllm.device_allocator.DEFERRABLE_TAGS


def worker(backend: str) -> None:
    register()
    start_worker(backend)


STARTS: dict[str, tuple[str | None, Callable[[], None]]] = {
    "names imported before": ("1", names_of_before),
    "graphs, memtopo": ("1", lambda: graphs("memtopo", offload=True)),
    "graphs, cumem": ("1", lambda: graphs("cumem", offload=True)),
    "graphs, not asked for": ("1", lambda: graphs("memtopo", offload=False)),
    "variables on Ray": ("1", variables),
    "worker": ("1", lambda: worker("memtopo")),
    "worker without the variable": (None, lambda: worker("memtopo")),
    "worker with the variable at 0": ("0", lambda: worker("memtopo")),
    "worker of cumem without the variable": (None, lambda: worker("cumem")),
    "instance in use": ("1", lambda: earlier_plugin(replace_instance)),
    "function replaced": ("1", lambda: earlier_plugin(replace_function)),
    "function replaced without the variable": (None, lambda: earlier_plugin(replace_function)),
    "replaced later": ("1", later_plugin),
    "method of a later release": ("1", lambda: earlier_plugin(add_method)),
    "name of another release": ("1", lambda: earlier_plugin(remove_name)),
}


def main() -> None:
    for name, (variable, start) in STARTS.items():
        sys.stdout.flush()
        if child := os.fork():
            os.waitpid(child, 0)
            continue
        os.environ |= {"MEMTOPO_VLLM": variable} if variable else {}
        try:
            print(name, end=": ")
            start()
        except Exception as error:  # noqa: BLE001 it is what is compared
            print(f"{type(error).__name__}: {error}")
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
