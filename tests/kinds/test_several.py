"""Specs of several processes: how many there are, what each is dealt and sees, and what they take together."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from memtopo.common.units import GiB
from memtopo.diagnostics.codes import CODES
from memtopo.driver.types import gpu
from memtopo.geometry.groups import ChunkGroup
from memtopo.language import Document
from memtopo.language.fields import LARGEST_PROCESSES
from memtopo.rules.validation import Validated, validate
from tests.helpers.machines import invented
from tests.helpers.specs import clean_geometry, codes, diagnose, validate_text

PE = (
    "processes:\n pe: {count: COUNT, devices: {mine: [gpu0, gpu1, gpu0]}, ranges: {heap: {size: 64MiB}}, "
    "chunks: {part: {location: mine, size: 4MiB, count: 2, handles: fd}}, exports: {part: {chunk: part, via: fd}}, "
    "imports: {every: {from: pe.part}}, map: {heap: every}, access: {heap: {mine: rw}}}\n"
)


def test_labels_are_in_order() -> None:
    """A counted process is as many processes, labelled from 0, in the spec's order; one that is not has its name"""
    text = "processes: {b: {count: 3}, a: {}, c: {count: 1}}"
    assert [*clean_geometry(text).processes] == ["b.0", "b.1", "b.2", "a", "c.0"]


def test_devices_are_dealt() -> None:
    """A list under a device's name is dealt to the processes of a counted process in turn"""
    found = clean_geometry(PE.replace("COUNT", "5")).processes
    assert [member.devices["mine"] for member in found.values()] == [gpu(0), gpu(1), gpu(0), gpu(0), gpu(1)]
    assert [member.of(ChunkGroup)["part"].places for member in found.values()] == [
        (member.devices["mine"],) for member in found.values()
    ]


def test_an_import_from_a_counted_process() -> None:
    """It is counted in the processes' order, all handles of one before those of the next, one's own included"""
    for label, member in clean_geometry(PE.replace("COUNT", "5")).processes.items():
        run = member.of(ChunkGroup)["every"]
        assert run.origin
        assert (run.count, run.counted, label) == (10, True, label)
        assert [run.origin.of(index) for index in (0, 1, 2, 9)] == [
            ("pe.0", 0), ("pe.0", 1), ("pe.1", 0), ("pe.4", 1)
        ]  # fmt: skip
        assert [run.properties_of(index).location.id for index in range(10)] == [0, 0, 1, 1, 0, 0, 0, 0, 1, 1]


def test_a_process_counted_once_is_counted() -> None:
    """A count of 1 makes what is imported from it counted, so that a spec need not change with the number"""
    run = clean_geometry(PE.replace("COUNT", "1").replace(", count: 2,", ",")).processes["pe.0"].of(ChunkGroup)["every"]
    assert (run.counted, run.count, run.label(0)) == (True, 1, "every.0")


@pytest.mark.parametrize(
    ("text", "expected", "path"),
    [
        ("devices: {m: [gpu0, gpu1]}", "MT103", ("devices", "m")),
        ("processes: {p: {devices: {m: [gpu0, gpu1]}}}", "MT103", ("processes", "p", "devices", "m")),
        ("processes: {p: {count: 2, devices: {m: []}}}", "MT103", ("processes", "p", "devices", "m")),
        ("processes: {p: {count: 1, devices: {m: [gpu0, gpu9]}}}", "MT401", ("processes", "p", "devices", "m", 1)),
        ("processes: {p: {count: 2, devices: {m: [gpu0, what]}}}", "MT201", ("processes", "p", "devices", "m", 1)),
        ("processes: {p: {count: 2, devices: {gpu0: [gpu0, gpu1]}}}", "MT203", ("processes", "p", "devices", "gpu0")),
    ],
)
def test_lists_of_devices(text: str, expected: str, path: tuple[object, ...]) -> None:
    """A list of devices is for a counted process, and every device in it has to be there, dealt or not"""
    assert [(fault.code, fault.path) for fault in diagnose(text) if fault.code < "MT5"] == [(expected, path)]


