"""Headless Vulkan for trials, tests and examples: shared memory and semaphores, and copies of bytes.

Needs the package `vulkan` (`pip install vulkan`), a Vulkan loader and Vulkan 1.2. A GPU is found by its
UUID, which is the same in CUDA (fact 38). The caller closes the descriptors that `fd()` returns. Every call waits for
its work, and errors are the package's own `vulkan.VkError`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any, Self, TypeVar

try:
    import vulkan as vk
except ModuleNotFoundError as error:
    if error.name != "vulkan":
        raise
    message = "memtopo.vulkan needs the package vulkan: pip install vulkan"
    raise ModuleNotFoundError(message, name="vulkan") from None

__all__ = ["At", "Gpu", "Memory", "Semaphore"]

_EXTENSIONS = ["VK_KHR_external_memory_fd", "VK_KHR_external_semaphore_fd"]
_LAYER = "VK_LAYER_KHRONOS_validation"


def uuid_of(physical: Any) -> bytes:
    """UUID of a GPU, the same in every API (fact 38)."""
    # The package's own wrapper returns no chained structure.
    identity = vk.ffi.new("VkPhysicalDeviceIDProperties*")
    identity.sType = vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES
    properties = vk.ffi.new("VkPhysicalDeviceProperties2*")
    properties.sType, properties.pNext = vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, identity
    vk.lib.vkGetPhysicalDeviceProperties2(physical, properties)
    return bytes(vk.ffi.buffer(identity.deviceUUID))


class Semaphore:
    """Timeline semaphore that starts at `value`, or a binary semaphore if that is None."""

    def __init__(self, gpu: Gpu, value: int | None) -> None:
        self._gpu, self._timeline = gpu, value is not None
        chain: Any = vk.VkExportSemaphoreCreateInfo(handleTypes=vk.VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT)
        if value is not None:
            chain = vk.VkSemaphoreTypeCreateInfo(
                pNext=chain, semaphoreType=vk.VK_SEMAPHORE_TYPE_TIMELINE, initialValue=value
            )
        self.handle = vk.vkCreateSemaphore(gpu.device, vk.VkSemaphoreCreateInfo(pNext=chain), None)

    def fd(self) -> int:
        """Return a new descriptor of the semaphore, which the caller closes."""
        info = vk.VkSemaphoreGetFdInfoKHR(
            semaphore=self.handle, handleType=vk.VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT
        )
        return int(self._gpu.call("vkGetSemaphoreFdKHR")(self._gpu.device, info))

    @property
    def counter(self) -> int:
        """Value of a timeline semaphore."""
        return int(vk.vkGetSemaphoreCounterValue(self._gpu.device, self.handle))

    def signal(self, value: int = 1) -> None:
        """Signal a timeline semaphore from the CPU, or a binary one from the queue."""
        if not self._timeline:
            self._gpu.submit(signal=(self, value))
            return
        vk.vkSignalSemaphore(self._gpu.device, vk.VkSemaphoreSignalInfo(semaphore=self.handle, value=value))

    def wait(self, value: int, seconds: float) -> bool:
        """Wait for a timeline semaphore; return false on timeout. The wait for a binary semaphore has no time limit."""
        if not self._timeline:
            self._gpu.submit(wait=(self, value))
            return True
        info = vk.VkSemaphoreWaitInfo(pSemaphores=[self.handle], pValues=[value])
        try:
            vk.vkWaitSemaphores(self._gpu.device, info, int(seconds * 1e9))
        except vk.VkTimeout:
            return False
        return self.counter >= value

    def free(self) -> None:
        """Destroy the semaphore. A second call has no effect."""
        if self.handle:
            vk.vkDestroySemaphore(self._gpu.device, self.handle, None)
            self.handle = None


OPAQUE_FD = vk.VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT
_USES = vk.VK_BUFFER_USAGE_TRANSFER_SRC_BIT | vk.VK_BUFFER_USAGE_TRANSFER_DST_BIT
_VISIBLE = vk.VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | vk.VK_MEMORY_PROPERTY_HOST_COHERENT_BIT


class Memory:
    """Buffer of `size` bytes in its own allocation of `whole` bytes, which is exportable or imported."""

    def __init__(self, gpu: Gpu, size: int, *, dedicated: bool = False, fd: int | None = None) -> None:
        self._gpu, self.size = gpu, size
        shared = vk.VkExternalMemoryBufferCreateInfo(handleTypes=OPAQUE_FD)
        info = vk.VkBufferCreateInfo(pNext=shared, size=size, usage=_USES, sharingMode=vk.VK_SHARING_MODE_EXCLUSIVE)
        self.buffer = vk.vkCreateBuffer(gpu.device, info, None)
        needs = vk.vkGetBufferMemoryRequirements(gpu.device, self.buffer)
        chain: Any = vk.VkMemoryDedicatedAllocateInfo(buffer=self.buffer) if dedicated else None
        if fd is None:
            chain = vk.VkExportMemoryAllocateInfo(pNext=chain, handleTypes=OPAQUE_FD)
        else:
            chain = vk.VkImportMemoryFdInfoKHR(pNext=chain, handleType=OPAQUE_FD, fd=fd)
        kind = gpu.memory_type(needs.memoryTypeBits, vk.VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT)
        self.whole = needs.size if fd is None else size
        info = vk.VkMemoryAllocateInfo(pNext=chain, allocationSize=self.whole, memoryTypeIndex=kind)
        self.handle: Any = None
        try:
            self.handle = vk.vkAllocateMemory(gpu.device, info, None)
            vk.vkBindBufferMemory(gpu.device, self.buffer, self.handle, 0)
        except Exception:
            self.free()
            raise

    def fd(self) -> int:
        """Return a new descriptor of the memory, which the caller closes."""
        info = vk.VkMemoryGetFdInfoKHR(memory=self.handle, handleType=OPAQUE_FD)
        return int(self._gpu.call("vkGetMemoryFdKHR")(self._gpu.device, info))

    def fill(self, word: int, signal: At | None = None) -> None:
        """Fill the buffer with a 32-bit word on the GPU."""
        self._gpu.submit(lambda commands: vk.vkCmdFillBuffer(commands, self.buffer, 0, self.size, word), signal=signal)

    def read(self, offset: int = 0, count: int | None = None) -> bytes:
        """Return `count` bytes from `offset`, copied by the GPU; by default all that follow."""
        length = self.size - offset if count is None else count
        part = [vk.VkBufferCopy(srcOffset=offset, dstOffset=0, size=length)]
        with closing(_Staging(self._gpu, length)) as staging:
            self._gpu.submit(lambda commands: vk.vkCmdCopyBuffer(commands, self.buffer, staging.buffer, 1, part))
            return staging.bytes()

    def write(self, offset: int, data: bytes) -> None:
        """Write bytes at `offset`, copied by the GPU."""
        part = [vk.VkBufferCopy(srcOffset=0, dstOffset=offset, size=len(data))]
        with closing(_Staging(self._gpu, len(data))) as staging:
            staging.put(data)
            self._gpu.submit(lambda commands: vk.vkCmdCopyBuffer(commands, staging.buffer, self.buffer, 1, part))

    def free(self) -> None:
        """Free the memory; its descriptors and imports stay valid. A second call has no effect."""
        if self.buffer:
            vk.vkDestroyBuffer(self._gpu.device, self.buffer, None)
            if self.handle:
                vk.vkFreeMemory(self._gpu.device, self.handle, None)
            self.buffer = self.handle = None


class _Staging:
    """Memory that the CPU can read and write, for copies."""

    def __init__(self, gpu: Gpu, size: int) -> None:
        self._gpu, self._size = gpu, size
        info = vk.VkBufferCreateInfo(size=size, usage=_USES, sharingMode=vk.VK_SHARING_MODE_EXCLUSIVE)
        self.buffer = vk.vkCreateBuffer(gpu.device, info, None)
        needs = vk.vkGetBufferMemoryRequirements(gpu.device, self.buffer)
        kind = gpu.memory_type(needs.memoryTypeBits, _VISIBLE)
        whole = vk.VkMemoryAllocateInfo(allocationSize=needs.size, memoryTypeIndex=kind)
        self._memory = vk.vkAllocateMemory(gpu.device, whole, None)
        vk.vkBindBufferMemory(gpu.device, self.buffer, self._memory, 0)

    def put(self, data: bytes) -> None:
        mapped = vk.vkMapMemory(self._gpu.device, self._memory, 0, self._size, 0)
        mapped[: len(data)] = data
        vk.vkUnmapMemory(self._gpu.device, self._memory)

    def bytes(self) -> bytes:
        mapped = vk.vkMapMemory(self._gpu.device, self._memory, 0, self._size, 0)
        try:
            return bytes(mapped[: self._size])
        finally:
            vk.vkUnmapMemory(self._gpu.device, self._memory)

    def close(self) -> None:
        vk.vkDestroyBuffer(self._gpu.device, self.buffer, None)
        vk.vkFreeMemory(self._gpu.device, self._memory, None)


At = tuple[Semaphore, int]
"""Semaphore and value; the value of a binary semaphore is ignored."""


_Made = TypeVar("_Made", Memory, Semaphore)


class Gpu:
    """GPU with a UUID, or the first GPU. Raises `LookupError` if there is none.

    At the end of its `with`, its memory and semaphores are freed. With `validation`, `messages` has the warnings and
    errors of Vulkan's validation layer.
    """

    def __init__(self, uuid: bytes | None = None, *, validation: bool = False) -> None:
        self.messages: list[str] = []
        self._messenger: Any = None
        self._made: list[Memory | Semaphore] = []
        layers, extensions = ([_LAYER], ["VK_EXT_debug_utils"]) if validation else ([], [])
        application = vk.VkApplicationInfo(apiVersion=vk.VK_MAKE_VERSION(1, 2, 0))
        info = vk.VkInstanceCreateInfo(
            pApplicationInfo=application, ppEnabledLayerNames=layers, ppEnabledExtensionNames=extensions
        )
        self._instance = vk.vkCreateInstance(info, None)
        if validation:
            self._collect_messages()
        found = {uuid_of(each): each for each in vk.vkEnumeratePhysicalDevices(self._instance)}
        if not found or (uuid is not None and uuid not in found):
            raise LookupError(f"Vulkan's GPUs are {', '.join(each.hex() for each in found) or 'none'}")
        self.uuid = uuid or next(iter(found))
        self._physical = found[self.uuid]
        copying = vk.VK_QUEUE_COMPUTE_BIT | vk.VK_QUEUE_GRAPHICS_BIT
        families = vk.vkGetPhysicalDeviceQueueFamilyProperties(self._physical)
        self.family = next(index for index, family in enumerate(families) if family.queueFlags & copying)
        queue = vk.VkDeviceQueueCreateInfo(queueFamilyIndex=self.family, pQueuePriorities=[1.0])
        timelines = vk.VkPhysicalDeviceTimelineSemaphoreFeatures(timelineSemaphore=1)
        info = vk.VkDeviceCreateInfo(pNext=timelines, pQueueCreateInfos=[queue], ppEnabledExtensionNames=_EXTENSIONS)
        self.device = vk.vkCreateDevice(self._physical, info, None)
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
        """Return a function of an extension."""
        return vk.vkGetDeviceProcAddr(self.device, name)  # type: ignore[no-any-return]

    def _kept(self, made: _Made) -> _Made:
        self._made.append(made)
        return made

    def _of_instance(self, name: str) -> Callable[..., Any]:
        return vk.vkGetInstanceProcAddr(self._instance, name)  # type: ignore[no-any-return]

    def allocate(self, size: int, *, dedicated: bool = False) -> Memory:
        """Allocate memory of this GPU that other APIs can import."""
        return self._kept(Memory(self, size, dedicated=dedicated))

    def adopt(self, fd: int, size: int) -> Memory:
        """Import memory that another API exported, such as a chunk of memtopo; the descriptor then belongs to Vulkan.

        After a refusal it is undefined whether the driver owns the descriptor: pass a duplicate, and close this GPU,
        whose device may be in an undefined state.
        """
        return self._kept(Memory(self, size, fd=fd))

    def timeline(self, value: int = 0) -> Semaphore:
        """Create a timeline semaphore that other APIs can import."""
        return self._kept(Semaphore(self, value))

    def binary(self) -> Semaphore:
        """Create a binary semaphore that other APIs can import."""
        return self._kept(Semaphore(self, None))

    def memory_type(self, bits: int, flags: int) -> int:
        """Return the first memory type among `bits` that has all `flags`. Raises `LookupError`."""
        properties = vk.vkGetPhysicalDeviceMemoryProperties(self._physical)
        for index in range(properties.memoryTypeCount):
            if bits >> index & 1 and properties.memoryTypes[index].propertyFlags & flags == flags:
                return index
        raise LookupError(f"no memory type has the flags {flags:#x}")

    def submit(
        self, record: Callable[[Any], None] | None = None, wait: At | None = None, signal: At | None = None
    ) -> None:
        """Submit a wait, the commands that `record` adds to a command buffer, and a signal; wait until all are done."""
        buffers = []
        if record:
            info = vk.VkCommandBufferAllocateInfo(
                commandPool=self._pool, level=vk.VK_COMMAND_BUFFER_LEVEL_PRIMARY, commandBufferCount=1
            )
            buffers = [vk.vkAllocateCommandBuffers(self.device, info)[0]]
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

    def _collect_messages(self) -> None:
        def message_received(_severity: int, _kind: int, data: Any, _user: Any) -> int:
            self.messages.append(vk.ffi.string(data.pMessage).decode(errors="replace"))
            return 0

        self._callback = message_received  # referenced here, since it must outlive the instance
        info = vk.VkDebugUtilsMessengerCreateInfoEXT(
            messageSeverity=vk.VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT
            | vk.VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT,
            messageType=vk.VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT,
            pfnUserCallback=message_received,
        )
        self._messenger = self._of_instance("vkCreateDebugUtilsMessengerEXT")(self._instance, info, None)
