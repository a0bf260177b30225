"""Differences of plans: rows of undone and done steps, lost bytes, and memory before, after and in between."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from memtopo.driver.types import gpu
from memtopo.language import Document
from memtopo.machine import Cluster, Machines
from memtopo.plans.report import EntryChanges, MemoryChange, PhaseTime, PlanDifference
from memtopo.plans.transition import Transition, difference, transition
from tests.helpers.machines import invented
from tests.helpers.specs import geometry_of, plan_of

MACHINE = invented(2)
M = 2 << 20
BEFORE = """
ranges: {kv: {size: 8MiB}}
chunks: {page: {location: gpu0, size: 2MiB, count: 4}}
map: {kv: [page]}
access: {kv: {gpu0: rw}}
"""

SHARED = """
processes:
  server:
    ranges: {w: {size: 4MiB}}
    chunks: {w: {location: gpu0, size: 2MiB, count: 2, handles: fd}}
    map: {w: [w]}
    access: {w: {gpu0: rw}}
    exports: {w: {chunk: w, via: fd}}
  reader:
    count: 2
    ranges: {v: {size: 4MiB}, mine: {size: 2MiB}}
    chunks: {mine: {location: gpu1, size: 2MiB}}
    imports: {w: {from: server.w}}
    map: {v: [w], mine: [mine]}
    access: {v: {gpu1: r}, mine: {gpu1: rw}}
  other: {buffers: {b: {location: gpu1, size: 2MiB}}}
