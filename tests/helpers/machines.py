"""Invented machines, with any properties that a test needs."""

from __future__ import annotations

from itertools import product
from typing import Any

from memtopo.driver.types import Attribute, gpu
from memtopo.machine import (
    Cluster,
    Device,
    DriverFacts,
    Fabric,
    Granularity,
    HostMemory,
    Machine,
    Machines,
    Memory,
    Peer,
    Surroundings,
    Trial,
)
from memtopo.machine.queries import changed
from memtopo.probe.trial_table import STORE, PlannedTrial, advertised, planned_trials, recorded

HANDLES: tuple[list[str], ...] = ([], ["fd"], ["fabric"], ["fd", "fabric"])
WORKS = Trial(advertised=True, works=True)
TRIALS = {
    "fd": WORKS,
    "fabric": Trial(advertised=True, works=False, error="CUDA_ERROR_NOT_PERMITTED"),  # fact 4
    "win32": Trial(advertised=False, works=False, error="CUDA_ERROR_INVALID_VALUE"),  # fact 3
    "rdma": WORKS,
    "compressible": WORKS,
}
AROUND = Surroundings(
    container=False, wsl=False, imex_channels=0, ptrace_scope=1, open_files=1024, vulkan=False, bindings="13.3.1"
)
_ABSENT = (
    Attribute.INTEGRATED,
    Attribute.PAGEABLE_MEMORY_ACCESS,
    Attribute.HANDLE_TYPE_WIN32_HANDLE_SUPPORTED,
    Attribute.HANDLE_TYPE_WIN32_KMT_HANDLE_SUPPORTED,
    Attribute.MULTICAST_SUPPORTED,
    Attribute.NUMA_CONFIG,
    Attribute.HOST_NUMA_ID,
)
ATTRIBUTES = {
    **{attribute.name: int(attribute not in _ABSENT) for attribute in Attribute},
    "MULTIPROCESSOR_COUNT": 132,
    "COMPUTE_CAPABILITY_MAJOR": 9,
    "COMPUTE_CAPABILITY_MINOR": 0,
    "MEMPOOL_SUPPORTED_HANDLE_TYPES": 9,
    "NUMA_ID": -1,
}


def invented(
    gpus: int = 2,
    *,
    memory: int = 80 << 30,
    peers: bool = True,
    granule: int = 2 << 20,
    nodes: int = 1,
    trials: dict[str, Trial] | None = None,
    attributes: dict[str, int] | None = None,
    name: str = "Invented GPU",
) -> Machine:
    """A machine of equal GPUs, all peers or none; `trials` and `attributes` are put over the usual ones of each GPU."""
    return Machine(
        recorded=None,
        driver=DriverFacts(cuda="13.0", release=None),
        devices=[_device(name, memory, granule, trials or {}, attributes or {}) for _ in range(gpus)],
        peers=[[_link(a, b, peers=peers) for b in range(gpus)] for a in range(gpus)],
        host={"host": _host(granule)} | {f"host:{node}": _host(granule) for node in range(nodes)},
    )


def noted(text: str) -> Machines:
    """Two GPUs with what a wrong example says of its machine."""
    machine = invented(2, peers="no peers" not in text)
    if "multicast works" in text:
        return with_multicast(machine)
    if "multicast was never tried" in text:
        return _with_gpus(machine, {"multicast": Trial(advertised=True)}, {"MULTICAST_SUPPORTED": 1})
    if "fabric works within" in text:
        return invented(2, trials={"fabric": WORKS, "fd+fabric": WORKS})
    if "fabric works" in text:
        return with_fabric(2)
    only = "only node a has" in text or "for node a only" in text
    return Cluster({"a": machine}) if only else machine


def with_multicast(machine: Machine) -> Machine:
    """The machine as if a trial of multicast had worked on each GPU: none has, on any hardware (fact 87)."""
    return _with_gpus(machine, {"multicast": WORKS}, {"MULTICAST_SUPPORTED": 1})


def _with_gpus(machine: Machine, trials: dict[str, Trial], attributes: dict[str, int]) -> Machine:
    def changed_device(device: Device) -> Device:
        memory = device.memory.model_copy(update={"trials": {**device.memory.trials, **trials}})
        return device.model_copy(update={"memory": memory, "attributes": {**device.attributes, **attributes}})

    return changed(machine, devices=[changed_device(device) for device in machine.devices])


