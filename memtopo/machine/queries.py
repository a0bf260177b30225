"""Records of the machine behind a driver, by queries only: no context is created and nothing is allocated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import compress, product
from typing import ParamSpec, TypeVar

from memtopo.driver import types
from memtopo.driver.protocol import Driver
from memtopo.driver.types import Attribute, DriverError, HandleType, Location, LocationKind, Properties, gpu
from memtopo.machine import Device, DriverFacts, Granularity, HostMemory, Machine, Memory, Peer

_ATTRIBUTES = 256
"""Numbers of attributes are below it."""

P = ParamSpec("P")
T = TypeVar("T")

_SHARED = (HandleType.NONE, HandleType.FD, HandleType.FABRIC, HandleType.FD | HandleType.FABRIC)


def read(
    driver: Driver,
    *,
    identify: bool = False,
    release: str | None = None,
    numa_nodes: Sequence[int] | None = None,
    numa_bytes: Mapping[int, int] | None = None,
    host_name: str | None = None,
    host_bytes: int | None = None,
) -> Machine:
    """Return the record of the machine behind an initialised driver, as it reports it: the record is not validated.

    The caller provides what the driver does not report: the kernel module's `release`, the `host_name`, the bytes of
    the host's memory and of NUMA nodes, and the `numa_nodes` with memory; if they are None, the nodes nearest to the
    GPUs are used. If the bytes of each node are known, their sum replaces `host_bytes`, which may include nodes that
    are memory of a GPU.
    UUIDs, bus ids and the host's name are included only with `identify`. Raises `DriverError` if the driver cannot
    count or name its GPUs.
    """
    devices = [_device(driver, ordinal, identify=identify) for ordinal in range(driver.device_get_count())]
    host = _host(driver, _nodes(devices, numa_nodes), numa_bytes or {})
    nodes = [memory.memory_bytes for name, memory in host.items() if name != "host"]
    known = [each for each in nodes if each]
    version = driver.driver_get_version()
    return Machine.model_construct(
        driver=DriverFacts.model_construct(cuda=f"{version // 1000}.{version % 1000 // 10}", release=release),
        devices=devices,
        peers=[[None if a == b else _peer(driver, a, b) for b in range(len(devices))] for a in range(len(devices))],
        host=host,
        host_name=host_name if identify else None,
        host_bytes=sum(known) if known and len(known) == len(nodes) else host_bytes,
    )


def anonymous(machine: Machine) -> Machine:
    """Return the machine without what identifies it, or changes: UUIDs, bus ids, the host's name, free memory."""
    devices = []
    for device in machine.devices:
        fabric = device.fabric and device.fabric.model_copy(update={"cluster": None})
        unknown = {"uuid": None, "bus_id": None, "free_bytes": None, "fabric": fabric}
        devices.append(device.model_copy(update=unknown))
    return changed(machine, devices=devices, host_name=None)


def changed(machine: Machine, **fields: object) -> Machine:
    """Return the machine with other values for some fields."""
    # model_copy would also copy the cached properties of the old machine.
    return Machine.model_construct(**{name: getattr(machine, name) for name in Machine.model_fields} | fields)


def with_gpus(machine: Machine, ordinals: Sequence[int], uuids: Sequence[str]) -> Machine:
    """Return the machine with only some of its GPUs, in this order, with these UUIDs."""
    devices = [
        machine.devices[ordinal].model_copy(update={"uuid": uuid})
        for ordinal, uuid in zip(ordinals, uuids, strict=True)
    ]
    return changed(machine, devices=devices, peers=[[machine.peers[a][b] for b in ordinals] for a in ordinals])


def _device(driver: Driver, ordinal: int, *, identify: bool) -> Device:
    names = {int(each): each.name for each in Attribute}
    numbers = [number for number in range(1, _ATTRIBUTES) if number not in types.PLACE_ATTRIBUTES]
    values = {names.get(each, str(each)): _or_none(driver.device_get_attribute, ordinal, each) for each in numbers}
    attributes = {name: value for name, value in values.items() if value is not None}
    return Device.model_construct(
        name=driver.device_get_name(ordinal),
        compute_capability=(
            driver.device_get_attribute(ordinal, Attribute.COMPUTE_CAPABILITY_MAJOR),
            driver.device_get_attribute(ordinal, Attribute.COMPUTE_CAPABILITY_MINOR),
        ),
        memory_bytes=driver.device_total_mem(ordinal),
        attributes=attributes,
        memory=Memory.model_construct(granularity=_granularities(driver, gpu(ordinal), _SHARED, (False, True))),
        uuid=types.uuid_text(driver.device_get_uuid(ordinal)) if identify else None,
        bus_id=driver.device_get_pci_bus_id(ordinal) if identify else None,
    )


def _granularities(
    driver: Driver, location: Location, handles: Sequence[HandleType], flags: Sequence[bool]
) -> list[Granularity]:
    """Return an entry for each set of properties that the driver supports."""
    chosen = product(handles, product(flags, repeat=len(types.PROPERTY_FLAGS)))
    sets = (Properties.with_flags(location, kind, [*compress(types.PROPERTY_FLAGS, flags)]) for kind, flags in chosen)
    entries = [_or_none(_granularity, driver, properties) for properties in sets]
    return [entry for entry in entries if entry]


def _granularity(driver: Driver, properties: Properties) -> Granularity:
    minimum = driver.mem_get_allocation_granularity(properties)
    return Granularity.of(properties, minimum, driver.mem_get_allocation_granularity(properties, recommended=True))


def _host(driver: Driver, nodes: Sequence[int], sizes: Mapping[int, int]) -> dict[str, HostMemory]:
    # HOST supports no handle types (fact 6).
    handles: dict[Location, Sequence[HandleType]] = {types.WHOLE_HOST: _SHARED[:1]}
    handles |= {Location(LocationKind.HOST_NUMA, node): _SHARED[:2] for node in nodes}
    found = {str(location): _granularities(driver, location, kinds, (False,)) for location, kinds in handles.items()}
    bytes_of = {str(Location(LocationKind.HOST_NUMA, node)): size for node, size in sizes.items()}
    return {
        name: HostMemory.model_construct(granularity=entries, memory_bytes=bytes_of.get(name))
        for name, entries in found.items()
        if entries
    }


def _nodes(devices: list[Device], known: Sequence[int] | None) -> list[int]:
    nearest = [device.attributes.get(Attribute.HOST_NUMA_ID.name, -1) for device in devices]
    # Some GPUs present their own memory to the system as a NUMA node, which is not memory of the host.
    gpus = [d.attributes.get(Attribute.NUMA_ID.name) for d in devices if d.attributes.get(Attribute.NUMA_CONFIG.name)]
    return sorted({node for node in (nearest if known is None else known) if node >= 0 and node not in gpus})


def _peer(driver: Driver, device: int, peer: int) -> Peer:
    atomics = _or_none(driver.device_get_p2p_attribute, types.PeerAttribute.NATIVE_ATOMIC_SUPPORTED, device, peer)
    return Peer.model_construct(
        access=driver.device_can_access_peer(device, peer),
        performance_rank=_or_none(driver.device_get_p2p_attribute, types.PeerAttribute.PERFORMANCE_RANK, device, peer),
        native_atomics=None if atomics is None else bool(atomics),
    )


def _or_none(query: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T | None:
    try:
        return query(*arguments, **options)
    except DriverError:
        return None
