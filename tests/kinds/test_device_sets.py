"""Sets of devices: `gpus`, `peers`, and the NUMA node near a GPU, on machines of several shapes."""

from __future__ import annotations

import pytest

from memtopo.driver.types import Attribute, Location, LocationKind
from memtopo.geometry.groups import ChunkGroup
from memtopo.kinds.ipc import BufferGroup
from memtopo.kinds.managed import ManagedAllocation
from memtopo.machine import Machine, load
from memtopo.machine.queries import changed
from tests.helpers.machines import invented
from tests.helpers.specs import diagnose, geometry_of, validate_text

KV = "ranges: {kv: {size: 64MiB}}\nmap: {kv: [page]}\n"
MACHINES = {"h100x1": 1, "h200x2": 2, "h200x4": 4}
"""Shipped machines with their number of GPUs."""


def granted(text: str, machine: Machine, name: str = "kv") -> dict[str, str]:
    """Access that a spec without diagnostics grants to a range, by location."""
    return {
        str(grant.location): grant.access.word
        for part in geometry_of(text, machine).parts[name]
        for grant in part.grants
    }


def places(text: str, machine: Machine) -> list[str]:
    """Locations of the chunks `page`, one each."""
    group = geometry_of(text, machine).of(ChunkGroup)["page"]
    return [str(group.location_of(index)) for index in range(group.count)]


def with_nodes(*nodes: int | None, peers: bool = True) -> Machine:
    """A machine of two NUMA nodes, whose GPUs have these; None if a GPU does not report its node."""
    machine = invented(len(nodes), nodes=2, peers=peers)
    pairs = zip(machine.devices, nodes, strict=True)
    name = Attribute.HOST_NUMA_ID.name
    devices = [
        each.model_copy(update={"attributes": {**each.attributes, name: -1 if node is None else node}})
        for each, node in pairs
    ]
    return changed(machine, devices=devices)