CLUSTER = "5ac6bcbb-0c31-4c0a-9e0a-3c4b0c4d1e2f"


def in_clique(machine: Machine, clique: int = 1, cluster: str | None = CLUSTER) -> Machine:
    """The machine with GPUs of one clique of a cluster, where fabric works; no machine that is shipped has one."""
    fabric = Fabric(cluster=cluster, clique=clique)
    return changed(machine, devices=[device.model_copy(update={"fabric": fabric}) for device in machine.devices])


def with_fabric(gpus: int = 2, **others: Any) -> Machine:
    """A machine of one clique where fabric handles work; `others` are the arguments of `invented`."""
    trials = {"fabric": WORKS, "fd+fabric": WORKS}
    return in_clique(invented(gpus, trials=trials, **others))


def identified(uuids: list[str]) -> Machine:
    """A machine of GPUs with the given UUIDs, as a process with a subset or another order of its GPUs reads it."""
    machine = invented(len(uuids))
    devices = [device.model_copy(update={"uuid": uuid}) for device, uuid in zip(machine.devices, uuids, strict=True)]
    return machine.model_copy(update={"devices": devices})


def with_nodes(machine: Machine, *sizes: int | None, pinned: int | None = None) -> Machine:
    """The machine with host memory of these sizes in its NUMA nodes, of which `pinned` bytes may be page-locked."""
    plain = machine.host["host:0"]
    nodes = {f"host:{n}": plain.model_copy(update={"memory_bytes": size}) for n, size in enumerate(sizes)}
    host = {"host": machine.host["host"], **nodes}
    total = sum(size for size in sizes if size) if all(sizes) else None
    return changed(machine, host=host, host_bytes=total, pinned_bytes=pinned)


def complete(machine: Machine) -> Machine:
    """A machine whose record has every trial there is: what is not recorded works as advertised, or is never tried."""
    asked = planned_trials(machine)
    memories = {place: memory.model_copy(update={"trials": {}}) for place, memory in machine.locations.items()}
    for planned in asked:
        if planned.name != STORE:
            memories[planned.location].trials[planned.name] = recorded(machine, planned) or _supposed(machine, planned)
    devices = [device.model_copy(update={"memory": memories[gpu(n)]}) for n, device in enumerate(machine.devices)]
    peers = [
        [
            peer and peer.model_copy(update={"store": peer.store or _supposed(machine, PlannedTrial(gpu(b), STORE, a))})
            for b, peer in enumerate(row)
        ]
        for a, row in enumerate(machine.peers)
    ]
    host = {place: memories[location] for location in memories if (place := str(location)) in machine.host}
    return changed(machine, devices=devices, peers=peers, host=host, surroundings=AROUND)


def _supposed(machine: Machine, planned: PlannedTrial) -> Trial:
    said = advertised(machine, planned)
    if planned.name == STORE:
        return Trial(advertised=said, works=said, error=None if said else "CUDA_ERROR_INVALID_DEVICE")
    if never := planned.method.never:
        return Trial(advertised=said, note=never)
    if "fabric" in planned.name and (known := machine.trial(gpu(0), "fabric")).works is False:
        return Trial(advertised=said, works=False, error=known.error, call="cuMemCreate")
    return Trial(advertised=said, works=True)


def _device(name: str, memory: int, granule: int, trials: dict[str, Trial], attributes: dict[str, int]) -> Device:
    return Device(
        name=name,
        compute_capability=(9, 0),
        memory_bytes=memory,
        attributes=ATTRIBUTES | attributes,
        memory=Memory(granularity=_granularity(granule), trials=TRIALS | trials),
    )


def _granularity(granule: int) -> list[Granularity]:
    return [
        Granularity(handles=handles, rdma=rdma, compressible=compressible, minimum=granule, recommended=granule)
        for handles, rdma, compressible in product(HANDLES, (False, True), (False, True))
    ]


def _host(granule: int) -> HostMemory:
    plain = [
        Granularity(handles=handles, rdma=False, compressible=False, minimum=granule, recommended=granule)
        for handles in HANDLES[:2]
    ]
    return HostMemory(granularity=plain, trials={"fd": Trial(works=True)})  # no attribute speaks of it


def _link(device: int, peer: int, *, peers: bool) -> Peer | None:
    if device == peer:
        return None
    return Peer(access=peers, performance_rank=0, native_atomics=peers)
