"""Budgets: what layouts take together is what each takes, and what fits alone and together agrees with validation."""

from __future__ import annotations

import random
import textwrap
from collections import Counter

import pytest

from memtopo import planner
from memtopo.common.units import rounded
from memtopo.drivers.target import recorded, resolve
from memtopo.language import read_file
from memtopo.machine import CONTEXT_BYTES, Machine, load
from memtopo.plans.transition import difference
from memtopo.rules import validate
from memtopo.session.budget import MOST_BESIDE, PAGE_LOCKED, Budget, budget, errors
from memtopo.session.composition import Composition
from tests.helpers.specs import ROOT, document

GIB = 1 << 30
SLEEP = """
name: {name}
ranges: {{w: {{size: {w}GiB}}, kv: {{size: {kv}GiB}}}}
chunks: {{w: {{location: gpu0, size: {w}GiB}}, kv: {{location: gpu0, size: {kv}GiB}}}}
map: {{w: [w], kv: [kv]}}
access: {{w: {{gpu0: rw}}, kv: {{gpu0: rw}}}}
states: {{asleep: {{offload: {{w: pinned}}, drop: [kv]}}, weights: {{drop: [kv]}}}}
"""


def sleeping(name: str, w: int, kv: int) -> str:
    return SLEEP.format(name=name, w=w, kv=kv)


def of(*texts: str, machine: Machine | None = None, context: int = CONTEXT_BYTES, least: bool = False) -> Budget:
    target = recorded("m", machine or load("h100x1"))
    compositions = [Composition.of(document(f"memtopo: 1\n{text.lstrip()}"), target) for text in texts]
    return budget(compositions, context, least=least)


def test_layouts_take_together_what_each_takes_with_its_contexts() -> None:
    found = of(sleeping("a", 8, 40), sleeping("b", 16, 20))
    assert [each.name for each in found.layouts] == ["a", "b"]
    for combination in found.combinations:
        whole = Counter[str]()
        for layout in found.layouts:
            whole.update(layout.states[combination.states[layout.name]])
            whole.update(layout.contexts)
        assert combination.memory == whole
    assert found.awake.states == {"a": "awake", "b": "awake"}
    assert found.awake.memory["gpu0"] == 84 * GIB + 2 * CONTEXT_BYTES
    assert found.layouts[0].states["asleep"] == {"gpu0": 0, "host": 8 * GIB}


def test_a_shortfall_names_its_bytes_and_the_entry_that_asks_for_the_most() -> None:
    found = of(sleeping("a", 8, 40), sleeping("b", 16, 20))
    (lacks,) = found.awake.shortfalls
    assert not found.fits
    assert (lacks.location, lacks.layout, lacks.entry, lacks.size) == ("gpu0", "a", "kv", 40 * GIB)
    assert lacks.lacks == lacks.needs - lacks.has == found.awake.memory["gpu0"] - load("h100x1").devices[0].room
    assert lacks.place == "test.yaml:4:43"
    ((layout, diagnostic),) = errors(found)
    assert (layout, diagnostic.code, diagnostic.path) == ("a", "MT402", ("chunks", "kv"))
    assert f"{lacks.lacks:,} bytes" in str(diagnostic.notes)


def test_a_shortfall_is_at_the_place_in_the_spec_of_its_own_layout() -> None:
    larger = sleeping("b", 16, 60).replace("ranges", "# the larger one\nranges", 1)
    (lacks,) = of(sleeping("a", 8, 20), larger).awake.shortfalls
    assert (lacks.layout, lacks.entry, lacks.place) == ("b", "kv", "test.yaml:5:44")


def test_combinations_fit_as_a_spec_with_both_layouts_would() -> None:
    """The bound is exact: a context more, and it does not fit."""
    room = load("h100x1").devices[0].room
    used = 64 * GIB
    left = (room - used) // 2
    found = of(sleeping("a", 1, 31), sleeping("b", 1, 31), context=left)
    assert found.fits
    assert all(each.fitting == [one.states for one in each.beside] for each in found.switches)
    assert not of(sleeping("a", 1, 31), sleeping("b", 1, 31), context=left + 1).fits


def test_equal_names_are_numbered_and_equal_specs_have_equal_switches() -> None:
    found = of(*[sleeping("a", 8, 40)] * 2)
    assert [each.name for each in found.layouts] == ["a.0", "a.1"]
    first, second = ([each for each in found.switches if each.layout == name] for name in ("a.0", "a.1"))
    assert [(each.before, each.after, each.memory) for each in first] == [
        (each.before, each.after, each.memory) for each in second
    ]
    assert len(first) == 6


