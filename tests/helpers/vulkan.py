"""Availability of Vulkan on the GPU under test."""

from __future__ import annotations

from functools import cache

from memtopo.drivers.target import external_api


@cache
def why_unavailable(uuid: bytes) -> str:
    """Reason for which Vulkan cannot allocate on the GPU with this UUID, or an empty string."""
    try:
        with external_api(simulated=False)(uuid):
            return ""
    except ImportError as error:
        return f"needs the package vulkan, and libvulkan: {error}"
    except (OSError, LookupError) as error:
        return f"no Vulkan driver works on this GPU: {error}"
    except Exception as error:
        if not type(error).__module__.startswith("vulkan"):
            raise
        return f"no Vulkan driver works on this GPU: {type(error).__name__}"
