"""What is handed from process to process: exports, imports, buffers and events, and every rule about them."""

from __future__ import annotations

import pytest

from memtopo.geometry.groups import ChunkGroup
from memtopo.kinds.buffers import BufferGroup
from memtopo.kinds.events import EventGroup
from memtopo.kinds.views import all_mapped_memory
from memtopo.machine import Trial
from tests.helpers.machines import invented
from tests.helpers.sharing_specs import OWN, VIEW, member, only_diagnostic, reader
from tests.helpers.specs import clean_geometry, codes, diagnose, validate_text

EXPORTS = [
    ("{chunk: w, via: fd}", []),
    ("{chunk: w.1:3, via: fd}", []),
    ("{chunk: w.3, via: fd}", []),
    ("{buffer: b, via: ipc}", []),
    ("{buffer: b.0:2, via: ipc}", []),
    ("{event: e, via: ipc}", []),
    ("{chunk: n, via: fd}", ["MT601"]),
    ("{chunk: w, via: fabric}", ["MT601"]),
    ("{chunk: w, via: ipc}", ["MT601"]),
    ("{buffer: b, via: fd}", ["MT601"]),
    ("{event: e, via: fabric}", ["MT601"]),
    ("{chunk: w.2:5, via: fd}", ["MT202"]),
    ("{chunk: n.0, via: fd}", ["MT601"]),
    ("{event: e.0, via: ipc}", ["MT202"]),
    ("{chunk: b, via: fd}", ["MT201"]),
    ("{buffer: e, via: ipc}", ["MT201"]),
    ("{event: nothing, via: ipc}", ["MT201"]),
    ("{chunk: w, buffer: b, via: fd}", ["MT103"]),
    ("{via: fd}", ["MT102"]),
    ("{chunk: w}", ["MT102"]),
    ("{chunk: w, via: tcp}", ["MT107"]),
    ("{chunk: w, via: fd, count: 2}", ["MT101"]),
    ("w", ["MT103"]),
]


@pytest.mark.parametrize(("entry", "expected"), EXPORTS)
@pytest.mark.parametrize("head", ["", "processes:\n server:\n"], ids=["alone", "process"])
def test_exports(head: str, entry: str, expected: list[str]) -> None:
    """An export is of one chunk, buffer or event, or a slice of them, via what can carry it, wherever it stands"""
    own = OWN if head else OWN.replace("\n  ", "\n")
    assert codes(f"{head}{own}{'  ' if head else ''}exports: {{x: {entry}}}\n") == expected


def test_two_processes_import_from_each_other() -> None:
    """Two processes may import from each other; none of them has to be declared first"""
    one = "{chunks: {mine: {location: gpu0, size: 2MiB, handles: fd}}, exports: {out: {chunk: mine, via: fd}}, "
    text = "processes:\n" + "".join(
        f" {name}: {one}imports: {{x: {{from: {other}.out}}}}, ranges: {{v: {{size: 4MiB}}}}, "
        "map: {v: [mine, x]}, access: {v: {gpu0: rw}}}\n"
        for name, other in (("left", "right"), ("right", "left"))
    )
    found = clean_geometry(text).processes
    for name, other in (("left", "right"), ("right", "left")):
        origin = found[name].of(ChunkGroup)["x"].origin
        assert origin
        assert origin.holders == (other,)


def test_an_import_is_not_exported_again() -> None:
    """Exporting an import is refused with the chain of where it comes from, of a sibling and from outside (fact 26)"""
    fault = only_diagnostic(reader("{from: server.w}", VIEW + ", exports: {onwards: {chunk: x, via: fd}}"))
    assert (fault.code, fault.path) == ("MT602", ("processes", "reader", "exports", "onwards", "chunk"))
    assert "server.w → x → onwards" in fault.notes[0]
    assert fault.help == "import it from server.w directly"
    text = "imports: {b: {from: l/b, via: ipc, location: gpu0, size: 2MiB}}\nexports: {c: {buffer: b, via: ipc}}\n"
    assert only_diagnostic(text).code == "MT602"


def test_import_and_export_in_a_ring() -> None:
    """Processes that only hand on what they import from one another are told so, each of them, and nothing more"""
    ring = [
        f" p{i}: {{imports: {{x: {{from: p{(i + 1) % 3}.x}}}}, exports: {{x: {{chunk: x, via: fd}}}}}}\n"
        for i in range(3)
    ]
    assert codes("processes:\n" + "".join(ring)) == ["MT602"] * 3


