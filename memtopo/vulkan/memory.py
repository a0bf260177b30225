"""Memory that is shared with other APIs, by copies and fills of a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import vulkan as vk

if TYPE_CHECKING:
    from memtopo.vulkan.gpu import At, Gpu

OPAQUE_FD = vk.VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT
_USES = vk.VK_BUFFER_USAGE_TRANSFER_SRC_BIT | vk.VK_BUFFER_USAGE_TRANSFER_DST_BIT
_VISIBLE = vk.VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | vk.VK_MEMORY_PROPERTY_HOST_COHERENT_BIT


class Memory:
    """A buffer of `size` bytes over an allocation of its own, of `whole` bytes, exportable or imported."""

    def __init__(self, gpu: Gpu, size: int, *, dedicated: bool = False, fd: int | None = None) -> None:
        self._gpu, self.size = gpu, size
        shared = vk.VkExternalMemoryBufferCreateInfo(handleTypes=OPAQUE_FD)
        asked = vk.VkBufferCreateInfo(pNext=shared, size=size, usage=_USES, sharingMode=vk.VK_SHARING_MODE_EXCLUSIVE)
        self.buffer = vk.vkCreateBuffer(gpu.device, asked, None)
        needs = vk.vkGetBufferMemoryRequirements(gpu.device, self.buffer)
        chain: Any = vk.VkMemoryDedicatedAllocateInfo(buffer=self.buffer) if dedicated else None
        if fd is None:
            chain = vk.VkExportMemoryAllocateInfo(pNext=chain, handleTypes=OPAQUE_FD)
        else:
            chain = vk.VkImportMemoryFdInfoKHR(pNext=chain, handleType=OPAQUE_FD, fd=fd)
        kind = gpu.memory_type(needs.memoryTypeBits, vk.VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT)
        self.whole = needs.size if fd is None else size
        asked = vk.VkMemoryAllocateInfo(pNext=chain, allocationSize=self.whole, memoryTypeIndex=kind)
        try:
            self.handle: Any = vk.vkAllocateMemory(gpu.device, asked, None)
        except Exception:
            vk.vkDestroyBuffer(gpu.device, self.buffer, None)
            raise
        try:
            vk.vkBindBufferMemory(gpu.device, self.buffer, self.handle, 0)
        except Exception:
            self.free()
            raise

    def fd(self) -> int:
        """A new descriptor of the memory."""
        asked = vk.VkMemoryGetFdInfoKHR(memory=self.handle, handleType=OPAQUE_FD)
        return int(self._gpu.call("vkGetMemoryFdKHR")(self._gpu.device, asked))

    def fill(self, word: int, wait: At | None = None, signal: At | None = None) -> None:
        """Have the GPU write a 32-bit word all over it."""
        self._gpu.submit(
            lambda commands: vk.vkCmdFillBuffer(commands, self.buffer, 0, self.size, word), wait=wait, signal=signal
        )

    def read(self, offset: int = 0, count: int | None = None, wait: At | None = None) -> bytes:
        """Its bytes, copied by the GPU."""
        length = self.size - offset if count is None else count
        with _Staging(self._gpu, length) as staging:
            part = [vk.VkBufferCopy(srcOffset=offset, dstOffset=0, size=length)]
            self._gpu.submit(
                lambda commands: vk.vkCmdCopyBuffer(commands, self.buffer, staging.buffer, 1, part), wait=wait
            )
            return staging.bytes()

    def write(self, offset: int, data: bytes, signal: At | None = None) -> None:
        """Put bytes into it, copied by the GPU."""
        with _Staging(self._gpu, len(data)) as staging:
            staging.put(data)
            part = [vk.VkBufferCopy(srcOffset=0, dstOffset=offset, size=len(data))]
            self._gpu.submit(
                lambda commands: vk.vkCmdCopyBuffer(commands, staging.buffer, self.buffer, 1, part), signal=signal
            )

    def free(self) -> None:
        """Give it back; descriptors and imports of it go on working. A second time does nothing."""
        if self.handle:
            vk.vkDestroyBuffer(self._gpu.device, self.buffer, None)
            vk.vkFreeMemory(self._gpu.device, self.handle, None)
            self.handle = None


class _Staging:
    """Memory that the CPU reads and writes."""

    def __init__(self, gpu: Gpu, size: int) -> None:
        self._gpu, self._size = gpu, size
        asked = vk.VkBufferCreateInfo(size=size, usage=_USES, sharingMode=vk.VK_SHARING_MODE_EXCLUSIVE)
        self.buffer = vk.vkCreateBuffer(gpu.device, asked, None)
        needs = vk.vkGetBufferMemoryRequirements(gpu.device, self.buffer)
        kind = gpu.memory_type(needs.memoryTypeBits, _VISIBLE)
        whole = vk.VkMemoryAllocateInfo(allocationSize=needs.size, memoryTypeIndex=kind)
        self._memory = vk.vkAllocateMemory(gpu.device, whole, None)
        vk.vkBindBufferMemory(gpu.device, self.buffer, self._memory, 0)

    def __enter__(self) -> Self:
        return self

    def put(self, data: bytes) -> None:
        mapped = vk.vkMapMemory(self._gpu.device, self._memory, 0, self._size, 0)
        mapped[: len(data)] = data
        vk.vkUnmapMemory(self._gpu.device, self._memory)

    def bytes(self) -> bytes:
        mapped = vk.vkMapMemory(self._gpu.device, self._memory, 0, self._size, 0)
        try:
            return bytes(mapped)
        finally:
            vk.vkUnmapMemory(self._gpu.device, self._memory)

    def __exit__(self, *_: object) -> None:
        vk.vkDestroyBuffer(self._gpu.device, self.buffer, None)
        vk.vkFreeMemory(self._gpu.device, self._memory, None)
