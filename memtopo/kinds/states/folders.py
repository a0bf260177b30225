"""Steps of folders that keep the bytes of offloaded chunks: opened with the layout, written and read by its changes."""

from __future__ import annotations

import os
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from typing import NamedTuple

from memtopo.common.units import by_key
from memtopo.driver.protocol import Driver
from memtopo.kinds.chunks.steps import CreateChunk
from memtopo.kinds.kind import StepDifference
from memtopo.kinds.layout import Layout, LayoutTable
from memtopo.kinds.states.steps import KeptBytes, Offloaded, Place
from memtopo.kinds.step import Finding, Phase, Reading, Step, StepDescription, Undoing
from memtopo.kinds.transfers import Span, SpanMemory, transferring
from memtopo.storage.pieces import FolderKeeper, LockedFolder
from memtopo.storage.saved import make_parent, saving_to

_NOUN = "folder"


FOLDERS = LayoutTable[str, LockedFolder]()
"""Open folders by their path in the spec."""


class OpenFolder(Step, frozen=True):
    """Open a folder, and lock it while the layout exists, if it is of this user and has room for `size` bytes.

    A process of several has a folder in it, with its label as its name. The bytes that were offloaded last stay there.
    """

    folder: str
    size: int

    phase = Phase.CREATE
    verb = "open folder"
    call = "flock"
    undoing = Undoing("close", "close folder")
    provided = _NOUN, "folder"
    calls = 0

    def do(self, driver: Driver, layout: Layout) -> None:
        name, _, label = layout.name.partition("/")
        if label:
            make_parent(self.folder)
        with ExitStack() as stack:
            path = os.path.join(self.folder, label).rstrip("/")  # noqa: PTH118
            folder = stack.enter_context(saving_to(path, name))
            folder.require_room(self.size - folder.used)
            layout.of(FOLDERS)[self.folder] = LockedFolder(FolderKeeper(folder, name, label), stack.pop_all())

    def undo(self, driver: Driver, layout: Layout) -> None:
        if opened := layout.of(FOLDERS).pop(self.folder, None):
            opened.lock.close()

    def check(self, driver: Driver, layout: Layout) -> Iterator[Finding]:
        """Compare the folder at the path with the one that was opened."""
        folder = layout.of(FOLDERS)[self.folder].keeper.folder
        expected, observed = "the folder that was opened", "another one, or none"
        with suppress(OSError):
            if os.path.samestat(os.fstat(folder.fd), os.stat(folder.path)):  # noqa: PTH116
                observed = expected
        yield Finding(_NOUN, folder.path, expected, observed, self.path, "it was moved or removed")

    @property
    def dry(self) -> Step:
        return _DryFolder(self.path, self.folder, self.size)

    def describe(self) -> StepDescription:
        return StepDescription(self.folder, "", self.size)


class _DryFolder(OpenFolder, frozen=True):
    """A folder that is not opened."""

    def do(self, driver: Driver, layout: Layout) -> None:
        """Nothing."""


def write_to_folder(
    driver: Driver, layout: Layout, folder: str, memory: SpanMemory, staying: Collection[str] = ()
) -> None:
    """Write memory to an open folder, which keeps it and the `staying` pieces. Raises `FolderRefused` and `Stopped`."""
    with transferring(driver, layout, stops=True) as transfer:
        layout.of(FOLDERS)[folder].keeper.save(memory.pieces, memory, transfer, staying)


def read_from_folder(driver: Driver, layout: Layout, folder: str, memory: SpanMemory) -> None:
    """Read memory from an open folder, each chunk after its checksum was compared. Raises `FolderRefused`."""
    with transferring(driver, layout) as transfer:
        layout.of(FOLDERS)[folder].keeper.restore(memory.pieces, memory, transfer)


def holds_folder(layout: Layout, path: str) -> bool:
    """Return true if a layout has locked the folder at a path for itself."""
    folders = (opened.keeper.folder.fd for opened in layout.of(FOLDERS).values())
    return any(os.path.samestat(os.fstat(fd), os.stat(path)) for fd in folders)  # noqa: PTH116


