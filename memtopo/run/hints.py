"""Likely causes of driver errors, with the fact that explains each, and what to do about them.

A cause may have the placeholders `{subject}`, `{where}` and `{bytes}`, filled from the description of the failed step.
"""

from __future__ import annotations

from typing import NamedTuple

from memtopo.common.units import exact
from memtopo.driver.types import DriverError
from memtopo.kinds.step import StepDescription


class ErrorHint(NamedTuple):
    """Likely cause of an error, with the number of the fact in `docs/driver-facts.md`, and what to do."""

    cause: str | None
    advice: str


_PROBE = "'memtopo probe' shows what works here"
_REPORT = "'memtopo validate' should have found this: please report it, with the spec"

_BY_CALL: dict[tuple[str, str], ErrorHint] = {
    ("cuMemAddressReserve", "OUT_OF_MEMORY"): ErrorHint(
        "this is about addresses, not memory: 64 TiB can be reserved, 128 TiB cannot (fact 9)",
        "make the ranges smaller, or give back what this process has reserved",
    ),
    ("cuMemAddressReserve", "INVALID_VALUE"): ErrorHint(
        "a size must be a multiple of the granularity, an alignment a power of two (facts 9, 10)", _REPORT
    ),
    ("cuMemAddressFree", "INVALID_VALUE"): ErrorHint(
        "a range cannot be freed while anything is mapped inside (fact 12)", "see which mapping could not be undone"
    ),
    ("cuMemCreate", "NOT_PERMITTED"): ErrorHint(
        "a fabric handle needs an IMEX channel, also where it is advertised (fact 4)",
        f"use 'handles: [fd]', or have the administrator set up IMEX; {_PROBE}",
    ),
    ("cuMemCreate", "INVALID_VALUE"): ErrorHint(
        "size and properties must be ones that the device supports (facts 3, 6)", _PROBE
    ),
    ("cuMemCreate", "INVALID_DEVICE"): ErrorHint(
        "the device is not visible to this process (fact 3)", "see CUDA_VISIBLE_DEVICES"
    ),
    ("cuMemMap", "NOT_SUPPORTED"): ErrorHint(
        "only a whole chunk can be mapped: an imported one is not of the size that was declared (facts 13, 28)",
        "declare the size that the exporter created it with",
    ),
    ("cuMemMap", "INVALID_VALUE"): ErrorHint(
        "something is mapped there already, perhaps past the end of the range before it (facts 14, 15)",
        "see whether other code in this process maps memory",
    ),
    ("cuMemSetAccess", "NOT_SUPPORTED"): ErrorHint(
        "one of the devices cannot access the other's memory (fact 20)", f"grant it to peers alone; {_PROBE}"
    ),
    ("cuMemSetAccess", "ALREADY_MAPPED"): ErrorHint(
        "a mapping runs past its range, into what the context uses (fact 15)", _REPORT
    ),
    ("cuMemSetAccess", "INVALID_VALUE"): ErrorHint(
        "access is set for whole mappings without a hole (fact 20)", _REPORT
    ),
    ("cuMemExportToShareableHandle", "INVALID_VALUE"): ErrorHint(
        "the chunk was created without that handle type, or is itself imported (fact 26)", _REPORT
    ),
    ("cuMemImportFromShareableHandle", "UNKNOWN"): ErrorHint(
        "what was received is not a handle of this driver (fact 27)", "see what the exporter sends"
    ),
    ("cuIpcOpenMemHandle", "INVALID_CONTEXT"): ErrorHint(
        "a handle cannot be opened in the process that created it (fact 31)", "import it in another process"
    ),
    ("cuIpcOpenMemHandle", "INVALID_HANDLE"): ErrorHint(
        "the exporter has ended (fact 46)", "keep it alive for as long as its memory is used"
    ),
    ("cuIpcOpenMemHandle", "INVALID_VALUE"): ErrorHint(
        "the exporter has freed the memory (fact 46)", "keep it allocated for as long as it is used"
    ),
    ("cuIpcOpenEventHandle", "MAP_FAILED"): ErrorHint(
        "what was received is not an event (fact 47)", "see what the exporter sends"
    ),
    ("cuIpcGetEventHandle", "INVALID_HANDLE"): ErrorHint(
        "the event was created for one process (facts 32, 47)", _REPORT
    ),
    ("cuImportExternalMemory", "UNKNOWN"): ErrorHint(
        "what was received for {subject} is not a descriptor of external memory, or belongs to another GPU than "
        "{where} (facts 54, 55)",
        "see what the producer sends, and on which GPU it allocated it",
    ),
    ("cuExternalMemoryGetMappedBuffer", "INVALID_VALUE"): ErrorHint(
        "{subject} is smaller than the {bytes} that the spec declares (fact 53)",
        "declare the size that the producer allocated it with",
    ),
    ("cuImportExternalSemaphore", "UNKNOWN"): ErrorHint(
        "what was received for {subject} is not the descriptor of a semaphore (fact 54)", "see what the producer sends"
    ),
    ("cuMemAdvise", "INVALID_DEVICE"): ErrorHint(
        "{where} cannot use managed memory while the CPU does (fact 60)", "remove the advice for that GPU"
    ),
    ("cuMemPrefetchAsync", "INVALID_DEVICE"): ErrorHint(
        "{where} cannot use managed memory while the CPU does (fact 60)", "remove 'prefetch'"
    ),
    ("cuMemcpyHtoD", "INVALID_VALUE"): ErrorHint(
        "the device has no write access there (fact 23)", "compare the checks of access above"
    ),
    ("cuMemcpyDtoH", "INVALID_VALUE"): ErrorHint(
        "the device has no access there (fact 23)", "compare the checks of access above"
    ),
}  # fmt: skip

