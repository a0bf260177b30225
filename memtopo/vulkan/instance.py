"""A Vulkan instance, and what is asked of its physical devices."""

from __future__ import annotations

from typing import Any

import vulkan as vk

_EXTENSIONS = ["VK_KHR_external_memory_fd", "VK_KHR_external_semaphore_fd"]
_LAYER = "VK_LAYER_KHRONOS_validation"


def instance(*, validation: bool) -> Any:
    """An instance of Vulkan 1.2, with its validation layer or without."""
    asked = vk.VkApplicationInfo(apiVersion=vk.VK_MAKE_VERSION(1, 2, 0))
    layers, extensions = ([_LAYER], ["VK_EXT_debug_utils"]) if validation else ([], [])
    info = vk.VkInstanceCreateInfo(
        pApplicationInfo=asked, ppEnabledLayerNames=layers, ppEnabledExtensionNames=extensions
    )
    return vk.vkCreateInstance(info, None)


def uuid_of(physical: Any) -> bytes:
    """What names a GPU in every API (fact 38)."""
    # By hand: the package's own wrapper hands back no chained structure.
    identity = vk.ffi.new("VkPhysicalDeviceIDProperties*")
    identity.sType = vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES
    properties = vk.ffi.new("VkPhysicalDeviceProperties2*")
    properties.sType, properties.pNext = vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, identity
    vk.lib.vkGetPhysicalDeviceProperties2(physical, properties)
    return bytes(vk.ffi.buffer(identity.deviceUUID))


def family_of(physical: Any) -> int:
    """A family of queues that can copy."""
    wanted = vk.VK_QUEUE_COMPUTE_BIT | vk.VK_QUEUE_GRAPHICS_BIT
    families = vk.vkGetPhysicalDeviceQueueFamilyProperties(physical)
    return next(index for index, family in enumerate(families) if family.queueFlags & wanted)


def device_on(physical: Any, family: int) -> Any:
    """A device with one queue, timelines, and what shares memory and semaphores by descriptors."""
    queue = vk.VkDeviceQueueCreateInfo(queueFamilyIndex=family, pQueuePriorities=[1.0])
    timelines = vk.VkPhysicalDeviceTimelineSemaphoreFeatures(timelineSemaphore=1)
    info = vk.VkDeviceCreateInfo(pNext=timelines, pQueueCreateInfos=[queue], ppEnabledExtensionNames=_EXTENSIONS)
    return vk.vkCreateDevice(physical, info, None)