def test_a_count_with_a_fault() -> None:
    """Where it is not known how many of a process there are, what depends on that is not judged"""
    text = PE.replace("COUNT", "0") + (
        " all: {ranges: {v: {size: 64MiB}}, imports: {x: {from: pe.part}}, map: {v: x.63}, access: {v: {gpu0: r}}}\n"
    )
    assert codes(text) == ["MT106"]
    assert codes(text.replace("devices: {mine: [gpu0, gpu1, gpu0]}, ", "").replace("mine", "gpu0")) == ["MT106"]


VISIBLE = (
    "processes:\n w: {visible: SEEN, chunks: {c: {location: PLACE, size: 2MiB, count: 2, handles: fd}}, "
    "exports: {c: {chunk: c, via: fd}}}\n"
)


@pytest.mark.parametrize(
    ("seen", "place", "expected"),
    [
        ("gpu0", "gpu0", []),
        ("[gpu1, gpu0]", "[gpu0, gpu1]", []),
        ("[gpu0, gpu0]", "gpu0", []),
        ("gpu0", "host:0", []),
        ("gpu1", "gpu0", ["MT606"]),
        ("gpu1", "[gpu1, gpu0]", ["MT606"]),
        ("[]", "gpu0", ["MT103"]),
        ("host", "gpu0", ["MT103"]),
        ("[gpu1, 'host:0']", "gpu0", ["MT103"]),
        ("gpu7", "gpu0", ["MT401"]),
        ("[gpu1, gpu7]", "gpu0", ["MT401"]),
        ("nothing", "gpu0", ["MT201"]),
        ("{gpu0: r}", "gpu0", ["MT103"]),
        ("", "gpu0", ["MT103"]),
    ],
)
def test_visible(seen: str, place: str, expected: list[str]) -> None:
    """A process uses the GPUs that it is to see; where those have a fault, only that is told"""
    text = VISIBLE.replace("SEEN", seen).replace("PLACE", place)
    assert codes(text) == expected


def test_visible_is_of_processes() -> None:
    """A spec of one process sees what it is started with: it has neither `visible` nor `count`"""
    assert codes("visible: gpu0") == codes("count: 2") == ["MT101"]


def test_what_a_process_sees_is_in_its_order() -> None:
    """`visible` takes names of the process's own, dealt ones too, keeps their order, and uses them"""
    text = "processes:\n w: {count: 2, devices: {mine: [gpu1, gpu0], other: [gpu0, gpu1]}, visible: [mine, other]}\n"
    assert [member.visible for member in clean_geometry(text).processes.values()] == [
        (gpu(1), gpu(0)),
        (gpu(0), gpu(1)),
    ]


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("{from: s.c}", []),
        ("{from: s.c, location: gpu0}", []),
        ("{from: elsewhere/c, location: gpu0, size: 2MiB}", []),
        ("{from: s.b}", ["MT606"]),
        ("{from: s.e}", ["MT606"]),
        ("{from: elsewhere/c, location: gpu0, size: 2MiB, via: ipc}", ["MT606"]),
        ("{from: elsewhere/c, device: gpu0}", ["MT606"]),
    ],
)
def test_imports_of_unseen_gpus(entry: str, expected: list[str]) -> None:
    """A chunk of a GPU that a process does not see can be imported (fact 43); a buffer or an event cannot"""
    text = (
        "processes:\n s: {chunks: {c: {location: gpu0, size: 2MiB, handles: fd}}, buffers: {b: {location: gpu0, "
        "size: 2MiB}}, events: {e: {device: gpu0}}, exports: {c: {chunk: c, via: fd}, b: {buffer: b, via: ipc}, "
        f"e: {{event: e, via: ipc}}}}}}\n r: {{visible: gpu1, imports: {{x: {entry}}}, "
        "ranges: {v: {size: 2MiB}}, map: {v: x}, access: {v: {gpu1: r}}}\n"
    )
    assert codes(text) == expected
    if expected:
        (fault,) = diagnose(text)
        assert fault.labels[0].path == ("processes", "r", "visible")


MEMORY = (
    "processes:\n a: {count: COUNT, ranges: {v: {size: 10GiB}}, chunks: {c: {location: gpu0, size: 10GiB}}, "
    "map: {v: c}, access: {v: {gpu0: rw}}}\n"
)


