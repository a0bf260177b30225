"""Nodes of processes: which instance is on which, with the devices and the memory of that node, and what crosses."""

from __future__ import annotations

import pytest

from memtopo import planner
from memtopo.driver.types import gpu
from memtopo.geometry import Geometry
from memtopo.geometry.groups import ChunkGroup
from memtopo.kinds.chunks.steps import ImportChunk
from memtopo.language import SpecText
from memtopo.machine import Cluster, MachineLine
from memtopo.machine.queries import changed
from memtopo.session.saved import SavedPlan, compare, saved_facts, saved_nodes
from tests.helpers.machines import in_clique, invented, with_fabric
from tests.helpers.specs import clean_geometry, document, geometry_of, plan_of, steps_of

HEAP = """
processes:
  pe:
    count: 8
    nodes: [a, b]
    devices: {mine: gpus}
    ranges: {heap: {size: 16MiB}}
    chunks: {part: {location: mine, size: 2MiB, handles: fabric}}
    exports: {part: {chunk: part, via: fabric}}
    imports: {every: {from: pe.part}}
    map: {heap: [every]}
    access: {heap: {mine: rw}}
"""

PAIR = """
processes:
  server:
    node: a
    ranges: {w: {size: 4MiB}}
    chunks: {w: {location: gpu0, size: 4MiB, handles: VIA}}
    map: {w: [w]}
    access: {w: {gpu0: rw}}
    exports: {w: {chunk: w, via: VIA}}
  reader:
    node: b
    ranges: {view: {size: 4MiB}}
    imports: {w: {from: server.w}}
    map: {view: [w]}
    access: {view: {gpu0: r}}
"""


def pages(nodes: str, size: str = "4MiB", count: int = 2) -> str:
    return f"""
processes:
  rank:
    count: {count}
    {nodes}
    ranges: {{kv: {{size: {size}}}}}
    chunks: {{page: {{location: gpu0, size: {size}}}}}
    map: {{kv: [page]}}
    access: {{kv: {{gpu0: rw}}}}
"""


def transports(geometry: Geometry) -> set[str]:
    """Transports of all imports of all processes."""
    groups = (group for each in geometry.processes.values() for group in each.of(ChunkGroup).values())
    return {group.origin.via for group in groups if group.origin}


def test_nodes_have_equal_blocks_of_instances_in_order() -> None:
    found = clean_geometry(HEAP, with_fabric(4))
    assert found.nodes == {"a": ("pe.0", "pe.1", "pe.2", "pe.3"), "b": ("pe.4", "pe.5", "pe.6", "pe.7")}
    assert [found.node_of(label) for label in ("pe.3", "pe.4", "nobody")] == ["a", "b", None]


def test_a_spec_without_nodes_is_of_one_host() -> None:
    found = clean_geometry(HEAP.replace("    nodes: [a, b]\n", ""), with_fabric(4))
    assert found.nodes == {}
    assert found.node_of("pe.0") is None
    assert [node for node, _ in found.by_node] == [None]


def test_devices_are_distributed_on_each_node_as_local_ranks() -> None:
    found = clean_geometry(HEAP, Cluster({"a": with_fabric(4), "b": with_fabric(3)}))
    own = [member.of(ChunkGroup)["part"].location_of(0).id for member in found.processes.values()]
    assert own == [0, 1, 2, 3, 0, 1, 2, 0]


def test_instances_of_a_node_that_share_a_device_are_those_of_their_numbers_there() -> None:
    """With numbers of the whole process, other ones would share it."""
    text = pages("nodes: [a, b]\n    devices: {mine: [gpu0, gpu0, gpu1]}", count=8).replace("gpu0, size", "mine, size")
    found = geometry_of(text.replace("{gpu0: rw}", "{mine: rw}"), invented(2))
    own = [member.of(ChunkGroup)["page"].location_of(0).id for member in found.processes.values()]
    assert own == [0, 0, 1, 0] * 2


def test_memory_of_another_node_has_its_node() -> None:
    found = clean_geometry(HEAP, with_fabric(4))
    first, last = (found.processes[label].of(ChunkGroup)["every"] for label in ("pe.0", "pe.7"))
    assert [str(first.location_of(index)) for index in (0, 3, 4, 7)] == ["gpu0", "gpu3", "b/gpu0", "b/gpu3"]
    assert [str(last.location_of(index)) for index in (0, 3, 4, 7)] == ["a/gpu0", "a/gpu3", "gpu0", "gpu3"]
    assert found.processes["pe.0"].gpus == [0]


def test_a_plan_has_the_memory_of_each_node() -> None:
    plan = plan_of(HEAP, with_fabric(4))
    assert plan.memory == {f"{node}/gpu{ordinal}": 2 << 20 for node in "ab" for ordinal in range(4)}
    assert plan.nodes == {"a": ("pe.0", "pe.1", "pe.2", "pe.3"), "b": ("pe.4", "pe.5", "pe.6", "pe.7")}
    imports = steps_of(plan.processes["pe.0"], ImportChunk)
    assert [each.location for each in imports] == [*map(gpu, range(4)), *(gpu(n).on("b") for n in range(4))]


def test_shares_are_of_the_memory_of_the_own_node_and_equal_everywhere() -> None:
    """The instance with the least room, on b, decides."""
    text = pages("nodes: [a, b]").replace("size: 4MiB", "size: fill", 1).replace("size: 4MiB", "size: 50%")
    found = clean_geometry(text, Cluster({"a": invented(1), "b": invented(1, memory=40 << 30)}))
    sizes = {member.of(ChunkGroup)["page"].size for member in found.processes.values()}
    (size,) = sizes
    assert 19 << 30 < size < 20 << 30


