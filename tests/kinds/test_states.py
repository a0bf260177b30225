"""States: which bytes a change of state copies, by which mappings, and what a state cannot drop or keep."""

from __future__ import annotations

import pytest

from memtopo import planner
from memtopo.driver.types import gpu
from memtopo.executor import StepFailed
from memtopo.kinds.chunks.pools import KeepPool
from memtopo.kinds.layout import current
from memtopo.kinds.mappings.steps import SetAccess
from memtopo.kinds.pinned.steps import AllocatePinned
from memtopo.kinds.states.groups import OffloadArea, StateGroup, copying_mappings, kept_at, windows
from memtopo.kinds.states.steps import COPIES, CopyIn, CopyOut
from memtopo.planner import Plan
from memtopo.plans.transition import transition
from tests.helpers.conducted import make_transition
from tests.helpers.machines import invented
from tests.helpers.specs import clean_geometry, geometry_of, plan_of, steps_of
from tests.run.test_transition import Built, built

M = 2 << 20
TWO = invented(2)
SPEC = """
ranges: {a: {size: 2MiB}, kv: {size: 8MiB}}
chunks: {a: {location: gpu0, size: 2MiB}, page: {location: gpu0, size: 2MiB, count: 4}}
map: {a: [a], kv: [page]}
access: {a: {gpu0: rw}, kv: {gpu0: rw}}
states:
  host: {offload: {a: "host:0", page: "host:0"}}
  pinned: {offload: {a: pinned}}
  dropped: {drop: [a], offload: {"page.1:3": gpu1}}
"""


def plans(text: str = SPEC) -> dict[str, Plan]:
    plan = plan_of(text, TWO)
    return {"awake": plan, **planner.plan_states(plan, geometry_of(text))}


def copied(before: str, after: str) -> list[tuple[str, str, str]]:
    """Chunks that a change of state copies, and from where to where."""
    found = transition(plans()[before].steps, plans()[after].steps).do
    copies = [step for step in found if isinstance(step, (CopyOut, CopyIn))]
    return [(" ".join(each.chunks), each.source.range, each.target.range) for each in copies]


ALL, SOME = "page.0 page.1 page.2 page.3", "page.1 page.2"


@pytest.mark.parametrize(
    ("before", "after", "copies"),
    [
        ("awake", "host", [(ALL, "kv", "page@host:0"), ("a", "a", "a@host:0")]),
        ("host", "awake", [("a", "a@host:0", "a"), (ALL, "page@host:0", "kv")]),
        ("host", "pinned", [("a", "a@host:0", "a@pinned"), (ALL, "page@host:0", "kv")]),
        ("pinned", "host", [(ALL, "kv", "page@host:0"), ("a", "a@pinned", "a@host:0")]),
        ("awake", "dropped", [(SOME, "kv", "page.1:3@gpu1")]),
        ("dropped", "awake", [(SOME, "page.1:3@gpu1", "kv")]),
        ("pinned", "dropped", [(SOME, "kv", "page.1:3@gpu1")]),
        ("dropped", "pinned", [(SOME, "page.1:3@gpu1", "kv")]),
        (
            "host",
            "dropped",
            [(SOME, "page@host:0", "page.1:3@gpu1"), ("page.0", "page@host:0", "kv"), ("page.3", "page@host:0", "kv")],
        ),
    ],
)
def test_a_change_of_state_copies_what_only_one_of_them_keeps(
    before: str, after: str, copies: list[tuple[str, str, str]]
) -> None:
    assert copied(before, after) == copies


def read(layout: Built, address: int) -> int:
    with current(layout.ledger, layout.execution.layout.contexts[0]):
        return layout.ledger.memcpy_dtoh(address, 1)[0]


def test_the_bytes_of_each_chunk_return_through_any_states_that_keep_them() -> None:
    with built(plans()["awake"]) as layout:
        live = layout.execution.layout
        addresses = [live.address("a"), *(live.address("kv") + at * M for at in range(4))]
        for value, address in enumerate(addresses, 1):
            with current(layout.ledger, live.contexts[0]):
                layout.ledger.memset_d8(address, value, M)
        for state in ("host", "pinned", "host", "awake"):
            make_transition(layout.execution, plans()[state])
        assert [read(layout, address) for address in addresses] == [1, 2, 3, 4, 5]
        for state in ("host", "dropped", "host", "awake"):
            make_transition(layout.execution, plans()[state])
        assert [read(layout, address) for address in addresses[1:]] == [2, 3, 4, 5]


