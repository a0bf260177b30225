"""Reading of the sections for sharing, and of managed and external memory and semaphores: valid and invalid forms."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memtopo import spec as language
from memtopo.common.units import MiB, Size
from memtopo.diagnostics.model import Path
from memtopo.kinds.exports import Export
from memtopo.kinds.imports.entry import Import
from memtopo.language import Document
from memtopo.language.names import NAME, ImportSource, Reference
from memtopo.language.scalars import LARGEST_PROCESSES
from memtopo.spec import SECTIONS, Spec
from tests.helpers.language import diagnosed, read
from tests.helpers.specs import document

FRAME = {"from": "camera", "via": "opaque_fd", "device": "gpu0", "size": "8MiB"}
READY = {"from": "camera", "via": "timeline_fd", "device": "gpu0"}
BINARY = READY | {"via": "opaque_fd"}
CHUNK = {"location": "gpu0", "size": "2MiB", "handles": "fd"}


def test_buffers_events_exports_and_imports_are_typed() -> None:
    """Of one process and of several."""
    text = """
buffers: {b: {location: [gpu0, gpu1], size: 2MiB, count: 4}}
events: {done: {device: gpu0}}
exports:
  hot: {chunk: page.0:4, via: fd}
  b: {buffer: b, via: ipc}
  done: {event: done, via: ipc}
imports:
  w: {from: weights-server/w, location: gpu0, size: 2MiB, count: 16, via: fabric}
  e: {from: /run/x.sock/e, device: gpu0}
"""
    found, faults = language.read(document(text).root)
    assert faults == []
    buffer = found.section("buffers")["b"]
    assert (buffer.location, buffer.size, buffer.count) == (["gpu0", "gpu1"], Size(2 * MiB), 4)
    assert found.section("events")["done"].device == "gpu0"
    assert found.section("exports")["hot"].what == [("chunk", Reference("page", 0, 4))]
    assert [(each.what[0][0], each.via) for each in found.section("exports").values()] == [
        ("chunk", "fd"), ("buffer", "ipc"), ("event", "ipc")
    ]  # fmt: skip
    assert isinstance(found.section("exports")["hot"], Export)
    w = found.section("imports")["w"]
    assert isinstance(w, Import)
    assert (w.source, w.location, w.size, w.count, w.via) == (
        ImportSource("weights-server", "w"), ["gpu0"], Size(2 * MiB), 16, "fabric"
    )  # fmt: skip
    assert (found.section("imports")["e"].source, found.section("imports")["e"].device) == (
        ImportSource("/run/x.sock", "e"),
        "gpu0",
    )
    assert found.processes == {}


def test_a_process_has_name_path_count_and_visible_gpus() -> None:
    """And the sections of a layout."""
    found = read(processes={"server": {"chunks": {"w": CHUNK}}, "reader": {"count": "4", "visible": ["gpu1", "mine"]}})
    server, reader = found.processes["server"], found.processes["reader"]
    assert (server.name, server.path, server.instances, server.visible) == ("server", ("processes", "server"), None, ())
    assert server.at("chunks", "w") == ("processes", "server", "chunks", "w")
    assert [*server.section("chunks")] == ["w"]
    assert (reader.instances, reader.visible) == (4, ("gpu1", "mine"))
    assert read(processes={"a": {"visible": "gpu0"}}).processes["a"].visible == ("gpu0",)
    assert all(found.section(section) == {} for section in SECTIONS)


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_of_a_process_is_read_like_one_of_a_layout(section: str) -> None:
    """Also if it is empty, of another shape, or has a bad entry."""
    values: tuple[Any, ...] = ("", {}, [], "x", {"9": {}}, {"a": {}}, {"a": []}, {"a": "x"}, {"a": {"b": "c"}})
    for value in values:
        alone = diagnosed(**{section: value})
        inside = diagnosed(processes={"p": {section: value}})
        assert inside == [(code, ("processes", "p", *path), at) for code, path, at in alone]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("server.weights", ImportSource("server", "weights", sibling=True)),
        ("A-1.b_2", ImportSource("A-1", "b_2", sibling=True)),
        ("weights-server/w", ImportSource("weights-server", "w")),
        ("layout/server.w", ImportSource("layout", "server.w")),
        ("layout/pe.3.w", ImportSource("layout", "pe.3.w")),
        ("/run/user/1000/x.sock/w", ImportSource("/run/user/1000/x.sock", "w")),
        ("./x/w", ImportSource("./x", "w")),
        ("../x/w", ImportSource("../x", "w")),
        ("a/b/w", ImportSource("a/b", "w")),
        ("/with a space/w", ImportSource("/with a space", "w")),
        ("/x/server.w", ImportSource("/x", "server.w")),
    ],
)
def test_a_source_is_a_sibling_a_holder_or_a_socket_path(text: str, meant: ImportSource) -> None:
    """A sibling's export follows a dot, others a slash."""
    found = read(imports={"w": {"from": text}}).section("imports")["w"].source
    assert found == meant
    assert str(found) == text


