"""What a driver's error most likely means: the fact or rule that was broken, and what to do.

A cause may name what the failed step was about: its `{subject}`, `{where}` that is, and how many `{bytes}` it has.
"""

from __future__ import annotations

from typing import NamedTuple

from memtopo.common.units import exact
from memtopo.driver.types import DriverError
from memtopo.kinds.steps import StepDescription


class Diagnosis(NamedTuple):
    """The likely cause, with its number in `docs/driver-facts.md`, and what to do."""

    cause: str | None
    advice: str


_PROBE = "'memtopo probe' shows what works here"
_REPORT = "'memtopo validate' should have found this: please report it, with the spec"

_KNOWN: dict[tuple[str, str], Diagnosis] = {
    ("cuMemAddressReserve", "OUT_OF_MEMORY"): Diagnosis(
        "addresses are meant, not memory: 64 TiB can be reserved, 128 TiB cannot (fact 9)",
        "make the ranges smaller, or give back what this process has reserved",
    ),
    ("cuMemAddressReserve", "INVALID_VALUE"): Diagnosis(
        "a size must be a multiple of the granularity, an alignment a power of two (facts 9, 10)", _REPORT
    ),
    ("cuMemAddressFree", "INVALID_VALUE"): Diagnosis(
        "a range cannot be freed while anything is mapped inside (fact 12)", "see which mapping could not be undone"
    ),
    ("cuMemCreate", "NOT_PERMITTED"): Diagnosis(
        "a fabric handle needs an IMEX channel, also where it is advertised (fact 4)",
        f"use 'handles: [fd]', or have the administrator set up IMEX; {_PROBE}",
    ),
    ("cuMemCreate", "INVALID_VALUE"): Diagnosis(
        "size and properties must be what the device takes (facts 3, 6)", _PROBE
    ),
    ("cuMemCreate", "INVALID_DEVICE"): Diagnosis(
        "the device is not there for this process (fact 3)", "look at CUDA_VISIBLE_DEVICES"
    ),
    ("cuMemMap", "NOT_SUPPORTED"): Diagnosis(
        "only a whole chunk can be mapped: an imported one is not of the size that was declared (facts 13, 28)",
        "declare the size that the exporter created it with",
    ),
    ("cuMemMap", "INVALID_VALUE"): Diagnosis(
        "something is mapped there already, perhaps from a range before it that was run past (facts 14, 15)",
        "see whether other code in this process maps memory",
    ),
    ("cuMemSetAccess", "NOT_SUPPORTED"): Diagnosis(
        "one of the devices cannot access the other's memory (fact 20)", f"grant it to peers alone; {_PROBE}"
    ),
    ("cuMemSetAccess", "ALREADY_MAPPED"): Diagnosis(
        "a mapping runs past its range, into what the context uses (fact 15)", _REPORT
    ),
    ("cuMemSetAccess", "INVALID_VALUE"): Diagnosis(
        "access is for whole mappings without a hole (fact 20)", _REPORT
    ),
    ("cuMemExportToShareableHandle", "INVALID_VALUE"): Diagnosis(
        "the chunk was created without that handle type, or is itself imported (fact 26)", _REPORT
    ),
    ("cuMemImportFromShareableHandle", "UNKNOWN"): Diagnosis(
        "what was handed over is no handle of this driver's (fact 27)", "see what the exporter sends"
    ),
    ("cuIpcOpenMemHandle", "INVALID_CONTEXT"): Diagnosis(
        "a handle cannot be opened in the process that made it (fact 31)", "import it in another process"
    ),
    ("cuIpcOpenMemHandle", "INVALID_HANDLE"): Diagnosis(
        "the exporter has ended (fact 46)", "keep it alive for as long as its memory is used"
    ),
    ("cuIpcOpenMemHandle", "INVALID_VALUE"): Diagnosis(
        "the exporter has freed the memory (fact 46)", "keep it allocated for as long as it is used"
    ),
    ("cuIpcOpenEventHandle", "MAP_FAILED"): Diagnosis(
        "what was handed over is no event (fact 47)", "see what the exporter sends"
    ),
    ("cuIpcGetEventHandle", "INVALID_HANDLE"): Diagnosis(
        "the event was created for one process (facts 32, 47)", _REPORT
    ),
    ("cuImportExternalMemory", "UNKNOWN"): Diagnosis(
        "what was handed over for {subject} is no descriptor of external memory, or of another GPU than {where} "
        "(facts 54, 55)",
        "see what the producer hands over, and on which GPU it allocated that",
    ),
    ("cuExternalMemoryGetMappedBuffer", "INVALID_VALUE"): Diagnosis(
        "{subject} is smaller than the {bytes} that the spec declares (fact 53)",
        "declare the size that the producer allocated it with",
    ),
    ("cuImportExternalSemaphore", "UNKNOWN"): Diagnosis(
        "what was handed over for {subject} is no semaphore's descriptor (fact 54)", "see what the producer hands over"
    ),
    ("cuMemAdvise", "INVALID_DEVICE"): Diagnosis(
        "{where} cannot use managed memory while the CPU does (fact 60)", "leave out what is advised for that GPU"
    ),
    ("cuMemPrefetchAsync", "INVALID_DEVICE"): Diagnosis(
        "{where} cannot use managed memory while the CPU does (fact 60)", "leave 'prefetch' out"
    ),
    ("cuMemcpyHtoD", "INVALID_VALUE"): Diagnosis(
        "the device has no write access there (fact 23)", "compare the checks of access above"
    ),
    ("cuMemcpyDtoH", "INVALID_VALUE"): Diagnosis(
        "the device has no access there (fact 23)", "compare the checks of access above"
    ),
}  # fmt: skip

_ANYWHERE: dict[str, Diagnosis] = {
    "ILLEGAL_ADDRESS": Diagnosis(
        "a kernel of this process went where it may not, and every later call fails (fact 24)",
        "run the program that uses the memory under compute-sanitizer",
    ),
    "OUT_OF_MEMORY": Diagnosis(None, "something else uses the device's memory: nvidia-smi names the processes"),
    "NOT_PERMITTED": Diagnosis(None, f"the process lacks a permission: {_PROBE}"),
    "NOT_SUPPORTED": Diagnosis(None, f"the device or driver cannot do this: {_PROBE}"),
    "INVALID_CONTEXT": Diagnosis("no context of a GPU is current (fact 8)", "see whether other code pops contexts"),
    "CONTEXT_IS_DESTROYED": Diagnosis(
        "the primary context was released or reset under this run (fact 8)", "see whether other code resets the device"
    ),
    "INVALID_PTX": Diagnosis(None, "the driver is too old for the kernels: they want one of CUDA 11 or later"),
    "UNSUPPORTED_PTX_VERSION": Diagnosis(None, "the driver is too old for the kernels: they want CUDA 11 or later"),
    "ECC_UNCORRECTABLE": Diagnosis(None, "the GPU's memory is damaged: see 'nvidia-smi -q -d ECC'"),
}


def diagnose(error: DriverError, reading: StepDescription | None = None) -> Diagnosis | None:
    """What most likely lies behind an error of what reads so in a plan; None where nothing is known of it."""
    name = error.name.removeprefix("CUDA_ERROR_")
    found = _KNOWN.get((error.call, name)) or _ANYWHERE.get(name)
    if found is None or found.cause is None:
        return found
    about = reading or StepDescription("it", "its own")
    size = exact(about.bytes_each) if about.bytes_each else "size"
    return found._replace(cause=found.cause.format(subject=about.subject, where=about.where, bytes=size))
