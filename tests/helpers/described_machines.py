"""Machines as a table of answers describes them.

A name of `NAMED`, or the number of GPUs and what differs from an invented machine of so many, after commas:

    2 GPUs, no peers, memory 16GiB, host 64GiB, pinned 8GiB
    2 GPUs, nodes 8GiB 4GiB, gpu1 free 28GiB
    1 GPU, DMA_BUF_SUPPORTED 0, dmabuf works, gpu0 ipc fails as CUDA_ERROR_NOT_SUPPORTED

`host`, `pinned` and `nodes` are bytes of the host, of page-locked memory and of its NUMA nodes; other words are an
attribute with its value, or a trial with its result, of all GPUs or of one. Machines of nodes follow the names of
these:

    a: 1 GPU of a clique | b: 1 GPU
"""

from __future__ import annotations

from functools import cache

from memtopo.common.units import parse_size
from memtopo.machine import Cluster, Device, Machine, Machines, Trial, load
from memtopo.machine.queries import changed
from tests.helpers.machines import in_clique, invented, with_fabric, with_multicast, with_nodes
from tests.helpers.strategies import machine as identified

NAMED: dict[str, Machines] = {
    "no GPU": invented(0),
    "4 GPUs with identities": identified(),
    "1 GPU of a clique": with_fabric(1),
    "1 GPU of another clique": in_clique(with_fabric(1), clique=2),
    "1 GPU of another cluster": in_clique(with_fabric(1), cluster="another cluster"),
    "1 GPU of no recorded clique": in_clique(with_fabric(1), cluster=None),
    "1 GPU of a clique, without fabric": in_clique(invented(1)),
    "2 GPUs of one clique": with_fabric(2),
    "4 GPUs of one clique": with_fabric(4),
    "2 GPUs with multicast": with_multicast(invented(2)),
    "4 GPUs with multicast": with_multicast(invented(4)),
    **{name: load(name) for name in ("h100x1", "h200x2", "h200x4", "h200x8")},
}


@cache
def described_machine(words: str) -> Machines:
    """Return the machine of a description."""
    if words in NAMED:
        return NAMED[words]
    if ": " in words:
        nodes = (each.split(": ") for each in words.split(" | "))
        return Cluster({name: _described_host(machine) for name, machine in nodes})
    return _described_host(words)


def _described_host(words: str) -> Machine:
    found = NAMED.get(words)
    if isinstance(found, Machine):
        return found
    number, *others = words.split(", ")
    machine = invented(int(number.split()[0]), peers="no peers" not in others)
    for each in others:
        machine = _with(machine, *each.split(" ", 1))
    return machine


def _with(machine: Machine, name: str, value: str) -> Machine:
    if name == "no":
        return machine  # without peers
    if name == "host":
        return changed(machine, host_bytes=_bytes(value))
    if name == "pinned":
        return changed(machine, pinned_bytes=_bytes(value))
    if name == "nodes":
        sizes = (None if size == "?" else _bytes(size) for size in value.split())
        return with_nodes(machine, *sizes, pinned=machine.pinned_bytes)
    number = None
    if name.startswith("gpu"):
        number, (name, value) = int(name[3:]), value.split(" ", 1)
    each = [
        _device(device, name, value) if number in (None, ordinal) else device
        for ordinal, device in enumerate(machine.devices)
    ]
    return changed(machine, devices=each)


def _device(device: Device, name: str, value: str) -> Device:
    if name == "memory":
        return device.model_copy(update={"memory_bytes": _bytes(value)})
    if name == "free":
        return device.model_copy(update={"free_bytes": _bytes(value)})
    if value.isdigit():
        return device.model_copy(update={"attributes": {**device.attributes, name: int(value)}})
    trials = {**device.memory.trials, name: _trial(value)}
    return device.model_copy(update={"memory": device.memory.model_copy(update={"trials": trials})})


def _bytes(text: str) -> int:
    return parse_size(text).amount


def _trial(value: str) -> Trial:
    if value == "never tried":
        return Trial()
    if value == "works":
        return Trial(works=True)
    if value == "is not advertised":
        return Trial(advertised=False)
    return Trial(advertised=True, works=False, error=value.removeprefix("fails as "))