ODD = [
    "server", "server.", ".w", "server..w", "server.w.", "server.w.0", "server.w.0:2", "server.0.w", "a.b.c", "/w",
    "w/", "/", "//", ".", "..", "a/", "a/9", "a/b c", "9/w", "a b/w", "a/b.c.d", "a/b.0", "a/b.1.2", "a/b.0.c.d",
    "a/.b", "server:w", "server w", "*.w", "host:0", "é.w", "a.é", "x" * 129 + ".w", "server." + "w" * 129,
    "a/" + "b" * 129, "-.-",
]  # fmt: skip


@pytest.mark.parametrize("text", ODD)
def test_text_that_is_no_source_is_diagnosed_with_a_correction(text: str) -> None:
    faults = language.read({"memtopo": "1", "name": "test", "imports": {"w": {"from": text}}})[1]
    assert [(fault.code, fault.path) for fault in faults] == [("MT104", ("imports", "w", "from"))]
    assert faults[0].help


def test_the_correction_of_a_producer_shows_a_tab_as_an_escape() -> None:
    entry = {"from": "/r\tun/camera.sock", "via": "opaque_fd", "device": "gpu0", "size": "2MiB"}
    (fault,) = language.read({"memtopo": "1", "name": "test", "external": {"w": entry}})[1]
    assert fault.help == r"the name of the export follows the socket's path: /r\tun/camera.sock/frame"


def test_an_import_of_a_part_of_an_export_is_an_error_with_a_correction() -> None:
    """An import refers to a whole export, and `map` names parts."""
    for text in ("server.w.0", "server.w.0:2", "reader.0.w", "layout/w.3"):
        (fault,) = language.read({"memtopo": "1", "name": "test", "imports": {"w": {"from": text}}})[1]
        assert fault.help
        assert "refers to a whole export" in fault.help


@pytest.mark.parametrize(("section", "entry"), [("imports", {}), ("external", FRAME)])
@given(text=st.text(max_size=60) | st.text(alphabet="ab./:0 -", max_size=12))
def test_any_text_is_a_source_or_a_diagnostic(section: str, entry: dict[str, str], text: str) -> None:
    """A source's text, or a producer's, is the one that was read."""
    found, faults = language.read({"memtopo": "1", "name": "test", section: {"w": entry | {"from": text}}})
    assert bool(faults) != bool(found.section(section))
    assert {fault.code for fault in faults} <= {"MT103", "MT104"}
    for read_entry in found.section(section).values():
        assert str(read_entry.source) == text
        assert "/" in read_entry.source.holder or NAME.fullmatch(read_entry.source.holder)


def test_a_nested_process_is_diagnosed_with_a_correction() -> None:
    (fault,) = language.read({"memtopo": "1", "name": "t", "processes": {"p": {"processes": {"q": {}}}}})[1]
    assert (fault.message, fault.help) == (
        "process 'p' contains 'processes', which cannot be nested", "move them out of this process"
    )  # fmt: skip