@pytest.mark.parametrize("of", ["b", "e"])
@pytest.mark.parametrize("count", ["", "count: 2, "])
def test_legacy_ipc_in_the_own_process(of: str, count: str) -> None:
    """A process cannot open its own IPC handles, and a counted process's imports include its own (fact 31)"""
    own = "buffers: {b: {location: gpu0, size: 2MiB}}, events: {e: {device: gpu0}}, "
    exports = "exports: {b: {buffer: b, via: ipc}, e: {event: e, via: ipc}}, "
    fault = only_diagnostic(f"processes:\n pe: {{{count}{own}{exports}imports: {{x: {{from: pe.{of}}}}}}}\n")
    assert (fault.code, fault.path) == ("MT605", ("processes", "pe", "imports", "x", "from"))
    assert "fd" in (fault.help or "")


def test_chunks_of_the_own_process() -> None:
    """A process may import its own chunks: a second handle to the same memory (fact 27)"""
    text = (
        "processes:\n p: {chunks: {c: {location: gpu0, size: 2MiB, handles: fd}}, exports: {c: {chunk: c, via: fd}}, "
    )
    text += "imports: {again: {from: p.c}}, ranges: {v: {size: 4MiB}}, map: {v: [c, again]}, access: {v: {gpu0: r}}}\n"
    first, second = all_mapped_memory(clean_geometry(text))["p"]
    assert first.identity == second.identity


NAMES = [
    ("chunks: {w: {location: gpu0, size: 2MiB}}", "buffers: {w: {location: gpu0, size: 2MiB}}", "buffers"),
    ("chunks: {w: {location: gpu0, size: 2MiB}}", "events: {w: {device: gpu0}}", "events"),
    ("buffers: {w: {location: gpu0, size: 2MiB}}", "events: {w: {device: gpu0}}", "events"),
    ("ranges: {w: {size: 2MiB}}", "buffers: {w: {location: gpu0, size: 2MiB}}", "buffers"),
    ("ranges: {w: {size: 2MiB}}", "imports: {w: {from: l/w, via: ipc, location: gpu0, size: 2MiB}}", "imports"),
    *(
        (taken, "imports: {w: {from: l/w, location: gpu0, size: 2MiB}}", "imports")
        for taken in (
            "chunks: {w: {location: gpu0, size: 2MiB}}",
            "buffers: {w: {location: gpu0, size: 2MiB}}",
            "events: {w: {device: gpu0}}",
        )
    ),
]


@pytest.mark.parametrize(("first", "second", "section"), NAMES)
@pytest.mark.parametrize("turned", [False, True])
def test_names_that_are_taken(first: str, second: str, section: str, *, turned: bool) -> None:
    """Chunks, buffers, events and imports have different names, and so have ranges and buffers; in any order"""
    told = [
        fault for fault in diagnose("\n".join([second, first] if turned else [first, second])) if fault.code < "MT5"
    ]
    assert [(fault.code, fault.path, fault.at) for fault in told] == [("MT203", (section, "w"), "key")]
    assert told[0].labels


@pytest.mark.parametrize(
    ("chunk", "more"),
    [
        ("w", "chunks: {w: {location: gpu0, size: 2MiB, handles: fd}}\nexports: {w: {chunk: w, via: fd}}\n"),
        ("w", "imports: {w: {from: w/w, location: gpu0, size: 2MiB}}"),
        ("c", "chunks: {c: {location: gpu0, size: 2MiB}}\nevents: {w: {device: gpu0}}"),
    ],
)
def test_names_that_are_not_taken(chunk: str, more: str) -> None:
    """A range, a chunk, an export and a device may have one name, since nothing takes one for another"""
    view = f"ranges: {{w: {{size: 2MiB}}}}\nmap: {{w: {chunk}}}\naccess: {{w: {{w: r}}}}\ndevices: {{w: gpu0}}\n"
    assert codes(view + more) == []


LEFT_OUT = [
    # what is wrong with the server, and its codes; nothing is told of the reader, who depends on it
    (
        "{location: gpu0, size: 2MiB, count: 4, handles: fd}",
        "{location: gpu0, size: 3MiB, count: 4, handles: fd}",
        ["MT301"],
    ),
    (
        "{location: gpu0, size: 2MiB, count: 4, handles: fd}",
        "{location: gpu7, size: 2MiB, count: 4, handles: fd}",
        ["MT401"],
    ),
    (
        "{location: gpu0, size: 2MiB, count: 4, handles: fd}",
        "{location: gpu0, size: 2, count: 4, handles: fd}",
        ["MT105"],
    ),
    ("w: {chunk: w, via: fd}", "w: {chunk: w, via: x}", ["MT107"]),
    ("w: {chunk: w, via: fd}", "w: *w", ["MT006"]),
    ("exports: {w: {chunk: w, via: fd}, b: {buffer: b, via: ipc}, e: {event: e, via: ipc}}", "exports: []", ["MT103"]),
    ("exports: {w: {chunk: w, via: fd}, ", "exports: {<<: *x, ", ["MT008"]),
    (" server:\n", " 9server: {}\n server: []\n other:\n", ["MT104", "MT103"]),
]


