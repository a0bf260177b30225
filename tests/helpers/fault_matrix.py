"""Matrix of faults of a driver: what a fast and a full check find of each, as `docs/verification.md` prints it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

from memtopo.driver.kernels import KernelDriver
from memtopo.driver.ledger import Ledger
from memtopo.drivers.sim import SimDriver
from memtopo.plans.report import Check, Report
from memtopo.run.apply import apply
from tests.helpers import faults
from tests.helpers.faults import Faulty
from tests.helpers.lockstep import apply_together
from tests.helpers.machines import invented, with_multicast
from tests.helpers.resource_strategies import shared_file
from tests.helpers.specs import ROOT, run_request, server_and_readers

MEMORY = """
ranges: {kv: {size: 32MiB, align: 4MiB}, view: {size: 2MiB}}
chunks:
  hot: {location: gpu0, size: 2MiB, handles: fd}
  cold: {location: gpu0, size: 2MiB}
  long: {location: gpu1, size: 6MiB, compressible: true}
  far: {location: gpu1, size: 2MiB, rdma: true}
map: {kv: [hot, {chunk: long, offset: 2MiB}, cold, {chunk: far, offset: 26MiB}], view: hot}
access:
  kv:
    - {offset: 0, size: 8MiB, grant: {gpu0: rw, gpu1: rw}}
    - {offset: 8MiB, size: 24MiB, grant: {gpu0: rw}}
  view: {gpu0: r}
"""
FIXED = """
ranges: {kv: {size: 2MiB, address: 0x200000000000, fixed: true}}
chunks: {hot: {location: gpu0, size: 2MiB}}
map: {kv: hot}
access: {kv: {gpu0: rw}}
"""
HOST = """
ranges: {private: {size: 2MiB}, peer: {size: 2MiB}}
chunks: {h: {location: host, size: 2MiB}, p: {location: host, size: 2MiB}}
map: {private: h, peer: p}
access: {private: {gpu0: rw}, peer: {gpu1: rw}}
"""
BUFFERS = "buffers: {b: {location: gpu0, size: 4MiB, count: 2}, c: {location: gpu1, size: 8MiB}}\n"
MANAGED = """
managed:
  m: {size: 2MiB, prefer: gpu0, accessed_by: [gpu1], read_mostly: true, prefetch: gpu0}
  s: {size: 2MiB, attach: single}
"""
POOLS = """
pools: {p: {location: gpu0, max_size: 64MiB, release_threshold: 2MiB, accessed_by: gpu1}, q: {location: gpu1}}
allocations: {a: {pool: p, size: 8MiB, count: 2}, b: {pool: q, size: 64KiB}}
"""
PINNED = f"""
pinned:
  p: {{size: 2MiB, count: 2, accessed_by: [gpu0, gpu1]}}
  c: {{size: 64KiB, write_combined: true}}
  f: {{file: /proc/{os.getpid()}/fd/{shared_file()}, size: 64KiB, count: 2, accessed_by: [gpu0, gpu1]}}
"""
EVENTS = "events: {e: {device: gpu0}}\n"
SHARED = server_and_readers(2, access="gpu1: rw")
LENT = """
processes:
  server:
    pools: {p: {location: gpu0, handles: fd}}
    allocations: {a: {pool: p, size: 2MiB, count: 3}}
    exports: {a: {allocation: a, via: fd}}
  reader:
    imports: {a: {from: server.a, accessed_by: gpu1}}
"""
NIC = """
ranges: {kv: {size: 4MiB}, one: {size: 2MiB}}
chunks: {page: {location: gpu0, size: 2MiB, count: 2}, w: {location: gpu1, size: 2MiB, parts: {a: 4KiB, b: rest}}}
map: {kv: page, one: w}
access: {kv: {gpu0: rw}, one: {gpu1: rw}}
buffers: {b: {location: gpu0, size: 1MiB}}
exports:
  kv: {range: kv, via: dmabuf}
  pages: {chunk: page.1, via: dmabuf}
  a: {chunk: w, part: a, via: dmabuf}
  b: {buffer: b, via: dmabuf}
