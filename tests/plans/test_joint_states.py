"""States of layouts of several processes: what is gone in one process is gone in those that import it."""

from __future__ import annotations

from memtopo import planner
from memtopo.kinds.mappings.steps import parts_of
from memtopo.language.names import AWAKE
from memtopo.planner import Plan
from memtopo.plans.transition import Stage, transitions
from memtopo.run.layout_plans import WHOLE, LayoutPlans, lost
from tests.helpers.machines import invented
from tests.helpers.specs import geometry_of, plan_of

TWO = invented(2)
SERVED = """
processes:
  server:
    ranges: {w: {size: 8MiB}}
    chunks: {w: {location: gpu0, size: 2MiB, count: 4, handles: fd}}
    map: {w: [w]}
    access: {w: {gpu0: rw}}
    exports: {w: {chunk: w, via: fd}}
    states:
      asleep: {offload: {w: host:0}}
      half: {drop: [w.0:2]}
  engine:
    count: 2
    ranges: {w: {size: 8MiB}, kv: {size: 4MiB}}
    chunks: {kv: {location: gpu1, size: 2MiB, count: 2}}
    imports: {w: {from: server.w}}
    map: {w: [w], kv: [kv]}
    access: {w: {gpu1: r}, kv: {gpu1: rw}}
    states:
      asleep: {drop: [kv]}
      unmapped: {drop: [w]}
  idle:
    chunks: {own: {location: gpu1, size: 2MiB}}
"""


def states(text: str = SERVED) -> dict[str, Plan]:
    return planner.plan_states(plan_of(text, TWO), geometry_of(text, TWO))


def subjects(plan: Plan, *verbs: str) -> list[str]:
    return [step.describe().subject for step in plan.steps if step.verb in verbs]


def test_a_state_of_any_process_is_a_state_of_the_layout() -> None:
    assert [*states()] == ["asleep", "half", "unmapped"]
    assert {label for plan in states().values() for label in plan.processes} == {
        "server", "engine.0", "engine.1", "idle",
    }  # fmt: skip


def test_bytes_of_an_import_are_lost_with_those_of_its_creator_and_not_where_it_is_given_back() -> None:
    plans = LayoutPlans(geometry_of(SERVED, TWO), plan_of(SERVED, TWO)).states
    half = {("chunk", "w.0"), ("chunk", "w.1")}
    assert lost(plans, ("half",)) == {"server": half, "engine.0": half, "engine.1": half, "idle": set()}
    assert lost(plans, ("unmapped",)) == {label: set() for label in ("server", "engine.0", "engine.1", "idle")}


def test_what_is_absent_from_one_process_stays_in_others_that_have_it_under_the_same_name() -> None:
    plans = LayoutPlans(geometry_of(SERVED, TWO), plan_of(SERVED, TWO))
    partial = plans.of((AWAKE, frozenset({("engine.0", ("chunk", "w.0")), ("engine.0", ("chunk", "kv.0"))})))
    assert subjects(partial["engine.0"], "import", "create") == ["kv.1", "w.1", "w.2", "w.3"]
    assert {label: each for label, each in partial.items() if each != plans.states[AWAKE][label]}.keys() == {"engine.0"}


def test_a_transition_takes_away_what_is_absent_from_its_own_variant() -> None:
    plans = LayoutPlans(geometry_of(SERVED, TWO), plan_of(SERVED, TWO))
    for label in ("kv.0", "kv.1"):
        there = plans.transitions(WHOLE, (AWAKE, frozenset({("engine.0", ("chunk", label))})))
        undone = [step.describe().subject for step in there["engine.0"].undo if step.verb == "create"]
        assert undone == [label]


def test_imports_of_what_is_gone_are_gone_with_their_mappings() -> None:
    half = states()["half"].processes["engine.1"]
    assert subjects(half, "import") == ["w.2", "w.3"]
    assert subjects(half, "map") == ["w.2", "w.3", "kv.0", "kv.1"]
    assert not subjects(states()["asleep"].processes["engine.0"], "import", "map", "create")


def test_a_process_that_neither_names_a_state_nor_imports_what_goes_keeps_its_plan() -> None:
    awake, found = plan_of(SERVED, TWO), states()
    assert all(found[name].processes["idle"].steps == awake.processes["idle"].steps for name in found)
    assert found["half"].processes["engine.0"].steps != awake.processes["engine.0"].steps


def test_an_import_that_only_the_importer_drops_stays_with_its_creator() -> None:
    found, awake = states()["unmapped"].processes, plan_of(SERVED, TWO).processes
    assert found["server"] == awake["server"]
    assert not subjects(found["engine.0"], "import")
    assert subjects(found["engine.0"], "create") == ["kv.0", "kv.1"]


def test_a_switch_gives_imports_back_before_and_takes_them_after_their_memory() -> None:
    awake, asleep = plan_of(SERVED, TWO).processes, states()["asleep"].processes
    steps = [{label: plan.steps for label, plan in plans.items()} for plans in (awake, asleep)]
    there, back = transitions(*steps), transitions(*reversed(steps))
    assert not there["idle"].actions
    undone = [each for step, _ in there["engine.0"].stages[Stage.UNMAP] for each in parts_of(step)]
    assert [step.verb for step in undone] == ["map"] * 6 + ["import"] * 4
    assert [action.step.verb for action in there["server"].stages[Stage.RELEASE]] == ["export"] + ["create"] * 4
    assert [action.step.verb for action in back["server"].stages[Stage.CREATE]] == ["create"] * 4 + ["export"]
    assert [action.step.verb for action in back["engine.0"].stages[Stage.MAP]][:4] == ["import"] * 4


def test_memory_by_state_is_that_of_all_processes() -> None:
    """Also managed memory, which is in every state."""
    mib, text = 1 << 20, f"{SERVED}    managed: {{m: {{size: 2MiB, prefer: gpu1}}}}"
    assert planner.memory_by_state(plan_of(text, TWO), geometry_of(text, TWO)) == {
        "awake": {"gpu0": 8 * mib, "gpu1": 12 * mib, "host:0": 8 * mib},
        "asleep": {"gpu0": 0, "gpu1": 4 * mib, "host:0": 8 * mib},
        "half": {"gpu0": 4 * mib, "gpu1": 12 * mib, "host:0": 8 * mib},
        "unmapped": {"gpu0": 8 * mib, "gpu1": 12 * mib, "host:0": 8 * mib},
    }
    without = SERVED[: SERVED.index("    states:")] + SERVED[SERVED.index("  idle:") :]
    assert planner.memory_by_state(plan_of(without, TWO), geometry_of(without, TWO)) == {}


def test_memory_by_state_is_counted_on_each_node() -> None:
    pages = """
processes:
  rank:
    count: 2
    nodes: [a, b]
    ranges: {kv: {size: 4MiB}}
    chunks: {page: {location: gpu0, size: 4MiB}}
    map: {kv: [page]}
    access: {kv: {gpu0: rw}}
    states: {asleep: {drop: [kv]}}
"""
    assert planner.memory_by_state(plan_of(pages, TWO), geometry_of(pages, TWO)) == {
        "awake": {"a/gpu0": 4 << 20, "b/gpu0": 4 << 20},
        "asleep": {"a/gpu0": 0, "b/gpu0": 0},
    }
