"""Pictures with a text of anyone's choice wherever one has room for it."""

from __future__ import annotations

from dataclasses import replace

from memtopo.common.units import MiB
from memtopo.output.diagram.model import (
    Exported,
    Flow,
    Granted,
    MemoryPicture,
    Picture,
    Piece,
    ProcessPicture,
    RangePicture,
    Share,
    Thing,
)

EVIL = [
    "[red]x[/red]", "[/]", "\x1b[31mx", "\x1b]0;title\x07", "\u202ex", ":smile:", "a\nb\tc", "語" * 40, "x" * 300,
    '"]; evil [label="', '\\N\\"', "</title><script>alert(1)</script>", "&lt;b&gt; &#60; &quot;", "`**md**`", "#quot;",
    '"]\n  click n0 "https://evil"', "style x:#f00;", "%% {init}", "end", "<br>", "]]>", "-->", "{|}<p0>",
    "javascript:x",
]  # fmt: skip


def hostile(word: str) -> Picture:
    """A picture of one process with a text wherever it has one."""
    piece = Piece(0, MiB, word, word, word, 0, 1, MiB, 0, 1, (word,), (word,), (Granted(word, word),), (), word)
    other = replace(
        piece, offset=MiB, access=(), last=f"{word}.7", count=8, size=8 * MiB, locations=("gpu0", word), origin=""
    )
    shown = RangePicture(word, f"{word}.9", 10, 10 * MiB, 9 * MiB, (piece, other, Piece(9 * MiB, MiB)), ())
    share = Share(word, 1, MiB, MiB, ())
    part = Thing(word, word, word, 2, MiB)
    thing = Thing(word, word, word, 3, MiB, (word,), word, (word, word), (part,))
    foreign = replace(thing, kind="external", name=f"{word}.x", count=1, bytes_each=8 * MiB)
    managed = replace(thing, kind="managed", mark=f"{word}.m", origin="", parts=())
    return Picture(
        ranges=(shown, replace(shown, pieces=(piece, Piece(MiB, 9 * MiB)))),
        memory=(MemoryPicture(word, (word, word), MiB, 4 * MiB, MiB, 2 * MiB, (share,)),),
        things=(thing, replace(thing, kind="event", origin=""), foreign, managed),
        exports=(Exported(word, "chunk", word, word, f"{word}.3", word, 4, MiB, ()),),
        flows=(
            Flow(word, word, "", word, "chunk", word, 4, MiB, (), outside=True),
            Flow(word, word, "", f"{word}.x", "memory", word, 1, MiB, (), outside=True),
            Flow(word, word, "", f"{word}.s", "semaphore", word, 1, 0, (), outside=True),
        ),
    )


def hostile_processes(word: str) -> Picture:
    """A picture of several processes with a text wherever it has one."""
    one = hostile(word)
    each = ProcessPicture(word, f"{word}.8", 3, 4, replace(one, flows=()), ())
    flow = Flow(word, word, word, word, "chunk", word, 4, MiB, (), processes=3)
    outside = replace(flow, outside=True, source=f"{word}/holder")
    return Picture((), one.memory, processes=(each, replace(each, first=f"{word}.1")), flows=(flow, outside))