"""
TEAM = """
chunks: {part: {location: [gpu0, gpu1], size: 2MiB, count: 2}}
multicast: {team: {devices: gpus, size: 2MiB}, other: {devices: gpus, size: 2MiB}}
bind: {team: part, other: part}
ranges: {uc: {size: 4MiB}, mc: {size: 2MiB}, o: {size: 2MiB}}
map: {uc: part, mc: team, o: other}
access: {uc: {gpus: rw}, mc: {gpus: rw}, o: {gpus: rw}}
"""


NAMES = {
    MEMORY: "memory", FIXED: "a fixed address", HOST: "host memory", BUFFERS: "buffers", MANAGED: "managed memory",
    PINNED: "pinned memory",
    POOLS: "pools", EVENTS: "events", SHARED: "processes", LENT: "imported allocations", NIC: "dma-bufs",
    TEAM: "multicast",
}  # fmt: skip
"""Names of the specs, in the keys of the golden file and the identifiers of tests."""

DIFFERENCES = ROOT / "tests" / "golden" / "faults.json"
"""First difference of each aspect that a check finds of each fault."""

LEAK, FAILURE = "a leak", "a failed call"


class Outcome(NamedTuple):
    """Aspects that differ, as the matrix writes them, the exit code, and the first difference of each aspect.

    A difference is its subject, the wanted and the seen value, and the path of its entry.
    """

    found: str
    exit_code: int
    first: Mapping[str, Sequence[str]]


class Fault(NamedTuple):
    """A fault, by the text that the documents have for it, and the aspects in which each check finds a difference.

    The aspects are empty where a check finds nothing. `process` is the one whose driver has the fault, in a layout of
    several.
    """

    text: str
    driver: Callable[[KernelDriver], Faulty]
    spec: str
    fast: str
    full: str
    process: str = ""

    def key(self, check: Check) -> str:
        """Name of the fault with its spec and a check, unique in the matrix."""
        return f"{self.driver.__name__} of {NAMES[self.spec]}, {check}"

    def run(self, check: Check) -> Outcome:
        """Outcome of the layout on the driver with the fault; the exit code is the highest of several processes."""
        reports = list(self._reports(check))
        aspects = {each.aspect for report in reports if report.checks for each in report.checks.differences}
        if any(report.leaks for report in reports):
            aspects.add(LEAK)
        if any(report.outcome == "failed" for report in reports):
            aspects.add(FAILURE)
        first: dict[str, list[str]] = {}
        for each in (each for report in reports if report.checks for each in report.checks.differences):
            first.setdefault(each.aspect, [each.subject, each.wanted, each.seen, "/".join(map(str, each.path))])
        return Outcome(", ".join(sorted(aspects)), max(report.exit_code for report in reports), first)

    def _reports(self, check: Check) -> Iterator[Report]:
        machine = with_multicast(invented(2))
        if self.process:
            yield from apply_together(self.spec, machine, check, {self.process: self.driver}).values()
            return
        with SimDriver(machine) as driver:
            driver.init()
            with closing(self.driver(driver)) as faulty:
                yield apply(run_request(self.spec, machine, check), Ledger(faulty))


MATRIX = (
    Fault("a chunk is created on another GPU", faults.CreatesElsewhere, MEMORY,
          "free memory, properties", "free memory, properties"),
    Fault("the same, and the query denies it", faults.CreatesElsewhereSilently, MEMORY, "free memory", "free memory"),
    Fault("a chunk of a GPU is created on the host, and the query denies it", faults.CreatesOnHostSilently, MEMORY,
          "end of range, free memory", "end of range, free memory"),
    Fault("handle types are lost", faults.LosesHandleTypes, MEMORY, "properties", "properties"),
    Fault("`rdma` is lost", faults.LosesRdma, MEMORY, "properties", "properties"),
    Fault("`compressible` is lost", faults.LosesCompression, MEMORY, "properties", "properties"),
    Fault("two chunks share memory", faults.SharesMemoryOfChunks, MEMORY, "bytes", "every byte"),
    Fault("an alignment is ignored", faults.IgnoresAlignment, MEMORY, "alignment", "alignment"),
    Fault("a fixed address is ignored", faults.IgnoresAddress, FIXED, "address", "address"),
    Fault("two chunks are mapped in place of each other", faults.SwapsMappings, MEMORY,
          "bytes, mapped chunk", "every byte, mapped chunk"),
    Fault("the same, and the query denies it", faults.SwapsMappingsSilently, MEMORY, "bytes", "every byte"),
    Fault("one chunk is mapped in place of another", faults.MapsFirstInPlaceOfSecond, MEMORY,
          "bytes, mapped chunk", "every byte, mapped chunk"),
    Fault("a chunk is mapped at another offset", faults.MapsOneGranuleFurther, MEMORY,
          "hole, mapped chunk, permitted", "hole, mapped chunk, permitted"),
    Fault("a chunk is not mapped", faults.MapsNothing, MEMORY, "mapped chunk, permitted", "mapped chunk, permitted"),
    Fault("something is mapped at the end of a hole", faults.MapsNextToIt, MEMORY, "hole", "hole"),
    Fault("something is mapped in the middle of a hole", faults.MapsIntoHole, MEMORY, "hole", "hole"),
    Fault("a hole is reported as mapped", faults.ReportsHolesAsMapped, MEMORY, "hole", "hole"),
    Fault("the last mapping exceeds its range", faults.ReportsLongerMappings, MEMORY, "end of range", "end of range"),
    Fault("a GPU is granted access that was not requested", faults.GrantsTooMuch, MEMORY, "access", "access"),
    Fault("the same, and the query denies it", faults.GrantsTooMuchSilently, MEMORY, "", "every byte, refused"),
    Fault("read access is granted in place of read and write access", faults.GrantsReadingOnly, MEMORY,
          "access", "access"),
    Fault("the same, and the query denies it", faults.GrantsReadingOnlySilently, MEMORY, "permitted", "permitted"),
    Fault("no access is granted", faults.GrantsNothing, MEMORY, "access", "access"),
    Fault("the same, and the query denies it", faults.GrantsNothingSilently, MEMORY, "permitted", "permitted"),
    Fault("access is granted to the first of several mappings alone", faults.GrantsFirstMappingOnly, MEMORY,
          "access", "access"),
    Fault("the driver fills memory for a GPU without access", faults.RefusesNothing, MEMORY, "", "refused"),
    Fault("a GPU is granted access to host memory that was not requested", faults.GrantsTooMuch, HOST,
          "access", "access"),
    Fault("the same, and the query denies it", faults.GrantsTooMuchSilently, HOST, "", "every byte, refused"),
    Fault("a GPU is granted read access to host memory, and the query denies it", faults.GrantsReadingSilently, HOST,
          "", ""),
    Fault("the host is granted access that was not requested", faults.GrantsTheHost, HOST, "access", "access"),
    Fault("the same, and the query denies it", faults.GrantsTheHostSilently, HOST, "", ""),
    Fault("no access to host memory is granted", faults.GrantsNothing, HOST, "access", "access"),
    Fault("the same, and the query denies it", faults.GrantsNothingSilently, HOST, "permitted", "permitted"),
    Fault("a copy to memory is lost", faults.LosesWrite, MEMORY, "bytes", ""),
    Fault("half of each write is lost", faults.LosesSecondHalf, MEMORY, "bytes", "every byte"),
    Fault("writes to the middle of a chunk are lost", faults.LosesMiddleGranule, MEMORY, "", "every byte"),
    Fault("stores of one GPU are lost", faults.LosesFillsOfOneGpu, MEMORY, "", "every byte"),
    Fault("stores to one chunk change another", faults.StoresIntoFirstMapping, MEMORY, "", "every byte"),
    Fault("a copy from memory has a wrong bit", faults.FlipsBit, MEMORY, "bytes", ""),
    Fault("a kernel reads a wrong word once", faults.FlipsBitOnce, MEMORY, "", "every byte"),
    Fault("stores of the CPU are lost", faults.LosesStoresOfCpu, MANAGED, "both sides", "both sides"),
    Fault("a buffer is smaller than requested", faults.AllocatesLess, BUFFERS,
          "buffer, free memory, permitted", "buffer, free memory, permitted"),
    Fault("two buffers share memory", faults.AllocatesOneBuffer, BUFFERS,
          "bytes, free memory", "every byte, free memory"),
    Fault("a buffer is on another GPU", faults.AllocatesOnOtherGpu, BUFFERS, "buffer", "buffer, permitted"),
    Fault("managed memory is smaller than requested", faults.AllocatesLess, MANAGED, "a failed call", "a failed call"),
    Fault("managed memory is memory of the GPU", faults.AllocatesDeviceMemory, MANAGED,
          "accessed by, both sides, managed, preferred, prefetched, read mostly",
          "accessed by, managed, permitted, preferred, prefetched, read mostly"),
    Fault("advice is ignored", faults.IgnoresAdvice, MANAGED,
          "accessed by, preferred, read mostly", "accessed by, preferred, read mostly"),
    Fault("a prefetch is ignored", faults.IgnoresPrefetch, MANAGED, "prefetched", "prefetched"),
    Fault("managed memory is attached to all streams in place of one", faults.AttachesGlobally, MANAGED, "", ""),
    Fault("managed memory is not attached to its stream", faults.AttachesNothing, MANAGED, "", ""),
    Fault("an allocation of a pool is smaller than requested", faults.AllocatesLess, POOLS,
          "allocation, permitted", "allocation, permitted"),
    Fault("allocations of a pool share memory", faults.AllocatesOnce, POOLS, "bytes", "every byte"),
    Fault("a pool is on another GPU", faults.CreatesPoolElsewhere, POOLS,
          "allocation, permitted, pool access", "allocation, permitted, pool access"),
    Fault("attributes of a pool are ignored", faults.IgnoresPoolAttributes, POOLS, "pool", "pool"),
    Fault("access to a pool is ignored", faults.IgnoresPoolAccess, POOLS,
          "permitted, pool access", "permitted, pool access"),
    Fault("the same, and the query denies it", faults.IgnoresPoolAccessSilently, POOLS, "permitted", "permitted"),
    Fault("an allocation of a pool is not freed", faults.KeepsPoolAllocations, POOLS, "", ""),
    Fault("pinned memory is smaller than requested", faults.PinsLess, PINNED, "permitted, pinned", "permitted, pinned"),
    Fault("two pinned allocations share memory", faults.PinsOnce, PINNED, "bytes", "every byte"),
    Fault("flags of pinned memory are lost", faults.PinsWithoutFlags, PINNED, "flags", "flags"),
    Fault("pinned memory has another address for a GPU", faults.PinsElsewhere, PINNED,
          "device address", "device address"),
    Fault("stores of the CPU to pinned memory are lost", faults.LosesStoresOfCpu, PINNED, "", "both sides"),
    Fault("fills of pinned memory are lost", faults.LosesFills, PINNED, "both sides", "both sides, every byte"),
    Fault("a GPU loads other bytes than a registered file has", faults.LoadsOtherBytes, PINNED, "", "shared file"),
    Fault("an event is not recorded", faults.RecordsNoEvent, EVENTS, "", ""),
    Fault("an event does not complete", faults.CompletesNoEvent, EVENTS, "event", "event"),
    Fault("an export gives another chunk", faults.ExportsAnotherChunk, SHARED, "bytes", "every byte", "server"),
    Fault("an import gives other memory", faults.ImportsAnotherChunk, SHARED, "bytes", "every byte", "reader"),
    Fault("all imports give the memory of the first", faults.ImportsOneChunk, SHARED, "bytes", "every byte", "reader"),
    Fault("an imported chunk is on another GPU", faults.ImportsFromOtherGpu, SHARED, "imported", "imported", "reader"),
    Fault("an export gives another allocation of a pool", faults.ExportsAnotherAllocation, LENT,
          "bytes", "every byte", "server"),
    Fault("an import of an allocation gives other memory", faults.ImportsAnotherAllocation, LENT,
          "bytes", "permitted", "reader"),
    Fault("all imports give the first allocation", faults.ImportsOneAllocation, LENT, "bytes", "every byte", "reader"),
    Fault("a dma-buf is shorter than requested", faults.ExportsShorterDmaBuf, NIC, "dma-buf", "dma-buf"),
    Fault("a dma-buf is of another chunk", faults.ExportsAnotherDmaBuf, NIC, "", ""),
    Fault("a dma-buf stays open", faults.KeepsDmaBufOpen, NIC, "a leak", "a leak"),
    Fault("a GPU is not added to a multicast team", faults.AddsNothing, TEAM, "a failed call", "a failed call"),
    Fault("memory is not bound to a multicast object", faults.BindsNothing, TEAM, "a leak", "a leak"),
    Fault("a range maps another multicast object", faults.MapsFirstObject, TEAM, "mapped chunk", "mapped chunk"),
    Fault("memory stays bound to a multicast object", faults.UnbindsNothing, TEAM, "", ""),
    Fault("a mapping is not unmapped", faults.UnmapsNothing, MEMORY, "a leak", "a leak"),
    Fault("a chunk keeps a reference after its release", faults.KeepsChunk, MEMORY, "", ""),
    Fault("a reservation is not freed", faults.KeepsAddresses, MEMORY, "", ""),
    Fault("a buffer is not freed", faults.KeepsBuffers, BUFFERS, "", ""),
    Fault("pinned memory is not freed", faults.KeepsPinned, PINNED, "", ""),
    Fault("registered memory is not unregistered", faults.KeepsRegistered, PINNED, "", ""),
)  # fmt: skip


def table() -> str:
    """Matrix as a table of Markdown."""
    head = ["| fault | fast | full |", "|---|---|---|"]
    rows = (f"| {fault.text} | {fault.fast or '–'} | {fault.full or '–'} |" for fault in MATRIX)
    return "\n".join([*head, *rows]) + "\n"


def main() -> None:
    """Write the first differences of all faults anew."""
    checks: tuple[Check, ...] = ("fast", "full")
    found = {fault.key(check): fault.run(check).first for fault in MATRIX for check in checks}
    DIFFERENCES.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
