"""Facts are read by queries alone, and a simulated machine gives its own back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from memtopo.driver.sim import SimDriver
from memtopo.machine import Device, Machine, dump, parse, queries
from tests.helpers.machines import invented


@contextmanager
def opened(machine: Machine) -> Iterator[SimDriver]:
    with SimDriver(machine) as driver:
        driver.init()
        yield driver


def read(machine: Machine, **options: object) -> Machine:
    with opened(machine) as driver:
        return queries.read(driver, **options)  # type: ignore[arg-type]


def untried(device: Device) -> Device:
    return device.model_copy(update={"memory": device.memory.model_copy(update={"trials": {}})})


@pytest.mark.parametrize("gpus", [0, 1, 2, 4])
@pytest.mark.parametrize("granule", [64 << 10, 2 << 20])
def test_a_simulated_machine_gives_its_facts_back(gpus: int, granule: int) -> None:
    """What is read is what was recorded, but for trials, which are not made here"""
    machine = invented(gpus, granule=granule, nodes=2)
    seen = read(machine, numa_nodes=[0, 1])
    assert seen.devices == [untried(device) for device in machine.devices]
    assert seen.peers == machine.peers
    assert seen.driver == machine.driver
    assert [seen.host[node].granularity for node in ("host:0", "host:1")] == [
        machine.host[node].granularity for node in ("host:0", "host:1")
    ]


def test_gpus_without_peer_access_are_read_as_such() -> None:
    """The peer matrix has nothing on its diagonal and the links' facts elsewhere"""
    seen = read(invented(2, peers=False))
    assert seen.peers[0][0] is None
    assert seen.peers[0][1] is not None
    assert not seen.peers[0][1].access


def test_all_sets_of_properties_are_asked() -> None:
    """Four sets of handle types, with and without RDMA, with and without compression (fact 1)"""
    asked = read(invented(1)).devices[0].memory.granularity
    assert len({(*entry.handles, entry.rdma, entry.compressible) for entry in asked}) == 16


def test_the_host_takes_no_handle_types() -> None:
    """Of the host only plain memory is asked; of a node also what can be exported as a file descriptor (fact 6)"""
    seen = read(invented(1), numa_nodes=[0])
    assert [entry.handles for entry in seen.host["host"].granularity] == [[]]
    assert [entry.handles for entry in seen.host["host:0"].granularity] == [[], ["fd"]]


def test_nothing_identifies_the_machine_unless_asked() -> None:
    """UUIDs, bus ids and the host's name are read only to identify"""
    plain = read(invented(1), host_name="here")
    assert (plain.devices[0].uuid, plain.devices[0].bus_id, plain.host_name) == (None, None, None)
    full = read(invented(1), host_name="here", identify=True)
    assert full.devices[0].uuid is not None
    assert full.devices[0].uuid.startswith("GPU-")
    assert full.devices[0].bus_id == "0000:01:00.0"
    assert full.host_name == "here"


def test_an_identity_can_be_taken_away() -> None:
    """What was read to identify is, without its identity, what is read without"""
    machine = invented(2)
    assert queries.anonymous(read(machine, host_name="here", identify=True)) == read(machine)


def test_a_uuid_reads_as_nvidia_smi_prints_it() -> None:
    """`GPU-` and the bytes in groups of 4, 2, 2, 2 and 6"""
    text = "GPU-bb4e8c0a-098d-8d01-5e1a-e755d684523b"
    assert queries.uuid_text(bytes.fromhex("bb4e8c0a098d8d015e1ae755d684523b")) == text


def test_what_the_driver_does_not_answer_is_left_out() -> None:
    """An attribute that the driver does not know is no attribute of value 0"""
    device = invented(1).devices[0]
    known = {name: value for name, value in device.attributes.items() if name != "DMA_BUF_SUPPORTED"}
    machine = queries.changed(invented(1), devices=[device.model_copy(update={"attributes": known})])
    assert read(machine).devices[0].attributes == known


def test_without_the_systems_word_the_nearest_nodes_are_the_hosts() -> None:
    """The GPUs' own nearest nodes stand in where the system does not list its nodes"""
    assert set(read(invented(2, nodes=4, attributes={"HOST_NUMA_ID": 3})).host) == {"host", "host:3"}
    assert set(read(invented(2, attributes={"HOST_NUMA_ID": -1})).host) == {"host"}


def test_a_gpus_own_node_is_not_the_hosts() -> None:
    """Memory of a GPU that the system sees as a node is left to the GPU"""
    machine = invented(1, attributes={"NUMA_CONFIG": 1, "NUMA_ID": 2})
    assert set(read(machine, numa_nodes=[0, 2]).host) == {"host", "host:0"}


def test_reading_makes_no_context() -> None:
    """No primary context is active after the facts were read"""
    with opened(invented(2)) as driver:
        queries.read(driver, identify=True)
        assert not any(driver.device_primary_ctx_get_state(device) for device in range(2))


def test_what_was_read_can_be_written_and_read_again() -> None:
    """The facts survive their file"""
    seen = read(invented(2), identify=True, release="580.159.04", host_name="here")
    assert parse(dump(seen).encode(), "test") == seen
    assert seen.driver.release == "580.159.04"


def test_a_changed_machine_forgets_what_it_computed() -> None:
    """What a machine derives from its fields follows the fields"""
    machine = invented(2)
    assert len(machine.locations) == 4
    assert len(queries.changed(machine, host={}).locations) == 2
