"""Named parts of chunks: `signal: 4KiB, data: rest`, in order and without gaps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated

from pydantic import AfterValidator

from memtopo.common.units import NamedPart, Size, exact
from memtopo.diagnostics.model import Diagnostic, InvalidValue, Path
from memtopo.kinds.resolution import Resolution
from memtopo.language.fields import REST, OwnName, PartSize
from memtopo.language.limits import LARGEST_PARTS

_KEY = "parts"


def _checked(parts: dict[str, Size | str]) -> dict[str, Size | str]:
    if not parts:
        raise InvalidValue("MT103", "expected at least one part, found none", help="write 'signal: 4KiB, data: rest'")
    if len(parts) > LARGEST_PARTS:
        raise InvalidValue("MT109", f"{len(parts):,} parts are more than the {LARGEST_PARTS} that one chunk may have")
    if list(parts.values()).count(REST) > 1:
        raise InvalidValue("MT204", f"{REST!r} is the size of several parts", help="give all but one a size in bytes")
    return parts


Parts = Annotated[dict[OwnName, PartSize], AfterValidator(_checked)]


def resolve_parts(
    path: Path, parts: Mapping[str, Size | str] | None, size: int, unit: int
) -> Resolution[tuple[NamedPart, ...] | None]:
    """Parts of chunks of `size` bytes with granules of `unit` bytes; yields MT313 if they do not fit."""
    if not parts:
        return ()
    sizes = {name: each.bytes(unit) if isinstance(each, Size) else 0 for name, each in parts.items()}
    left = size - sum(sizes.values())
    rest = next((name for name, bytes_ in sizes.items() if not bytes_), None)
    if left < 0 or (rest and not left):
        yield _misfit(path, rest, size, size - left, unit)
        return None
    if rest:
        sizes[rest] = left
    return tuple(_consecutive(sizes))


def _consecutive(sizes: Mapping[str, int]) -> Iterable[NamedPart]:
    offset = 0
    for name, size in sizes.items():
        yield NamedPart(name, offset, size)
        offset += size


def _misfit(path: Path, rest: str | None, size: int, total: int, unit: int) -> Diagnostic:
    name = path[-1]
    if rest and total == size:
        message = f"{name!r} has {exact(size)}, and its other parts leave nothing for {rest!r}"
        return Diagnostic("MT313", message, (*path, _KEY, rest), help=f"leave {rest!r} out, or make others smaller")
    message = f"{name!r} has {exact(size)}, and its parts have {exact(total)}"
    help = f"make the parts smaller, or write 'size: {exact(-(-total // unit) * unit)}' or more"
    return Diagnostic("MT313", message, (*path, _KEY), help=help)
