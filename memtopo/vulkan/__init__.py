"""Headless Vulkan for trials, tests and examples: memory and semaphores that other APIs share, and copies of bytes.

It needs the package `vulkan` (`pip install 'memtopo[vulkan]'`), a Vulkan loader and Vulkan 1.2. A GPU is found by its
UUID, which is the same in CUDA (fact 38). Descriptors that `fd()` gives are the caller's to close. Everything is waited
for, and errors are the package's own `vulkan.VkError`.
"""

try:
    from memtopo.vulkan.gpu import At, Gpu
    from memtopo.vulkan.memory import Memory
    from memtopo.vulkan.semaphore import Semaphore
except ModuleNotFoundError as error:
    if error.name != "vulkan":
        raise
    told = "memtopo.vulkan needs the package vulkan: pip install 'memtopo[vulkan]'"
    raise ModuleNotFoundError(told, name="vulkan") from None

__all__ = ["At", "Gpu", "Memory", "Semaphore"]
