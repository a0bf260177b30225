"""Imports: where they come from, what they have to say, and what they become."""

from __future__ import annotations

import pytest

from memtopo.common.units import MiB
from memtopo.driver.types import gpu
from memtopo.geometry.groups import ChunkGroup
from memtopo.kinds.buffers import BufferGroup
from memtopo.kinds.events import EventGroup
from memtopo.kinds.exports import ExportGroup
from memtopo.kinds.views import all_mapped_memory
from tests.helpers.machines import invented
from tests.helpers.sharing_specs import SERVER, VIEW, member, only_diagnostic, reader
from tests.helpers.specs import clean_geometry, codes, validate_text

IMPORTS = [
    ("{from: server.w}", []),
    ("{from: server.w, via: fd, size: 2MiB, count: 4, location: gpu0}", []),
    ("{from: server.w, size: 1 granule, location: [gpu0, gpu0]}", []),
    ("{from: server.w, via: fabric}", ["MT604"]),
    ("{from: server.w, size: 4MiB}", ["MT604"]),
    ("{from: server.w, size: 2 granules}", ["MT604"]),
    ("{from: server.w, count: 3}", ["MT604"]),
    ("{from: server.w, location: gpu1}", ["MT604"]),
    ("{from: server.w, location: [gpu0, gpu1]}", ["MT604"]),
    ("{from: server.w, device: gpu0}", ["MT604"]),
    ("{from: server.w, location: gpu7}", ["MT401"]),
    ("{from: server.w, count: 3, size: 4MiB}", ["MT604", "MT604"]),
    ("{from: server.v}", ["MT201"]),
    ("{from: sever.w}", ["MT201"]),
    ("{from: reader.x}", ["MT201"]),
    ("{from: server.w.0}", ["MT104"]),
    ("{from: server}", ["MT104"]),
    ("{from: server/w, location: gpu0, size: 2MiB}", ["MT203"]),
    ("{from: server.b}", ["MT201"]),
    ("{from: server.e}", ["MT201"]),
    ("{}", ["MT102"]),
    ("{from: server.w, offset: 0}", ["MT101"]),
    ("server.w", ["MT103"]),
    ("{from: elsewhere/w, location: gpu0, size: 2MiB, count: 4}", []),
    ("{from: elsewhere/pe.part, location: gpu0, size: 1 granule, count: 4}", []),
    ("{from: /run/user/1/x.sock/w, location: [gpu0, gpu1], size: 2MiB, count: 4}", []),
    ("{from: ./socket/w, location: host:0, size: 2MiB, count: 4}", []),
    ("{from: elsewhere/w, size: 2MiB}", ["MT603"]),
    ("{from: elsewhere/w, location: gpu0}", ["MT603"]),
    ("{from: elsewhere/w}", ["MT603"]),
    ("{from: elsewhere/w, device: gpu0, size: 2MiB}", ["MT603"]),
    ("{from: elsewhere/w, device: gpu0, location: gpu0}", ["MT603"]),
    ("{from: elsewhere/w, device: gpu0, via: fd}", ["MT603"]),
    ("{from: elsewhere/w, device: host}", ["MT405"]),
    ("{from: elsewhere/w, location: gpu9, size: 2MiB}", ["MT401"]),
    ("{from: elsewhere/w, location: gpu0, size: 3MiB}", ["MT301"]),
    ("{from: elsewhere/w, location: gpu0, size: 2MiB, via: fabric}", ["MT404"]),
    ("{from: elsewhere/w, location: host, size: 2MiB}", ["MT404"]),
    ("{from: elsewhere/w, location: gpu0, size: 2MiB, via: ipc}", ["MT201"]),
    ("{from: elsewhere/w, location: host:0, size: 2MiB, via: ipc}", ["MT405"]),
    ("{from: elsewhere/w, location: gpu0, size: 1 granule, via: ipc}", ["MT105"]),
    ("{from: /w, location: gpu0, size: 2MiB}", ["MT104"]),
    ("{from: no name/w, location: gpu0, size: 2MiB}", ["MT104"]),
    ("{from: elsewhere/9, location: gpu0, size: 2MiB}", ["MT104"]),
    ("{from: [elsewhere/w]}", ["MT103"]),
]


@pytest.mark.parametrize(("entry", "expected"), IMPORTS)
def test_imports(entry: str, expected: list[str]) -> None:
    """An import says where it comes from, and what it takes where that is not known; what it says has to be true"""
    assert codes(reader(entry)) == expected


@pytest.mark.parametrize(
    ("entry", "expected"),
    [(entry, expected) for entry, expected in IMPORTS if "elsewhere" in entry or "socket" in entry],
)
def test_imports_of_one_process(entry: str, expected: list[str]) -> None:
    """A spec of one process imports from outside in the same way"""
    text = "ranges: {v: {size: 8MiB}}\nmap: {v: x}\naccess: {v: {gpu1: r}}\n"
    assert codes(f"{text}imports: {{x: {entry}}}\n") == expected


def test_a_sibling_needs_processes() -> None:
    """A spec of one process has no siblings, and is told how a layout outside is named"""
    fault = only_diagnostic("imports: {x: {from: server.w}}\n")
    assert (fault.code, fault.path) == ("MT201", ("imports", "x", "from"))
    assert "has no processes" in fault.message
    assert "LAYOUT/EXPORT" in (fault.help or "")