class InFolder(KeptBytes, frozen=True):
    """Bytes of a chunk in a folder; a change to this state and from it copies them.

    The GPU `device` copies them where the chunk is `mapped` in other states.
    """

    chunk: str
    size: int
    mapped: Place
    device: int
    folder: str

    @property
    def keeps(self) -> Hashable:
        return ("chunk", self.chunk)

    def describe(self) -> StepDescription:
        return StepDescription(self.chunk, self.folder, self.size)


class FolderPart(NamedTuple):
    """Bytes of a chunk to copy, with their place in memory."""

    step: InFolder
    place: Place


class _FolderCopy(Step, frozen=True):
    """Copy of chunks between memory and a folder."""

    parts: tuple[FolderPart, ...]
    folder: str

    effect = None  # a copy leaves no resource
    calls = 0

    def describe(self) -> StepDescription:
        size = sum(each.step.size for each in self.parts)
        return StepDescription(self.parts[0].step.chunk, self.folder, size, (self.verb, self.folder))

    def memory(self, driver: Driver, layout: Layout) -> SpanMemory:
        """Memory of the chunks, as pieces by label."""
        spans = {step.chunk: Span(place.address(layout), step.size, step.device) for step, place in self.parts}
        return SpanMemory(driver, layout, spans)


class SaveChunks(_FolderCopy, frozen=True):
    """Write chunks to a folder, and wait until the disk has them, before their memory is released.

    The folder also keeps the chunks that are `staying` there.
    """

    staying: tuple[str, ...]

    phase = Phase.SETTLE
    verb = "copy out"
    call = "fsync"

    @property
    def reading(self) -> Reading:
        return Reading(tuple(each.step.keeps for each in self.parts))

    def do(self, driver: Driver, layout: Layout) -> None:
        write_to_folder(driver, layout, self.folder, self.memory(driver, layout), self.staying)


class LoadChunks(_FolderCopy, frozen=True):
    """Read chunks from a folder, each part after its checksum was compared, once their memory has access."""

    phase = Phase.SETTLE
    verb = "copy in"
    call = "read"

    def do(self, driver: Driver, layout: Layout) -> None:
        read_from_folder(driver, layout, self.folder, self.memory(driver, layout))


def folder_copies(difference: StepDifference) -> Iterator[Step]:
    """Copies of a change to folders, and from them, to chunks or to the areas that keep them afterwards."""
    before, kept, after = difference
    was, will = _in_folders(before, kept), _in_folders(after, kept)
    sources, targets = _places(before, will.moved), _places(after, was.moved)
    out = [FolderPart(step, sources[step.chunk]) for step in will.moved if step.chunk in sources]
    # In the rollback of a change that dropped nothing, chunks are in both.
    exist = _created(before)
    gone = [step for step in was.moved if step.chunk not in exist]
    back = [FolderPart(step, targets[step.chunk]) for step in gone if step.chunk in targets]
    for folder, parts in by_key((part.step.folder, part) for part in out).items():
        staying = tuple(step.chunk for step in was.every if step.folder == folder)
        yield SaveChunks(parts[0].step.path, tuple(parts), folder, staying)
    for folder, parts in by_key((part.step.folder, part) for part in back).items():
        yield LoadChunks(parts[0].step.path, tuple(parts), folder)


class _InFolders(NamedTuple):
    """Chunks that a plan has in folders, and those of them that the other one has elsewhere."""

    every: list[InFolder]
    moved: list[InFolder]


def _in_folders(steps: Mapping[Hashable, Step], kept: Collection[Hashable]) -> _InFolders:
    every = [step for step in steps.values() if isinstance(step, InFolder)]
    return _InFolders(every, [step for step in every if step.effect not in kept])


def _created(steps: Mapping[Hashable, Step]) -> set[str]:
    return {step.label for step in steps.values() if isinstance(step, CreateChunk)}


def _places(steps: Mapping[Hashable, Step], chunks: Iterable[InFolder]) -> dict[str, Place]:
    """Places that a plan has for the bytes of chunks: where they are mapped, or in areas that keep them."""
    created = _created(steps)
    found = {step.chunk: step.mapped for step in chunks if step.chunk in created}
    return found | {step.chunk: step.kept for step in steps.values() if isinstance(step, Offloaded)}
