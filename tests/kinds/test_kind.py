"""Rules of all kinds of the registry: names that entries share or not, uses that are refused, and steps of objects."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations

import pytest

from memtopo.drivers.sim import SimDriver
from memtopo.executor import Execution
from memtopo.geometry.groups import RangeGroup
from memtopo.kinds import KINDS, Kind
from memtopo.kinds.kind import Keys
from memtopo.kinds.layout import Layout
from memtopo.kinds.objects import ObjectStep
from tests.helpers.machines import invented
from tests.helpers.specs import codes, diagnose, plan_of

ENTRIES = {"imports": "{from: l/w, location: gpu0, size: 2MiB}", "allocations": "{pool: pool, size: 8MiB}"}
NAMED = [kind for kind in KINDS if kind.keys is Keys.UNIQUE]


def spec_of(*kinds: Kind) -> str:
    """One entry of each kind, as messages write it, all with the name `w`."""
    entries = {kind.section: {"w": ENTRIES.get(kind.section, kind.words.form.partition(": ")[2])} for kind in kinds}
    if "allocations" in entries:
        entries.setdefault("pools", {})["pool"] = "{location: gpu0}"
    return written(entries)


def written(sections: Mapping[str, Mapping[str, str]]) -> str:
    return "".join(
        f"{section}: {{{', '.join(f'{name}: {entry}' for name, entry in entries.items())}}}\n"
        for section, entries in sections.items()
    )


def errors(text: str) -> list[tuple[str, tuple[object, ...], str]]:
    return [(each.code, each.path, each.at) for each in diagnose(text) if each.severity == "error"]


@pytest.mark.parametrize(
    ("first", "second"), [*permutations(NAMED, 2)], ids=lambda kind: kind.section if isinstance(kind, Kind) else None
)
def test_entries_of_two_kinds_have_distinct_names_in_any_order(first: Kind, second: Kind) -> None:
    """But for ranges: an object without an address of its own may be named like the range that it is mapped into."""
    earlier, later = sorted((first, second), key=KINDS.index)
    taken = earlier.group is not RangeGroup or later.group.addressed
    found = [each for each in diagnose(spec_of(first, second)) if each.code == "MT203"]
    assert [(each.path, each.at) for each in found] == [((later.section, "w"), "key")] * taken
    assert [each.labels[0].path for each in found] == [(earlier.section, "w")] * taken


def test_an_imported_buffer_has_an_address_and_cannot_be_named_like_a_range() -> None:
    imported = "imports: {w: {from: l/w, via: ipc, location: gpu0, size: 2MiB}}"
    assert errors(f"ranges: {{w: {{size: 2MiB}}}}\n{imported}") == [("MT203", ("imports", "w"), "key")]


@pytest.mark.parametrize(
    ("chunk", "more"),
    [
        ("w", "chunks: {w: {location: gpu0, size: 2MiB, handles: fd}}\nexports: {w: {chunk: w, via: fd}}\n"),
        ("w", "imports: {w: {from: w/w, location: gpu0, size: 2MiB}}"),
        ("c", "chunks: {c: {location: gpu0, size: 2MiB}}\nevents: {w: {device: gpu0}}"),
    ],
)
def test_ranges_chunks_exports_and_devices_can_share_a_name(chunk: str, more: str) -> None:
    view = f"ranges: {{w: {{size: 2MiB}}}}\nmap: {{w: {chunk}}}\naccess: {{w: {{w: r}}}}\ndevices: {{w: gpu0}}\n"
    assert codes(view + more) == []


VIEW = "ranges: {r: {size: 2MiB}}\nchunks: {c: {location: gpu0, size: 2MiB}}\n"
USES: dict[str, list[tuple[str, tuple[object, ...], str]]] = {
    "map": [("map: {r: [c, w]}", ("map", "r", 1, "chunk"), "value"), ("map: {r: c, w: c}", ("map", "w"), "key")],
    "access": [("access: {w: {gpu0: rw}}", ("access", "w"), "key")],
    "exports": [
        (f"exports: {{x: {{{key}: w, via: {via}}}}}", ("exports", "x", key), "value")
        for key, via in (("chunk", "fd"), ("buffer", "ipc"), ("event", "ipc"))
    ],
    "states": [("states: {asleep: {drop: [w]}}", ("states", "asleep", "drop", 0), "value")],
}
REFUSED = [(kind, section, *use) for kind in KINDS for section in kind.unusable for use in USES[section]]


@pytest.mark.parametrize(("kind", "section", "use", "path", "at"), REFUSED)
def test_a_use_that_the_driver_does_not_have_is_refused_with_the_reason(
    kind: Kind, section: str, use: str, path: tuple[object, ...], at: str
) -> None:
    (found,) = [each for each in diagnose(VIEW + spec_of(kind) + use) if each.severity == "error"]
    assert (found.code, found.path, found.at) == ("MT706", path, at)
    assert (found.notes, found.help) == ((kind.unusable[section][0],), kind.unusable[section][1])


OBJECTS = """
buffers: {b: {location: gpu1, size: 2MiB, count: 2}}
events: {e: {device: gpu0}}
pools: {p: {location: gpus, accessed_by: gpus}}
allocations: {a: {pool: p, size: 1MiB}}
managed: {m: {size: 5KiB, prefer: gpu1}}
pinned: {h: {size: 1B, count: 2, accessed_by: [gpu1, gpu0]}}
"""


def test_an_object_is_as_declared_until_it_is_ended_once() -> None:
    """And no undo makes a call before the object exists, or after it has ended."""
    plan = plan_of(OBJECTS, invented(2))
    objects = [step for step in plan.steps if isinstance(step, ObjectStep)]
    assert {step.noun for step in objects} == {
        "buffer",
        "event",
        "pool",
        "allocation",
        "managed memory",
        "pinned memory",
    }
    assert len({step.leak_name() for step in objects}) == len({step.provides for step in objects}) == len(objects)
    with SimDriver(invented(2)) as driver:
        driver.init()
        for step in objects:
            step.undo(driver, Layout())
        execution = Execution(plan, driver)
        execution.build()
        layout = execution.layout
        for step in objects:
            assert step.label in step.objects(layout)
            assert [found for found in step.check(driver, layout) if found.expected != found.observed] == []
        for each in reversed(plan.steps):
            each.undo(driver, layout)
            if isinstance(each, ObjectStep):
                assert each.label not in each.objects(layout)
                each.undo(driver, layout)
