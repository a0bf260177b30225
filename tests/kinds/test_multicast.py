"""Multicast objects and their bindings: resolution, plans, drawings, and what may be built where (fact 87)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

import memtopo
from memtopo import machine, planner
from memtopo.api import errors
from memtopo.api.imports import importing_spec
from memtopo.common.units import MiB
from memtopo.driver.types import DriverError, HandleType, gpu
from memtopo.drivers.cuda.driver import RefusedMulticast
from memtopo.drivers.target import recorded
from memtopo.executor import StepFailed
from memtopo.kinds.bindings import BindGroup, Binding
from memtopo.kinds.chunks.steps import CreateChunk
from memtopo.kinds.layout import Layout
from memtopo.kinds.mappings.steps import MapChunk, SetAccess
from memtopo.kinds.multicast import FROM_DOCUMENTATION, MULTICAST, MulticastGroup
from memtopo.kinds.multicast.steps import (
    AddDevice,
    BindAddress,
    BindChunk,
    BindStep,
    CreateMulticast,
    MapMulticast,
    SetMulticastAccess,
)
from memtopo.kinds.step import Step
from memtopo.machine import Cluster, Machine, dump, shipped
from memtopo.machine.queries import changed
from memtopo.output.diagram.build import build_diagram
from memtopo.planner import Plan
from memtopo.plans.transition import Stage, transition
from memtopo.rules import NeverTried, require_tried
from memtopo.run import processes
from memtopo.sharing.offers import Offer
from tests.helpers.command_line import run_memtopo
from tests.helpers.conducted import make_transition
from tests.helpers.machines import invented, with_fabric, with_multicast
from tests.helpers.specs import ROOT, codes, diagnose, document, ensemble, geometry_of, run, run_request, validate_text
from tests.run.test_transition import built

WORKS = with_multicast(invented(2))
TEAM = """
chunks: {part: {location: [gpu0, gpu1], size: 4MiB, count: 4}}
multicast: {team: {devices: gpus, size: 8MiB}}
bind: {team: [part]}
ranges: {uc: {size: 16MiB}, mc: {size: 8MiB}}
map: {uc: [part], mc: [team]}
access: {uc: {gpus: rw}, mc: {gpus: rw}}
"""
ALONE = """
chunks: {part: {location: gpu0, size: 4MiB}}
multicast: {team: {devices: gpu0, size: 4MiB}}
bind: {team: [part]}
ranges: {uc: {size: 4MiB}, mc: {size: 4MiB}}
map: {uc: [part], mc: [team]}
access: {uc: {gpu0: rw}, mc: {gpu0: rw}}
"""
RANKS = """
processes:
  creator:
    multicast: {team: {devices: gpus, size: 4MiB, handles: fd}}
    exports: {team: {multicast: team, via: fd}}
  rank:
    count: 2
    devices: {mine: gpus}
    chunks: {part: {location: mine, size: 4MiB, handles: fd}}
    imports: {of-creator: {from: creator.team}}
    bind: {of-creator: BOUND}
    ranges: {uc: {size: 4MiB}, mc: {size: 4MiB}}
    map: {uc: [part], mc: [of-creator]}
    access: {uc: {mine: rw}, mc: {mine: rw}}
