"""Facts are read by queries alone, and a simulated machine gives its own back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from memtopo.driver.types import Location, LocationKind, gpu, uuid_text
from memtopo.drivers.sim import SimDriver
from memtopo.machine import Device, Machine, Trial, dump, parse, queries
from tests.helpers.machines import in_clique, invented


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
def test_queries_of_a_simulated_machine_return_its_record(gpus: int, granule: int) -> None:
    """Except trials, which queries do not make."""
    machine = invented(gpus, granule=granule, nodes=2)
    seen = read(machine, numa_nodes=[0, 1])
    assert seen.devices == [untried(device) for device in machine.devices]
    assert seen.peers == machine.peers
    assert seen.driver == machine.driver
    assert [seen.host[node].granularity for node in ("host:0", "host:1")] == [
        machine.host[node].granularity for node in ("host:0", "host:1")
    ]


def test_the_peer_matrix_has_the_facts_of_each_link() -> None:
    """And nothing on its diagonal."""
    seen = read(invented(2, peers=False))
    assert seen.peers[0][0] is None
    assert seen.peers[0][1] is not None
    assert not seen.peers[0][1].access


def test_granularity_is_queried_for_all_sets_of_properties() -> None:
    """Four sets of handle types, with and without RDMA, with and without compression (fact 1)."""
    asked = read(invented(1)).devices[0].memory.granularity
    assert len({(*entry.handles, entry.rdma, entry.compressible) for entry in asked}) == 16


def test_granularity_of_the_host_is_queried_without_handle_types() -> None:
    """That of a node with file descriptors too (fact 6)."""
    seen = read(invented(1), numa_nodes=[0])
    assert [entry.handles for entry in seen.host["host"].granularity] == [[]]
    assert [entry.handles for entry in seen.host["host:0"].granularity] == [[], ["fd"]]


@pytest.mark.parametrize(("sizes", "expected"), [({0: 5, 1: 7, 9: 100}, 12), ({0: 5}, 99), ({}, 99), (None, 99)])
def test_host_memory_is_the_sum_of_its_nodes_if_all_are_known(sizes: dict[int, int] | None, expected: int) -> None:
    """A GPU that presents its memory as node 9 is not part of the host."""
    machine = invented(1, nodes=2, attributes={"NUMA_CONFIG": 1, "NUMA_ID": 9})
    seen = read(machine, numa_nodes=[0, 1, 9], numa_bytes=sizes, host_bytes=99)
    assert seen.host_bytes == expected
    assert {str(node): size for node, size in seen.node_bytes.items()} == {
        f"host:{node}": size for node, size in (sizes or {}).items() if node != 9
    }


def test_identity_is_read_only_on_request() -> None:
    """UUIDs, bus ids and the host's name."""
    plain = read(invented(1), host_name="here")
    assert (plain.devices[0].uuid, plain.devices[0].bus_id, plain.host_name) == (None, None, None)
    full = read(invented(1), host_name="here", identify=True)
    assert full.devices[0].uuid is not None
    assert full.devices[0].uuid.startswith("GPU-")
    assert full.devices[0].bus_id == "0000:01:00.0"
    assert full.host_name == "here"


def test_a_record_without_its_identity_equals_one_read_without() -> None:
    machine = invented(2)
    found = read(machine, host_name="here", identify=True)
    devices = [each.model_copy(update={"free_bytes": 1 << 30}) for each in found.devices]
    assert queries.anonymous(queries.changed(found, devices=devices)) == read(machine)


def test_a_uuid_has_the_form_of_nvidia_smi() -> None:
    """`GPU-` and the bytes in groups of 4, 2, 2, 2 and 6."""
    text = "GPU-bb4e8c0a-098d-8d01-5e1a-e755d684523b"
    assert uuid_text(bytes.fromhex("bb4e8c0a098d8d015e1ae755d684523b")) == text


def test_an_attribute_unknown_to_the_driver_is_left_out() -> None:
    """It is no attribute of value 0."""
    device = invented(1).devices[0]
    known = {name: value for name, value in device.attributes.items() if name != "DMA_BUF_SUPPORTED"}
    machine = queries.changed(invented(1), devices=[device.model_copy(update={"attributes": known})])
    assert read(machine).devices[0].attributes == known


def test_without_a_list_of_nodes_the_nearest_nodes_of_the_gpus_are_the_hosts() -> None:
    assert set(read(invented(2, nodes=4, attributes={"HOST_NUMA_ID": 3})).host) == {"host", "host:3"}
    assert set(read(invented(2, attributes={"HOST_NUMA_ID": -1})).host) == {"host"}