"""


def compared(after: str, before: str = BEFORE) -> PlanDifference:
    return difference(plan_of(before, MACHINE).steps_by_process, plan_of(after, MACHINE).steps_by_process, ("a", "b"))


def verbs(found: PlanDifference) -> list[tuple[str, str, int]]:
    return [(row.verb, row.first, row.calls) for row in (*found.undo, *found.do)]


def test_equal_specs_differ_in_nothing() -> None:
    found = compared(BEFORE)
    assert (found.empty, found.undo, found.do, found.lost) == (True, (), (), ())
    assert not replace(found, entries=EntryChanges(changed=("states.s",))).empty
    assert not replace(found, params={"size": (None, "1")}).empty
    assert found.kept == 10  # the context, the range, and each chunk with its mapping, which has the access
    assert found.memory == {"gpu0": MemoryChange(4 * M, 4 * M, 4 * M)}


def test_parameters_that_one_plan_lacks_differ() -> None:
    steps = plan_of(BEFORE, MACHINE).steps_by_process
    found = difference(steps, steps, ("a", "b"), params=({"size": "2MiB", "old": "1"}, {"size": "2MiB", "new": "3"}))
    assert found.params == {"old": ("1", None), "new": (None, "3")}


def test_fewer_chunks_are_unmapped_and_released() -> None:
    found = compared(BEFORE.replace("count: 4", "count: 3"))
    assert verbs(found) == [("unmap", "page.3", 1), ("release", "page.3", 1)]
    assert found.memory == {"gpu0": MemoryChange(4 * M, 3 * M, 4 * M)}
    assert not found.lost


def test_memory_that_moves_loses_its_bytes_and_needs_room_at_one_location_at_a_time() -> None:
    found = compared(BEFORE.replace("location: gpu0", "location: gpu1"))
    assert found.lost == ("page.0", "page.1", "page.2", "page.3")
    assert found.memory == {"gpu0": MemoryChange(4 * M, 0, 4 * M), "gpu1": MemoryChange(0, 4 * M, 4 * M)}


def test_a_chunk_at_another_offset_keeps_its_bytes() -> None:
    found = compared(BEFORE.replace("[page]", "[page.1, page.0, page.2:4]"))
    assert verbs(found) == [("unmap", "page.1", 2), ("map", "page.1", 2), ("grant", "kv", 1)]
    assert not found.lost


def test_access_is_granted_without_a_new_mapping() -> None:
    found = compared(BEFORE.replace("{gpu0: rw}", "{gpu0: r, gpu1: rw}"))
    assert [(row.verb, row.where) for row in found.do] == [
        ("retain context", ("gpu1",)),
        ("grant", ("gpu0 r, gpu1 rw",)),
    ]
    assert not found.undo


def test_rows_are_in_the_order_of_numbers() -> None:
    """kv.10 comes after kv.9, not after kv.1."""
    before = BEFORE.replace("8MiB}", "2MiB, count: 12}").replace("count: 4}", "count: 12}")
    before = before.replace("[page]", "{chunk: page, each: 1}")
    found = compared(before.replace("{gpu0: rw}", "{gpu0: rw, gpu1: r}"), before)
    assert [(row.verb, row.first, row.last, row.calls) for row in found.do] == [
        ("retain context", "gpu1", "gpu1", 1),
        ("grant", "kv.0", "kv.11", 12),
    ]


def test_each_process_has_its_rows_and_equal_processes_are_one() -> None:
    """A chunk that the server replaces goes in the readers as well; memory is counted over all processes."""
    found = compared(SHARED.replace("size: 2MiB, count: 2, handles", "size: 4MiB, count: 1, handles"), SHARED)
    assert (found.undo, found.do, found.lost) == ((), (), ())
    assert [(each.first, each.last, each.count) for each in found.processes] == [
        ("server", "server", 1), ("reader.0", "reader.1", 2), ("other", "other", 1)
    ]  # fmt: skip
    server, readers, other = found.processes
    assert [(row.verb, row.calls) for row in server.undo] == [("unmap", 2), ("release", 2)]
    assert [(row.verb, row.calls) for row in readers.undo] == [("unmap", 2), ("release", 2)]
    assert [row.verb for row in readers.do] == ["import", "map", "grant"]
    assert server.lost == ("w.0",)
    assert (other.empty, found.empty) == (True, False)
    assert found.kept == server.kept + 2 * readers.kept + other.kept
    assert found.memory == {"gpu0": MemoryChange(2 * M, 2 * M, 2 * M), "gpu1": MemoryChange(3 * M, 3 * M, 3 * M)}


def test_equal_specs_of_several_processes_differ_in_nothing() -> None:
    found = compared(SHARED, SHARED)
    assert found.empty
    assert len(found.processes) == 3


def test_a_process_of_which_something_only_goes_differs() -> None:
    found = compared(SHARED.replace("{buffers: {b: {location: gpu1, size: 2MiB}}}", "{events: {}}"), SHARED)
    assert ([each.empty for each in found.processes], found.empty) == ([True, True, False], False)


def test_entries_are_added_removed_or_changed_by_process_section_and_name() -> None:
    """Parameters are no entries: their values differ by themselves."""
    chunks = {"a": 1, "same": 1}
    server = {"count": 2, "buffers": {"c": 1}}
    before = {"name": "x", "params": {"p": 1}, "chunks": chunks | {"b": 1}, "processes": {"server": server}}
    after = {"name": "y", "params": {"p": 2}, "chunks": chunks | {"a": 2, "new": 1},
             "processes": {"server": {"count": 3, "buffers": {"c": 2}}}}  # fmt: skip
    found = EntryChanges.of(Document.from_object(before), Document.from_object(after))
    changed = ("layout name", "chunks.a", "server", "server.buffers.c")
    assert found == EntryChanges(("chunks.new",), ("chunks.b",), changed)


def test_a_later_part_of_a_phase_adds_its_steps_and_seconds_and_ends_it() -> None:
    first, later = PhaseTime("map", 2, 0.5, 1.0, 1.5), PhaseTime("map", 3, 0.25, 4.0, 4.25)
    assert first.with_part(later) == PhaseTime("map", 5, 0.75, 1.0, 4.25)


def test_processes_of_two_entries_with_equal_differences_stay_apart() -> None:
    entry = "{count: 2, chunks: {c: {location: gpu0, size: 2MiB}}}"
    text = f"processes: {{a: {entry}, b: {entry}}}"
    assert [(each.first, each.last) for each in compared(text, text).processes] == [("a.0", "a.1"), ("b.0", "b.1")]


def test_managed_memory_counts_at_the_location_of_plans() -> None:
    managed = "managed: {m: {size: 4MiB, attach: global, prefer: gpu1}, n: {size: 2MiB, attach: global}}"
    assert compared(managed.replace("gpu1", "gpu0"), managed).memory == {
        "gpu0": MemoryChange(M, 3 * M, 3 * M), "gpu1": MemoryChange(2 * M, 0, 2 * M)
    }  # fmt: skip
    assert compared(managed, managed.replace(", prefer: gpu1", "")).memory == {
        "gpu0": MemoryChange(3 * M, M, 3 * M), "gpu1": MemoryChange(0, 2 * M, 2 * M)
    }  # fmt: skip
    advised = compared("managed: {n: {size: 2MiB, prefer: host}}", "managed: {n: {size: 2MiB}}").memory
    assert advised == {"gpu0": MemoryChange(M, 0, M), "host": MemoryChange(0, M, M)}  # without an allocation


PAIR = """
processes:
  one: {chunks: {c: {location: gpu0, size: ONE, handles: fd}, d: {location: gpu0, size: 2MiB}}, exports: {w: COMMITTED}}
  two: {chunks: {c: {location: gpu0, size: TWO, handles: fd}}, exports: {w: COMMITTED}}