@pytest.mark.parametrize(
    ("count", "room", "expected"),
    [
        (1, 10 * GiB + GiB // 2, []),
        (1, 10 * GiB + GiB // 2 - 1, ["MT402"]),
        (3, 31 * GiB + GiB // 2, []),
        (3, 31 * GiB + GiB // 2 - 1, ["MT402"]),
    ],
)
def test_memory_of_all_processes(count: int, room: int, expected: list[str]) -> None:
    """What all processes create on a GPU fits into its memory together, beside a context for each of them"""
    found = validate_text(MEMORY.replace("COUNT", str(count)), invented(2, memory=room)).diagnostics
    assert [fault.code for fault in found] == expected
    if found:
        assert found[0].path == ("processes", "a", "chunks", "c", "size")


def test_memory_is_counted_where_it_is_created() -> None:
    """An importer takes no memory of its own, but a context, also where it only is granted access"""
    text = MEMORY.replace("COUNT", "1").replace(
        "size: 10GiB}}, map", "size: 10GiB, handles: fd}}, exports: {c: {chunk: c, via: fd}}, map"
    )
    text += (
        " r: {count: 4, ranges: {v: {size: 10GiB}}, imports: {x: {from: a.0.c}}, map: {v: x}, access: {v: {gpu0: r}}}\n"
    )
    text = text.replace("a: {count: 1, ", "a: {").replace("a.0.c", "a.c")
    for room, expected in ((12 * GiB + GiB // 2, []), (12 * GiB, ["MT402"])):
        found = validate_text(text, invented(2, memory=room)).diagnostics
        assert [fault.code for fault in found] == expected
    assert any("contexts of 5 processes" in note for note in found[0].notes)


def test_contexts_alone() -> None:
    """Processes whose contexts alone do not fit are told so, where nothing else is on the GPU"""
    text = "processes:\n r: {count: 20, events: {e: {device: gpu1}}}\n"
    (fault,) = validate_text(text, invented(2, memory=8 * GiB)).diagnostics
    assert (fault.code, fault.path) == ("MT402", ("processes",))
    assert (
        fault.message == "the contexts of 20 processes take about 10 GiB on gpu1, which has 8.0 GiB: 2.0 GiB too much"
    )


def test_buffers_take_memory() -> None:
    """Buffers count as chunks do, by the blocks that they fill where they are exported"""
    text = "buffers: {b: {location: [gpu0, gpu1], size: 1MiB, count: 6}}\n"
    shared = text + "exports: {b: {buffer: b, via: ipc}}\n"
    room = GiB // 2 + (4 << 20)
    assert [codes(each, invented(2, memory=room)) for each in (text, shared)] == [[], ["MT402", "MT402"]]


def test_a_warning_is_told_once() -> None:
    """What all processes of a counted one have in common is told once; what differs between them is not lost"""
    text = "processes:\n w: {count: 4, devices: {m: [gpu0, gpu1]}, chunks: {c: {location: m, size: 2MiB}}}\n"
    assert codes(text) == ["MT501"]
    refused = text.replace("size: 2MiB", "size: 2MiB, handles: fabric")
    told = [fault.message for fault in diagnose(refused) if fault.code == "MT404"]
    assert [message.split(" on ")[1] for message in told] == ["gpu0 of this machine", "gpu1 of this machine"]


SHAPES: list[tuple[Any, list[str]]] = [
    ("", []),
    ({}, []),
    ([], ["MT103"]),
    ("server", ["MT103"]),
    ({"server": ""}, ["MT103"]),
    ({"server": []}, ["MT103"]),
    ({"server": "x"}, ["MT103"]),
    ({"server": {}}, []),
    ({"9": {}}, ["MT104"]),
    ({"a.0": {}}, ["MT104"]),
    ({"": {}}, ["MT104"]),
    ({"server": {"processes": {"inner": {}}}}, ["MT101"]),
    ({"server": {"memtopo": "1"}}, ["MT101"]),
    ({"server": {"visibel": "gpu0"}}, ["MT101"]),
    ({"server": {"count": "0"}}, ["MT106"]),
    ({"server": {"count": "-1"}}, ["MT106"]),
    ({"server": {"count": ""}}, ["MT103"]),
    ({"server": {"count": ["2"]}}, ["MT103"]),
    ({"server": {"count": str(LARGEST_PROCESSES)}}, []),
    ({"server": {"count": "129"}}, ["MT109"]),
    ({"server": {"count": "999999999999"}}, ["MT109"]),
    ({"a": {"count": "100"}, "b": {"count": "28"}}, []),
    ({"a": {"count": "100"}, "b": {"count": "29"}}, ["MT109"]),
    ({f"p{index}": {} for index in range(129)}, ["MT109"]),
    ({f"p{index}": {"chunks": []} for index in range(10_000)}, ["MT109"]),
    ({section: {} for section in ("processes", "chunks", "map", "count", "visible", "host", "gpu0")}, []),
]


@pytest.mark.parametrize(("processes", "expected"), SHAPES, ids=lambda value: str(value)[:40])
def test_shapes(processes: Any, expected: list[str]) -> None:
    """Processes are a mapping from names to mappings, at most 128 of them together; any name is as good as another"""
    document = Document.from_object({"memtopo": 1, "name": "test", "processes": processes})
    found = validate(document, invented(2))
    assert [fault.code for fault in found.diagnostics] == expected


@pytest.mark.parametrize(
    "section", ["devices", "ranges", "chunks", "map", "access", "buffers", "events", "exports", "imports"]
)
def test_sections_beside_processes(section: str) -> None:
    """A section beside `processes` is told where it stands, and what is in it is not judged"""
    (fault,) = diagnose(f"{section}: {{x: 1}}\nprocesses: {{a: {{}}}}\n")
    assert (fault.code, fault.path, fault.at) == ("MT110", (section,), "key")


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
    "visible": f"s: {{count: 128, visible: [{', '.join(f'gpu{index}' for index in range(10_000))}]}}",
    "devices": f"s: {{count: 128, devices: {{m: [{', '.join(f'gpu{index}' for index in range(10_000))}]}}}}",
    "unknown exports": "s: {imports: {"
    + ", ".join(f"i{index}: {{from: t.x{index}}}" for index in range(5000))
    + "}}\n t: {exports: {"
    + ", ".join(f"e{index}: {{chunk: c, via: fd}}" for index in range(5000))
    + "}}",
}  # fmt: skip


@pytest.mark.parametrize("text", LARGE.values(), ids=LARGE)
def test_large_numbers_are_refused_soon(text: str) -> None:
    """Processes that ask for too much together are told within a second, however little text it takes"""
    start = time.process_time()
    found = validate_text(f"processes:\n {text}\n")
    assert time.process_time() - start < 1
    assert found.geometry is None
    assert all(fault.code in CODES for fault in found.diagnostics)


def test_alike_processes_are_laid_out_once() -> None:
    """Processes of a counted one that are dealt the same devices share what is known of them"""
    found = clean_geometry(PE.replace("COUNT", "4")).processes
    assert found["pe.0"] is found["pe.2"] is found["pe.3"]
    assert found["pe.0"] is not found["pe.1"]


def test_the_order_of_processes_means_nothing() -> None:
    """Who imports may stand before who exports"""
    one = "s: {chunks: {c: {location: gpu0, size: 2MiB, handles: fd}}, exports: {c: {chunk: c, via: fd}}}"
    other = "r: {ranges: {v: {size: 2MiB}}, imports: {c: {from: s.c}}, map: {v: c}, access: {v: {gpu1: r}}}"
    first, second = (clean_geometry(f"processes:\n {a}\n {b}\n").processes for a, b in ((one, other), (other, one)))
    assert {*first} == {*second}
    assert first["r"].of(ChunkGroup) == second["r"].of(ChunkGroup)


def test_a_process_with_rules_of_its_own() -> None:
    """Every rule holds in a process as it does alone, with its places in the process"""
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
        assert [fault.code for fault in inside.diagnostics] == [fault.code for fault in alone.diagnostics] == [code]
        assert [fault.path[2:] for fault in inside.diagnostics] == [fault.path for fault in alone.diagnostics]
        assert [fault.message for fault in inside.diagnostics] == [fault.message for fault in alone.diagnostics]
