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
from tests.helpers.specs import clean_geometry, codes, diagnose, document, geometry_of, plan_of, steps_of

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


def test_memory_is_limited_on_each_node_by_itself() -> None:
    """Both instances together have too much for one GPU, and enough on two nodes."""
    large = pages("nodes: [a, b]", "50GiB")
    assert codes(large, invented(1)) == []
    assert codes(pages("node: a", "50GiB"), invented(1)) == ["MT402"]
    (found,) = diagnose(large, Cluster({"a": invented(1), "b": invented(1, memory=40 << 30)}))
    assert "on b/gpu0, which has 40 GiB" in found.message


def test_shares_are_of_the_memory_of_the_own_node_and_equal_everywhere() -> None:
    """The instance with the least room, on b, decides."""
    text = pages("nodes: [a, b]").replace("size: 4MiB", "size: fill", 1).replace("size: 4MiB", "size: 50%")
    found = clean_geometry(text, Cluster({"a": invented(1), "b": invented(1, memory=40 << 30)}))
    sizes = {member.of(ChunkGroup)["page"].size for member in found.processes.values()}
    (size,) = sizes
    assert 19 << 30 < size < 20 << 30


@pytest.mark.parametrize("via", ["fd", "fabric"])
def test_a_file_descriptor_does_not_cross_nodes(via: str) -> None:
    found = codes(PAIR.replace("VIA", via), with_fabric(1))
    assert found == ([] if via == "fabric" else ["MT613"])


def test_fabric_needs_the_same_clique_on_both_nodes() -> None:
    one = with_fabric(1)
    other, elsewhere = in_clique(one, clique=2), in_clique(one, cluster="another cluster")
    text = PAIR.replace("VIA", "fabric")
    assert codes(text, Cluster({"a": one, "b": one})) == []
    for machine in (other, elsewhere):
        (found,) = diagnose(text, Cluster({"a": one, "b": machine}))
        assert found.code == "MT614"
        assert "different cliques" in found.message


def test_fabric_between_nodes_without_a_recorded_clique_is_not_known_to_work() -> None:
    unknown = in_clique(with_fabric(1), cluster=None)
    (found,) = diagnose(PAIR.replace("VIA", "fabric"), Cluster({"a": with_fabric(1), "b": unknown}))
    assert found.code == "MT614"
    assert "not known to work: no clique is recorded of b" in found.message


RANKS = """
processes:
  rank:
    count: 4
    nodes: [a, b, c, d]
    chunks: {own: {location: gpu0, size: 2MiB, handles: [fabric]}}
    exports: {own: {chunk: own, via: fabric}}
    imports: {all: {from: rank.own}}
    ranges: {heap: {size: 8MiB}}
    map: {heap: [all]}
    access: {heap: {gpu0: rw}}
"""


def test_several_nodes_between_which_fabric_does_not_work_are_one_error() -> None:
    one = with_fabric(1)
    unknown, other = in_clique(one, cluster=None), in_clique(one, clique=2)
    assert codes(RANKS, one) == []
    for machines, message in [
        ([unknown] * 4, "between a, b, c and d is not known to work: no clique is recorded of a, b, c and d"),
        ([one, unknown, one, unknown], "between a, b, c and d is not known to work: no clique is recorded of b and d"),
        ([one, one, one, other], "between a, b, c and d does not work: they belong to different cliques"),
    ]:
        (found,) = diagnose(RANKS, Cluster(dict(zip("abcd", machines, strict=True))))
        assert (found.code, found.message) == ("MT614", f"import 'all': fabric {message}")


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


def test_each_node_has_its_own_devices() -> None:
    text = pages("nodes: [a, b]").replace("gpu0", "gpu1")
    (found,) = diagnose(text, Cluster({"a": invented(2), "b": invented(1)}))
    assert found.code == "MT401"


def test_a_machine_for_a_node_that_the_spec_does_not_have_is_an_error() -> None:
    machines = Cluster({"a": invented(1), "b": invented(1), "c": invented(1)})
    assert codes(pages("nodes: [a, b]"), machines) == ["MT615"]
    assert codes("ranges: {kv: {size: 2MiB}}", Cluster({"a": invented(1)})) == ["MT615"]


def test_fabric_that_failed_on_the_exporting_node_is_reported_once() -> None:
    for importer in (with_fabric(1), in_clique(with_fabric(1), clique=2)):
        machines = Cluster({"a": in_clique(invented(1)), "b": importer})
        assert codes(PAIR.replace("VIA", "fabric"), machines) == ["MT404"]


def test_fabric_that_failed_on_the_importing_node_is_refused() -> None:
    one = with_fabric(1)
    no_channel = in_clique(invented(1))
    (found,) = diagnose(PAIR.replace("VIA", "fabric"), Cluster({"a": one, "b": no_channel}))
    assert found.code == "MT614"
    assert "it failed in a trial on b/gpu0" in found.message


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


def test_what_does_not_work_on_a_node_names_the_node() -> None:
    """Fabric works on a alone."""
    machines = Cluster({"a": with_fabric(4), "b": invented(4)})
    found = [each for each in diagnose(HEAP, machines) if each.code == "MT404"]
    assert [each.message for each in found] == ["chunk 'part': handle type 'fabric' does not work on b/gpu0"]
    assert found[0].notes[-1] == "the same on b/gpu1, b/gpu2, b/gpu3"


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