"""


def bindings(text: str, name: str = "team") -> Sequence[Binding]:
    return geometry_of(text, WORKS).of(BindGroup)[name].bindings


def places(found: Sequence[Binding]) -> list[tuple[str, int, int]]:
    return [(each.label, each.device, each.offset) for each in found]


def plan_of(text: str, facts: Machine = WORKS) -> Plan:
    return planner.plan(geometry_of(text, facts), facts)


def order(plan: Plan, *kinds: type[Step]) -> list[type[Step]]:
    return [type(step) for step in plan.steps if type(step) in kinds]


def test_each_gpu_binds_one_chunk_after_another() -> None:
    assert places(bindings(TEAM)) == [
        ("part.0", 0, 0), ("part.1", 1, 0), ("part.2", 0, 4 * MiB), ("part.3", 1, 4 * MiB),
    ]  # fmt: skip


def test_an_offset_is_that_on_every_gpu() -> None:
    text = TEAM.replace("[part]}\nranges", "[{chunk: part.0:2, offset: 4MiB}, {chunk: part.2:4, offset: 0}]}\nranges")
    assert places(bindings(text)) == [
        ("part.0", 0, 4 * MiB), ("part.1", 1, 4 * MiB), ("part.2", 0, 0), ("part.3", 1, 0),
    ]  # fmt: skip


def test_an_entry_without_an_offset_follows_the_one_before_it() -> None:
    bound = "[{chunk: part.0:2, offset: 8MiB}, {chunk: part.2:4, offset: 0}, part.4:6]"
    text = TEAM.replace("16MiB", "24MiB").replace(" 8MiB", " 12MiB").replace("count: 4", "count: 6")
    found = bindings(text.replace("bind: {team: [part]}", f"bind: {{team: {bound}}}"))
    assert [each.offset // MiB for each in found] == [8, 8, 0, 0, 4, 4]


def test_a_chunk_that_is_no_multiple_of_the_granule_of_the_team_is_not_bound() -> None:
    """Its own GPU has a smaller one."""
    machine = with_multicast(changed(WORKS, devices=[WORKS.devices[0], invented(2, granule=4 * MiB).devices[1]]))
    text = (
        "chunks: {a: {location: gpu0, size: SIZE}, b: {location: gpu1, size: 4MiB}}\n"
        "multicast: {team: {devices: gpus, size: 4MiB}}\nbind: {team: [a, b]}\n"
        "ranges: {mc: {size: 4MiB}}\nmap: {mc: [team]}\naccess: {mc: {gpus: rw}}\n"
    )
    assert "MT720" not in codes(text.replace("SIZE", "4MiB"), machine)
    (found,) = (each for each in diagnose(text.replace("SIZE", "2MiB"), machine) if each.code == "MT720")
    assert "would be bound from 0 to 2MiB of 'team', which is unaligned" in found.message


def test_the_chunks_in_a_range_are_bound_by_their_addresses() -> None:
    text = TEAM.replace("bind: {team: [part]}", "bind: {team: {range: uc}}")
    assert places(bindings(text)) == places(bindings(TEAM))
    steps = [step for step in plan_of(text).steps if isinstance(step, BindStep)]
    assert {type(step) for step in steps} == {BindAddress}
    assert {step.call for step in steps} == {"cuMulticastBindAddr"}
    assert [step.at for step in steps if isinstance(step, BindAddress)] == [0, 4 * MiB, 8 * MiB, 12 * MiB]


def test_memory_is_mapped_before_it_is_bound_and_the_object_after_that() -> None:
    """As NCCL and PyTorch do: create, add, bind memory that is mapped, map; and undone in reverse."""
    kinds = (CreateChunk, CreateMulticast, AddDevice, MapChunk, BindChunk, MapMulticast)
    found = list(dict.fromkeys(order(plan_of(TEAM), *kinds)))
    assert found == [CreateChunk, CreateMulticast, AddDevice, MapChunk, BindChunk, MapMulticast]


def test_gpus_are_added_in_all_processes_before_memory_is_bound_in_any() -> None:
    """Processes end each phase together: the calls that wait for the whole team follow those that add to it."""
    plan = plan_of(RANKS.replace("BOUND", "[part]")).processes["rank.0"]
    phases = [phase for phase, _ in plan.phases]
    assert phases.index(AddDevice.phase) < phases.index(BindChunk.phase) == phases.index(MapMulticast.phase)
    assert phases.index(SetAccess.phase) < phases.index(SetMulticastAccess.phase)
    bound = next(steps for phase, steps in plan.phases if phase is BindChunk.phase)
    assert [type(step) for step in bound] == [BindChunk, MapMulticast, SetMulticastAccess]


def test_the_objects_take_no_memory() -> None:
    plan = plan_of(TEAM)
    assert plan.memory == {"gpu0": 8 * MiB, "gpu1": 8 * MiB}
    assert any(FROM_DOCUMENTATION in note for note in plan.notes)


def test_an_import_has_the_team_of_its_export() -> None:
    rank = geometry_of(RANKS.replace("BOUND", "[part]"), WORKS).processes["rank.1"]
    group = rank.of(MulticastGroup)["of-creator"]
    assert (group.devices, group.handles) == ((gpu(0), gpu(1)), HandleType.NONE)
    assert rank.of(BindGroup)["of-creator"].locations == (gpu(1),)


def test_a_team_is_of_one_node() -> None:
    text = RANKS.replace("BOUND", "[part]").replace("fd}", "fabric}").replace("count: 2", "count: 2\n    nodes: [a, b]")
    text = text.replace("  creator:\n", "  creator:\n    node: a\n").replace("handles: fd", "handles: fabric")
    text = text.replace("devices: gpus", "devices: gpu0").replace("devices: {mine: gpus}", "devices: {mine: gpu0}")
    machine_of_node = with_multicast(with_fabric(1))
    found = validate_text(text, Cluster({"a": machine_of_node, "b": machine_of_node})).diagnostics
    assert [(each.code, each.path[-2:]) for each in found] == [("MT719", ("of-creator", "from"))]
    assert "to another node" in found[0].message


def test_an_object_built_on_a_machine_where_it_works_leaves_nothing() -> None:
    done = run(run_request(TEAM, WORKS), WORKS)
    assert done.report.outcome == "ok", done.report
    assert done.ledger.empty
    assert done.report.left
    assert done.report.left.ledger_held["bindings"] == 4
    assert any(FROM_DOCUMENTATION in note for note in done.report.plan.notes)


@pytest.mark.parametrize("bound", ["[part]", "{range: uc}"])
def test_processes_build_a_team_together(bound: str) -> None:
    report = processes.apply(ensemble(RANKS.replace("BOUND", bound), WORKS))
    assert report.outcome == "ok", report
    assert report.left
    assert report.left.ledger_held["bindings"] == 2
    assert not any(report.left.ledger_after.values())


def test_a_state_drops_and_binds_the_memory_again() -> None:
    text = TEAM + "states: {idle: {drop: [part.2:4]}, away: {offload: {part: host:0}}}\n"
    made = run_request(text, WORKS)
    gone = planner.plan_states(made.plan, made.geometry)["idle"]
    assert len(order(gone, BindChunk)) == 2
    done = run(replace(made, rehearse=True), WORKS)
    assert done.report.outcome == "ok", done.report
    assert done.ledger.empty


def test_a_change_gives_an_object_back_after_all_memory_is_released() -> None:
    """GPUs that were added once cannot be added again if it fails before."""
    stages = transition(plan_of(ALONE).steps, plan_of(ALONE.replace("4MiB", "8MiB")).steps).stages
    assert CreateChunk in [type(each.step) for each in stages[Stage.RELEASE] if each.undo]
    assert [type(each.step) for each in stages[Stage.CREATE] if each.undo] == [CreateMulticast]


def test_memory_that_is_bound_by_its_address_is_bound_again_where_its_range_is_replaced() -> None:
    text = ALONE.replace("[part]}\nranges", "{range: uc}}\nranges")
    with built(plan_of(text), WORKS, {"multicast_bind_addr"}) as layout:
        make_transition(layout.execution, plan_of(text.replace("uc: {size: 4MiB}", "uc: {size: 8MiB}")))
        assert (layout.failing.calls, layout.ledger.counts()["bindings"]) == (2, 1)


@pytest.mark.parametrize("other", [ALONE.replace("4MiB", "8MiB"), ALONE.replace("mc: {gpu0: rw}", "mc: {gpu0: r}")])
def test_a_team_is_as_it_was_after_any_failing_call_of_a_change(other: str) -> None:
    with built(plan_of(ALONE), WORKS) as layout:
        before = layout.failing.calls
        make_transition(layout.execution, plan_of(other))
        calls = layout.failing.calls - before
    for at in range(1, calls + 1):
        with built(plan_of(ALONE), WORKS) as layout:
            state = layout.state()
            layout.failing.at = layout.failing.calls + at
            with pytest.raises(StepFailed):
                make_transition(layout.execution, plan_of(other))
            layout.failing.at = 0
            assert layout.state() == state, (at, layout.failing.failed)


# Where it may be built.


@pytest.mark.parametrize("name", shipped())
def test_no_shipped_machine_builds_a_team(name: str) -> None:
    """Those whose GPUs advertise it plan it, with a warning; on the others it is an error."""
    facts = machine.load(name)
    found = validate_text(ALONE, facts)
    advertised = facts.devices[0].attributes["MULTICAST_SUPPORTED"]
    assert [each.code for each in found.diagnostics] == (["MT718"] if advertised else ["MT405"])
    if found.geometry:
        with pytest.raises(NeverTried, match="never tried on gpu0"):
            require_tried(found.geometry, facts)


@pytest.mark.parametrize("lacking", [0, 1])
def test_each_gpu_of_a_team_has_access_to_the_memory_of_each_other_one(lacking: int) -> None:
    peers = [*WORKS.peers]
    peers[lacking] = invented(2, peers=False).peers[lacking]
    (found,) = (each for each in diagnose(TEAM, changed(WORKS, peers=peers)) if each.path[0] == "multicast")
    assert (found.code, found.path) == ("MT403", ("multicast", "team", "devices"))


def test_the_teams_of_all_processes_have_the_slots_of_a_switch_together() -> None:
    each = "{multicast: {%s}}"
    teams = [", ".join(f"{name}{n}: {{devices: gpus, size: 2MiB}}" for n in range(64)) for name in "ab"]
    text = (
        "processes: {p: " + each % teams[0] + ", q: " + each % f"{teams[1]}, last: {{devices: gpus, size: 2MiB}}" + "}"
    )
    assert [found.path for found in diagnose(text, WORKS) if found.code == "MT721"] == [
        ("processes", "q", "multicast", "last")
    ]
    assert "MT721" not in codes(text.replace(", last: {devices: gpus, size: 2MiB}", ""), WORKS)


def test_only_the_process_that_creates_an_object_notes_that_its_size_was_rounded() -> None:
    text = RANKS.replace("BOUND", "[part]").replace("size: 4MiB, h", "size: 3MiB, round: up, h", 1)
    members = geometry_of(text, WORKS).members.items()
    found = {label: [note for note in MULTICAST.notes(each) if "rounded up to" in note] for label, each in members}
    assert {label: len(notes) for label, notes in found.items()} == {"creator": 1, "rank.0": 0, "rank.1": 0}


def test_a_team_is_tried_where_its_record_says_so() -> None:
    require_tried(geometry_of(TEAM, WORKS), WORKS)


def test_apply_refuses_what_was_never_tried(tmp_path: Path) -> None:
    """Also if the warning is suppressed; nothing is built, and validate, plan and draw go on."""
    spec = str(ROOT / "specs" / "multicast.yaml")
    for command in ("validate", "plan", "draw"):
        done = run_memtopo(command, spec, "--machine", "h200x2")
        assert done.status == 0, done.err
    for more in ((), ("--check", "full"), ("--hold",)):
        done = run_memtopo("apply", spec, "--machine", "h200x2", *more)
        assert done.status == 4
        assert done.out == ""
        assert "not applied: multicast 'team': multicast was never tried on gpu0, gpu1" in done.err
    facts = tmp_path / "works.json"
    facts.write_text(dump(with_multicast(machine.load("h200x2"))))
    assert run_memtopo("apply", spec, "--machine", str(facts)).status == 0


def test_a_program_cannot_build_what_was_never_tried() -> None:
    spec = ROOT / "specs" / "multicast.yaml"
    assert memtopo.plan(spec, "h200x2").steps
    with pytest.raises(memtopo.ApiError, match="never tried on gpu0, gpu1") as refused, memtopo.applied(spec, "h200x2"):
        pass
    assert isinstance(refused.value, memtopo.NotBuilt)
    assert refused.value.exit_code == 4


def test_a_layout_is_not_changed_to_one_with_a_team_that_was_never_tried() -> None:
    plain = ROOT / "specs" / "quickstart.yaml"
    with memtopo.applied(plain, "h200x2") as layout:
        before = layout.ranges
        changed = {**json.loads(json.dumps(memtopo.load(plain).document.root)), **_sections()}
        with pytest.raises(memtopo.NotBuilt):
            layout.change(changed)
        assert layout.ranges == before


def _sections() -> dict[str, object]:
    return {
        "multicast": {"team": {"devices": ["gpu0", "gpu1"], "size": "2MiB"}},
        "bind": {"team": ["bound"]},
        "chunks": {"bound": {"location": ["gpu0", "gpu1"], "size": "2MiB", "count": 2}},
        "ranges": {"r": {"size": "4MiB"}},
        "map": {"r": ["bound"]},
        "access": {"r": {"gpu0": "rw"}},
    }


def test_a_refused_call_undoes_everything() -> None:
    """Without the check before, too: on a machine without a trial the driver refuses to create the object."""
    facts = machine.load("h200x2")
    made = run_request(TEAM, with_multicast(facts))
    done = run(made, facts)
    assert done.report.outcome == "failed"
    assert done.report.failure
    assert "multicast was tried on no gpu of this machine" in str(done.report.failure)
    assert done.ledger.empty


def test_memory_that_stays_bound_keeps_its_object() -> None:
    (leak,) = run(run_request(ALONE, WORKS), WORKS, at=1, only={"multicast_unbind"}).report.leaks
    assert leak.what == "binding of part to team at 0x0"
    assert leak.stays == ("multicast object team", "chunk part")


# What a program sees.


def test_a_multicast_address_has_no_view() -> None:
    with memtopo.applied(document(TEAM), recorded("works", WORKS)) as layout:
        assert layout.ranges["mc"].size == 8 * MiB
        with pytest.raises(errors.Unsuitable, match="only with multimem instructions"):
            layout.range("mc")
        assert layout.range("uc", size=4 * MiB)


def test_a_drawing_shows_the_team_and_what_is_bound() -> None:
    picture = build_diagram(geometry_of(TEAM, WORKS), WORKS)
    team, bound = (next(each for each in picture.things if each.kind == kind) for kind in ("multicast", "binding"))
    assert (team.name, team.locations, team.notes) == ("team", ("gpu0", "gpu1"), ("team of 2 GPUs",))
    assert (bound.name, bound.bytes_each, bound.notes) == ("team", 8 * MiB, ("bound: part",))
    (span,) = next(each for each in picture.ranges if each.first == "mc").pieces
    assert (span.first, span.locations) == ("team", ("gpu0", "gpu1"))
    assert [memory.used for memory in picture.memory] == [8 * MiB, 8 * MiB]


def test_a_step_on_the_driver_for_gpus_raises_before_a_call() -> None:
    step = next(step for step in plan_of(TEAM).steps if isinstance(step, CreateMulticast))
    layout = Layout()
    with pytest.raises(DriverError, match="makes no multicast call"):
        step.do(RefusedMulticast(), layout)  # type: ignore[arg-type]
    assert not layout.chunks


def test_a_program_cannot_join_a_team() -> None:
    """An offer of a multicast object is for the processes of its own spec."""
    offer = Offer("creator.team", "multicast", "fd", 1, 2 * MiB, "gpu0", "00" * 16, (), 2 * MiB)
    with pytest.raises(errors.Unsuitable, match="a multicast object, for processes of the same spec"):
        importing_spec("nvls", {offer.name: offer}, ["00" * 16], None, {offer.name: "rw"}, {})
