"""Steps of exports and imports, and plans of multi-process layouts."""

from __future__ import annotations

from pathlib import Path

import pytest

from memtopo import planner
from memtopo.common.units import MiB
from memtopo.driver.types import Access, HandleType, gpu
from memtopo.kinds.chunks import UNSEEN
from memtopo.kinds.chunks.steps import ImportChunk, TryExportChunk
from memtopo.kinds.ipc.steps import AllocateBuffer, CreateEvent, OpenBuffer, OpenEvent, TryExportBuffer, TryExportEvent
from memtopo.kinds.mappings.steps import MapChunk
from memtopo.kinds.resources import Attach, RetainContext
from memtopo.kinds.step import Phase
from memtopo.machine import Cluster
from memtopo.output.json import dumps
from memtopo.planner import Plan
from tests.helpers import strategies
from tests.helpers.machines import invented
from tests.helpers.specs import ENSEMBLES, clean_geometry, geometry_of, steps_of

MACHINE = strategies.machine()
SERVER = """
processes:
  server:
    ranges: {r: {size: 8MiB}}
    chunks: {w: {location: gpu0, size: 2MiB, count: 4, handles: [fd]}}
    map: {r: w}
    access: {r: {gpu0: rw}}
    buffers: {b: {location: [gpu0, gpu1], size: 3MiB, count: 2}, own: {location: gpu0, size: 3MiB}}
    events: {e: {device: gpu1}, mine: {device: gpu0}}
    exports:
      w: {chunk: "w.1:4", via: fd}
      b: {buffer: b, via: ipc}
      e: {event: e, via: ipc}
"""
READER = """
  reader:
    ranges: {v: {size: 8MiB}}
    imports: {w: {from: server.w}, b: {from: server.b}, e: {from: server.e}}
    chunks: {c: {location: gpu2, size: 2MiB}}
    map: {v: [w, c]}
    access: {v: {gpu2: r}}
"""


def plan_of_clean(text: str) -> Plan:
    return planner.plan(clean_geometry(text, MACHINE), MACHINE)


def test_exports_precede_imports_and_imports_precede_mappings() -> None:
    plan = plan_of_clean(SERVER + READER + "    exports: {c: {event: d, via: ipc}}\n    events: {d: {device: gpu2}}\n")
    every = [phase for phase in Phase if phase != Phase.BIND]
    assert [phase for phase, _ in plan.processes["server"].phases] == [each for each in every if each != Phase.IMPORT]
    assert [phase for phase, _ in plan.processes["reader"].phases] == every
    assert [*Phase].index(Phase.EXPORT) + 1 == [*Phase].index(Phase.IMPORT)


def test_only_exported_buffers_fill_blocks_and_only_exported_events_are_interprocess() -> None:
    server = plan_of_clean(SERVER + READER).processes["server"]
    buffers = [(step.label, step.size, step.device) for step in server.steps if isinstance(step, AllocateBuffer)]
    assert buffers == [("b.0", 4 * MiB, 0), ("b.1", 4 * MiB, 1), ("own", 3 * MiB, 0)]
    events = [(step.label, step.device, step.shared) for step in server.steps if isinstance(step, CreateEvent)]
    assert events == [("e", 1, True), ("mine", 0, False)]
    assert server.notes == ("buffer b: 3MiB rounded up to 4MiB, because legacy IPC shares whole blocks of 2MiB",)
    assert server.memory == {"gpu0": 15 * MiB, "gpu1": 4 * MiB}


def test_an_export_is_tried_once_for_its_first_handle() -> None:
    exports = steps_of(
        plan_of_clean(SERVER + READER).processes["server"], TryExportChunk, TryExportBuffer, TryExportEvent
    )
    described = [(step.verb, step.describe()) for step in exports]
    assert [(verb, each.subject, each.where, each.note) for verb, each in described] == [
        ("export", "w", "w", "fd, one of 3 tried"),
        ("export buffer", "b", "b", "ipc, one of 2 tried"),
        ("export event", "e", "e", "ipc"),
    ]


def test_every_imported_handle_is_one_step() -> None:
    reader = plan_of_clean(SERVER + READER).processes["reader"]
    chunks = [step for step in reader.steps if isinstance(step, ImportChunk)]
    assert [step.label for step in chunks] == ["w.0", "w.1", "w.2"]
    assert {(step.size, step.location, step.kind) for step in chunks} == {(2 * MiB, gpu(0), HandleType.FD)}
    assert [tuple(step.source[:3]) for step in chunks] == [("server", "w", index) for index in range(3)]
    opened = [(step.label, step.size, step.device) for step in reader.steps if isinstance(step, OpenBuffer)]
    assert opened == [("b.0", 4 * MiB, 0), ("b.1", 4 * MiB, 1)]
    assert [(step.label, step.device) for step in reader.steps if isinstance(step, OpenEvent)] == [("e", 1)]
    assert steps_of(reader, Attach) == []  # the conductor routes the handles of other processes
    assert reader.notes == ()
    assert reader.memory == {"gpu2": 2 * MiB}


def test_a_process_needs_contexts_for_its_own_objects_and_access_but_not_for_imported_chunks() -> None:
    plan = plan_of_clean(SERVER + READER)
    contexts = [[step.device for step in steps_of(each, RetainContext) if isinstance(step, RetainContext)]
                for each in plan.processes.values()]  # fmt: skip
    assert contexts == [[0, 1], [0, 1, 2]]
    only = READER.replace(", b: {from: server.b}, e: {from: server.e}", "")
    assert [
        step.describe().subject for step in steps_of(plan_of_clean(SERVER + only).processes["reader"], RetainContext)
    ] == ["gpu2"]


