"""Specs with processes: instances, distributed devices, and limits of all processes."""

from __future__ import annotations

import re

import pytest

from memtopo.diagnostics import CODES
from memtopo.driver.types import gpu
from memtopo.geometry.groups import ChunkGroup
from memtopo.rules import Validated
from tests.helpers.line_count import executed_lines
from tests.helpers.specs import clean_geometry, validate_text

PE = (
    "processes:\n pe: {count: COUNT, devices: {mine: [gpu0, gpu1, gpu0]}, ranges: {heap: {size: 64MiB}}, "
    "chunks: {part: {location: mine, size: 4MiB, count: 2, handles: fd}}, exports: {part: {chunk: part, via: fd}}, "
    "imports: {every: {from: pe.part}}, map: {heap: every}, access: {heap: {mine: rw}}}\n"
)


def test_instances_have_labels_from_0_in_order() -> None:
    text = "processes: {b: {count: 3}, a: {}, c: {count: 1}}"
    assert [*clean_geometry(text).processes] == ["b.0", "b.1", "b.2", "a", "c.0"]


def test_devices_are_distributed_round_robin_over_instances() -> None:
    found = clean_geometry(PE.replace("COUNT", "5")).processes
    assert [member.devices["mine"] for member in found.values()] == [gpu(0), gpu(1), gpu(0), gpu(0), gpu(1)]
    assert [member.of(ChunkGroup)["part"].distinct_locations for member in found.values()] == [
        (member.devices["mine"],) for member in found.values()
    ]


def test_an_import_from_a_counted_process_has_the_handles_of_all_instances() -> None:
    for label, member in clean_geometry(PE.replace("COUNT", "5")).processes.items():
        run = member.of(ChunkGroup)["every"]
        assert run.origin
        assert (run.count, run.counted, label) == (10, True, label)
        assert [run.origin.of(index) for index in (0, 1, 2, 9)] == [
            ("pe.0", 0), ("pe.0", 1), ("pe.1", 0), ("pe.4", 1)
        ]  # fmt: skip
        assert [run.properties_of(index).location.id for index in range(10)] == [0, 0, 1, 1, 0, 0, 0, 0, 1, 1]


def test_a_count_of_1_is_counted() -> None:
    run = clean_geometry(PE.replace("COUNT", "1").replace(", count: 2,", ",")).processes["pe.0"].of(ChunkGroup)["every"]
    assert (run.counted, run.count, run.label(0)) == (True, 1, "every.0")


COUNTED = "count: 127, devices: {m: [gpu0, gpu1]}"

LARGE = {
    "chunks": f"s: {{{COUNTED}, chunks: {{c: {{location: m, size: 2MiB, count: 16000}}}}}}",
    "ranges": f"s: {{{COUNTED}, ranges: {{v: {{size: 2MiB, count: 16000}}}}}}",
    "buffers": f"s: {{{COUNTED}, buffers: {{v: {{location: m, size: 2MiB, count: 16000}}}}}}",
    "exports": "s: {chunks: {c: {location: gpu0, size: 2MiB, count: 20000, handles: fd}}, exports: {"
    + ", ".join(f"e{index}: {{chunk: c, via: fd}}" for index in range(200))
    + "}}",
    "imports": f"s: {{{COUNTED}, chunks: {{c: {{location: [m, gpu1], size: 2MiB, count: 15001, handles: fd}}}}, "
    "exports: {c: {chunk: c, via: fd}}, imports: {i: {from: s.c}}}",
    "an import": "s: {count: 127, chunks: {c: {location: [gpu0, gpu1], size: 2MiB, count: 2000000, handles: fd}}, "
    "exports: {c: {chunk: c, via: fd}}}\n r: {imports: {i: {from: s.c}}}",
    "mappings": "s: {count: 128, chunks: {c: {location: gpu0, size: 2MiB}}, ranges: {v: {size: 64GiB}}, map: {v: ["
    + ", ".join(["c"] * 16_000)
    + "]}}",
    "visible": f"s: {{count: 128, visible: [{', '.join(f'gpu{index}' for index in range(2000))}]}}",
    "devices": f"s: {{count: 128, devices: {{m: [{', '.join(f'gpu{index}' for index in range(2000))}]}}}}",
    "unknown exports": "s: {imports: {"
    + ", ".join(f"i{index}: {{from: t.x{index}}}" for index in range(1000))
    + "}}\n t: {exports: {"
    + ", ".join(f"e{index}: {{chunk: c, via: fd}}" for index in range(1000))
    + "}}",
}  # fmt: skip


MOST_LINES = 1_500_000


@pytest.mark.parametrize("text", LARGE.values(), ids=LARGE)
def test_large_numbers_are_refused_in_few_steps(text: str) -> None:
    found: list[Validated] = []
    assert executed_lines(lambda: found.append(validate_text(f"processes:\n {text}\n"))) < MOST_LINES
    assert found[0].geometry is None
    assert all(diagnostic.code in CODES for diagnostic in found[0].diagnostics)


def test_instances_with_equal_devices_share_a_geometry() -> None:
    found = clean_geometry(PE.replace("COUNT", "4")).processes
    assert found["pe.0"] is found["pe.2"] is found["pe.3"]
    assert found["pe.0"] is not found["pe.1"]


def test_the_order_of_processes_has_no_effect() -> None:
    one = "s: {chunks: {c: {location: gpu0, size: 2MiB, handles: fd}}, exports: {c: {chunk: c, via: fd}}}"
    other = "r: {ranges: {v: {size: 2MiB}}, imports: {c: {from: s.c}}, map: {v: c}, access: {v: {gpu1: r}}}"
    first, second = (clean_geometry(f"processes:\n {a}\n {b}\n").processes for a, b in ((one, other), (other, one)))
    assert {*first} == {*second}
    assert first["r"].of(ChunkGroup) == second["r"].of(ChunkGroup)


def test_rules_in_a_process_are_those_of_a_single_process() -> None:
    wrong = {
        "MT304": "map: {v: [c, {chunk: c, offset: 0}]}, access: {v: {gpu0: r}}",
        "MT305": "map: {v: [c, c, c]}, access: {v: {gpu0: r}}",
        "MT308": "map: {v: [c, c]}, access: {v: [{size: 1GiB, grant: {gpu0: r}}]}",
        "MT309": "map: {v: [c, c]}, access: {v: [{size: 8GiB, grant: {gpu0: r}}]}",
        "MT406": "map: {v: [c, c]}, access: {v: {host: r}}",
        "MT503": "map: {v: [c, c]}",
    }
    head = "ranges: {v: {size: 4GiB}}, chunks: {c: {location: gpu0, size: 2GiB}}"
    for code, rest in wrong.items():
        inside: Validated = validate_text(f"processes:\n p: {{{head}, {rest}}}\n")
        alone = validate_text(re.sub(r"(?<=}), (?=[a-z]+: \{)", "\n", f"{head}, {rest}"))
        assert (
            [diagnostic.code for diagnostic in inside.diagnostics]
            == [diagnostic.code for diagnostic in alone.diagnostics]
            == [code]
        )
        assert [diagnostic.path[2:] for diagnostic in inside.diagnostics] == [
            diagnostic.path for diagnostic in alone.diagnostics
        ]
        assert [diagnostic.message for diagnostic in inside.diagnostics] == [
            diagnostic.message for diagnostic in alone.diagnostics
        ]