def test_a_bad_entry_or_process_is_listed_as_left_out() -> None:
    text = """
processes:
  a: {chunks: {bad: {location: gpu0}, good: {location: gpu0, size: 2MiB}}, exports: [], count: none}
  b: []
  9: {}
"""
    found, faults = language.read(document(text).root)
    assert sorted(fault.code for fault in faults) == ["MT102", "MT103", "MT103", "MT104", "MT106"]
    assert [*found.processes] == ["a"]
    assert found.left_out == {("processes", "b"), ("processes", "9")}
    a = found.processes["a"]
    assert a.left_out == {
        ("chunks", "bad"),
        ("exports", ""),
        *((key, "") for key in ("count", "visible", "node", "nodes", "held")),
    }
    assert a.countless
    assert a.may_have("exports", "anything")
    assert a.may_have("chunks", "bad")
    assert not a.may_have("chunks", "other")


def test_the_number_of_processes_is_unknown_with_a_merge_key() -> None:
    """It may be among what is merged."""
    merged = document("processes:\n  a: {<<: *base, chunks: {}}\n  b: {chunks: {}}\n")
    found, _ = language.read(merged.root, merged.left_out)
    assert [each.countless for each in found.processes.values()] == [True, False]


def test_the_first_thousand_diagnostics_of_all_processes_are_reported_with_a_note() -> None:
    bad = {f"c{index}": "x." for index in range(100)}
    processes = {f"p{index}": {"chunks": bad} for index in range(LARGEST_PROCESSES)}
    _, faults = language.read({"memtopo": "1", "name": "a", "processes": processes})
    assert len(faults) == 1000
    assert "there are more" in faults[-1].notes[-1]


def test_managed_external_and_semaphore_entries_are_typed() -> None:
    text = """
managed: {m: {size: 2MiB, attach: host, prefer: prefill, accessed_by: [host], read_mostly: true, prefetch: decode}}
external:
  frame: {from: camera, via: opaque_fd, device: prefill, size: 8MiB, dedicated: true, buffers: {y: {size: 4MiB}}}
semaphores: {ready: {from: camera/done, via: timeline_fd, device: prefill, wait: 1, signal: 18446744073709551615}}
"""
    found, faults = language.read(document(text).root)
    assert faults == []
    assert dict(found.section("managed")["m"]) == {
        "size": Size(2 * MiB), "attach": "host", "prefer": "prefill", "accessed_by": ["host"], "read_mostly": True,
        "prefetch": "decode", "oversubscribe": False,
    }  # fmt: skip
    frame = found.section("external")["frame"]
    assert (frame.source, frame.via, frame.device, frame.size, frame.dedicated) == (
        ImportSource("camera", ""), "opaque_fd", "prefill", Size(8 * MiB), True
    )  # fmt: skip
    assert {name: tuple(dict(part).values()) for name, part in frame.buffers.items()} == {"y": (Size(0), Size(4 * MiB))}
    ready = found.section("semaphores")["ready"]
    assert (ready.source, ready.wait, ready.signal) == (ImportSource("camera", "done"), 1, (1 << 64) - 1)


def test_optional_fields_of_managed_and_external_entries_have_defaults() -> None:
    """Managed memory requires a size, an external entry its source and kind."""
    managed = read(managed={"m": {"size": "2MiB"}}).section("managed")["m"]
    assert (managed.attach, managed.prefer, managed.accessed_by, managed.read_mostly, managed.prefetch) == (
        "global", None, [], False, None
    )  # fmt: skip
    frame = read(external={"frame": FRAME}).section("external")["frame"]
    assert (frame.dedicated, frame.buffers) == (False, {})
    ready = read(semaphores={"ready": READY}).section("semaphores")["ready"]
    assert (ready.wait, ready.signal) == (None, None)