@pytest.mark.parametrize("method", ["memcpy_async", "event_record"])
def test_a_copy_that_fails_leaves_no_event(method: str) -> None:
    with built(plans()["awake"], failing={method}) as layout:
        layout.failing.at = layout.failing.calls + 2
        with pytest.raises(StepFailed, match=r"^copy out a"):
            make_transition(layout.execution, plans()["host"])
        layout.failing.at = 0
        assert (layout.ledger.counts()["events"], layout.execution.layout.of(COPIES)) == (0, {})


WINDOWS = """
ranges: {one: {size: 2MiB}, two: {size: 4MiB}, three: {size: 4MiB}}
chunks:
  far: {location: gpu0, size: 2MiB}
  both: {location: gpu1, size: 2MiB}
  read: {location: gpu1, size: 2MiB}
  host: {location: "host:0", size: 2MiB}
map: {one: [far], two: [both, host], three: [both, read]}
access:
  one: {gpu1: rw, gpu0: r}
  two: {gpu0: rw}
  three: [{size: 2MiB, grant: {gpu1: rw}}, {offset: 2MiB, size: 2MiB, grant: {gpu1: r}}]
states: {s: {offload: {far: "host:0", both: "host:0", read: "host:0", host: gpu1}}}
"""


def test_a_chunk_is_copied_by_its_own_gpu_where_that_may_write_or_in_a_window() -> None:
    geometry = geometry_of(WINDOWS)
    assert copying_mappings(geometry) == {
        "far": ("one", 0, 1),
        "both": ("three", 0, 1),
        "host": ("two", M, 0),
        "read": ("read@copies:gpu1", 0, 1),
    }
    assert [(each.device, each.chunks) for each in windows(geometry)] == [(1, ("read",))]


def test_an_area_is_of_a_gpu_of_the_layout_and_all_of_these_may_write_it() -> None:
    text = SPEC.partition("states:")[0].replace("gpu0", "gpu1") + "states: {s: {offload: {a: pinned}}}"
    area = clean_geometry(text).of(OffloadArea)["a@pinned"]
    assert (area.pinned, {*area.contexts}) == (1, {1})
    text = SPEC.replace("a: {gpu0: rw}", "a: {gpu0: rw, gpu1: r}")
    (step,) = (each for each in steps_of(plan_of(text, TWO), SetAccess) if each.range == "page.1:3@gpu1")
    assert [each.location for each in step.grants] == [gpu(0), gpu(1)]


@pytest.mark.parametrize(
    ("dropped", "gone"), [("[heap]", False), ("[heap, other]", True), ("[seg]", True), ("[heap.0]", False)]
)
def test_elastic_chunks_go_with_the_last_of_their_ranges(dropped: str, gone: bool) -> None:
    text = """
ranges: {heap: {size: 8MiB, COUNTelastic: true}, other: {size: 8MiB, elastic: {chunks: seg}}}
chunks: {seg: {location: gpu0, size: 2MiB, count: {min: 1, max: 4}}}
access: {heap: {gpu0: rw}, other: {gpu0: rw}}
states: {s: {drop: DROPPED}}
"""
    text = text.replace("COUNT", "count: 2, " if "heap.0" in dropped else "").replace("DROPPED", dropped)
    geometry = clean_geometry(text)
    assert bool(geometry.of(StateGroup)["s"].absent) is gone
    assert bool(steps_of(planner.plan_states(plan_of(text, TWO), geometry)["s"], KeepPool)) is not gone


def test_each_area_in_pinned_memory_has_a_part_of_its_own() -> None:
    chunks = ", ".join(
        f"{name}: {{location: gpu0, size: {size}}}" for name, size in zip("abc", ("4MiB", "6MiB", "2MiB"), strict=True)
    )
    text = f"chunks: {{{chunks}}}\nranges: {{r: {{size: fill}}}}\nmap: {{r: [a, b, c]}}\naccess: {{r: {{gpu0: rw}}}}\n"
    text += "pinned: {p: {size: 12MiB}}\nstates: {s: {offload: {a: p, b: p, c: p}}}"
    areas = clean_geometry(text).of(OffloadArea).values()
    places = kept_at(areas)
    assert not any(each.shares() for each in areas)
    assert [each.label for each in steps_of(plan_of(text, TWO), AllocatePinned)] == ["p"]
    assert list(places.values()) == [("p", 0), ("p", 2 * M), ("p", 5 * M)]


def test_states_that_keep_the_same_chunks_in_the_same_memory_share_it() -> None:
    states = (
        "states: {x: {offload: {page: pinned}}, y: {offload: {page: pinned, a: pinned}}, z: {offload: {page: gpu1}}}"
    )
    areas = clean_geometry(SPEC.partition("states:")[0] + states).of(OffloadArea)
    assert {name: (area.size // M, area.location == gpu(1)) for name, area in areas.items()} == {
        "page@pinned": (4, False), "a@pinned": (1, False), "page@gpu1": (4, True)
    }  # fmt: skip
