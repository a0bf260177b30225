"""What another API made, such as Vulkan: memory, and semaphores that order its work and CUDA's."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field, ValidationInfo, field_validator

from memtopo.common.units import Size
from memtopo.diagnostics.model import InvalidValue
from memtopo.kinds.entries.base import Entry
from memtopo.language.fields import (
    Boolean,
    DeviceName,
    MemoryKind,
    OffsetBytes,
    OwnName,
    Point,
    PositiveBytes,
    ProducerText,
    SemaphoreKind,
)

_FROM = "camera for the export of the entry's own name, camera/frame of another, or /path/to/socket/frame."


def _where(via: str, each: dict[str, Any]) -> dict[str, Any]:
    """The schema of what a semaphore of one kind waits for and signals."""
    return {
        "if": {"properties": {"via": {"const": via}}},
        "then": {"properties": dict.fromkeys(("wait", "signal"), each)},
    }


class ExternalPart(Entry):
    """A part of an external object that is mapped as a buffer of its own, in bytes; parts may overlap."""

    offset: OffsetBytes = Field(default=Size(0), description="Where in the object the part begins.")
    size: PositiveBytes = Field(description="Bytes of the part.")


class External(Entry):
    """Memory that another API allocated."""

    source: ProducerText = Field(alias="from", description=_FROM)
    via: MemoryKind = Field(description="How it is handed out: opaque_fd. The others are refused where CUDA cannot.")
    device: DeviceName = Field(description="The GPU whose memory it is, told by its UUID.")
    size: PositiveBytes = Field(description="Bytes of the whole object, as its API allocated it.")
    dedicated: Boolean = Field(default=False, description="Whether it was allocated for one image or buffer alone.")
    buffers: dict[OwnName, ExternalPart] = Field(
        default={}, description="Parts with an address of their own: y: {offset: 0, size: 4MiB} becomes frame.y."
    )


class Semaphore(Entry):
    """A semaphore that another API made. Waits and signals happen in the check."""

    model_config = ConfigDict(
        json_schema_extra={"allOf": [_where("timeline_fd", {"type": "integer"}), _where("opaque_fd", {"const": True})]}
    )

    source: ProducerText = Field(alias="from", description=_FROM)
    via: SemaphoreKind = Field(description="timeline_fd, or opaque_fd of a binary one.")
    device: DeviceName = Field(description="The GPU whose stream waits and signals.")
    wait: Point | None = Field(default=None, description="The value that is waited for; of a binary one, true.")
    signal: Point | None = Field(default=None, description="The value that is signalled then; of a binary one, true.")

    @field_validator("wait", "signal")
    @classmethod
    def _of_its_kind(cls, value: int | Literal[True] | None, info: ValidationInfo) -> int | Literal[True] | None:
        via, key = info.data.get("via"), info.field_name
        if via == "timeline_fd" and value is True:
            told = "a timeline semaphore has values, and 'true' is none"
            raise InvalidValue("MT103", told, help=f"write '{key}: 1', or 'via: opaque_fd' of a binary semaphore")
        if via == "opaque_fd" and value is not None and value is not True:
            told = f"a binary semaphore has no values, found {value}"
            raise InvalidValue("MT103", told, help=f"write '{key}: true', or 'via: timeline_fd' of a timeline")
        return value
