"""Saved plans of specs with shares of memory: what they are shares of is saved with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from memtopo import planner
from memtopo.common.decoding import encode
from memtopo.common.errors import Exit
from memtopo.common.units import MiB
from memtopo.language import Document, SpecText, read_text
from memtopo.machine import Cluster, Fabric, Machine, MachineLine
from memtopo.machine.queries import changed
from memtopo.output.json import dumps
from memtopo.plans.transition import difference
from memtopo.session.saved import (
    MAX_CHANGES,
    SavedChange,
    SavedPlan,
    StalePlan,
    UnreadablePlan,
    compare,
    digest_of,
    is_saved,
    open_saved,
    open_saved_change,
    saved_facts,
    saved_nodes,
    spec_digest,
    spec_in,
)
from tests.helpers.machines import invented
from tests.helpers.specs import document, geometry_of

SPEC = """
ranges: {kv: {size: fill}}
chunks: {page: {location: gpu0, size: SIZE}}
map: {kv: [page]}
access: {kv: {gpu0: rw}}
"""
SHARED, FIXED = SPEC.replace("SIZE", "50%"), SPEC.replace("SIZE", "4GiB")


def live(free: int) -> Machine:
    machine = invented(1)
    return changed(machine, devices=[machine.devices[0].model_copy(update={"free_bytes": free, "uuid": "GPU-1"})])


LINE = MachineLine("test", simulated=False, devices=("Invented GPU",), driver="13.0")


def saved(text: str, machine: Machine) -> SavedPlan:
    geometry = geometry_of(text, machine)
    summary = planner.plan(geometry, machine).summary()
    return SavedPlan(1, LINE, summary, SpecText.of(document(text)), saved_facts(machine, geometry))


def compare_now(plan: SavedPlan, text: str, machine: Machine) -> None:
    geometry = geometry_of(text, machine)
    compare(plan, "plan.json", geometry, planner.plan(geometry, machine))


def test_a_plan_with_shares_holds_while_as_much_memory_is_free() -> None:
    plan = saved(SHARED, live(40 << 30))
    assert [device.free_bytes for device in plan.facts.devices] == [40 << 30]
    compare_now(plan, SHARED, live(40 << 30))


def test_a_plan_with_shares_is_stale_when_other_memory_is_free() -> None:
    with pytest.raises(StalePlan) as raised:
        compare_now(saved(SHARED, live(40 << 30)), SHARED, live(30 << 30))
    assert any(line.startswith("-create page") for line in raised.value.details), raised.value.details


def test_a_plan_without_shares_has_no_free_memory_and_holds_on_a_fuller_machine() -> None:
    plan = saved(FIXED, live(40 << 30))
    assert [(device.free_bytes, device.uuid) for device in plan.facts.devices] == [(None, None)]
    compare_now(plan, FIXED, live(30 << 30))


def test_a_plan_has_the_free_memory_if_any_of_its_processes_has_a_share() -> None:
    process = "{{chunks: {{c: {{location: gpu0, size: {0}}}}}}}"
    for sizes, free in ((("2MiB", "50%"), 40 << 30), (("50%", "2MiB"), 40 << 30), (("2MiB", "2MiB"), None)):
        one, two = (process.format(size) for size in sizes)
        geometry = geometry_of(f"processes: {{one: {one}, two: {two}}}", live(40 << 30))
        assert [device.free_bytes for device in saved_facts(live(40 << 30), geometry).devices] == [free]


def test_a_plan_is_of_equal_machines_on_the_same_nodes() -> None:
    """Whatever identifies them."""
    small, large = invented(1), invented(2)
    plan = replace(saved(FIXED, small), nodes={"a": small, "b": large})
    assert plan.is_of(Cluster({"a": live(40 << 30), "b": large}))
    others = Cluster({"a": large, "b": small}), Cluster({"a": small, "c": large}), Cluster({"a": small}), small
    assert not any(plan.is_of(each) for each in others)
    assert replace(plan, nodes={}).is_of(live(40 << 30))


def written(blanks: str = "") -> bytes:
    """The file of a saved plan."""
    return blanks.encode() + dumps(saved(FIXED, live(40 << 30))).encode()


@pytest.mark.parametrize("blanks", ["", "\n\t  "])
def test_the_spec_in_a_saved_plan_has_its_own_name_and_that_of_the_plan(tmp_path: Path, blanks: str) -> None:
    found = spec_in(read_text(written(blanks), "plan.json"))
    assert (found.name, found.plan, found.diagnostics) == ("test.yaml", "plan.json", ())
    file = tmp_path / "plan.json"
    file.write_bytes(written(blanks))
    assert is_saved(str(file))


def test_a_damaged_plan_has_its_own_name_and_another_document_is_the_spec_itself(tmp_path: Path) -> None:
    (damage,) = spec_in(read_text(written()[:-9], "plan.json")).diagnostics
    assert "'plan.json' is damaged" in damage.message
    spec = document(FIXED)
    assert spec_in(spec) is spec
    file = tmp_path / "plan.json"
    for start in (b"x", b" " * 256):
        file.write_bytes(start + written())
        assert not is_saved(str(file))


def test_a_plan_has_the_facts_of_each_node_without_what_identifies_it() -> None:
    """With its own free memory, if there are shares."""
    nodes = Cluster({"a": live(40 << 30), "b": live(30 << 30)})
    for text, free in ((SHARED, [40 << 30, 30 << 30]), (FIXED, [None, None])):
        found = saved_nodes(nodes, geometry_of(text, live(40 << 30)))
        assert [*found] == ["a", "b"]
        assert [(each.devices[0].free_bytes, each.devices[0].uuid) for each in found.values()] == [
            (each, None) for each in free
        ]
    assert saved_nodes(live(40 << 30), geometry_of(FIXED, live(40 << 30))) == {}


def test_a_plan_is_stale_if_memory_has_other_properties_now() -> None:
    with pytest.raises(StalePlan) as raised:
        compare_now(saved(FIXED, live(40 << 30)), FIXED.replace("4GiB", "4GiB, rdma: true"), live(40 << 30))
    assert raised.value.details[1].endswith("(rdma)"), raised.value.details


def test_a_plan_is_stale_if_a_gpu_has_other_access_to_memory_now() -> None:
    before, now = (FIXED.replace("{gpu0: rw}", f"{{gpu0: rw, gpu1: {access}}}") for access in ("rw", "r"))
    with pytest.raises(StalePlan) as raised:
        compare_now(saved(before, invented(2)), now, invented(2))
    assert raised.value.details[-1].endswith("gpu1 r"), raised.value.details


def test_nodes_of_several_clusters_are_of_several_in_a_saved_plan_without_their_uuids() -> None:
    one, nodes = invented(1), dict[str, Machine]()
    for node, uuid in (("a", "1"), ("b", "2"), ("c", "1"), ("d", "4"), ("e", "3")):
        fabric = Fabric(cluster=f"0000000{uuid}-0000-0000-0000-000000000000", clique=1)
        nodes[node] = changed(one, devices=[one.devices[0].model_copy(update={"fabric": fabric})])
    found = saved_nodes(Cluster(nodes), geometry_of(FIXED, one))
    clusters = [each.devices[0].fabric.cluster for each in found.values() if each.devices[0].fabric]
    assert clusters == [f"cluster {number}" for number in (0, 1, 0, 3, 2)]


def test_a_plan_is_stale_if_the_same_calls_map_memory_at_another_offset_now() -> None:
    text = FIXED.replace("size: fill", "size: 12GiB").replace("[page]", "[{chunk: page, offset: OFFSET}]")
    before, now = (text.replace("OFFSET", offset) for offset in ("4GiB", "8GiB"))
    with pytest.raises(StalePlan) as raised:
        compare_now(saved(before, live(40 << 30)), now, live(40 << 30))
    assert raised.value.details == ("the same calls, at other offsets",)


NOTHING_DIFFERS = difference({"": ()}, {"": ()}, ("kv", "kv.yaml"))
CHANGE = SavedChange(1, "kv", 3, digest_of("source", "awake"), LINE, NOTHING_DIFFERS, SpecText("kv.yaml", ""))


@pytest.mark.parametrize(
    ("now", "state", "words"),
    [
        ({"layout": "other"}, None, "is for layout 'kv', but the held layout is 'other'"),
        ({"generation": 4}, None, "is for generation 3, but the held layout is 4"),
        ({"digest": digest_of("other", "awake")}, None, "a layout other than the one that is held"),
        ({"digest": digest_of("source", "asleep")}, "awake", "a layout other than the one that is held"),
        ({"plan": replace(NOTHING_DIFFERS, kept=1)}, "awake", "would be different now"),
        ({}, "asleep", "'kv' is in state 'asleep'"),
    ],
)
def test_a_plan_of_a_change_is_stale_for_a_layout_that_is_another_one_now(
    now: dict[str, Any], state: str | None, words: str
) -> None:
    with pytest.raises(StalePlan, match=words):
        CHANGE.compare("plan.json", replace(CHANGE, **now), state)


@pytest.mark.parametrize("state", [None, "awake"])
def test_a_plan_of_a_change_holds_for_the_same_layout(state: str | None) -> None:
    CHANGE.compare("plan.json", replace(CHANGE), state)


def test_a_stale_plan_lists_the_first_changes_and_counts_the_others() -> None:
    def text(name: str) -> str:
        entries = [f"{name}{n}: {{location: gpu0, size: {2 * n + 2}MiB}}" for n in range(MAX_CHANGES)]
        return f"chunks: {{{', '.join(entries)}}}"

    with pytest.raises(StalePlan) as raised:
        compare_now(saved(text("c"), invented(1)), text("d"), invented(1))
    *shown, last = raised.value.details
    assert (len(shown), last) == (MAX_CHANGES, f"… and {MAX_CHANGES} more")
    assert any(line.endswith(", 2MiB each, gpu0") for line in shown), shown


@pytest.mark.parametrize("other", [{"memory": {"gpu0": MiB}}, {"calls": 7}, {"teardown_calls": 7}])
def test_a_plan_is_stale_if_its_memory_or_its_calls_are_others(other: dict[str, Any]) -> None:
    plan = saved(FIXED, live(40 << 30))
    with pytest.raises(StalePlan) as raised:
        compare_now(replace(plan, plan=replace(plan.plan, **other)), FIXED, live(40 << 30))
    assert [line[0] for line in raised.value.details] == ["-", "+"]
    assert (StalePlan.exit_code, UnreadablePlan.exit_code) == (Exit.STALE, Exit.INVALID)


def test_a_plan_of_a_gpu_by_its_uuid_holds_though_the_uuid_is_not_saved() -> None:
    text = "devices: {mine: GPU-1}\n" + FIXED.replace("location: gpu0", "location: mine")
    compare_now(saved(text, live(40 << 30)), text, live(40 << 30))


def test_a_plan_of_several_processes_is_stale_with_the_name_of_the_process() -> None:
    text = "processes: {p: {count: 2, chunks: {c: {location: gpu0, size: SIZE}}}}"
    before, now = (text.replace("SIZE", size) for size in ("2MiB", "4MiB"))
    with pytest.raises(StalePlan) as raised:
        compare_now(saved(before, invented(1)), now, invented(1))
    assert raised.value.details[0].startswith("-p.0 … p.1: create c"), raised.value.details


def test_a_file_is_the_plan_of_a_change_only_with_its_own_marker(tmp_path: Path) -> None:
    file, other = tmp_path / "change.json", tmp_path / "plan.json"
    text = encode(CHANGE)
    file.write_bytes(text)
    other.write_bytes(written())
    assert open_saved_change(str(file)) == CHANGE
    assert [open_saved_change(name) for name in (str(other), str(tmp_path), "\0")] == [None] * 3
    assert (open_saved(str(file)), is_saved(str(file)), is_saved(str(tmp_path))) == (None, False, False)
    file.write_bytes(text[:-9])
    with pytest.raises(UnreadablePlan, match="is damaged") as raised:
        open_saved_change(str(file))
    assert raised.value.hint == "plan it again with 'memtopo plan NAME SPEC -o FILE'"


def test_a_digest_is_of_the_state_and_of_values_in_any_order() -> None:
    assert len({digest_of("source", state) for state in (None, "asleep", "awake")}) == 3
    one, other = ({"name": "a", "ranges": {}}, {"ranges": {}, "name": "a"})
    assert spec_digest(Document.from_object(one)) == spec_digest(Document.from_object(other))
