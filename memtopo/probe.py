"""Trials: what a machine advertises, beside what one real attempt shows (fact 4)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from memtopo.driver.protocol import Driver
from memtopo.driver.types import Attribute, DriverError, HandleType, Location, LocationKind, Properties, gpu
from memtopo.facts import changed
from memtopo.machine import Machine, Memory, Trial


class Way(NamedTuple):
    """One way to create memory: a chunk's properties beside its location, and what advertises them."""

    name: str
    advertised_by: tuple[Attribute, ...] = ()
    handles: HandleType = HandleType.NONE
    rdma: bool = False
    compressible: bool = False

    def properties(self, location: Location) -> Properties:
        return Properties(location, self.handles, self.rdma, self.compressible)

    def advertised(self, attributes: Mapping[str, int]) -> bool | None:
        """Whether all attributes say so; None where there is none or one was not answered."""
        said = [attributes.get(attribute.name) for attribute in self.advertised_by]
        return None if not said or None in said else all(said)


_FD = Attribute.HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
_FABRIC = Attribute.HANDLE_TYPE_FABRIC_SUPPORTED

WAYS: dict[LocationKind, tuple[Way, ...]] = {
    LocationKind.GPU: (
        Way("vmm", (Attribute.VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,)),
        Way("fd", (_FD,), HandleType.FD),
        Way("fabric", (_FABRIC,), HandleType.FABRIC),
        Way("win32", (Attribute.HANDLE_TYPE_WIN32_HANDLE_SUPPORTED,), HandleType.WIN32),
        Way("fd+fabric", (_FD, _FABRIC), HandleType.FD | HandleType.FABRIC),
        Way("rdma", (Attribute.GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,), rdma=True),
        Way("compressible", (Attribute.GENERIC_COMPRESSION_SUPPORTED,), compressible=True),
    ),
    LocationKind.HOST: (Way("vmm", (Attribute.HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,)),),
    LocationKind.HOST_NUMA: (
        Way("vmm", (Attribute.HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,)),
        Way("fd", handles=HandleType.FD),  # no attribute speaks of it
    ),
}


def probe(driver: Driver, facts: Machine, *, recorded: str | None = None) -> Machine:
    """The facts, and for each location a trial of every way to create memory there: one granule, created and released.

    `recorded` is the date, in UTC. Nothing stays behind: a release that fails is made again, and raises `DriverError`
    where it fails at the end as well.
    """
    held: list[int] = []
    try:
        memories = {place: _tried(driver, facts, place, held) for place in facts.locations}
    finally:
        _release(driver, held)
    tried = [{"memory": memories[gpu(ordinal)], "free_bytes": None} for ordinal in range(len(facts.devices))]
    devices = [device.model_copy(update=each) for device, each in zip(facts.devices, tried, strict=True)]
    host = {str(place): memory for place, memory in memories.items() if place.kind != LocationKind.GPU}
    return changed(facts, recorded=recorded, devices=devices, host=host)


def _tried(driver: Driver, facts: Machine, place: Location, held: list[int]) -> Memory:
    attributes = _advertising(facts, place)
    trials = {
        way.name: _trial(driver, way.properties(place), way.advertised(attributes), held) for way in WAYS[place.kind]
    }
    return facts.locations[place].model_copy(update={"trials": trials})


def _trial(driver: Driver, properties: Properties, advertised: bool | None, held: list[int]) -> Trial:  # noqa: FBT001
    try:
        held.append(driver.mem_create(driver.mem_get_allocation_granularity(properties), properties))
        created = driver.mem_get_allocation_properties_from_handle(held[-1])
    except DriverError as error:
        # A full device tells nothing about what it can do.
        works = None if error.name == "CUDA_ERROR_OUT_OF_MEMORY" else False
        return Trial(advertised=advertised, works=works, error=error.name)
    finally:
        with suppress(DriverError):  # what stays held is released again later
            _release(driver, held)
    # A driver may create a chunk and leave out what it cannot do; the properties of the handle tell.
    kept = (created.rdma, created.compressible) == (properties.rdma, properties.compressible)
    return Trial(advertised=advertised, works=kept)


def _advertising(facts: Machine, place: Location) -> dict[str, int]:
    """The attributes that speak of a location: a GPU's own, and of the host whatever any GPU says."""
    if place.kind == LocationKind.GPU:
        return facts.devices[place.id].attributes
    names = {name for device in facts.devices for name in device.attributes}
    return {name: max(device.attributes.get(name, 0) for device in facts.devices) for name in names}


def _release(driver: Driver, held: list[int]) -> None:
    failed: DriverError | None = None
    for handle in tuple(held):
        try:
            driver.mem_release(handle)
            held.remove(handle)
        except DriverError as error:
            failed = error
    if failed:
        raise failed