def test_what_an_import_of_a_sibling_is() -> None:
    """An import takes size, place and count from what is exported; imported chunks have no handle type (fact 7)"""
    chunk = member(reader("{from: server.w}"), "reader").of(ChunkGroup)["x"]
    assert (chunk.size, chunk.count, chunk.counted, chunk.places) == (2 * MiB, 4, True, (gpu(0),))
    assert not chunk.handles
    assert chunk.origin
    assert [chunk.origin.of(index) for index in range(4)] == [("server", index) for index in range(4)]
    buffer = member(reader("{from: server.b}", ""), "reader").of(BufferGroup)["x"]
    assert (buffer.size, buffer.declared, buffer.count) == (2 * MiB, 64 << 10, 3)
    assert [buffer.place_of(index) for index in range(3)] == [gpu(0), gpu(1), gpu(0)]
    event = member(reader("{from: server.e}", ""), "reader").of(EventGroup)["x"]
    assert (event.count, event.counted, event.places) == (1, False, (gpu(1),))


@pytest.mark.parametrize(
    ("slice_", "labels", "handles"),
    [
        ("w", ["w.0", "w.1", "w.2", "w.3"], ["x.0", "x.1", "x.2", "x.3"]),
        ("w.1:3", ["w.1", "w.2"], ["x.0", "x.1"]),
        ("w.2", ["w.2"], ["x"]),
    ],
)
def test_an_exported_slice(slice_: str, labels: list[str], handles: list[str]) -> None:
    """An export of several is that many handles in order, counted from 0; of one chunk it is not counted"""
    text = SERVER.replace("{chunk: w, via", f"{{chunk: {slice_}, via")
    whole = clean_geometry(f"{text} reader: {{imports: {{x: {{from: server.w}}}}, {VIEW}}}\n")
    export = whole.processes["server"].of(ExportGroup)["w"]
    assert [export.label(index) for index in range(export.count)] == labels
    run = whole.processes["reader"].of(ChunkGroup)["x"]
    assert [run.label(index) for index in range(run.count)] == handles
    seen = [each.identity.label for each in all_mapped_memory(whole)["reader"]]
    assert seen == labels


def test_places_of_a_slice() -> None:
    """The places of a slice are those of its chunks, also where they are dealt to several GPUs"""
    text = SERVER.replace("w: {location: gpu0", "w: {location: [gpu0, gpu1, gpu0]").replace(
        "chunk: w,", "chunk: w.1:4,"
    )
    run = member(f"{text} reader: {{imports: {{x: {{from: server.w}}}}, {VIEW}}}\n", "reader").of(ChunkGroup)["x"]
    assert [run.properties_of(index).location for index in range(run.count)] == [gpu(1), gpu(0), gpu(0)]


def test_an_import_may_say_its_size_as_it_was_written() -> None:
    """An import's size may be the export's as written or as rounded up"""
    text = reader("{from: server.b, size: SIZE}", "")
    assert [codes(text.replace("SIZE", size)) for size in ("64KiB", "2MiB", "128KiB")] == [[], [], ["MT604"]]
    assert codes(text.replace("SIZE", "1 granule")) == ["MT105"]
    assert codes(reader("{from: server.e, size: 2MiB}", "")) == ["MT604"]


def test_granules_that_differ() -> None:
    """An export whose size differs from process to process cannot be one import, and says what to write instead"""
    small, large = invented(1), invented(1, granule=4 << 20)
    machine = small.model_copy(
        update={"devices": [*small.devices, *large.devices], "peers": invented(2).peers},
    )
    text = (
        "processes:\n pe: {count: 2, devices: {m: [gpu0, gpu1]}, chunks: {c: {location: m, size: SIZE, handles: fd}}, "
    )
    text += "exports: {c: {chunk: c, via: fd}}}\n all: {imports: {c: {from: pe.c}}, ranges: {v: {size: 8MiB}}, "
    text += "map: {v: c}, access: {v: {gpu0: r}}}\n"
    (fault,) = validate_text(text.replace("SIZE", "1 granule"), machine).diagnostics
    assert (fault.code, fault.path) == ("MT604", ("processes", "all", "imports", "c", "from"))
    assert "2MiB in pe.0 and 4MiB in pe.1" in fault.message
    found = validate_text(text.replace("SIZE", "4MiB"), machine)
    assert found.geometry
    assert found.geometry.processes["all"].of(ChunkGroup)["c"].granule == 4 * MiB


def test_events_of_several_gpus() -> None:
    """Events of a counted process are each on its own GPU, in whoever imports them"""
    text = "processes:\n pe: {count: 3, devices: {mine: [gpu0, gpu1]}, events: {done: {device: mine}}, "
    text += "exports: {done: {event: done, via: ipc}}}\n all: {imports: {done: {from: pe.done}}}\n"
    run = member(text, "all").of(EventGroup)["done"]
    assert [run.place_of(index) for index in range(run.count)] == [gpu(0), gpu(1), gpu(0)]
    assert [run.label(index) for index in range(run.count)] == ["done.0", "done.1", "done.2"]


def test_size_of_what_comes_from_outside() -> None:
    """A buffer from outside has the whole blocks that legacy IPC shares, and what is beyond all addresses is refused"""
    found = clean_geometry("imports: {b: {from: l/b, via: ipc, location: gpu0, size: 5MiB, count: 2}}\n").of(
        BufferGroup
    )["b"]
    assert (found.size, found.declared, found.count) == (6 * MiB, 5 * MiB, 2)
    assert found.origin
    assert (found.origin.text("l"), found.origin.via) == ("l/b", "ipc")
    assert codes("imports: {b: {from: l/b, via: ipc, location: gpu0, size: 200TiB}}\n") == ["MT310"]