def test_a_switch_fits_beside_the_states_that_leave_room_for_its_peak() -> None:
    found = of(sleeping("a", 8, 40), sleeping("b", 16, 20))
    wake = next(each for each in found.switches if (each.layout, each.before, each.after) == ("a", "asleep", "awake"))
    assert wake.memory["gpu0"].peak == 48 * GIB
    assert wake.fitting == [{"b": "asleep"}, {"b": "weights"}]
    (lacking,) = (each for each in wake.beside if each.lacks)
    assert lacking.lacks == {"gpu0": found.awake.shortfalls[0].lacks}


@pytest.mark.parametrize("spec", ["sleep-mode.yaml", "tensor-parallel-sleep.yaml"])
def test_the_memory_of_states_and_switches_is_that_of_their_plans(spec: str) -> None:
    composition = Composition.of(read_file(str(ROOT / "specs" / spec)), resolve("h200x4"))
    found = budget([composition])
    plans = {"awake": composition.plan} | planner.plan_states(composition.plan, composition.geometry)
    for switch in found.switches:
        steps = [plans[state].steps_by_process for state in (switch.before, switch.after)]
        planned = difference(steps[0], steps[1], ("", "")).memory
        for location, change in planned.items():
            if location in switch.memory:  # a NUMA node of unknown memory is counted with the host alone
                assert switch.memory[location] == change


def test_a_heap_counts_with_its_limit_unless_a_state_drops_it() -> None:
    composition = Composition.of(read_file(str(ROOT / "specs/real/vllm-sleep.yaml")), resolve("h100x1"))
    (layout,) = budget([composition]).layouts
    weights = 15386 << 20
    assert layout.states["awake"]["gpu0"] > 70 * GIB
    assert layout.states["level-1"] == {"gpu0": 0, "host": weights}
    assert layout.states["weights-awake"] == {"gpu0": weights, "host": weights}


def test_shares_and_heaps_without_a_limit_are_noted() -> None:
    heap = "name: {0}\nheaps: {{h: {{location: gpu0, size: 8GiB{1}}}}}\naccess: {{h: {{gpu0: rw}}}}\n"
    notes = of(heap.format("a", ""), heap.format("b", ", limit: 5%")).notes
    assert "a: heap h has no limit, and counts as empty" in notes
    assert any(note.startswith("b: heap h has 5% of the") for note in notes)
    assert not any("its own spec" in note for note in of(heap.format("b", ", limit: 5%")).notes)


def test_an_assumed_memory_of_the_host_is_noted_where_it_is_used() -> None:
    unknown = load("h100x1").model_copy(update={"host_bytes": None})
    bare = "name: b\nbuffers: {b: {location: gpu0, size: 2MiB}}\n"
    assert [len(of(text, machine=unknown).notes) for text in (sleeping("a", 8, 40), bare)] == [1, 0]
    assert {*of(bare, machine=unknown).memory} == {"gpu0"}
    assert of(sleeping("a", 8, 40), machine=small(host=64 * GIB)).notes == ()


def test_of_too_many_combinations_there_are_those_with_one_layout_not_awake() -> None:
    found = of(*(sleeping(f"l{n}", 1, 1) for n in range(8)))
    assert not found.complete
    assert len(found.combinations) == 1 + 8 * 2
    assert all(sum(state != "awake" for state in each.states.values()) <= 1 for each in found.combinations)
    assert {len(each.beside) for each in found.switches} == {1 + 7 * 2}
    four = [sleeping(f"l{n}", 1, 1).replace("states: {", "states: {none: {drop: [w, kv]}, ") for n in range(4)]
    assert len(of(*four).switches[0].beside) == MOST_BESIDE


def test_the_closest_combination_is_that_of_which_least_is_missing() -> None:
    found = of(sleeping("a", 40, 30), sleeping("b", 50, 20), machine=small(host=60 * GIB))
    assert not found.fitting
    assert found.closest.states == {"a": "awake", "b": "asleep"}
    assert [each.location for each in found.closest.shortfalls] == ["host"]


def small(host: int) -> Machine:
    """An H100 in a host with less memory."""
    return load("h100x1").model_copy(update={"host_bytes": host})


def test_contexts_alone_may_be_too_much() -> None:
    (lacks,) = of(sleeping("a", 1, 1), sleeping("b", 1, 1), context=100 * GIB).awake.shortfalls
    assert lacks.needs == 204 * GIB
    events = of("name: e\nevents: {e: {device: gpu0}}\n", context=100 * GIB)
    assert ([each.notes[0] for _, each in errors(events)], events.context) == (["contexts alone"], 100 * GIB)
    bare = "name: e\nbuffers: {b: {location: gpu0, size: 2MiB}}\n"
    assert of(bare, context=100 * GIB).awake.shortfalls[0].entry == "b"