@pytest.mark.parametrize(("good", "bad", "expected"), LEFT_OUT)
def test_what_depends_on_what_was_left_out(good: str, bad: str, expected: list[str]) -> None:
    """Of an entry that is left out, whoever imports it and whatever maps that is not judged"""
    text = reader("{from: server.w}", VIEW.replace("v: x", "v: [x.0, x.3, {chunk: x.7, offset: 6MiB}]"))
    assert good in text
    wrong = text.replace(good, bad)
    assert codes(wrong) == expected


def test_faults_on_both_ends_are_told() -> None:
    """Faults of an exporter and of an importer that do not depend on one another are told in one run"""
    text = reader("{from: server.w, count: 5}").replace("b: {buffer: b, via: ipc}", "b: {buffer: b, via: fd}")
    assert codes(text) == ["MT601", "MT604"]


def test_what_is_imported_or_exported_is_used() -> None:
    """A chunk that is exported is used, as far as it is; an import that nothing maps is not, unless it is no memory"""
    text = "chunks: {c: {location: gpu0, size: 2MiB, count: 4, handles: fd}}\n"
    assert codes(text) == ["MT501"]
    assert codes(text + "exports: {c: {chunk: c, via: fd}}") == []
    (some,) = diagnose(text + "exports: {c: {chunk: c.1:3, via: fd}}")
    assert some.message == "2 of the 4 chunks 'c' are not mapped"
    (unused,) = diagnose(reader("{from: server.w}", ""))
    assert (unused.code, unused.message) == ("MT501", "import 'x' is not mapped")
    (part,) = diagnose(reader("{from: server.w}", VIEW.replace("v: x", "v: x.0")))
    assert part.message == "3 of the 4 imported chunks 'x' are not mapped"
    assert codes(reader("{from: server.b}", "")) == codes(reader("{from: server.e}", "")) == []


@pytest.mark.parametrize("of", ["b", "e"])
def test_only_chunks_are_mapped(of: str) -> None:
    """A buffer or an event is not mapped, whether it is one's own or imported"""
    fault = only_diagnostic(reader(f"{{from: server.{of}}}"))
    assert (fault.code, fault.path) == ("MT201", ("processes", "reader", "map", "v", 0, "chunk"))
    assert "only chunks can be mapped" in fault.message


def test_access_to_imports_needs_peers() -> None:
    """A GPU needs peer access to the memory that is imported, as to any other"""
    apart = validate_text(reader("{from: server.w}"), invented(2, peers=False)).diagnostics
    assert [(fault.code, fault.path[:2]) for fault in apart] == [
        ("MT403", ("processes", "server")),
        ("MT403", ("processes", "reader")),
    ]


def test_capabilities_are_judged_once() -> None:
    """What a machine cannot do is told where a chunk is created, and not again where it is imported"""
    refused = {"compressible": Trial(advertised=True, works=False)}
    text = reader("{from: server.w}").replace("handles: fd}", "handles: fd, compressible: true}")
    assert [fault.code for fault in validate_text(text, invented(2, trials=refused)).diagnostics] == ["MT405"]


def test_kinds() -> None:
    """An import stands among the things that it is one of, and is no one's memory twice"""
    found = member(reader("{from: server.w}"), "reader")
    assert list(found.of(ChunkGroup)) == ["x"]
    assert not any(group.shares() for group in found.every)
    assert list(member(reader("{from: server.b}", ""), "reader").of(BufferGroup)) == ["x"]
    assert list(member(reader("{from: server.e}", ""), "reader").of(EventGroup)) == ["x"]


def test_holders_outside_are_nobody_of_the_spec() -> None:
    """What comes from a layout outside is not taken for that of a process, whatever their names"""
    text = reader("{from: elsewhere/w, location: gpu0, size: 2MiB, count: 4}")
    owners = {each.identity.owner for each in all_mapped_memory(clean_geometry(text))["reader"]}
    assert owners == {"elsewhere/"}
    assert not any(each.ours for each in all_mapped_memory(clean_geometry(text))["reader"])
    assert all(each.ours for each in all_mapped_memory(clean_geometry(reader("{from: server.w}")))["reader"])
