"""Machines that stand for one that is not known: what both of them have alike depends on no machine.

They can do everything, and differ in what arithmetic and choices depend on: granularities, memory, the number of GPUs,
and the trials that alternatives are chosen by. They are no records, have no names, and nothing is planned or simulated
on them.
"""

from __future__ import annotations

from functools import cache
from itertools import combinations

from memtopo.driver.types import Attribute, HandleType
from memtopo.machine.records import (
    Device,
    DriverFacts,
    Fabric,
    Granularity,
    HostMemory,
    Machine,
    Memory,
    Peer,
    Trial,
)

_WORKS, _FAILS = Trial.model_construct(works=True), Trial.model_construct(works=False)
_NODES = 16
_ABSENT = (Attribute.INTEGRATED, Attribute.HOST_NUMA_ID)


@cache
def large_machine() -> Machine:
    """Return a machine with more GPUs than a spec names, large granularities and much memory; fabric works."""
    return _machine(gpus=72, granule=2 << 20, gpu_bytes=1 << 40, host_bytes=1 << 46, fabric=_WORKS)


@cache
def small_machine(gpus: int) -> Machine:
    """Return a machine with some GPUs, small granularities and little memory; fabric does not work."""
    return _machine(gpus=gpus, granule=64 << 10, gpu_bytes=24 << 30, host_bytes=1 << 43, fabric=_FAILS)


def _machine(*, gpus: int, granule: int, gpu_bytes: int, host_bytes: int, fabric: Trial) -> Machine:
    granularities = list(_granularities(granule))
    trials = {"multicast": _WORKS, "fd": _WORKS, "fabric": fabric}
    device = Device.model_construct(
        name="GPU",
        compute_capability=(9, 0),
        memory_bytes=gpu_bytes,
        attributes={each.name: int(each not in _ABSENT) for each in Attribute} | {"MEMPOOL_SUPPORTED_HANDLE_TYPES": 9},
        memory=Memory.model_construct(granularity=granularities, trials=trials),
        fabric=Fabric.model_construct(cluster="assumed", clique=0),
    )
    peer = Peer.model_construct(access=True, native_atomics=True)
    node = HostMemory.model_construct(granularity=granularities, trials=trials, memory_bytes=host_bytes // _NODES)
    host = HostMemory.model_construct(granularity=granularities, trials=trials, memory_bytes=None)
    return Machine.model_construct(
        driver=DriverFacts.model_construct(cuda="13.0"),
        devices=[device] * gpus,
        peers=[[None if a == b else peer for b in range(gpus)] for a in range(gpus)],
        host={"host": host} | {f"host:{number}": node for number in range(_NODES)},
        host_bytes=host_bytes,
    )


def _granularities(granule: int) -> list[Granularity]:
    words = [str(kind.name).lower() for kind in HandleType if kind]
    return [
        Granularity.model_construct(
            handles=[*handles], rdma=rdma, compressible=compressible, minimum=granule, recommended=granule
        )
        for count in range(len(words) + 1)
        for handles in combinations(words, count)
        for rdma in (False, True)
        for compressible in (False, True)
    ]
