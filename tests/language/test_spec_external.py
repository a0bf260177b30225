"""Entries of managed memory, external memory and semaphores."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memtopo import spec as language
from memtopo.common.units import MiB, Size
from memtopo.diagnostics.model import Path
from memtopo.language import Document
from memtopo.language.fields import NAME
from memtopo.language.names import ImportSource
from tests.helpers.language import diagnosed, read
from tests.helpers.specs import document

FRAME = {"from": "camera", "via": "opaque_fd", "device": "gpu0", "size": "8MiB"}
READY = {"from": "camera", "via": "timeline_fd", "device": "gpu0"}
BINARY = READY | {"via": "opaque_fd"}


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


@pytest.mark.parametrize(
    ("text", "help"),
    [
        ("server.frame", "is imported under 'imports'"),
        ("/run/x.sock", "/run/x.sock/frame"),
        ("/run/x/", "/run/x/frame"),
        ("camera/pe.frame", "the name of the export"),
        ("camera/frame.0", "the name of the export"),
        ("a.b.c", "/path/to/socket/EXPORT"),
        ("9", "/path/to/socket/EXPORT"),
        ("/", "/path/to/socket/EXPORT"),
    ],
)
def test_text_that_is_no_producer_is_diagnosed_with_a_correction(text: str, help: str) -> None:
    (fault,) = language.read({"memtopo": "1", "name": "test", "external": {"frame": FRAME | {"from": text}}})[1]
    assert (fault.code, fault.path) == ("MT104", ("external", "frame", "from"))
    assert fault.help
    assert help in fault.help


@given(st.text(max_size=60) | st.text(alphabet="ab./:0 -", max_size=12))
def test_any_text_is_a_producer_or_a_diagnostic(text: str) -> None:
    """A producer's text is the one that was read."""
    found, faults = language.read({"memtopo": "1", "name": "test", "external": {"frame": FRAME | {"from": text}}})
    assert bool(faults) != bool(found.section("external"))
    assert {fault.code for fault in faults} <= {"MT103", "MT104"}
    for entry in found.section("external").values():
        assert str(entry.source) == text
        assert "/" in entry.source.holder or NAME.fullmatch(entry.source.holder)


@pytest.mark.parametrize(
    ("sections", "code", "path", "at"),
    [
        ({"managed": {"m": {}}}, "MT102", ("managed", "m", "size"), "value"),
        ({"managed": {"m": "2MiB"}}, "MT103", ("managed", "m"), "value"),
        ({"managed": {"m": {"size": "0"}}}, "MT105", ("managed", "m", "size"), "value"),
        ({"managed": {"m": {"size": "1 granule"}}}, "MT105", ("managed", "m", "size"), "value"),
        ({"managed": {"m": {"size": "2MiB", "attach": "none"}}}, "MT107", ("managed", "m", "attach"), "value"),
        ({"managed": {"m": {"size": "2MiB", "prefer": ["gpu0"]}}}, "MT103", ("managed", "m", "prefer"), "value"),
        ({"managed": {"m": {"size": "2MiB", "accessed_by": []}}}, "MT103", ("managed", "m", "accessed_by"), "value"),
        ({"managed": {"m": {"size": "2MiB", "read_mostly": 1}}}, "MT107", ("managed", "m", "read_mostly"), "value"),
        ({"managed": {"m": {"size": "2MiB", "location": "gpu0"}}}, "MT101", ("managed", "m", "location"), "key"),
        ({"managed": {"m": {"size": "2MiB", "count": 2}}}, "MT101", ("managed", "m", "count"), "key"),
        ({"managed": {"m.0": {"size": "2MiB"}}}, "MT104", ("managed", "m.0"), "key"),
        ({"external": {"f": {}}}, "MT102", ("external", "f", "from"), "value"),
        ({"external": {"f": FRAME | {"via": "fd"}}}, "MT107", ("external", "f", "via"), "value"),
        ({"external": {"f": FRAME | {"via": "timeline_fd"}}}, "MT107", ("external", "f", "via"), "value"),
        ({"external": {"f": FRAME | {"size": "1 granule"}}}, "MT105", ("external", "f", "size"), "value"),
        ({"external": {"f": FRAME | {"buffers": []}}}, "MT103", ("external", "f", "buffers"), "value"),
        ({"external": {"f": FRAME | {"buffers": {"y": {}}}}}, "MT102", ("external", "f", "buffers", "y", "size"),
         "value"),
        ({"external": {"f": FRAME | {"buffers": {"y": {"size": "0"}}}}}, "MT105",
         ("external", "f", "buffers", "y", "size"), "value"),
        ({"external": {"f": FRAME | {"buffers": {"y": {"size": "1B", "offset": "1 granule"}}}}}, "MT105",
         ("external", "f", "buffers", "y", "offset"), "value"),
        ({"external": {"f": FRAME | {"buffers": {"y.0": {"size": "1B"}}}}}, "MT104",
         ("external", "f", "buffers", "y.0"), "key"),
        ({"external": {"f": FRAME | {"buffers": {"": {"size": "1B"}}}}}, "MT104",
         ("external", "f", "buffers", ""), "key"),
        ({"external": {"f": FRAME | {"buffers": {"y": {"sise": "1B"}}}}}, "MT101",
         ("external", "f", "buffers", "y", "sise"), "key"),
        ({"external": {"f": FRAME | {"buffer": {}}}}, "MT101", ("external", "f", "buffer"), "key"),
        ({"external": {"f": FRAME | {"source": "camera"}}}, "MT101", ("external", "f", "source"), "key"),
        ({"semaphores": {"s": {}}}, "MT102", ("semaphores", "s", "via"), "value"),
        ({"semaphores": {"s": READY | {"via": "fd"}}}, "MT107", ("semaphores", "s", "via"), "value"),
        ({"semaphores": {"s": READY | {"wait": True}}}, "MT103", ("semaphores", "s", "wait"), "value"),
        ({"semaphores": {"s": READY | {"signal": "false"}}}, "MT106", ("semaphores", "s", "signal"), "value"),
        ({"semaphores": {"s": READY | {"signal": "-1"}}}, "MT106", ("semaphores", "s", "signal"), "value"),
        ({"semaphores": {"s": READY | {"signal": 1 << 64}}}, "MT106", ("semaphores", "s", "signal"), "value"),
        ({"semaphores": {"s": READY | {"signal": []}}}, "MT103", ("semaphores", "s", "signal"), "value"),
        ({"semaphores": {"s": BINARY | {"signal": 0}}}, "MT103", ("semaphores", "s", "signal"), "value"),
        ({"semaphores": {"s": READY | {"value": 1}}}, "MT101", ("semaphores", "s", "value"), "key"),
    ],
)  # fmt: skip
def test_a_wrong_key_of_an_external_entry_is_diagnosed_at_its_path(
    sections: Any, code: str, path: Path, at: str
) -> None:
    found = diagnosed(**sections)
    assert (code, path, at) in found
    assert {each for each, *_ in found} <= {code, "MT102"}


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


@pytest.mark.parametrize("key", ["[key]", "<grant>"])
def test_a_key_that_equals_a_mark_of_the_validator_is_refused(key: str) -> None:
    """At its position."""
    parts = diagnosed(external={"f": FRAME | {"buffers": {key: {"size": "1B"}}}})
    assert parts == [("MT104", ("external", "f", "buffers", key), "key")]
    assert diagnosed(external={"f": FRAME | {key: "1"}}) == [("MT101", ("external", "f", key), "key")]
