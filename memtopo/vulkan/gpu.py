"""One GPU: its queue, and what is allocated on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, TypeVar

import vulkan as vk

from memtopo.vulkan.instance import device_on, family_of, instance, uuid_of
from memtopo.vulkan.memory import Memory
from memtopo.vulkan.semaphore import Semaphore

At = tuple[Semaphore, int]
"""A semaphore and its value; of a binary one the value does not matter."""


_Made = TypeVar("_Made", Memory, Semaphore)


class Gpu:
    """One GPU by its UUID, or the first; raises `LookupError` where there is none.

    At the end of its `with`, what it made is given back. With `validation`, `messages` has the warnings and errors of
    Vulkan's validation layer.
    """

    def __init__(self, uuid: bytes | None = None, *, validation: bool = False) -> None:
        self.messages: list[str] = []
        self._messenger: Any = None
        self._made: list[Memory | Semaphore] = []
        self._instance = instance(validation=validation)
        if validation:
            self._listen()
        found = {uuid_of(each): each for each in vk.vkEnumeratePhysicalDevices(self._instance)}
        if not found or (uuid is not None and uuid not in found):
            raise LookupError(f"Vulkan's GPUs are {', '.join(each.hex() for each in found) or 'none'}")
        self.uuid = uuid or next(iter(found))
        self._physical = found[self.uuid]
        self.family = family_of(self._physical)
        self.device = device_on(self._physical, self.family)
        self.queue = vk.vkGetDeviceQueue(self.device, self.family, 0)
        pool = vk.VkCommandPoolCreateInfo(queueFamilyIndex=self.family)
        self._pool = vk.vkCreateCommandPool(self.device, pool, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        vk.vkDeviceWaitIdle(self.device)
        for made in self._made:
            made.free()
        vk.vkDestroyCommandPool(self.device, self._pool, None)
        vk.vkDestroyDevice(self.device, None)
        if self._messenger:
            self._of_instance("vkDestroyDebugUtilsMessengerEXT")(self._instance, self._messenger, None)
        vk.vkDestroyInstance(self._instance, None)

    def call(self, name: str) -> Callable[..., Any]:
        """A function of an extension."""
        return vk.vkGetDeviceProcAddr(self.device, name)  # type: ignore[no-any-return]

    def _kept(self, made: _Made) -> _Made:
        self._made.append(made)
        return made

    def _of_instance(self, name: str) -> Callable[..., Any]:
        return vk.vkGetInstanceProcAddr(self._instance, name)  # type: ignore[no-any-return]

    def allocate(self, size: int, *, dedicated: bool = False) -> Memory:
        """Memory of this GPU that other APIs may import."""
        return self._kept(Memory(self, size, dedicated=dedicated))

    def adopt(self, fd: int, size: int) -> Memory:
        """Memory that another API exported, as a chunk of memtopo's; the descriptor is Vulkan's from then on.

        Where it is refused nobody knows whose the descriptor is: hand over a copy, and give the GPU up, whose device is
        not to be relied on then.
        """
        return self._kept(Memory(self, size, fd=fd))

    def timeline(self, value: int = 0) -> Semaphore:
        """A timeline semaphore that other APIs may import."""
        return self._kept(Semaphore(self, value))

    def binary(self) -> Semaphore:
        """A binary semaphore that other APIs may import."""
        return self._kept(Semaphore(self, None))

    def memory_type(self, bits: int, flags: int) -> int:
        """The first type of memory among `bits` that has all `flags`."""
        properties = vk.vkGetPhysicalDeviceMemoryProperties(self._physical)
        for index in range(properties.memoryTypeCount):
            if bits >> index & 1 and properties.memoryTypes[index].propertyFlags & flags == flags:
                return index
        raise LookupError(f"no memory type has the flags {flags:#x}")

    def submit(
        self, record: Callable[[Any], None] | None = None, wait: At | None = None, signal: At | None = None
    ) -> None:
        """Have the queue wait, do what `record` puts into a command buffer, and signal; and wait for all of it."""
        buffers = []
        if record:
            asked = vk.VkCommandBufferAllocateInfo(
                commandPool=self._pool, level=vk.VK_COMMAND_BUFFER_LEVEL_PRIMARY, commandBufferCount=1
            )
            buffers = [vk.vkAllocateCommandBuffers(self.device, asked)[0]]
            once = vk.VkCommandBufferBeginInfo(flags=vk.VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT)
            vk.vkBeginCommandBuffer(buffers[0], once)
            record(buffers[0])
            vk.vkEndCommandBuffer(buffers[0])
        values = vk.VkTimelineSemaphoreSubmitInfo(
            pWaitSemaphoreValues=[wait[1]] if wait else [], pSignalSemaphoreValues=[signal[1]] if signal else []
        )
        work = vk.VkSubmitInfo(
            pNext=values,
            pWaitSemaphores=[wait[0].handle] if wait else [],
            pWaitDstStageMask=[vk.VK_PIPELINE_STAGE_ALL_COMMANDS_BIT] if wait else [],
            pCommandBuffers=buffers,
            pSignalSemaphores=[signal[0].handle] if signal else [],
        )
        vk.vkQueueSubmit(self.queue, 1, [work], vk.VK_NULL_HANDLE)
        vk.vkQueueWaitIdle(self.queue)
        if buffers:
            vk.vkFreeCommandBuffers(self.device, self._pool, 1, buffers)

    def _listen(self) -> None:
        def heard(_severity: int, _kind: int, data: Any, _user: Any) -> int:
            self.messages.append(vk.ffi.string(data.pMessage).decode(errors="replace"))
            return 0

        self._heard = heard  # it must outlive the instance
        asked = vk.VkDebugUtilsMessengerCreateInfoEXT(
            messageSeverity=vk.VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT
            | vk.VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT,
            messageType=vk.VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT,
            pfnUserCallback=heard,
        )
        self._messenger = self._of_instance("vkCreateDebugUtilsMessengerEXT")(self._instance, asked, None)
