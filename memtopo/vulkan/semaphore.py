"""Semaphores that are shared with other APIs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import vulkan as vk

if TYPE_CHECKING:
    from memtopo.vulkan.gpu import Gpu


class Semaphore:
    """A timeline semaphore that starts at a value, or a binary one."""

    def __init__(self, gpu: Gpu, value: int | None) -> None:
        self._gpu, self._timeline = gpu, value is not None
        chain: Any = vk.VkExportSemaphoreCreateInfo(handleTypes=vk.VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT)
        if value is not None:
            chain = vk.VkSemaphoreTypeCreateInfo(
                pNext=chain, semaphoreType=vk.VK_SEMAPHORE_TYPE_TIMELINE, initialValue=value
            )
        self.handle = vk.vkCreateSemaphore(gpu.device, vk.VkSemaphoreCreateInfo(pNext=chain), None)

    def fd(self) -> int:
        """A new descriptor of the semaphore."""
        asked = vk.VkSemaphoreGetFdInfoKHR(
            semaphore=self.handle, handleType=vk.VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT
        )
        return int(self._gpu.call("vkGetSemaphoreFdKHR")(self._gpu.device, asked))

    @property
    def counter(self) -> int:
        """The value of a timeline."""
        return int(vk.vkGetSemaphoreCounterValue(self._gpu.device, self.handle))

    def signal(self, value: int = 1) -> None:
        """Have the CPU signal a timeline, or the queue a binary one."""
        if not self._timeline:
            self._gpu.submit(signal=(self, value))
            return
        vk.vkSignalSemaphore(self._gpu.device, vk.VkSemaphoreSignalInfo(semaphore=self.handle, value=value))

    def wait(self, value: int, seconds: float) -> bool:
        """Have the CPU wait for a timeline, false where it took too long; a binary one is waited for however long."""
        if not self._timeline:
            self._gpu.submit(wait=(self, value))
            return True
        asked = vk.VkSemaphoreWaitInfo(pSemaphores=[self.handle], pValues=[value])
        try:
            vk.vkWaitSemaphores(self._gpu.device, asked, int(seconds * 1e9))
        except vk.VkTimeout:
            return False
        return self.counter >= value

    def free(self) -> None:
        """Give it up. A second time does nothing."""
        if self.handle:
            vk.vkDestroySemaphore(self._gpu.device, self.handle, None)
            self.handle = None