""".replace("COMMITTED", "{chunk: c, via: fd, commit: required}")


def pair(one: str, two: str, *, nodes: bool = False) -> str:
    found = PAIR.replace("ONE", one).replace("TWO", two)
    if nodes:
        found = found.replace(", commit: required", "").replace("one: {", "one: {node: a, ")
    return found.replace("two: {", "two: {node: b, ") if nodes else found


def compared_whole(before: str, after: str, machines: Machines) -> PlanDifference:
    old, new = (plan_of(text, machines).steps_by_process for text in (before, after))
    geometries = geometry_of(before, machines), geometry_of(after, machines)
    return difference(old, new, ("a", "b"), geometries=geometries)


def test_exports_that_a_change_empties_have_the_names_of_their_processes() -> None:
    """As those of a held layout."""
    before = pair("4MiB", "2MiB")
    for one, two, emptied in (("4MiB", "6MiB", ("two.w",)), ("2MiB", "6MiB", ("one.w", "two.w")), ("4MiB", "2MiB", ())):
        assert compared_whole(before, pair(one, two), MACHINE).emptied == emptied
    without = pair("8MiB", "4MiB").replace(", commit: required", "", 1)
    assert compared_whole(before, without, MACHINE).emptied == ("two.w",)


CONTRACT = """
ranges: {kv: {size: 8MiB, address: 0x40000000, fixed: FIXED}, other: {size: 2MiB}}
chunks: {page: {location: gpu0, size: 2MiB, count: 4, handles: fd}}
buffers: {b: {location: gpu0, size: 2MiB}}
map: {kv: [page]}
access: {kv: {gpu0: rw}}
exports: {kv: {chunk: page, via: fd}, one: {chunk: page.0, via: fd}}
"""


@pytest.mark.parametrize(
    ("old", "new", "moved", "exports"),
    [
        ("other: {size: 2MiB}", "other: {size: 4MiB}", ("other",), {}),
        ("kv: {size: 8MiB", "kv: {size: 10MiB", ("kv",), {}),
        ("buffers: {b: {location: gpu0", "buffers: {b: {location: gpu1", ("b",), {}),
        ("count: 4", "count: 5", (), {"kv": ({"count": ("4", "5")}, False)}),
        ("size: 8MiB", "size: 10MiB", ("kv",), {}),
        ("location: gpu0, size: 2MiB, count: 4", "location: [gpu0, gpu1], size: 2MiB, count: 4", (),
            {"kv": ({"location": ("gpu0", "gpu0, gpu1")}, True)}),
        (", one: {chunk: page.0, via: fd}", "", (),
            {"one": ({"kind": ("chunk", None), "via": ("fd", None), "count": ("1", None),
                      "size": ("2MiB", None), "location": ("gpu0", None)}, False)}),
        ("page.0", "page.1", (), {"one": ({}, True)}),
    ],
)  # fmt: skip
def test_a_change_lists_memory_that_moves_and_exports_that_change(
    old: str, new: str, moved: tuple[str, ...], exports: dict[str, tuple[dict[str, object], bool]]
) -> None:
    before = CONTRACT.replace(", address: 0x40000000, fixed: FIXED", "")
    after = before.replace(old, new).replace("map: {kv: [page]}", "map: {kv: [page.0:4]}")
    found = compared_whole(before.replace("map: {kv: [page]}", "map: {kv: [page.0:4]}"), after, MACHINE)
    assert (found.moved, {each.name: (each.terms, each.released) for each in found.exports}) == (moved, exports)


def test_a_range_at_a_fixed_address_does_not_move() -> None:
    for fixed, moved in (("true", ()), ("false", ("kv",))):
        before = CONTRACT.replace("FIXED", fixed)
        assert compared_whole(before, before.replace("size: 8MiB", "size: 10MiB"), MACHINE).moved == moved


def test_the_memory_of_each_node_is_that_of_its_own_processes() -> None:
    nodes = Cluster({"a": MACHINE, "b": MACHINE})
    found = compared_whole(pair("4MiB", "2MiB", nodes=True), pair("2MiB", "6MiB", nodes=True), nodes)
    assert found.memory == {"a/gpu0": MemoryChange(3 * M, 2 * M, 3 * M), "b/gpu0": MemoryChange(M, 3 * M, 3 * M)}
    assert [each.node for each in found.processes] == ["a", "b"]


def test_memory_that_is_in_use_elsewhere_is_not_free_after_its_release() -> None:
    larger = BEFORE.replace("size: 2MiB, count: 4", "size: 4MiB, count: 2")
    found = transition(plan_of(BEFORE, MACHINE).steps, plan_of(larger, MACHINE).steps)
    in_use = [{("", ("chunk", f"page.{number}")) for number in range(count)} for count in (0, 1, 4)]
    assert [dict(Transition.together({"": found}, each).growth) for each in in_use] == [
        {},
        {gpu(0): M},
        {gpu(0): 4 * M},
    ]
