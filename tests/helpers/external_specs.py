"""Specs with external objects and semaphores, and trials of a machine."""

from __future__ import annotations

from memtopo.machine import Trial

FAILED = Trial(advertised=True, works=False, error="CUDA_ERROR_UNKNOWN")

NEVER = Trial(advertised=True, note="no Vulkan driver")

FRAME = "external: {frame: {from: camera, via: opaque_fd, device: gpu0, size: 8MiB}}\n"


def semaphores(*entries: str, process: bool = False) -> str:
    """Semaphores `s0`, `s1`, …, each of a timeline of camera's unless it says otherwise."""
    every = [
        f"s{index}: {{from: camera/ready, via: timeline_fd, device: gpu0, {e}}}" for index, e in enumerate(entries)
    ]
    if process:
        return "processes:\n" + "".join(f"  p{n}: {{semaphores: {{{each}}}}}\n" for n, each in enumerate(every))
    return f"semaphores: {{{', '.join(every)}}}\n"


TIMELINE = semaphores("signal: 1")