def test_the_node_of_a_gpus_memory_is_not_a_host_node() -> None:
    machine = invented(1, attributes={"NUMA_CONFIG": 1, "NUMA_ID": 2})
    assert set(read(machine, numa_nodes=[0, 2]).host) == {"host", "host:0"}


def test_queries_activate_no_primary_context() -> None:
    with opened(invented(2)) as driver:
        queries.read(driver, identify=True)
        assert not any(driver.device_primary_ctx_get_state(device) for device in range(2))


def test_a_record_survives_its_file() -> None:
    seen = read(invented(2), identify=True, release="580.159.04", host_name="here")
    assert parse(dump(seen).encode(), "test") == seen
    assert seen.driver.release == "580.159.04"


def test_a_changed_machine_recomputes_derived_values() -> None:
    machine = invented(2)
    assert len(machine.locations) == 4
    assert len(queries.changed(machine, host={}).locations) == 2


def test_some_gpus_of_a_machine_have_the_peers_that_they_had() -> None:
    machine = invented(3)
    rows = [
        [each and each.model_copy(update={"access": a + b == 2}) for b, each in enumerate(row)]
        for a, row in enumerate(machine.peers)
    ]
    found = queries.with_gpus(queries.changed(machine, peers=rows), [2, 0], ["c", "a"])
    assert [device.uuid for device in found.devices] == ["c", "a"]
    assert [[each and each.access for each in row] for row in found.peers] == [[None, True], [True, None]]


def test_a_gpu_advertises_what_its_own_attributes_have() -> None:
    devices = [
        untried(device).model_copy(update={"attributes": device.attributes | {"HANDLE_TYPE_FABRIC_SUPPORTED": number}})
        for number, device in enumerate(invented(2).devices)
    ]
    machine = queries.changed(invented(2), devices=devices)
    assert [machine.trial(gpu(number), "fabric").advertised for number in range(2)] == [False, True]


def test_memory_of_the_host_is_advertised_by_any_gpu_unless_a_trial_has_shown_more() -> None:
    name = "HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED"
    devices = [
        device.model_copy(update={"attributes": device.attributes | {name: number}})
        for number, device in enumerate(invented(2).devices)
    ]
    machine, node = queries.changed(invented(2), devices=devices), Location(LocationKind.HOST_NUMA, 0)
    advertised = machine.trial(node, "vmm")
    assert (advertised.advertised, advertised.works, advertised.refused) == (True, None, False)
    failed = Trial(advertised=True, works=False, error="CUDA_ERROR_UNKNOWN")
    host = {place: memory.model_copy(update={"trials": {"vmm": failed}}) for place, memory in machine.host.items()}
    assert queries.changed(machine, host=host).trial(node, "vmm") == failed


def test_a_trial_without_a_result_has_the_advertised_support_and_its_own_error() -> None:
    device = untried(invented(1).devices[0])
    memory = device.memory.model_copy(update={"trials": {"vmm": Trial(error="CUDA_ERROR_OUT_OF_MEMORY")}})
    machine = queries.changed(invented(1), devices=[device.model_copy(update={"memory": memory})])
    assert machine.trial(gpu(0), "vmm") == Trial(advertised=True, error="CUDA_ERROR_OUT_OF_MEMORY")


def test_access_of_one_gpu_to_another_is_not_that_of_the_other_way() -> None:
    machine = invented(2)
    peers = [
        [each and each.model_copy(update={"access": a == 0}) for each in row] for a, row in enumerate(machine.peers)
    ]
    found = queries.changed(machine, peers=peers)
    assert [found.can_access(*pair) for pair in ((0, 1), (1, 0), (0, 0), (1, 1))] == [True, False, True, True]


def test_addresses_have_the_smallest_granularity_and_chunks_on_any_gpu_the_largest() -> None:
    """A node of the host may have a smaller one than the GPUs."""
    small, large = invented(1, granule=64 << 10), invented(2, granule=2 << 20)
    mixed = queries.changed(large, devices=[*small.devices, large.devices[1]])
    assert (mixed.address_granularity, mixed.plain_granularity) == (64 << 10, 2 << 20)
    assert mixed.multicast_granule([gpu(0), gpu(1)]) == 2 << 20
    assert queries.changed(large, host=small.host).address_granularity == 64 << 10
    assert queries.changed(small, host=large.host).plain_granularity == 64 << 10


def test_gpus_have_a_clique_if_all_are_in_it_and_its_cluster_is_known() -> None:
    machine = in_clique(invented(2))
    assert machine.clique
    assert machine.clique.clique == 1
    other = [machine.devices[0], in_clique(invented(2), clique=2).devices[1]]
    assert queries.changed(machine, devices=other).clique is None
    assert queries.changed(machine, devices=[machine.devices[0], invented(1).devices[0]]).clique is None
    assert queries.anonymous(machine).clique is None