def test_a_timeline_has_64_bit_values_and_a_binary_semaphore_booleans() -> None:
    timeline = read(semaphores={"s": READY | {"wait": "7", "signal": 9}}).section("semaphores")["s"]
    assert (timeline.wait, timeline.signal) == (7, 9)
    binary = read(semaphores={"s": BINARY | {"wait": True}}).section("semaphores")["s"]
    assert (binary.wait, binary.signal) == (True, None)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("camera", ImportSource("camera", "")),
        ("camera/frame", ImportSource("camera", "frame")),
        ("A-1/b_2", ImportSource("A-1", "b_2")),
        ("/run/x.sock/frame", ImportSource("/run/x.sock", "frame")),
        ("./x/frame", ImportSource("./x", "frame")),
        ("/with a space/frame", ImportSource("/with a space", "frame")),
    ],
)
def test_a_producer_has_an_export_of_the_name_of_the_entry(text: str, meant: ImportSource) -> None:
    """Or of the name after a slash."""
    found = read(external={"frame": FRAME | {"from": text}}, semaphores={"ready": READY | {"from": text}})
    assert found.section("external")["frame"].source == found.section("semaphores")["ready"].source == meant
    assert str(meant) == text


def test_an_unknown_key_of_a_part_is_diagnosed_with_the_keys_of_parts() -> None:
    """And one of external memory with those of external memory."""
    part = {"memtopo": "1", "name": "t", "external": {"f": FRAME | {"buffers": {"y": {"size": "1B", "frob": "1"}}}}}
    assert [fault.help for fault in language.read(part)[1]] == ["known are offset, size"]
    whole = {"memtopo": "1", "name": "t", "external": {"f": FRAME | {"count": "1"}}}
    (fault,) = language.read(whole)[1]
    assert fault.help == "known are from, via, device, size, dedicated, buffers"


@pytest.mark.parametrize(
    ("entry", "help"),
    [
        (READY | {"wait": True}, "write 'wait: 1', or 'via: opaque_fd' for a binary semaphore"),
        (BINARY | {"signal": 3}, "write 'signal: true', or 'via: timeline_fd' for a timeline"),
    ],
)
def test_a_number_and_a_boolean_of_the_other_semaphore_kind_have_a_correction(entry: Any, help: str) -> None:
    (fault,) = language.read(Document.from_object({"memtopo": 1, "name": "t", "semaphores": {"s": entry}}).root)[1]
    assert fault.help == help


def test_a_process_has_its_nodes_and_says_whether_it_is_held_and_counted() -> None:
    processes = {"a": {"held": "true", "node": "x"}, "b": {"count": "2", "nodes": ["x", "y"]}, "c": {"count": "1"}}
    found = read(processes=processes | {"d": {}})
    assert [(each.held, each.nodes, each.node_key) for each in found.processes.values()] == [
        (True, ("x",), "node"), (False, ("x", "y"), "nodes"), (False, (), "nodes"), (False, (), "nodes")
    ]  # fmt: skip
    assert found.held_processes == {"a"}
    assert found.labels == ["a", "b.0", "b.1", "c.0", "d"]


def test_what_was_left_out_may_be_there_under_any_name() -> None:
    """A merge key may bring any entry and any count."""
    whole = Spec("x", {"chunks": {"a": 1}}, frozenset({("ranges", ""), ("map", "<<"), ("chunks", "b")}))
    known = [(section, whole.may_have(section, "b")) for section in ("chunks", "ranges", "map", "access")]
    assert known == [("chunks", True), ("ranges", True), ("map", True), ("access", False)]
    assert not whole.may_have("chunks", "c")
    assert ([*whole.names("chunks")], [*whole.names("map")]) == (["a", "b"], [])
    countless = [Spec("x", left_out=frozenset({each})).countless for each in (("count", ""), ("<<", ""), ("held", ""))]
    assert countless == [True, True, False]


def test_keys_that_the_text_had_but_were_refused_are_not_missing() -> None:
    refused: frozenset[Path] = frozenset({("memtopo",), ("name",)})
    assert language.read({}, refused)[1] == []
    assert [each.code for each in language.read({})[1]] == ["MT102", "MT102"]
