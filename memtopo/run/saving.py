"""Bytes of a process's memory: saved to a folder, and restored from it, through page-locked memory."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import groupby
from typing import NamedTuple

from msgspec.structs import replace

from memtopo.common.text import first_words, numbered
from memtopo.common.units import rounded
from memtopo.diagnostics.messages import not_awake
from memtopo.driver.types import Access, Grant, LocationKind, gpu
from memtopo.executor import Execution
from memtopo.geometry import Geometry
from memtopo.kinds.layout import current
from memtopo.kinds.transfers import Span, SpanMemory, transferring
from memtopo.language.names import AWAKE
from memtopo.run.verification.fingerprints import readable_places
from memtopo.session.composition import RunRequest
from memtopo.sharing.offers import Offer
from memtopo.storage.direct import Transfer
from memtopo.storage.pieces import Restored, restore, save_part
from memtopo.storage.saved import FolderRefused, Piece, Saved, SavedPart, folder_of, opened_folder

_LISTED = 20
"""Names in a note."""


def save(execution: Execution, request: RunRequest, path: str, number: str) -> SavedPart:
    """Write the bytes of a process to a folder that its conductor has locked. Raises `MemtopoError` and `Stopped`."""
    execution.resume()
    with opened_folder(path, lock=False) as folder, saved_memory(execution) as (memory, transfer):
        groups = [list(some) for _, some in groupby(memory.pieces, key=lambda each: numbered(each.name)[0])]
        left_out = tuple(_left_out(execution, request.geometry, memory))
        return save_part(folder, request.process, number, groups, memory, transfer, left_out)


def require_pieces(name: str, state: str, parts: Collection[SavedPart]) -> None:
    """Raise `FolderRefused` for a layout without memory that can be saved, which would replace the save before."""
    if any(part.pieces for part in parts):
        return
    if state != AWAKE:
        message, hint = not_awake(name, state)
        raise FolderRefused(f"{message}, without memory that can be saved", hint=hint)
    left_out = _listed([each for part in parts for each in part.left_out])
    hint = "imports are saved by their holder"
    if left_out:
        hint = f"not saved: {left_out}, which programs allocate, or no GPU of the layout can copy"
    raise FolderRefused(f"layout {name!r} has created no memory that can be saved", hint=hint)


def saved_layout(name: str, path: str, parts: Sequence[SavedPart]) -> Saved:
    """Result of a save of all processes."""
    left_out = dict.fromkeys(each for part in parts for each in part.left_out)
    written, unchanged = sum(part.written for part in parts), sum(part.unchanged for part in parts)
    pieces, direct = sum(part.pieces for part in parts), all(part.direct for part in parts)
    return Saved(name, path, pieces, written, unchanged, direct, tuple(left_out)[:_LISTED])


class SavedContents(NamedTuple):
    """Committed exports of a saved folder, and its pieces by the label of their process."""

    committed: Sequence[str] = ()
    pieces: Mapping[str, Collection[Piece]] = {}


def saved_contents(path: str) -> SavedContents:
    """Read the lists of a folder whose bytes were restored. Raises `FolderRefused`."""
    with opened_folder(path, lock=False) as folder:
        if not (index := folder.read_index()):
            return SavedContents()
        parts = {process: folder.read_part(index, process) for process in index.parts if index.committed}
    pieces = {process: {each.piece for each in part.pieces.values()} for process, part in parts.items() if part}
    return SavedContents(index.committed, defaultdict(set, pieces))


def has_content(pieces: Collection[Piece], offer: Offer) -> bool:
    """Return true if all objects of an export are among the pieces; a single one may have no number."""
    numbers = range(offer.first, offer.first + offer.count)
    numbered_ones = (Piece(f"{offer.entry}.{number}", offer.size) for number in numbers)
    return all(each in pieces for each in numbered_ones) or Piece(str(offer.entry), offer.size) in pieces


def restored(execution: Execution, path: str, process: str) -> Restored:
    """Copy the bytes of a saved folder to the memory of a process. Raises `FolderRefused` and `Stopped`."""
    from memtopo.kinds.states.folders import holds_folder  # noqa: PLC0415 a layout without states needs none of it

    place = folder_of(path, process)
    own = holds_folder(execution.layout, place)
    with opened_folder(place, lock=not own) as folder, saved_memory(execution, write=True) as (memory, transfer):
        index, wanted = folder.read_index(), memory.pieces
        part = folder.read_part(index, process) if index else None
        if index is None or part is None:
            return Restored(without=tuple(each.name for each in wanted), folder=path)
        found = restore(folder, part, wanted, memory, transfer)
    if found.unused and not found.pieces:
        message = f"{path!r} has layout {index.layout!r}, and nothing of it has a name and size of this layout"
        resized = f", and of another size here: {_listed(found.resized)}" if found.resized else ""
        hint = f"name another folder, or entries as they are there: {_listed(found.unused)}{resized}"
        raise FolderRefused(message, hint=hint)
    return replace(found, folder=path)


def notes_on(found: Restored) -> Iterator[str]:
    """Notes on what came back from a folder, if there was one."""
    path = found.folder
    if not path:
        return
    every = len(found.pieces) + len(found.without)
    yield f"restored {len(found.pieces):,} of {every:,} pieces, {rounded(found.size)}, from {path}"
    resized = found.resized
    if absent := [each for each in found.without if each not in resized]:
        yield f"not in {path}, so of undefined content: {_listed(absent, found.pieces)}"
    if resized:
        yield f"of another size in {path}, so of undefined content: {_listed(resized, found.pieces)}"
    if unused := [each for each in found.unused if each not in resized]:
        yield f"in {path}, and not in the layout: {_listed(unused, found.pieces)}"
    if not found.direct:
        yield f"the file system of {path} has no direct I/O: it was read through the page cache"


def _listed(names: Collection[str], others: Collection[str] = ()) -> str:
    """Entries of pieces, with their number if they are several; names of pieces of entries that have `others`."""
    divided = {numbered(name)[0] for name in others}
    counted = Counter[str]()
    for name in names:
        entry, _ = numbered(name)
        counted[name if entry in divided else entry] += 1
    words = [f"{word} ({count:,})" if count > 1 else word for word, count in counted.items()]
    return ", ".join(first_words(words, _LISTED))


def _left_out(execution: Execution, geometry: Geometry, memory: SpanMemory) -> Iterator[str]:
    """Names of entries with memory that is not saved: programs allocate it, no GPU copies it, or a folder keeps it."""
    growing = (group.name for group in geometry.every if group.growing and group.origin is None)
    saved = {numbered(each.name)[0] for each in memory.pieces}
    steps = (step for step in execution.plan.steps if step.counted or (step.keeps is not None and not step.readable))
    others = (numbered(step.describe().subject)[0] for step in steps)
    names = dict.fromkeys((*growing, *(name for name in others if name not in saved)))
    yield from (name for name in names if not _is_area(name))


def _is_area(label: str) -> bool:
    """Return true for the memory that keeps offloaded bytes in states, `weights@host:0`."""
    return "@" in label


@contextmanager
def saved_memory(execution: Execution, *, write: bool = False) -> Iterator[tuple[SpanMemory, Transfer]]:
    """Memory that a process has created, and threads that copy it, or also `write` it.

    Chunks that the layout maps nowhere with that access are mapped meanwhile. Raises `DriverError`.
    """
    with ExitStack() as stack:
        spans = dict(_mapped(execution, write=write))
        spans |= _mapped_meanwhile(execution, spans, stack)
        transfer = stack.enter_context(transferring(execution.driver, execution.layout, stops=True))
        yield SpanMemory(execution.driver, execution.layout, spans), transfer


def _mapped(execution: Execution, *, write: bool) -> Iterator[tuple[str, Span]]:
    """Memory of a process that a GPU can copy, by label: what it created, also where a state keeps it elsewhere."""
    steps = execution.plan.steps
    own = {step.provides for step in steps if step.allocates}
    own |= {step.keeps for step in steps if step.keeps is not None}
    for resource, (found, device, step) in readable_places(steps, write=write).items():
        label = step.describe().subject
        if resource in own and not _is_area(label):
            yield label, Span(execution.layout.address(found.label) + found.offset, found.size, device)


def _mapped_meanwhile(execution: Execution, mapped: Mapping[str, Span], stack: ExitStack) -> dict[str, Span]:
    """Map the chunks that no GPU can copy in a range of their own, until the end of `stack`."""
    layout, driver = execution.layout, execution.driver
    allocated = {step.describe().subject: step.allocates for step in execution.plan.steps if step.allocates}
    unmapped = allocated.keys() & layout.chunks.keys() - mapped.keys()
    chunks = {label: found for label, found in allocated.items() if label in unmapped and not _is_area(label)}
    spans: dict[str, Span] = {}
    if not layout.contexts or not (total := sum(size for _, size in chunks.values())):
        return spans
    anyone = next(iter(layout.contexts))
    stack.enter_context(current(driver, layout.contexts[anyone]))
    start = address = driver.mem_address_reserve(total)
    stack.callback(driver.mem_address_free, start, total)
    for label, (location, size) in chunks.items():
        device = location.id if location.kind is LocationKind.GPU else anyone
        if device in layout.contexts:
            driver.mem_map(address, size, layout.chunks[label])
            stack.callback(driver.mem_unmap, address, size)
            driver.mem_set_access(address, size, (Grant(gpu(device), Access.RW),))
            spans[label] = Span(address, size, device)
            address += size
    return spans
