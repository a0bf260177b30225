"""Steps of a plan: their order, number, paths and grants."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from memtopo.driver.types import Grant, Location, LocationKind
from memtopo.geometry.access import LONGEST_GRANT
from memtopo.kinds.chunks.steps import CreateChunk
from memtopo.kinds.mappings.steps import MapChunk, SetAccess
from memtopo.kinds.resources import ReserveRange, RetainContext, Synchronize
from memtopo.kinds.step import Phase
from memtopo.output.json import dumps
from memtopo.planner import Plan
from tests.helpers import strategies
from tests.helpers.examples import examples
from tests.helpers.machines import invented
from tests.helpers.specs import ROOT, SPECS, diagnose, plan_of, steps_of

MIB = 1 << 20
MACHINE = strategies.machine()
SPEC = """
devices: {b: 1, a: 0}
ranges: {z: {size: 8MiB}, a: {size: 4MiB, count: 2, address: 0x40000000}}
chunks: {hot: {location: b, size: 4MiB}, page: {location: [a, b], size: 2MiB, count: 3}}
map: {z: [hot, page.2], a: [page]}
access: {z: {b: rw, a: r}, a.1: {a: rw}}
"""


SEEN_TWICE = "chunk c: gpu0 has rw in a and r in b; stores through one are visible through the other"


def test_steps_are_ordered_by_phase_and_then_as_in_the_spec() -> None:
    plan = plan_of(SPEC, MACHINE)
    here = [phase for phase, _ in plan.phases]
    assert here == [phase for phase in Phase if phase not in (Phase.EXPORT, Phase.IMPORT, Phase.BIND)]
    assert [(step.verb, step.describe().subject) for step in plan.steps] == [
        ("retain context", "gpu0"), ("retain context", "gpu1"),
        ("reserve", "z"), ("reserve", "a.0"), ("reserve", "a.1"),
        ("create", "hot"), ("create", "page.0"), ("create", "page.1"), ("create", "page.2"),
        ("map", "hot"), ("map", "page.2"), ("map", "page.0"), ("map", "page.1"), ("map", "page.2"),
        ("grant", "z"), ("grant", "a.1"),
        ("synchronize", "gpu0"), ("synchronize", "gpu1"),
    ]  # fmt: skip


def test_steps_have_the_path_of_their_entry() -> None:
    plan = plan_of(SPEC, MACHINE)
    paths = {step.path for step in plan.steps if step.path}
    assert paths == {
        ("ranges", "z"), ("ranges", "a"), ("chunks", "hot"), ("chunks", "page"), ("map", "z", 0), ("map", "z", 1),
        ("map", "a", 0), ("access", "z"), ("access", "a.1"),
    }  # fmt: skip


def test_counted_ranges_request_consecutive_addresses() -> None:
    wishes = [step.address for step in steps_of(plan_of(SPEC, MACHINE), ReserveRange) if isinstance(step, ReserveRange)]
    assert wishes == [0, 0x40000000, 0x40400000]


def test_gpus_with_memory_or_access_have_a_context() -> None:
    text = (
        "ranges: {kv: {size: 2MiB}}\nchunks: {c: {location: gpu2, size: 2MiB}}\nmap: {kv: c}\naccess: {kv: {gpu1: r}}"
    )
    assert [step.describe().subject for step in steps_of(plan_of(text, MACHINE), RetainContext)] == ["gpu1", "gpu2"]
    assert [step.describe().subject for step in steps_of(plan_of(text, MACHINE), Synchronize)] == ["gpu1", "gpu2"]


def test_a_mapping_has_the_expected_access_of_every_gpu() -> None:
    first = steps_of(plan_of(SPEC, MACHINE), MapChunk)[0]
    assert isinstance(first, MapChunk)
    assert [str(grant.location) + " " + grant.access.word for grant in first.access] == [
        "gpu0 r", "gpu1 rw", "gpu2 none", "gpu3 none",
    ]  # fmt: skip


def asked(grant: Grant) -> Grant:
    """Grant as it is requested: for the host by one of its nodes (fact 42)."""
    host = grant.location.kind is LocationKind.HOST
    return Grant(Location(LocationKind.HOST_NUMA, 0), grant.access) if host else grant


def covers(plan: Plan) -> None:
    """Every mapping that shall have access is in exactly one grant, which is of whole mappings without a hole."""
    maps: dict[str, list[MapChunk]] = {}
    for step in plan.steps:
        if isinstance(step, MapChunk):
            maps.setdefault(step.range, []).append(step)
    observed: dict[tuple[str, int], int] = {}
    for step in plan.steps:
        if isinstance(step, SetAccess):
            end = step.offset + step.size
            inside = [each for each in maps[step.range] if step.offset <= each.offset < end]
            assert 0 < len(inside) <= LONGEST_GRANT
            assert (inside[0].offset, inside[-1].offset + inside[-1].size) == (step.offset, end)
            assert all(one.offset + one.size == other.offset for one, other in pairwise(inside))
            for each in inside:
                observed[each.range, each.offset] = observed.get((each.range, each.offset), 0) + 1
                assert [grant for grant in each.access if grant.access] == [asked(grant) for grant in step.grants]
    expected = {
        (each.range, each.offset): 1 for found in maps.values() for each in found if any(g.access for g in each.access)
    }
    assert observed == expected


@settings(max_examples=examples(100), suppress_health_check=list(HealthCheck))
@given(strategies.specs(identified=True))
def test_every_mapping_is_granted_by_one_call_over_whole_mappings(text: str) -> None:
    covers(plan_of(text, MACHINE))


@pytest.mark.parametrize(
    ("count", "sizes"),
    [
        (1, [1]),
        (LONGEST_GRANT, [1000]),
        (LONGEST_GRANT + 1, [1000, 1]),
        (2 * LONGEST_GRANT, [1000] * 2),
        (2500, [1000, 1000, 500]),
    ],
)
@pytest.mark.parametrize("entries", ["[p]", "[p.0, p.1:2, p.2:{count}]"])
def test_a_grant_covers_at_most_a_thousand_mappings(count: int, sizes: list[int], entries: str) -> None:
    if count < 3 and "p.2" in entries:
        entries = "[p]"
    text = f"ranges: {{kv: {{size: {2 * count}MiB}}}}\nchunks: {{p: {{location: gpu0, size: 2MiB, count: {count}}}}}\n"
    text += f"map: {{kv: {entries.format(count=count)}}}\naccess: {{kv: {{gpu0: rw}}}}"
    plan = plan_of(text, MACHINE)
    grants = [step for step in plan.steps if isinstance(step, SetAccess)]
    assert [step.size // (2 * MIB) for step in grants] == sizes
    covers(plan)


def test_a_summary_has_memory_reserved_bytes_calls_and_rounding() -> None:
    text = SPEC.replace("size: 4MiB}, page", "size: 3MiB, round: up}, page")
    plan = plan_of(text, MACHINE)
    summary = plan.summary()
    assert summary.memory == {"gpu0": 4 * MIB, "gpu1": 6 * MIB}
    assert summary.reserved == 16 * MIB
    assert summary.calls == len(plan.steps) == sum(row.calls for row in summary.rows)
    assert summary.teardown_calls == len(plan.steps) - len(steps_of(plan, SetAccess))
    assert summary.notes[0] == "chunk hot: 3MiB rounded up to 4MiB"
    created = sum(step.size for step in plan.steps if isinstance(step, CreateChunk))
    assert sum(summary.memory.values()) == created
    assert [*summary.memory] == ["gpu0", "gpu1"]  # in order, though the first chunk is on gpu1


def test_a_summary_has_the_warnings_states_parameters_and_choices_of_its_spec() -> None:
    plan = plan_of("chunks: {c: {location: gpu0, size: 2MiB, handles: fabric else fd}}", MACHINE)
    summary = plan.summary(warnings=("w",), states={"asleep": {"gpu0": 0}}, params={"size": "2MiB"})
    assert (summary.warnings, summary.states, summary.params) == (("w",), {"asleep": {"gpu0": 0}}, {"size": "2MiB"})
    assert [each.text for each in summary.choices] == [*summary.notes]
    assert len(summary.choices) == 1


def test_similar_steps_are_one_row() -> None:
    count = 1000
    text = f"ranges: {{kv: {{size: {2 * count}MiB}}}}\n"
    text += f"chunks: {{p: {{location: [gpu0, gpu1], size: 2MiB, count: {count}}}}}\n"
    rows = plan_of(text + "map: {kv: p}\naccess: {kv: {gpu0: rw}}", MACHINE).summary().rows
    row = next(row for row in rows if row.phase == Phase.CREATE)
    assert (row.first, row.last, row.calls, row.bytes_each, row.where) == (
        "p.0",
        "p.999",
        1000,
        2 * MIB,
        ("gpu0", "gpu1"),
    )
    assert [row.calls for row in rows] == [2, 1, 1000, 1000, 1, 2]


@pytest.mark.parametrize(
    ("access", "expected"),
    [
        ("a: {gpu0: rw}, b: {gpu0: r}", [SEEN_TWICE]),
        ("a: {gpu0: rw}, b: {gpu0: rw}", []),
        ("a: {gpu0: rw}, b: {gpu1: r}", []),
        ("a: [{size: 2MiB, grant: {gpu0: rw}}, {size: 2MiB, grant: {gpu0: r}}], b: {gpu0: r}", []),
    ],
)
def test_notes_name_chunks_with_different_access_in_two_ranges(access: str, expected: list[str]) -> None:
    head = "ranges: {a: {size: 2MiB}, b: {size: 2MiB}}\nchunks: {c: {location: gpu0, size: 2MiB}}\nmap: {a: c, b: c}"
    assert [note for note in plan_of(f"{head}\naccess: {{{access}}}", MACHINE).notes if "has" in note] == expected


def test_access_to_another_chunk_of_a_range_gives_no_note() -> None:
    text = """
