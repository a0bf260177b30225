"""vLLM's worker over memtopo where vLLM's own allocator has no counterpart: prints how each case ended."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

import torch

from tests.hosts.vllm_worker import Host

CONFIGURATION = "expandable_segments:True,max_split_size_mb:512"


def states(host: Host) -> str:
    """State of the tensors, by tag."""
    return " ".join(f"{tag}:{state(host, address, byte)}" for address, (tag, byte, _) in host.tensors.items())


def state(host: Host, address: int, byte: int) -> str:
    """Word for the memory and bytes of a tensor."""
    if host.memory.heap(address).asleep:
        return "asleep"
    return "kept" if host.memory.read(address) == byte else "lost"


def host_copies(host: Host) -> str:
    """Host memory after wakes, and the bytes after a sleep that may use it again."""
    host.allocate("weights")
    ((address, (tag, _, pool)),) = host.tensors.items()
    found = []
    for byte in (2, 3):
        host.memory.write(address, byte)
        host.tensors[address] = (tag, byte, pool)
        host.worker.sleep(1)
        host.worker.wake_up(None)
        retained = host.memory.heap(address).backup(address) is not None
        found += [states(host), "retained" if retained else "freed"]
    return " ".join(found)


def expandable_segments(host: Host) -> str:
    """Configuration of PyTorch's allocator in a region, and after one that fails."""
    found = [CONFIGURATION]
    torch.cuda.memory._snapshot = lambda: {"allocator_settings": {"PYTORCH_ALLOC_CONF": found[-1]}}
    torch._C._accelerator_setAllocatorSettings = found.append
    with suppress(KeyError), host.memory.allocator.use_memory_pool("weights"):
        raise KeyError
    return " ".join(found[1:])


def partial_wake(host: Host) -> str:
    """A wake after which some tags are awake, and the next one."""
    for tag in ("weights", "runtime", "kv_cache"):
        host.allocate(tag, 2)
    host.worker.sleep(1)
    outcome = ""
    with host.memory.full_gpu(left=3):
        try:
            host.worker.wake_up(None)
        except RuntimeError as error:
            outcome = f"{str(error)[:27]} {states(host)}"
    host.worker.wake_up(["weights"])
    return f"{outcome} | {states(host)}"


def two_drop_ins(host: Host) -> str:
    """Regions of torch_memory_saver's interface with a tag of vLLM's: each has its heap."""
    from memtopo.torch.saver import torch_memory_saver as saver

    host.allocate("weights")
    with saver.region("weights"):
        host.make("saver", 1)
    host.worker.sleep(1)
    found = [states(host)]
    host.worker.wake_up(None)
    saver.pause("weights")
    found.append(states(host))
    saver.resume()
    found.append(states(host))
    return " | ".join([*found, *(host.memory.heap(each).name for each in host.tensors)])


CASES: dict[str, tuple[str, Callable[[Host], str]]] = {
    "host copies": ("", host_copies),
    "retained host copies": ("MEMTOPO_RETAIN_HOST_COPIES", host_copies),
    "expandable segments": ("", expandable_segments),
    "partial wake": ("", partial_wake),
    "two drop-ins": ("", two_drop_ins),
}
"""Cases with a variable that is set in the environment."""


def main() -> None:
    """Run each case in a fork."""
    from vllm.plugins import load_general_plugins
    from vllm.v1.worker import gpu_worker  # noqa: F401 imported once for all

    for name, (variable, case) in CASES.items():
        if child := os.fork():
            os.waitpid(child, 0)
            continue
        os.environ |= {"MEMTOPO_VLLM": "1", variable or "NONE": "1"}
        load_general_plugins()
        host = Host("memtopo")
        print(f"{name}: {case(host)}", flush=True)
        host.memory.engine.close()
        os._exit(0)


if __name__ == "__main__":
    main()