def test_a_multi_process_plan_adds_the_sums_of_its_processes() -> None:
    plan = plan_of_clean(SERVER + READER.replace("reader:", "reader:\n    count: 3"))
    summary = plan.summary()
    assert plan.steps == ()
    assert summary.rows == ()
    assert summary.memory == {"gpu0": 15 * MiB, "gpu1": 4 * MiB, "gpu2": 6 * MiB}
    assert summary.reserved == 32 * MiB
    assert summary.calls == sum(len(each.steps) for each in plan.processes.values())
    assert summary.calls == sum(row.calls * each.count for each in summary.processes for row in each.rows)
    for process in summary.processes:
        member = plan.processes[process.first]
        assert (process.rows, process.memory, process.notes) == (member.summary().rows, member.memory, member.notes)
        assert process.memory
    undone = [step for each in plan.processes.values() for step in each.steps if step.undoing.call]
    assert summary.teardown_calls == len(undone)


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ("gpu2", [("reader.0", "reader.3", 4)]),
        ("[gpu2, gpu2]", [("reader.0", "reader.3", 4)]),
        ("[gpu2, gpu2, gpu3, gpu3]", [("reader.0", "reader.1", 2), ("reader.2", "reader.3", 2)]),
        ("[gpu2, gpu3]", [(f"reader.{index}", f"reader.{index}", 1) for index in range(4)]),
    ],
)
def test_consecutive_instances_with_equal_calls_are_merged(devices: str, expected: list[tuple[str, str, int]]) -> None:
    counted = f"reader:\n    count: 4\n    devices: {{d: {devices}}}"
    text = SERVER + READER.replace("gpu2", "d").replace("reader:", counted)
    summarized = plan_of_clean(text).summary().processes
    assert [(each.first, each.last, each.count) for each in summarized] == [("server", "server", 1), *expected]


def test_processes_that_differ_in_memory_or_notes_alone_are_not_merged() -> None:
    buffer = "buffers: {b: {location: d, size: 2MiB}}"
    text = f"processes: {{a: {{count: 3, devices: {{d: [gpu0, gpu0, gpu1]}}, {buffer}}}}}"
    found = plan_of_clean(text).summary().processes
    assert [(each.first, each.last, each.count, each.memory) for each in found] == [
        ("a.0", "a.1", 2, {"gpu0": 2 * MiB}),
        ("a.2", "a.2", 1, {"gpu1": 2 * MiB}),
    ]


def test_a_plan_of_a_process_is_for_the_machine_of_its_node() -> None:
    entry = "ranges: {r: {size: 2MiB, count: 2, same_address: true}}, chunks: {c: {location: gpu0, size: 2MiB}}"
    machines = Cluster({"a": invented(2), "b": invented(3)})
    text = f"processes: {{p: {{count: 2, nodes: [a, b], {entry}, map: {{r.0: c}}, access: {{r.0: {{gpu0: rw}}}}}}}}"
    plan = planner.plan(geometry_of(text, machines), machines)
    mapped = [step for each in plan.processes.values() for step in each.steps if isinstance(step, MapChunk)]
    assert [len(step.access) for step in mapped] == [2, 3]
    assert plan.common_ranges == {"p.0": ("r",), "p.1": ("r",)}


def test_processes_with_different_names_are_not_merged() -> None:
    text = "processes: {a: {events: {e: {device: gpu0}}}, b: {events: {e: {device: gpu0}}}}"
    assert [each.first for each in plan_of_clean(text).summary().processes] == ["a", "b"]


def test_holders_are_attached_before_and_detached_after_their_imports() -> None:
    text = """
ranges: {v: {size: 8MiB}}
imports:
  a: {from: one/a, location: gpu0, size: 2MiB, count: 2}
  b: {from: /run/two/b, location: gpu1, size: 2MiB}
  c: {from: one/c, device: gpu1}
  d: {from: one/d, via: ipc, location: gpu0, size: 64KiB}
map: {v: [a, b]}
access: {v: {gpu0: r}}
"""
    steps = [step for step in plan_of_clean(text).steps if step.phase == Phase.IMPORT]
    holders = [step.holder for step in steps if isinstance(step, Attach)]
    assert holders == ["one", "/run/two"]
    assert [type(step) for step in steps[:2]] == [Attach, Attach]
    asked = [tuple(step.source[:3]) for step in steps if isinstance(step, ImportChunk | OpenBuffer | OpenEvent)]
    assert asked == [("one", "a", 0), ("one", "a", 1), ("/run/two", "b", 0), ("one", "d", 0), ("one", "c", 0)]


def test_only_visible_gpus_are_queried() -> None:
    text = SERVER + READER.replace("reader:", "reader:\n    visible: [gpu2, gpu3]").replace(
        ", b: {from: server.b}, e: {from: server.e}", ""
    )
    reader = plan_of_clean(text).processes["reader"]
    assert {step.location for step in reader.steps if isinstance(step, ImportChunk)} == {gpu(UNSEEN)}
    asked = {tuple(step.access) for step in reader.steps if isinstance(step, MapChunk)}
    assert asked == {((gpu(2), Access.R), (gpu(3), Access.NONE))}


@pytest.mark.parametrize("path", ENSEMBLES, ids=lambda path: path.stem)
def test_planning_processes_twice_gives_equal_plans(path: Path) -> None:
    one, other = (plan_of_clean(path.read_text()) for _ in range(2))
    assert one == other
    assert dumps(one.summary()) == dumps(other.summary())


def test_a_plan_contains_no_handles_sockets_or_process_ids() -> None:
    text = dumps(plan_of_clean(SERVER + READER).summary())
    assert "server.w" in text
    assert not [word for word in ("pid", "secret", "/proc", "fd:") if word in text]