@pytest.mark.parametrize(("name", "count"), MACHINES.items())
def test_gpus_are_all_of_the_machine(name: str, count: int) -> None:
    machine, every = load(name), [f"gpu{n}" for n in range(count)]
    page = "chunks: {page: {location: gpus, size: 2MiB, count: 8}}\n"
    assert places(f"{KV}{page}access: {{kv: {{gpus: rw}}}}", machine) == every * (8 // count)
    assert granted(f"{KV}{page}access: {{kv: {{gpus: rw}}}}", machine) == dict.fromkeys(every, "rw")


@pytest.mark.parametrize(("name", "count"), MACHINES.items())
def test_entries_on_a_set_without_count_are_one_for_each_device(name: str, count: int) -> None:
    text = f"""{KV}chunks: {{page: {{location: gpus, size: 2MiB}}}}
buffers: {{b: {{location: gpus, size: 1MiB}}}}
access: {{kv: {{peers: r}}}}"""
    geometry = geometry_of(text, load(name))
    for group in (geometry.of(ChunkGroup)["page"], geometry.of(BufferGroup)["b"]):
        assert (group.count, group.counted) == (count, True)
        assert [group.location_of(n).id for n in range(count)] == list(range(count))


def test_an_import_on_a_set_is_of_one_handle_for_each_device() -> None:
    text = f"{KV}imports: {{page: {{from: w/page, location: gpus, size: 2MiB}}}}\naccess: {{kv: {{gpu0: r}}}}"
    assert places(text, load("h200x4")) == ["gpu0", "gpu1", "gpu2", "gpu3"]


def test_a_device_that_access_names_has_its_own_access_and_the_set_the_rest() -> None:
    page = "chunks: {page: {location: gpu1, size: 2MiB}}\n"
    for names in ("gpus: r, gpu1: rw", "gpu1: rw, peers: r"):
        found = granted(f"{KV}{page}access: {{kv: {{{names}}}}}", load("h200x4"))
        assert found == {"gpu0": "r", "gpu1": "rw", "gpu2": "r", "gpu3": "r"}


def test_peers_are_the_gpus_that_can_access_all_the_memory() -> None:
    machine = invented(3)
    peers = [
        [
            peer if peer is None or {a, b} != {1, 2} else peer.model_copy(update={"access": False})
            for b, peer in enumerate(row)
        ]
        for a, row in enumerate(machine.peers)
    ]
    machine = changed(machine, peers=peers)  # gpu1 and gpu2 are peers of gpu0 only

    def text(location: str, grants: str = "{peers: r}") -> str:
        return f"{KV}chunks: {{page: {{location: {location}, size: 2MiB, count: 2}}}}\naccess: {{kv: {grants}}}"

    assert granted(text("gpu0"), machine) == dict.fromkeys(("gpu0", "gpu1", "gpu2"), "r")
    assert granted(text("gpu1"), machine) == dict.fromkeys(("gpu0", "gpu1"), "r")
    assert granted(text("[gpu1, gpu2]"), machine) == {"gpu0": "r"}
    assert granted(text("host"), machine) == dict.fromkeys(("gpu0", "gpu1", "gpu2"), "r")
    parts = "[{size: 2MiB, grant: {peers: r}}, {offset: 2MiB, size: 2MiB, grant: {peers: rw}}]"
    first, second = geometry_of(text("[gpu1, gpu2]", parts), machine).parts["kv"]
    assert [grant.location.id for grant in first.grants] == [0, 1]
    assert [grant.location.id for grant in second.grants] == [0, 2]


def test_gpus_of_a_process_are_those_that_it_sees() -> None:
    text = """processes:
  p:
    visible: [gpu2, gpu1]
    ranges: {kv: {size: 64MiB}}
    chunks: {page: {location: gpus, size: 2MiB}}
    map: {kv: [page]}
    access: {kv: {peers: rw}}"""
    member = geometry_of(text, load("h200x4")).processes["p"]
    assert [each.id for each in member.of(ChunkGroup)["page"].locations] == [2, 1]
    assert [grant.location.id for grant in member.parts["kv"][0].grants] == [1, 2]


@pytest.mark.parametrize(("name", "count"), MACHINES.items())
def test_each_process_takes_its_own_of_a_set(name: str, count: int) -> None:
    text = """processes:
  p:
    count: 4
    devices: {mine: gpus, home: {near: mine}}
    visible: mine
    ranges: {kv: {size: 64MiB}}
    chunks: {page: {location: mine, size: 2MiB}, staging: {location: home, size: 2MiB}}
    map: {kv: [page, staging]}
    access: {kv: {mine: rw}}"""
    for index, member in enumerate(geometry_of(text, load(name)).processes.values()):
        assert member.devices["mine"].id == index % count
        assert member.visible == (member.devices["mine"],)
        assert str(member.devices["home"]) == "host:0"


def test_near_is_the_numa_node_of_a_gpu() -> None:
    def text(location: str) -> str:
        return f"{KV}chunks: {{page: {{location: {location}, size: 2MiB}}}}\naccess: {{kv: {{gpus: rw}}}}"

    machine = with_nodes(0, 1, 1)
    assert places(text("{near: gpu0}"), machine) == ["host:0"]
    assert places(text("{near: gpu2}"), machine) == ["host:1"]
    assert places(text("{near: gpus}"), machine) == ["host:0", "host:1", "host:1"]
    assert places(f"devices: {{mine: 2, home: {{near: mine}}}}\n{text('home')}", machine) == ["host:1"]
    assert places(f"devices: {{home: {{near: 1}}}}\n{text('home')}", machine) == ["host:1"]


def test_near_of_counted_processes_is_the_node_of_each_ones_gpu() -> None:
    text = """processes:
  p:
    count: 3
    devices: {home: {near: mine}, mine: gpus}
    chunks: {page: {location: home, size: 2MiB}}"""
    members = validate_text(text, with_nodes(0, 1, 1)).geometry
    assert members
    assert [str(each.devices["home"]) for each in members.processes.values()] == ["host:0", "host:1", "host:1"]


def test_a_gpu_without_a_recorded_node_is_near_to_the_only_one() -> None:
    text = "chunks: {page: {location: {near: gpu0}, size: 2MiB}}"
    geometry = geometry_of(text, changed(with_nodes(None), host=invented(1, nodes=1).host))
    assert geometry.of(ChunkGroup)["page"].locations == (Location(LocationKind.HOST_NUMA, 0),)


@pytest.mark.parametrize(
    ("node", "message"),
    [(None, "the NUMA node of gpu0 is not known"), (5, "the machine has no host:5, which is the NUMA node of gpu0")],
)
def test_a_node_that_is_not_known_or_not_there_is_an_error(node: int | None, message: str) -> None:
    (found, *_) = diagnose("chunks: {page: {location: {near: gpu0}, size: 2MiB}}", with_nodes(node))
    assert (found.code, found.message, found.path) == ("MT401", message, ("chunks", "page", "location"))
    assert found.help == "write host:0"


def test_managed_memory_is_accessed_by_a_set() -> None:
    text = "managed: {m: {size: 2MiB, prefer: {near: gpu1}, accessed_by: gpus}}"
    group = geometry_of(text, with_nodes(0, 1)).of(ManagedAllocation)["m"]
    assert [str(each) for each in (group.prefer, *group.accessed_by)] == ["host:1", "gpu0", "gpu1"]