_BY_ERROR: dict[str, ErrorHint] = {
    "ILLEGAL_ADDRESS": ErrorHint(
        "a kernel of this process accessed memory that it may not access, and every later call fails (fact 24)",
        "run the program that uses the memory under compute-sanitizer",
    ),
    "OUT_OF_MEMORY": ErrorHint(None, "something else uses the device's memory: nvidia-smi names the processes"),
    "NOT_PERMITTED": ErrorHint(None, f"the process lacks a permission: {_PROBE}"),
    "NOT_SUPPORTED": ErrorHint(None, f"the device or driver cannot do this: {_PROBE}"),
    "INVALID_CONTEXT": ErrorHint("no context of a GPU is current (fact 8)", "see whether other code pops contexts"),
    "CONTEXT_IS_DESTROYED": ErrorHint(
        "the primary context was released or reset under this run (fact 8)", "see whether other code resets the device"
    ),
    "INVALID_PTX": ErrorHint(None, "the driver is too old for the kernels: they need CUDA 11 or later"),
    "UNSUPPORTED_PTX_VERSION": ErrorHint(None, "the driver is too old for the kernels: they need CUDA 11 or later"),
    "ECC_UNCORRECTABLE": ErrorHint(None, "the GPU's memory is damaged: see 'nvidia-smi -q -d ECC'"),
}


_HOST_MEMORY = ErrorHint(
    "the host, or this NUMA node, has too little free memory, or a control group limits it",
    "'free -h' and 'numactl --hardware' show the free memory",
)

_BY_ASPECT = {
    "address": "the addresses are in use in this process: choose others, or leave 'fixed' out (fact 11)",
}


def difference_hint(aspect: str) -> str | None:
    """Return what to do about a finding that is not as declared; None if there is no hint."""
    return _BY_ASPECT.get(aspect)


def error_hint(error: DriverError, step: StepDescription | None = None) -> ErrorHint | None:
    """Return the hint for an error of a driver call, by a step if one made it; None if there is none."""
    name = error.name.removeprefix("CUDA_ERROR_")
    found = _BY_CALL.get((error.call, name)) or _BY_ERROR.get(name)
    if name == "OUT_OF_MEMORY" and step and step.where.startswith("host"):
        return _HOST_MEMORY
    if found is None or found.cause is None:
        return found
    about = step or StepDescription("it", "its own")
    size = exact(about.bytes_each) if about.bytes_each else "size"
    return found._replace(cause=found.cause.format(subject=about.subject, where=about.where, bytes=size))
