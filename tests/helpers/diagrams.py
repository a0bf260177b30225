"""Diagrams of specs, and diagrams with a hostile text in each place for one."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from msgspec.structs import replace

from memtopo import machine
from memtopo.common.units import MiB
from memtopo.geometry.diagram import (
    DeviceAccess,
    Diagram,
    Export,
    HandleFlow,
    MappingSpan,
    MemoryDiagram,
    MemoryShare,
    ProcessDiagram,
    RangeDiagram,
    Resource,
)
from memtopo.language import Document, read_file
from memtopo.machine import Machine
from memtopo.output.diagram.build import build_diagram
from memtopo.rules import validate
from tests.helpers.machines import invented
from tests.helpers.specs import ROOT, geometry_of

PARTS_AND_HOLES = ROOT / "tests" / "golden" / "parts-and-holes.yaml"
"""A spec with features that no spec in specs/ has."""
ENOUGH_MEMORY = 1 << 50


@cache
def spec_diagram(path: Path) -> tuple[Diagram, Document]:
    """The diagram of a spec file on four H200s."""
    h200x4 = machine.load("h200x4")
    found = validate(read_file(path), h200x4)
    assert found.geometry, found.diagnostics
    return build_diagram(found.geometry, h200x4), found.document


def text_diagram(text: str, machine: Machine | None = None) -> Diagram:
    """Diagram of the sections of a spec on a machine; by default two GPUs with enough memory for any layout."""
    machine = machine or invented(2, memory=ENOUGH_MEMORY)
    return build_diagram(geometry_of(text, machine), machine)


HOSTILE_TEXTS = [
    "[red]x[/red]", "[/]", "\x1b[31mx", "\x1b]0;title\x07", "\u202ex", ":smile:", "a\nb\tc", "語" * 40, "x" * 300,
    '"]; evil [label="', '\\N\\"', "</title><script>alert(1)</script>", "&lt;b&gt; &#60; &quot;", "`**md**`", "#quot;",
    '"]\n  click n0 "https://evil"', "style x:#f00;", "%% {init}", "end", "<br>", "]]>", "-->", "{|}<p0>",
    "javascript:x",
]  # fmt: skip


def hostile_diagram(word: str) -> Diagram:
    """A diagram of one process with a text in each place for one."""
    span = MappingSpan(
        0, MiB, word, word, word, 0, 1, MiB, 0, 1, (word,), (word,), (DeviceAccess(word, word),), (), word
    )
    other = replace(
        span, offset=MiB, access=(), last=f"{word}.7", count=8, size=8 * MiB, locations=("gpu0", word), origin=""
    )
    shown = RangeDiagram(word, f"{word}.9", 10, 10 * MiB, 9 * MiB, (span, other, MappingSpan(9 * MiB, MiB)), ())
    share = MemoryShare(word, 1, MiB, MiB, ())
    part = Resource(word, word, word, 2, MiB)
    buffer = Resource(word, word, word, 3, MiB, (word,), word, (word, word), (part,))
    external_object = replace(
        buffer, kind="external", name=f"{word}.x", count=1, bytes_each=8 * MiB, external=True, via=word
    )
    managed = replace(buffer, kind="managed", mark=f"{word}.m", origin="", parts=(), noun=word)
    return Diagram(
        ranges=(shown, replace(shown, pieces=(span, MappingSpan(MiB, 9 * MiB)))),
        memory=(MemoryDiagram(word, (word, word), MiB, 4 * MiB, MiB, 2 * MiB, (share,)),),
        things=(buffer, replace(buffer, kind="event", mark="", origin=""), external_object, managed),
        exports=(Export(word, "chunk", word, word, f"{word}.3", word, 4, MiB, ()),),
        flows=(
            HandleFlow(word, word, "", word, "chunk", word, 4, MiB, (), outside=True),
            HandleFlow(word, word, "", f"{word}.x", "memory", word, 1, MiB, (), outside=True, external=True),
            HandleFlow(word, word, "", f"{word}.s", "semaphore", word, 1, 0, (), outside=True, external=True),
        ),
    )


def hostile_processes(word: str) -> Diagram:
    """A multi-process diagram with a text in each place for one."""
    one = hostile_diagram(word)
    each = ProcessDiagram(word, f"{word}.8", 3, 4, replace(one, flows=()), ())
    flow = HandleFlow(word, word, word, word, "chunk", word, 4, MiB, (), processes=3)
    outside = replace(flow, outside=True, source=f"{word}/holder")
    return Diagram((), one.memory, processes=(each, replace(each, first=f"{word}.1")), flows=(flow, outside))
