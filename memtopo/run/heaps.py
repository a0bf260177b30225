"""Heaps of a layout while it exists: what a program allocates, why it cannot, and sleep at its own request."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Literal

from memtopo.common.errors import Exit, Failed, MemtopoError, message_of, on_failure
from memtopo.common.units import rounded
from memtopo.driver.protocol import Driver
from memtopo.driver.types import DriverError, EventFlags, HandleType
from memtopo.kinds.heaps.steps import HeapContent, grow_backups, heap_memory, heaps, release_backups
from memtopo.kinds.layout import Layout, current
from memtopo.kinds.transfers import transferring
from memtopo.native.heaps import Refusal
from memtopo.native.tables import Allocation
from memtopo.storage.pieces import FolderKeeper, LockedFolder
from memtopo.storage.saved import FolderRefused, saving_to


class HeapRefused(MemtopoError):
    """Request that a heap cannot fulfil at present; nothing was changed."""

    exit_code = Exit.USAGE


class HeapFull(Failed):
    """Allocation for which a heap, its limit or its GPU has no room."""


class HeapFailed(Failed):
    """Driver error after which a heap is as before, or can only be taken down, as the text says."""


def allocate(content: HeapContent, size: int) -> int:
    """Allocate `size` bytes; return the address. Raises `HeapFull` and `HeapRefused`."""
    try:
        return content.native.allocate(size)
    except (Refusal, DriverError) as error:
        raise failure(content, error, size) from None


def free(content: HeapContent, address: int) -> None:
    """Free an allocation by its address. Raises `HeapRefused` for another address, and `HeapFailed`."""
    _require_awake(content)
    try:
        content.native.free(address)
    except Refusal:
        message = f"heap {content.step.label!r}: nothing is allocated at {address:#x}"
        raise HeapRefused(message, hint="free an address returned by 'allocate', and only once") from None
    except DriverError as error:
        raise HeapFailed(f"heap {content.step.label!r}: {error}; the memory is freed later") from error


def export(driver: Driver, content: HeapContent, address: int, kind: HandleType) -> int | bytes:
    """Return a shareable handle of the memory of an allocation, which the caller closes.

    Raises `HeapRefused`, and `HeapFailed` after an error of the driver.
    """
    _require_awake(content)
    label = content.step.label
    if kind not in content.step.properties.handles:
        (word,) = kind.words
        raise HeapRefused(f"heap {label!r} has no handles of type {word!r}", hint=f"add 'handles: {word}' to it")
    found = next((each for each in content.native.allocations() if each.address == address), None)
    if found is None:
        raise HeapRefused(f"heap {label!r}: nothing is allocated at {address:#x}", hint="'allocations' lists it")
    try:
        return driver.mem_export_to_shareable_handle(found.handle, kind)
    except DriverError as error:
        raise HeapFailed(f"heap {label!r}: {error}") from error


def failure(content: HeapContent, error: Exception, size: int) -> HeapFull | HeapRefused:
    """Return the error of an allocation that failed, with the numbers that explain it."""
    label, budget = content.step.label, content.budget
    asked = f"heap {label!r}: {rounded(size)} cannot be allocated"
    taken = f"{rounded(content.native.mapped)} are allocated in it"
    if isinstance(error, Refusal) and error.closed:
        return HeapRefused(f"{asked}: it currently has no memory", hint="wake it up first, or switch('awake')")
    if isinstance(error, Refusal) and error.over_limit and budget.limit is not None:
        others = "" if budget.name == label else f", which it shares with heap {budget.name!r}"
        left = f"{rounded(max(budget.limit - budget.used, 0))} of its limit of {rounded(budget.limit)}{others}"
        return HeapFull(f"{asked}: {left} are left; {taken}", hint="free some, or increase 'limit'")
    if isinstance(error, Refusal) and error.no_margin:
        return HeapFull(f"{asked}: the GPU would have less than its margin free; {taken}", hint="free some memory")
    if isinstance(error, Refusal):
        hole = f"the largest hole among its {rounded(content.step.size)} of addresses has"
        return HeapFull(f"{asked}: {hole} {rounded(content.native.largest_hole)}; {taken}", hint="increase 'size'")
    return HeapFull(f"{asked}: {error}; {taken}", hint="free some, or memory of other programs on the GPU")


Keep = Literal["page-locked", "pageable"]
"""Host memory that keeps bytes: page-locked, which is copied at the rate of the link, or pageable."""


def sleep(driver: Driver, layout: Layout, label: str, keep: Keep | None, folder: str | None = None) -> None:
    """Give the memory of a heap back, and keep the addresses of its allocations, and their bytes if requested.

    They are kept in a `folder`, if there is one. Work of the GPU is awaited. Raises `HeapRefused` and `HeapFailed`,
    with the heap as before unless the text says that it is asleep.
    """
    content = _awake(layout, label)
    step, native = content.step, content.native
    native.close()
    try:
        with current(driver, layout.contexts[step.device]):
            driver.ctx_synchronize()
            if folder is not None:
                content.saved = _saved(driver, layout, content, folder)
                content.empty()
            elif keep == "page-locked":
                _move_out(driver, content)
            else:
                content.kept = _copied(driver, content) if keep else {}
                content.empty()
            content.asleep = True
    except (DriverError, OSError, FolderRefused) as error:
        if content.asleep:
            raise HeapFailed(f"heap {label!r} is asleep: {message_of(error)}") from error
        native.open()
        content.leave_folder()
        after = f"it can only be taken down: {content.broken}" if content.broken else "it is as before"
        hint = error.hint if isinstance(error, FolderRefused) else None
        raise HeapFailed(f"heap {label!r} is not asleep: {message_of(error)}; {after}", hint=hint) from error


def _move_out(driver: Driver, content: HeapContent) -> None:
    """Copy all allocations to page-locked memory, unmap each while the next ones are copied, and release them all.

    Needs a current context.
    """
    allocations = content.native.allocations()
    places = grow_backups(driver, content, allocations)
    parts = list(_parts(allocations))
    while len(content.events) < len(parts):
        content.events.append(driver.event_create(EventFlags.DISABLE_TIMING))
    with on_failure(_move_back, driver, content):
        for part, event in zip(parts, content.events, strict=False):
            for each in part:
                driver.memcpy_async(places[each.number], each.address, each.size)
            driver.event_record(event)
        content.kept = places
        for part, event in zip(parts, content.events, strict=False):
            driver.event_synchronize(event)
            for each in part:
                content.native.unmap_one(each.address)
    content.empty()


def _parts(allocations: list[Allocation]) -> Iterator[list[Allocation]]:
    """Yield the allocations in parts of so many bytes that an event for each costs little."""
    part: list[Allocation] = []
    for each in allocations:
        part.append(each)
        if sum(other.size for other in part) >= _PIECE:
            yield part
            part = []
    if part:
        yield part


def _move_back(driver: Driver, content: HeapContent) -> None:
    """Map allocations that were unmapped again, with their bytes; otherwise the heap is broken."""
    allocations = content.native.allocations()
    try:
        driver.ctx_synchronize()
        for each in allocations:
            content.native.map_one(each.address)
    except DriverError as error:
        lost = sum(not each.mapped for each in content.native.allocations())
        content.broken = f"{error}, after which {lost:,} allocations have no memory"


def _copied(driver: Driver, content: HeapContent) -> dict[int, int]:
    """Copy all allocations to pageable memory; return the addresses there by number. Needs a current context."""
    allocations = content.native.allocations()
    places = grow_backups(driver, content, allocations, pageable=True)
    for each in allocations:
        for offset in range(0, each.size, _PIECE):
            data = driver.memcpy_dtoh(each.address + offset, min(_PIECE, each.size - offset))
            ctypes.memmove(places[each.number] + offset, data, len(data))
    return places


_PIECE = 64 << 20
"""Bytes of pageable memory that are copied at once, and of copies that are awaited together."""


def wake(driver: Driver, layout: Layout, label: str) -> None:
    """Give the allocations of a heap that sleeps memory again, with the bytes that were kept.

    Raises `HeapRefused`, and `HeapFull` and `HeapFailed` with the heap asleep as before, or awake as the text says.
    """
    content = heaps(layout)[label]
    if not content.asleep:
        raise HeapRefused(f"heap {label!r} is not asleep", hint="'sleep' puts it to sleep")
    if not content.present:
        raise _absent(label)
    try:
        with current(driver, layout.contexts[content.step.device]):
            with on_failure(_take_back, driver, content):
                _give_back(driver, content)
                if content.saved:
                    memory = heap_memory(driver, layout, content)
                    with transferring(driver, layout) as transfer:
                        content.saved.keeper.restore(memory.pieces, memory, transfer)
            content.asleep = False
            content.leave_folder()
            content.native.open()
    except FolderRefused as error:
        raise HeapFailed(f"heap {label!r} stays asleep: {error.message}", hint=error.hint) from error
    except DriverError as error:
        if not content.asleep:
            raise HeapFailed(f"heap {label!r} is awake: {error}") from error
        if content.broken:
            raise HeapFailed(f"heap {label!r} can only be taken down: {content.broken}") from error
        kind = HeapFull if error.name == "CUDA_ERROR_OUT_OF_MEMORY" else HeapFailed
        hint = "free memory of the GPU, and try again"
        raise kind(f"heap {label!r} stays asleep: {error}", hint=hint) from error


def _saved(driver: Driver, layout: Layout, content: HeapContent, path: str) -> LockedFolder:
    """Write all allocations to a folder, which stays locked. Raises `FolderRefused` and `DriverError`."""
    memory, owner = heap_memory(driver, layout, content), f"heaps of {layout.name}"
    with ExitStack() as stack:
        keeper = FolderKeeper(stack.enter_context(saving_to(path, owner)), owner, content.step.label)
        with transferring(driver, layout) as transfer:
            keeper.save(memory.pieces, memory, transfer)
        return LockedFolder(keeper, stack.pop_all())


def _give_back(driver: Driver, content: HeapContent) -> None:
    """Map memory for each allocation while the bytes of those before it are copied. Needs a current context."""
    for each in content.native.allocations():
        is_mapped = content.native.map_one(each.address)
        place = content.kept.get(each.number)
        if not is_mapped or place is None:
            continue
        if not content.backups[each.number].pageable:
            driver.memcpy_async(each.address, place, each.size)
            continue
        for offset in range(0, each.size, _PIECE):
            data = ctypes.string_at(place + offset, min(_PIECE, each.size - offset))
            driver.memcpy_htod(each.address + offset, data)
    driver.ctx_synchronize()


def _take_back(driver: Driver, content: HeapContent) -> None:
    """Release all memory again, after the copies into it that were started."""
    try:
        driver.ctx_synchronize()
    finally:
        content.empty()


def drop_backups(driver: Driver, layout: Layout, label: str) -> None:
    """Free the host memory that kept the bytes of a heap, unless it sleeps. Raises `HeapRefused` and `HeapFailed`."""
    content = _awake(layout, label)
    try:
        with current(driver, layout.contexts[content.step.device]):
            release_backups(driver, content, [*content.backups])
    except DriverError as error:
        raise HeapFailed(f"heap {label!r}: {error}") from error


def _awake(layout: Layout, label: str) -> HeapContent:
    content = heaps(layout)[label]
    _require_awake(content)
    return content


def _require_awake(content: HeapContent) -> None:
    """Raise `HeapRefused` for a heap that has no memory at present."""
    label = content.step.label
    if content.broken:
        raise HeapFailed(f"heap {label!r} can only be taken down: {content.broken}")
    if content.asleep:
        raise HeapRefused(f"heap {label!r} is asleep", hint="wake it up first")
    if not content.native.is_open:
        raise _absent(label)


def _absent(label: str) -> HeapRefused:
    message = f"heap {label!r} has no memory in the state of the layout"
    return HeapRefused(message, hint="switch('awake') first")