ranges: {a: {size: 6MiB}, b: {size: 8MiB}}
chunks: {p: {location: gpu0, size: 2MiB, count: 4}, q: {location: gpu0, size: 2MiB}}
map: {a: [p.0:2, q], b: p}
access: {a: [{size: 4MiB, grant: {gpu0: r}}, {offset: 4MiB, size: 2MiB, grant: {gpu0: rw}}], b: {gpu0: r}}
"""
    assert plan_of(text, MACHINE).notes == ()


@pytest.mark.parametrize("order", [[3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1]])
def test_contexts_are_retained_in_the_order_of_the_gpus(order: list[int]) -> None:
    text = f"chunks: {{c: {{location: [{', '.join(f'gpu{each}' for each in order)}], size: 2MiB, count: 4}}}}"
    assert [step.describe().subject for step in steps_of(plan_of(text, MACHINE), RetainContext)] == [
        "gpu0",
        "gpu1",
        "gpu2",
        "gpu3",
    ]


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_planning_twice_gives_equal_plans(path: Path) -> None:
    one, other = (plan_of(path.read_text(), MACHINE) for _ in range(2))
    assert one == other
    assert dumps(one.summary()) == dumps(other.summary())


NO_DRIVER = """
import sys
from pathlib import Path
from memtopo import machine, planner
from memtopo.language import read_file
from memtopo.rules import validate
found = validate(read_file(sys.argv[1]), machine.load("h200x2"))
planner.plan(found.geometry, machine.load("h200x2")).summary()
assert not [name for name in sys.modules if name.split(".")[0] == "cuda" or name.startswith("memtopo.drivers.sim")
            or name.startswith("memtopo.drivers.cuda")], sorted(sys.modules)
