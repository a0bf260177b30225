"""A layout as a picture, as data: what lies where in each range, and whose chunks fill each memory.

Sizes and offsets are in bytes, names are those of the spec, devices are `gpu0`, `host`, `host:0`. Nothing in it grows
with the number of equal chunks or equal ranges; every drawing, in the terminal or in a document, is made from this.
"""

from __future__ import annotations

from dataclasses import dataclass

from memtopo.diagnostics.model import Path


@dataclass(frozen=True, slots=True)
class Granted:
    """What one device may do: `r` or `rw`."""

    device: str
    access: str


@dataclass(frozen=True, slots=True)
class Piece:
    """A hole, which has no chunk, or equal mappings that lie one behind another and have the same access.

    `count` mappings of `bytes_each`, of the chunks `first` to `last`; `chunk` is their entry in the spec, or the first
    one's where many entries of one chunk each are one piece: the same word marks the same chunks everywhere in a
    picture. `index` is the first chunk's number in its entry. The chunks are on `locations` in turn. In the n-th of
    equal ranges the chunks are those `n * step` further on, so 0 means the same ones in all. `elsewhere` counts the
    other mappings that these chunks have in the layout. `origin` is where imported chunks come from, as the spec writes
    it: `server.weights`; of many exports in one piece, the first and the last one. What is imported from a process of
    the same spec has the mark that it has there.
    """

    offset: int
    size: int
    chunk: str = ""
    first: str = ""
    last: str = ""
    index: int = 0
    count: int = 0
    bytes_each: int = 0
    step: int = 0
    elsewhere: int = 0
    locations: tuple[str, ...] = ()
    handles: tuple[str, ...] = ()
    access: tuple[Granted, ...] = ()
    path: Path = ()
    origin: str = ""


@dataclass(frozen=True, slots=True)
class RangePicture:
    """`count` neighbouring ranges of one entry, `first` to `last`, that look alike.

    Each has `size` bytes, `mapped` of which have memory behind them. `pieces` cover the whole size in order of
    offset; those of several ranges are the first one's.
    """

    first: str
    last: str
    count: int
    size: int
    mapped: int
    pieces: tuple[Piece, ...]
    path: Path


@dataclass(frozen=True, slots=True)
class Share:
    """What one memory holds of one kind of chunk; `chunk` marks them as it does in a piece."""

    chunk: str
    count: int
    bytes_each: int
    size: int
    path: Path


@dataclass(frozen=True, slots=True)
class MemoryPicture:
    """One memory that holds chunks: a GPU's, or the host's, of which no total is known; `names` are the spec's for it.

    `taken` is what a live device had in use already, by other processes and by contexts; of a recorded one it is not
    known. `free` is what that and these chunks leave of the total.
    """

    device: str
    names: tuple[str, ...]
    used: int
    total: int | None
    taken: int | None
    free: int | None
    shares: tuple[Share, ...]


@dataclass(frozen=True, slots=True)
class Thing:
    """What has no place in a range: `count` equal buffers, events and so on, of one entry of the spec.

    `kind` is the word for one of them (`buffer`, `event`), `name` the entry's, `mark` that of its memory in a share.
    `locations` and `origin` are as of a piece. `notes` say in words what else is to be known of it. `parts` are what is
    inside of it, in the order of the spec, each from its `offset` on; they may overlap, and need not cover it.
    """

    kind: str
    name: str
    mark: str = ""
    count: int = 1
    bytes_each: int = 0
    locations: tuple[str, ...] = ()
    origin: str = ""
    notes: tuple[str, ...] = ()
    parts: tuple[Thing, ...] = ()
    offset: int = 0
    path: Path = ()


@dataclass(frozen=True, slots=True)
class Exported:
    """`count` handles of one export, of the chunks, buffers or events `first` to `last` (`kind`), by `via`.

    `mark` is that of their pieces and shares.
    """

    name: str
    kind: str
    mark: str
    first: str
    last: str
    via: str
    count: int
    bytes_each: int
    path: Path


@dataclass(frozen=True, slots=True)
class Flow:
    """Handles on their way: from `source`'s `export` to `target`, where they are `name`.

    `source` and `target` are the `first` of a process picture each, or empty where the layout has one process; with
    `outside`, `source` is a holder or a bound name outside of the spec. `name` is the entry of the target's imports,
    `export` that of the source's exports. What another API made is of kind `memory` or `semaphore`, is always from
    outside, and is a thing of the target (`external`, `semaphore`) under the same name. `processes` counts the source's
    processes that each importing process takes `count` handles from.
    """

    source: str
    export: str
    target: str
    name: str
    kind: str
    via: str
    count: int
    bytes_each: int
    path: Path
    outside: bool = False
    processes: int = 1


@dataclass(frozen=True, slots=True)
class ProcessPicture:
    """`count` processes of one entry that look alike: `first`, and each `step`-th from there up to `last`.

    `picture` is the first one's; of its memory that is what it creates itself.
    """

    first: str
    last: str
    count: int
    step: int
    picture: Picture
    path: Path


@dataclass(frozen=True, slots=True)
class Picture:
    """One layout: its ranges in the order of the spec, and each memory that it takes.

    One of several processes has the pictures of these, and nothing of its own but `memory`, which is what all of them
    take together, and the `flows` between them and from outside, which theirs do not repeat. In it, marks begin with
    the name of the process whose memory it is: `server: w`. Of a single process, `flows` are those from outside.
    """

    ranges: tuple[RangePicture, ...]
    memory: tuple[MemoryPicture, ...]
    things: tuple[Thing, ...] = ()
    exports: tuple[Exported, ...] = ()
    processes: tuple[ProcessPicture, ...] = ()
    flows: tuple[Flow, ...] = ()