def test_gpus_of_several_cliques_are_of_none_together() -> None:
    both = with_fabric(2)
    first, second = both.devices
    mixed = changed(both, devices=[first, in_clique(both, clique=7).devices[1]])
    assert both.clique == first.fabric
    assert mixed.clique is None
    assert second.fabric == first.fabric


def test_peers_reach_imported_memory_of_other_nodes() -> None:
    text = PAIR.replace("VIA", "fabric").replace("view: {gpu0: r}", "view: {peers: r}")
    found = clean_geometry(text, with_fabric(2))
    assert found.processes["reader"].gpus == [0, 1]


@pytest.mark.parametrize("written", ["fabric else fd", "fd else fabric"])
def test_alternatives_take_fabric_where_any_import_crosses(written: str) -> None:
    """The same in all instances, also in those that import from their own node."""
    text = HEAP.replace("fabric", written)
    found = clean_geometry(text, with_fabric(4))
    assert transports(found) == {"fabric"}


@pytest.mark.parametrize(("order", "size"), [("own", "2MiB"), ("own-node", "8MiB")])
def test_alternatives_take_the_first_that_works_where_no_import_crosses(order: str, size: str) -> None:
    """An import of the own number stays on its node."""
    text = HEAP.replace("fabric", "fd else fabric").replace("from: pe.part", f"from: pe.part, order: {order}")
    found = clean_geometry(text.replace("16MiB", size), with_fabric(4))
    assert transports(found) == {"fd"}


def test_a_choice_names_the_process_on_another_node() -> None:
    found = clean_geometry(PAIR.replace("VIA", "fd else fabric"), with_fabric(1))
    choices = [each.text for each in found.processes["server"].choices]
    assert len(choices) == 2
    assert all("not fd (process 'reader' imports it on another node)" in each for each in choices)


def test_alternatives_of_a_process_are_the_same_on_all_its_nodes() -> None:
    """Fabric works on a alone."""
    text = HEAP.replace("fabric", "fabric else fd").replace("from: pe.part", "from: pe.part, order: own")
    machines = Cluster({"a": with_fabric(4), "b": invented(4)})
    found = clean_geometry(text.replace("16MiB", "2MiB"), machines)
    assert transports(found) == {"fd"}


def test_an_import_of_the_own_node_is_from_its_instances_in_order() -> None:
    text = HEAP.replace("fabric", "fd").replace("from: pe.part", "from: pe.part, order: own-node").replace("16", "8")
    found = clean_geometry(text, with_fabric(4))
    holders = [each.of(ChunkGroup)["every"].origin for each in found.processes.values()]
    assert [each and each.holders for each in holders] == [found.nodes["a"]] * 4 + [found.nodes["b"]] * 4


def test_an_import_of_the_own_node_without_nodes_is_from_all_instances() -> None:
    text = HEAP.replace("    nodes: [a, b]\n", "").replace("from: pe.part", "from: pe.part, order: own-node")
    origin = clean_geometry(text, with_fabric(4)).processes["pe.7"].of(ChunkGroup)["every"].origin
    assert origin
    assert len(origin.holders) == 8


def test_an_import_of_the_own_node_is_from_a_process_with_another_count_too() -> None:
    text = PAIR.replace("VIA", "fd").replace("node: a", "count: 4\n    nodes: [a, b]")
    text = text.replace("node: b", "count: 2\n    nodes: [a, b]").replace("server.w", "server.w, order: own-node")
    found = clean_geometry(text.replace("view: {size: 4MiB}", "view: {size: 8MiB}"), invented(1))
    origins = [found.processes[f"reader.{n}"].of(ChunkGroup)["w"].origin for n in range(2)]
    assert [each and each.holders for each in origins] == [("server.0", "server.1"), ("server.2", "server.3")]


def test_buffers_of_the_own_node_are_shared_by_legacy_ipc() -> None:
    """The own ones in their place, which a process cannot open."""
    text = """
processes:
  rank:
    count: 4
    nodes: [a, b]
    devices: {mine: gpus}
    buffers: {signal: {location: mine, size: 2MiB}}
    exports: {signal: {buffer: signal, via: ipc}}
    imports: {signals: {from: rank.signal, order: own-node}}
"""
    found = clean_geometry(text, invented(2))
    group = next(each for each in found.processes["rank.2"].every if each.name == "signals")
    assert group.origin
    assert group.origin.holders == ("rank.2", "rank.3")
    assert group.origin.own_label(0) == "signal"
    assert group.origin.own_label(1) is None


def test_a_saved_plan_of_nodes_holds_on_their_machines() -> None:
    """The clusters of these have names in place of their UUIDs, by which they are still one."""
    machines = Cluster({"a": with_fabric(2), "b": with_fabric(4)})
    text = HEAP.replace("{mine: gpus}", "{mine: [gpu0, gpu1]}")
    geometry = clean_geometry(text, machines)
    plan = planner.plan(geometry, machines)
    facts, nodes = saved_facts(machines.of("a"), geometry), saved_nodes(machines, geometry)
    line = MachineLine("test", simulated=True, devices=(), driver="13.0")
    saved = SavedPlan(1, line, plan.summary(), SpecText.of(document(text)), facts, nodes=nodes)
    assert isinstance(saved.machines, Cluster)
    assert {node: len(each.devices) for node, each in saved.machines.nodes.items()} == {"a": 2, "b": 4}
    compare(saved, "plan.json", geometry, plan)
