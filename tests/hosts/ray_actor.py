"""An actor of Ray, which imports torch_memory_saver after the plugin of SGLang was loaded where Ray is started."""

import os

import ray

from memtopo.torch import sglang

sglang.register()
ray.init(num_cpus=1, include_dashboard=False, runtime_env={"env_vars": {"OTHER": "kept"}}, log_to_driver=False)


def imported() -> str:
    """Name of the module, and a variable of the program's own runtime environment."""
    import torch_memory_saver

    return f"{torch_memory_saver.__name__} {os.environ['OTHER']}"


print(ray.get(ray.remote(imported).remote()))
ray.shutdown()
