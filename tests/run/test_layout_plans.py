"""Plans of the processes of a layout in its states, and without some of its resources."""

from __future__ import annotations

from memtopo.language.names import AWAKE
from memtopo.run.layout_plans import WHOLE, LayoutPlans, lost, paths, provided, stops
from tests.helpers.machines import invented
from tests.helpers.specs import run_request

MACHINE = invented(2)
SPEC = """
processes:
  server:
    ranges: {r: {size: 4MiB}}
    chunks: {c: {location: gpu0, size: 2MiB, count: 2, handles: fd}}
    map: {r: c}
    access: {r: {gpu0: rw}}
    exports: {all: {chunk: c, via: fd}, last: {chunk: c.1, via: fd}}
    states: {asleep: {drop: [c.0]}}
  reader:
    ranges: {r: {size: 4MiB}, shown: {size: 4MiB}}
    chunks: {c: {location: gpu1, size: 2MiB, count: 2}}
    imports: {i: {from: server.all}}
    map: {r: c, shown: i}
    access: {r: {gpu1: rw}, shown: {gpu1: rw}}
    states: {idle: {drop: [shown]}}
"""
FIRST, LAST = (("server", ("chunk", f"c.{number}")) for number in range(2))


def plans() -> LayoutPlans:
    request = run_request(SPEC, MACHINE)
    return LayoutPlans(request.geometry, request.plan)


def test_what_is_absent_from_one_process_stays_in_others_that_have_the_same_name() -> None:
    found = plans()
    less = found.of((AWAKE, frozenset({("reader", ("chunk", "c.1"))})))
    for label, gone in (("server", set()), ("reader", {("chunk", "c.1")})):
        before, after = provided(found.of(WHOLE)[label]), provided(less[label])
        assert {each for each in before - after if isinstance(each, tuple) and each[0] == "chunk"} == gone


def test_transitions_are_between_what_is_absent_before_and_after() -> None:
    """Asked for once more, and in the other direction, too."""
    found = plans()
    without = AWAKE, frozenset({FIRST})
    for _ in range(2):
        away, back = found.transitions(WHOLE, without)["server"], found.transitions(without, WHOLE)["server"]
        assert ("chunk", "c.0") in {step.provides for step in away.undo}
        assert ("chunk", "c.0") in {step.provides for step in back.do}
        assert not found.transitions(WHOLE, WHOLE)["server"].actions
        assert not found.transitions(without, without)["server"].actions


def test_an_export_is_absent_only_without_all_of_its_objects() -> None:
    found = plans()
    assert found.resources_of(["server.all"]) == {FIRST, LAST}
    assert found.resources_of(["server.last", "reader.all"]) == {LAST}
    assert [*found.exports_of(frozenset({LAST}))] == ["server.last"]
    assert [*found.exports_of(frozenset({FIRST}))] == []
    assert found.reused(["server.all"], {"server": [], "reader": []}) == set()  # neither committed nor lent
    assert [*found.exports_of(frozenset({FIRST, LAST}))] == ["server.all", "server.last"]


def test_a_rehearsal_comes_to_each_state_alone_and_after_each_other_one_and_back() -> None:
    assert [*paths(["awake", "a", "b"])] == [("a",), ("b",), ("a", "b"), ("b", "a")]
    assert stops(["awake", "a", "b"]) == 2 + 2 + 3 + 3


def test_chunks_that_a_lending_pool_keeps_are_memory_of_its_export() -> None:
    """An export that lends has memory for as long as one of them stays, or the pool."""
    chunk = "{location: gpu0, size: 2MiB, handles: fd, count: {min: 2, max: 4}}"
    request = run_request(f"chunks: {{c: {chunk}}}\nexports: {{lent: {{chunk: c, via: fd}}}}\n", MACHINE)
    found, pool = LayoutPlans(request.geometry, request.plan), ("elastic chunks", "c")
    kept = [("chunk", f"c.{number}") for number in range(2)]
    for gone, reused in (([pool, *kept], set()), ([pool, kept[0]], {"lent"}), (kept, {"lent"})):
        assert found.reused(["lent"], {"": gone}) == reused


def test_bytes_of_an_import_are_lost_only_where_its_creator_gives_them_up() -> None:
    """What an importer alone gives back returns with its bytes; while it is away, it cannot be read there."""
    states = plans().states
    imports = {label: ("chunk", f"i.{label}") for label in "01"}

    def of_reader(*path: str, now: str = AWAKE) -> set[object]:
        return {each for each in lost(states, path, now)["reader"] if each in imports.values()}

    assert of_reader("idle") == set()
    assert of_reader("idle", now="idle") == {*imports.values()}
    assert of_reader("asleep") == {imports["0"]}
    assert of_reader("idle", "asleep") == {imports["0"]}