"""
COMMAND = """
import runpy, sys
sys.argv = ["memtopo", *sys.argv[1:]]
try:
    runpy.run_module("memtopo", run_name="__main__")
except SystemExit as stopped:
    assert stopped.code == 0, stopped.code
assert not [name for name in sys.modules if name.split(".")[0] == "cuda" or name.startswith("memtopo.drivers.sim")
            or name.startswith("memtopo.drivers.cuda")], sorted(sys.modules)
"""


@pytest.mark.parametrize(
    "command",
    [
        [NO_DRIVER, "specs/quickstart.yaml"],
        [COMMAND, "validate", "specs/quickstart.yaml", "--machine", "h200x2"],
        [COMMAND, "plan", "specs/quickstart.yaml", "--machine", "h200x2"],
    ],
    ids=["modules", "validate", "plan"],
)
def test_validating_and_planning_load_no_driver(command: list[str]) -> None:
    """Dry means dry: a whole process that validates and plans for a recorded machine loads neither driver"""
    done = subprocess.run([sys.executable, "-c", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_empty_spec_has_no_steps() -> None:
    assert plan_of("", MACHINE).steps == ()
    assert diagnose("", invented(0)) == ()


def test_the_repr_of_a_plan_does_not_grow_with_its_steps() -> None:
    text = "ranges: {r: {size: 2MiB, count: N}}\nchunks: {c: {location: gpu0, size: 2MiB, count: N}}\nmap: {r: c}"
    shown = [repr(plan_of(text.replace("N", str(count)), invented(2))) for count in (1, 1000)]
    assert len(shown[1]) < len(shown[0]) + 20
