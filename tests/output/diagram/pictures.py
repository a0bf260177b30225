"""Pictures with a text of anyone's choice wherever one has room for it."""

from __future__ import annotations

from dataclasses import replace

from memtopo.common.units import MiB
from memtopo.output.diagram.model import (
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

EVIL = [
    "[red]x[/red]", "[/]", "\x1b[31mx", "\x1b]0;title\x07", "\u202ex", ":smile:", "a\nb\tc", "語" * 40, "x" * 300,
    '"]; evil [label="', '\\N\\"', "</title><script>alert(1)</script>", "&lt;b&gt; &#60; &quot;", "`**md**`", "#quot;",
    '"]\n  click n0 "https://evil"', "style x:#f00;", "%% {init}", "end", "<br>", "]]>", "-->", "{|}<p0>",
    "javascript:x",
]  # fmt: skip


def hostile(word: str) -> Diagram:
    """A picture of one process with a text wherever it has one."""
    piece = MappingSpan(
        0, MiB, word, word, word, 0, 1, MiB, 0, 1, (word,), (word,), (DeviceAccess(word, word),), (), word
    )
    other = replace(
        piece, offset=MiB, access=(), last=f"{word}.7", count=8, size=8 * MiB, locations=("gpu0", word), origin=""
    )
    shown = RangeDiagram(word, f"{word}.9", 10, 10 * MiB, 9 * MiB, (piece, other, MappingSpan(9 * MiB, MiB)), ())
    share = MemoryShare(word, 1, MiB, MiB, ())
    part = Resource(word, word, word, 2, MiB)
    thing = Resource(word, word, word, 3, MiB, (word,), word, (word, word), (part,))
    foreign = replace(thing, kind="external", name=f"{word}.x", count=1, bytes_each=8 * MiB, external=True, via=word)
    managed = replace(thing, kind="managed", mark=f"{word}.m", origin="", parts=(), noun=word)
    return Diagram(
        ranges=(shown, replace(shown, pieces=(piece, MappingSpan(MiB, 9 * MiB)))),
        memory=(MemoryDiagram(word, (word, word), MiB, 4 * MiB, MiB, 2 * MiB, (share,)),),
        things=(thing, replace(thing, kind="event", mark="", origin=""), foreign, managed),
        exports=(Export(word, "chunk", word, word, f"{word}.3", word, 4, MiB, ()),),
        flows=(
            HandleFlow(word, word, "", word, "chunk", word, 4, MiB, (), outside=True),
            HandleFlow(word, word, "", f"{word}.x", "memory", word, 1, MiB, (), outside=True, external=True),
            HandleFlow(word, word, "", f"{word}.s", "semaphore", word, 1, 0, (), outside=True, external=True),
        ),
    )


def hostile_processes(word: str) -> Diagram:
    """A picture of several processes with a text wherever it has one."""
    one = hostile(word)
    each = ProcessDiagram(word, f"{word}.8", 3, 4, replace(one, flows=()), ())
    flow = HandleFlow(word, word, word, word, "chunk", word, 4, MiB, (), processes=3)
    outside = replace(flow, outside=True, source=f"{word}/holder")
    return Diagram((), one.memory, processes=(each, replace(each, first=f"{word}.1")), flows=(flow, outside))
