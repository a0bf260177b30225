"""The facts of a driver's machine by queries alone: no context is made and nothing is allocated."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import ParamSpec, TypeVar

from memtopo.driver.protocol import Driver
from memtopo.driver.types import (
    Attribute,
    DriverError,
    HandleType,
    Location,
    LocationKind,
    PeerAttribute,
    Properties,
    gpu,
)
from memtopo.machine import Device, DriverFacts, Granularity, Machine, Memory, Peer

P = ParamSpec("P")
T = TypeVar("T")

_SHARED = (HandleType.NONE, HandleType.FD, HandleType.FABRIC, HandleType.FD | HandleType.FABRIC)


def read(
    driver: Driver,
    *,
    identify: bool = False,
    release: str | None = None,
    numa_nodes: Sequence[int] | None = None,
    host_name: str | None = None,
) -> Machine:
    """The facts of the machine behind an initialised driver.

    What no driver tells is the caller's to say: the kernel module's `release`, the `host_name`, and the `numa_nodes`
    that have memory; where those are None, the nodes nearest to the GPUs stand in. UUIDs, bus ids and the host's name
    are left out without `identify`. Raises `DriverError` where the driver cannot even count or name its GPUs.
    """
    devices = [_device(driver, ordinal, identify=identify) for ordinal in range(driver.device_get_count())]
    return Machine(
        driver=DriverFacts(cuda=_version(driver.driver_get_version()), release=release),
        devices=devices,
        peers=_peers(driver, len(devices)),
        host=_host(driver, _nodes(devices, numa_nodes)),
        host_name=host_name if identify else None,
    )


def anonymous(machine: Machine) -> Machine:
    """The machine without what names this very one, or this very moment: UUIDs, bus ids, the host, free memory."""
    unknown = {"uuid": None, "bus_id": None, "free_bytes": None}
    devices = [device.model_copy(update=unknown) for device in machine.devices]
    return changed(machine, devices=devices, host_name=None)


def changed(machine: Machine, **fields: object) -> Machine:
    """The machine with other values for some fields."""
    # model_copy would take along what the old machine has computed from its fields.
    return Machine.model_validate({name: getattr(machine, name) for name in Machine.model_fields} | fields)


def only(machine: Machine, ordinals: Sequence[int], uuids: Sequence[str]) -> Machine:
    """The machine with some of its GPUs alone, in this order, under these UUIDs."""
    devices = [
        machine.devices[ordinal].model_copy(update={"uuid": uuid})
        for ordinal, uuid in zip(ordinals, uuids, strict=True)
    ]
    return changed(machine, devices=devices, peers=[[machine.peers[a][b] for b in ordinals] for a in ordinals])


def uuid_text(raw: bytes) -> str:
    """A GPU's UUID as nvidia-smi prints it: `GPU-bb4e8c0a-098d-8d01-5e1a-e755d684523b`."""
    return f"GPU-{uuid.UUID(bytes=raw)}"


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _device(driver: Driver, ordinal: int, *, identify: bool) -> Device:
    return Device(
        name=driver.device_get_name(ordinal),
        compute_capability=(
            driver.device_get_attribute(ordinal, Attribute.COMPUTE_CAPABILITY_MAJOR),
            driver.device_get_attribute(ordinal, Attribute.COMPUTE_CAPABILITY_MINOR),
        ),
        memory_bytes=driver.device_total_mem(ordinal),
        attributes=_attributes(driver, ordinal),
        memory=Memory(granularity=_granularities(driver, gpu(ordinal), _SHARED, (False, True))),
        uuid=uuid_text(driver.device_get_uuid(ordinal)) if identify else None,
        bus_id=driver.device_get_pci_bus_id(ordinal) if identify else None,
    )


def _attributes(driver: Driver, ordinal: int) -> dict[str, int]:
    asked = {which.name: _or_none(driver.device_get_attribute, ordinal, which) for which in Attribute}
    return {name: value for name, value in asked.items() if value is not None}


def _granularities(
    driver: Driver, location: Location, handles: Sequence[HandleType], flags: Sequence[bool]
) -> list[Granularity]:
    """One entry for each set of properties that the driver answers for."""
    sets = (Properties(location, *mixed) for mixed in product(handles, flags, flags))
    return [entry for properties in sets if (entry := _or_none(_granularity, driver, properties))]


def _granularity(driver: Driver, properties: Properties) -> Granularity:
    return Granularity(
        handles=list(properties.handles.words),
        rdma=properties.rdma,
        compressible=properties.compressible,
        minimum=driver.mem_get_allocation_granularity(properties),
        recommended=driver.mem_get_allocation_granularity(properties, recommended=True),
    )


def _host(driver: Driver, nodes: Sequence[int]) -> dict[str, Memory]:
    # HOST takes no handle types (fact 6).
    places: dict[Location, Sequence[HandleType]] = {Location(LocationKind.HOST): _SHARED[:1]}
    places |= {Location(LocationKind.HOST_NUMA, node): _SHARED[:2] for node in nodes}
    asked = {str(place): _granularities(driver, place, handles, (False,)) for place, handles in places.items()}
    return {name: Memory(granularity=entries) for name, entries in asked.items() if entries}


def _nodes(devices: list[Device], known: Sequence[int] | None) -> list[int]:
    nearest = [device.attributes.get(Attribute.HOST_NUMA_ID.name, -1) for device in devices]
    # Some GPUs show their own memory to the system as a node; that is not the host's.
    gpus = [d.attributes.get(Attribute.NUMA_ID.name) for d in devices if d.attributes.get(Attribute.NUMA_CONFIG.name)]
    return sorted({node for node in (nearest if known is None else known) if node >= 0 and node not in gpus})


def _peers(driver: Driver, count: int) -> list[list[Peer | None]]:
    def row(device: int) -> Iterator[Peer | None]:
        return (None if peer == device else _peer(driver, device, peer) for peer in range(count))

    return [list(row(device)) for device in range(count)]


def _peer(driver: Driver, device: int, peer: int) -> Peer:
    atomics = _or_none(driver.device_get_p2p_attribute, PeerAttribute.NATIVE_ATOMIC_SUPPORTED, device, peer)
    return Peer(
        access=driver.device_can_access_peer(device, peer),
        performance_rank=_or_none(driver.device_get_p2p_attribute, PeerAttribute.PERFORMANCE_RANK, device, peer),
        native_atomics=None if atomics is None else bool(atomics),
    )


def _or_none(ask: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T | None:
    try:
        return ask(*arguments, **options)
    except DriverError:
        return None