def test_contexts_are_too_much_because_of_the_layout_with_the_most_on_that_gpu() -> None:
    process = "{{count: {0}, events: {{e: {{device: {1}}}}}}}"
    first = f"name: a\nprocesses: {{p: {process.format(3, 'gpu1')}, q: {process.format(1, 'gpu0')}}}\n"
    second = f"name: b\nprocesses: {{p: {process.format(2, 'gpu0')}}}\n"
    lacks = of(first, second, machine=load("h200x2"), context=50 * GIB).awake.shortfalls
    assert [(each.location, each.layout, each.entry) for each in lacks] == [("gpu0", "b", ""), ("gpu1", "a", "")]


def test_what_is_page_locked_counts_by_itself_where_it_is_limited() -> None:
    machine = load("h100x1").model_copy(update={"host_bytes": 64 * GIB, "pinned_bytes": 6 * GIB})
    found = of(sleeping("a", 4, 10), sleeping("b", 4, 10), machine=machine)
    assert (found.fits, found.memory["host"], found.memory[PAGE_LOCKED]) == (False, 64 * GIB, 6 * GIB)
    assert [(each.location, each.lacks) for each in found.awake.shortfalls] == [(PAGE_LOCKED, 2 * GIB)]


def test_a_layout_has_the_name_of_its_spec_and_its_parameters() -> None:
    (layout,) = of("name: a\nparams: {n: 3}\nbuffers: {b: {location: gpu0, size: 2MiB, count: $n}}\n").layouts
    assert (layout.name, layout.spec, layout.params) == ("a", "test.yaml", {"n": "3"})


PROCESS = """
  {name}:
    ranges: {{w: {{size: {w}GiB}}, h: {{size: {h}GiB}}}}
    chunks: {{w: {{location: gpu0, size: {w}GiB}}, h: {{location: "host:0", size: {h}GiB}}}}
    map: {{w: [w], h: [h]}}
    access: {{w: {{gpu0: rw}}, h: {{gpu0: rw}}}}
"""


@pytest.mark.parametrize("seed", range(12))
def test_layouts_fit_together_if_they_would_as_processes_of_one_spec(seed: int) -> None:
    """Both count contexts, GPUs, nodes of the host and the host in one way, and name the same bytes."""
    chosen = random.Random(seed)
    machine = small(host=64 * GIB)
    node = machine.host["host:0"].model_copy(update={"memory_bytes": 48 * GIB})
    machine = machine.model_copy(update={"host": {"host:0": node}})
    names = "abc"[: chosen.randrange(2, 4)]
    sizes = [{"w": chosen.randrange(15, 45), "h": chosen.randrange(10, 30)} for _ in names]
    parts = [PROCESS.format(name=name, **each) for name, each in zip(names, sizes, strict=True)]
    alone = [f"name: {part.strip().partition(':')[0]}\n" + textwrap.dedent(part.split("\n", 2)[2]) for part in parts]
    found = of(*alone, machine=machine)
    together = validate(document(f"memtopo: 1\nname: t\nprocesses:{''.join(parts)}"), machine)
    lacking = sorted(rounded(each.lacks) for each in found.awake.shortfalls)
    reported = (each.message for each in together.diagnostics if each.code == "MT402")
    assert sorted(message.rpartition(": ")[2].removesuffix(" too much") for message in reported) == lacking


ELASTIC = """
name: engine
ranges: {{w: {{size: 16GiB}}, kv: {{size: 64GiB, elastic: true}}}}
chunks: {{w: {{location: gpu0, size: 16GiB}}, page: {{location: gpu0, size: 1GiB, count: {{min: {least}, max: 30}}}}}}
map: {{w: [w]}}
access: {{w: {{gpu0: rw}}, kv: {{gpu0: rw}}}}
"""


@pytest.mark.parametrize(("count", "least"), [(1, 0), (1, 30), (2, 4), (3, 0), (4, 4), (5, 0)])
def test_elastic_memory_fits_at_its_min_and_shares_what_remains(count: int, least: int) -> None:
    texts = [ELASTIC.format(least=least)] * count
    worst, found = of(*texts), of(*texts, least=True)
    has = worst.memory["gpu0"]
    at_min, at_max = (count * ((16 + pages) * GIB + CONTEXT_BYTES) for pages in (least, 30))
    assert found.elastic == worst.elastic
    assert [(each.location, each.has, each.least, each.most, each.shared) for each in found.elastic] == (
        [("gpu0", has, at_min, at_max, max(0, has - at_min))] if least < 30 else []
    )
    assert (found.awake.memory["gpu0"], worst.awake.memory["gpu0"]) == (at_min, at_max)
    assert (found.fits, worst.fits) == (at_min <= has, at_max <= has)
    helps = [diagnostic.help or "" for _, diagnostic in errors(worst)]
    assert all(("--elastic min" in help) == (at_min <= has) for help in helps)
