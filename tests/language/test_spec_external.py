"""Managed memory, external objects and semaphores, as they are read: every form means what it says."""

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
from memtopo.language.names import Source
from tests.helpers.language import diagnosed, read
from tests.helpers.specs import document

FRAME = {"from": "camera", "via": "opaque_fd", "device": "gpu0", "size": "8MiB"}
READY = {"from": "camera", "via": "timeline_fd", "device": "gpu0"}
BINARY = READY | {"via": "opaque_fd"}


def test_the_example_of_the_design() -> None:
    """Managed memory, external objects and semaphores become typed entries"""
    text = """
managed: {m: {size: 2MiB, attach: host, prefer: prefill, accessed_by: [host], read_mostly: true, prefetch: decode}}
external:
  frame: {from: camera, via: opaque_fd, device: prefill, size: 8MiB, dedicated: true, buffers: {y: {size: 4MiB}}}
semaphores: {ready: {from: camera/done, via: timeline_fd, device: prefill, wait: 1, signal: 18446744073709551615}}
"""
    found, faults = language.read(document(text).root)
    assert faults == []
    assert dict(found.managed["m"]) == {
        "size": Size(2 * MiB), "attach": "host", "prefer": "prefill", "accessed_by": ["host"], "read_mostly": True,
        "prefetch": "decode",
    }  # fmt: skip
    frame = found.external["frame"]
    assert (frame.source, frame.via, frame.device, frame.size, frame.dedicated) == (
        Source("camera", ""), "opaque_fd", "prefill", Size(8 * MiB), True
    )  # fmt: skip
    assert {name: tuple(dict(part).values()) for name, part in frame.buffers.items()} == {"y": (Size(0), Size(4 * MiB))}
    ready = found.semaphores["ready"]
    assert (ready.source, ready.wait, ready.signal) == (Source("camera", "done"), 1, (1 << 64) - 1)


def test_what_need_not_be_written() -> None:
    """Managed memory needs a size; what another API made needs to say what it is; the rest asks for nothing"""
    managed = read(managed={"m": {"size": "2MiB"}}).managed["m"]
    assert (managed.attach, managed.prefer, managed.accessed_by, managed.read_mostly, managed.prefetch) == (
        "global", None, [], False, None
    )  # fmt: skip
    frame = read(external={"frame": FRAME}).external["frame"]
    assert (frame.dedicated, frame.buffers) == (False, {})
    ready = read(semaphores={"ready": READY}).semaphores["ready"]
    assert (ready.wait, ready.signal) == (None, None)


def test_what_a_semaphore_waits_for() -> None:
    """A timeline has values of 64 bits; a binary semaphore is waited for and signalled, or not"""
    timeline = read(semaphores={"s": READY | {"wait": "7", "signal": 9}}).semaphores["s"]
    assert (timeline.wait, timeline.signal) == (7, 9)
    binary = read(semaphores={"s": BINARY | {"wait": True}}).semaphores["s"]
    assert (binary.wait, binary.signal) == (True, None)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("camera", Source("camera", "")),
        ("camera/frame", Source("camera", "frame")),
        ("A-1/b_2", Source("A-1", "b_2")),
        ("/run/x.sock/frame", Source("/run/x.sock", "frame")),
        ("./x/frame", Source("./x", "frame")),
        ("/with a space/frame", Source("/with a space", "frame")),
    ],
)
def test_producers(text: str, meant: Source) -> None:
    """A producer stands for its export of the entry's own name; another export is named behind a slash"""
    found = read(external={"frame": FRAME | {"from": text}}, semaphores={"ready": READY | {"from": text}})
    assert found.external["frame"].source == found.semaphores["ready"].source == meant
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
def test_odd_producers(text: str, help: str) -> None:
    """Any other text names no external object, and the help has a text that does"""
    (fault,) = language.read({"memtopo": "1", "name": "test", "external": {"frame": FRAME | {"from": text}}})[1]
    assert (fault.code, fault.path) == ("MT104", ("external", "frame", "from"))
    assert fault.help
    assert help in fault.help


@given(st.text(max_size=60) | st.text(alphabet="ab./:0 -", max_size=12))
def test_any_producer_is_answered(text: str) -> None:
    """Whatever stands behind `from`, it is a producer that reads as it is written, or a fault"""
    found, faults = language.read({"memtopo": "1", "name": "test", "external": {"frame": FRAME | {"from": text}}})
    assert bool(faults) != bool(found.external)
    assert {fault.code for fault in faults} <= {"MT103", "MT104"}
    for entry in found.external.values():
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
def test_a_wrong_form_is_told_where_it_stands(sections: Any, code: str, path: Path, at: str) -> None:
    """What has another shape than the language wants, is missing or unknown, is diagnosed with its path"""
    found = diagnosed(**sections)
    assert (code, path, at) in found
    assert {each for each, *_ in found} <= {code, "MT102"}


def test_a_part_is_held_to_its_own_keys() -> None:
    """A key of a part that is not known is answered with those of a part, and one of an object with the object's"""
    part = {"memtopo": "1", "name": "t", "external": {"f": FRAME | {"buffers": {"y": {"size": "1B", "frob": "1"}}}}}
    assert [fault.help for fault in language.read(part)[1]] == ["known are offset, size"]
    whole = {"memtopo": "1", "name": "t", "external": {"f": FRAME | {"count": "1"}}}
    (fault,) = language.read(whole)[1]
    assert fault.help == "known are from, via, device, size, dedicated, buffers"


@pytest.mark.parametrize(
    ("entry", "help"),
    [
        (READY | {"wait": True}, "write 'wait: 1', or 'via: opaque_fd' of a binary semaphore"),
        (BINARY | {"signal": 3}, "write 'signal: true', or 'via: timeline_fd' of a timeline"),
    ],
)
def test_numbers_and_booleans_are_not_mixed_up(entry: Any, help: str) -> None:
    """A timeline without a value, or a binary semaphore with one, has help with both corrections"""
    (fault,) = language.read(Document.from_object({"memtopo": 1, "name": "t", "semaphores": {"s": entry}}).root)[1]
    assert fault.help == help


@pytest.mark.parametrize("key", ["[key]", "<grant>"])
def test_marks_of_the_validator_are_no_special_keys(key: str) -> None:
    """A key that reads like one of the validator's own marks is refused as any other, where it stands"""
    parts = diagnosed(external={"f": FRAME | {"buffers": {key: {"size": "1B"}}}})
    assert parts == [("MT104", ("external", "f", "buffers", key), "key")]
    assert diagnosed(external={"f": FRAME | {key: "1"}}) == [("MT101", ("external", "f", key), "key")]
