"""The words of a map: what each piece is, where it begins, how large it is, whose memory it is, and who may use it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from memtopo.picture import Granted, MemoryPicture, Piece, RangePicture
from memtopo.render.inks import Inks
from memtopo.text import printable
from memtopo.units import exact, rounded

LONGEST_NAME = 26
MOST_SHARES = 6

_FEW = 2  # names that are told one by one
_DIGITS = 4  # of an offset that is told in full


def piece(shown: Piece, inks: Inks, *, times: int, again: bool, access: bool) -> list[Text]:
    """Name, offset, size, location and, where it is asked for, access of a piece, in cells of a table."""
    if not shown.chunk:
        told = ("hole", _offset(shown.offset), rounded(shown.size), "", "")
        return [Text(word, "dim") for word in told]
    cells = [
        Text(inks.told(_name(shown, times))),
        Text(_offset(shown.offset)),
        Text(inks.told(multiple(shown.count, shown.bytes_each))),
        _location(shown, inks, sight=_sight(shown, times, again=again)),
        Text(inks.told(granted(shown.access)) if access else ""),
    ]
    cells[0].stylize("bold")
    return cells


def range_(shown: RangePicture, access: Sequence[Granted] | None, inks: Inks) -> list[Text]:
    """The name and size of one range or many, with the access that holds for all of it, if one does."""
    name = subjects(shown.first, shown.last)
    holds = granted(access) if access is not None else "" if shown.mapped else "nothing mapped"
    told = [clipped(name), multiple(shown.count, shown.size), *([holds] if holds else [])]
    parts = [Text(inks.told(part)) for part in told]
    parts[0].stylize("bold")
    return parts


def memories(shown: Sequence[MemoryPicture], inks: Inks) -> list[list[Text]]:
    """Each device by all its names, what is used of its memory and what is left, below one another in columns."""
    told = [
        (printable(memory.device), ", ".join(map(clipped, memory.names)), f"{rounded(memory.used)} used", _free(memory))
        for memory in shown
    ]
    device, names, used, free = (max(map(cell_len, column), default=0) for column in zip(*told, strict=True))
    return [
        [
            Text(inks.told(set_cell_size(row[0], device)), f"bold {inks.colour(row[0])}"),
            *([Text(inks.told(set_cell_size(row[1], names)))] if names else []),
            Text(row[2].rjust(used)),
            *([Text(row[3].rjust(free))] if row[3] else []),
        ]
        for row in told
    ]


def shares(shown: MemoryPicture, inks: Inks) -> list[str]:
    """What of each kind of chunk a device holds; nothing where it is a single one, whose size is the whole."""
    if len(shown.shares) == 1 and shown.shares[0].count == 1:
        return []
    told = [
        f"{inks.letter(share.chunk)} {multiple(share.count, share.bytes_each)}" for share in shown.shares[:MOST_SHARES]
    ]
    more = len(shown.shares) - MOST_SHARES
    return [*map(inks.told, told), *([f"{more:,} more"] if more > 0 else [])]


def granted(access: Sequence[Granted]) -> str:
    """Access in few words: `gpu0 rw, gpu1-3 r`."""
    if not access:
        return "no access"
    alike = groupby(access, key=lambda each: each.access)
    return ", ".join(
        f"{name} {printable(word)}"
        for word, group in alike
        for name in _spans([printable(each.device) for each in group])
    )


def multiple(count: int, size: int) -> str:
    """One size, or how often there is one: `16 × 2 MiB`."""
    return rounded(size) if count == 1 else f"{count:,} × {rounded(size)}"


def subjects(first: str, last: str) -> str:
    """One name, or the first and the number of the last; two names where they have no stem in common."""
    if last == first:
        return first
    stem, _, number = last.rpartition(".")
    return f"{first} … {number if stem and first.rpartition('.')[0] == stem else last}"


def clipped(name: str) -> str:
    """A name as it may be shown, at most `LONGEST_NAME` columns of it: a name's end tells most."""
    shown = printable(name)
    if cell_len(shown) <= LONGEST_NAME:
        return shown
    kept = LONGEST_NAME // 2
    start, end = set_cell_size(shown, kept - 1), set_cell_size(shown[::-1], LONGEST_NAME - kept)[::-1]
    return f"{start.rstrip()}…{end.lstrip()}"


def _free(shown: MemoryPicture) -> str:
    taken = f"{rounded(shown.taken)} taken  " if shown.taken else ""
    return "" if shown.free is None else f"{taken}{rounded(shown.free)} free"


def _name(shown: Piece, times: int) -> str:
    """The chunks of a piece; where equal ranges go on with the next ones each, those of all of them."""
    stem, _, number = shown.last.rpartition(".")
    ahead = shown.step * (times - 1) if shown.step == shown.count else 0
    last = f"{stem}.{int(number) + ahead}" if ahead and number.isdecimal() else shown.last
    return clipped(subjects(shown.first, last))


def _sight(shown: Piece, times: int, *, again: bool) -> str:
    """Where else the chunks are seen, and which ones the next of many equal ranges has."""
    if times > 1 and not shown.step:
        return ", same in each"
    ahead = f", {shown.step:+,} in each" if times > 1 and shown.step != shown.count else ""
    return f"{', again' if again else ''}{ahead}"


def _location(shown: Piece, inks: Inks, *, sight: str) -> Text:
    parts: list[str | tuple[str, str]] = []
    for name in _few(shown.locations):
        parts += [", " if parts else "", (inks.told(printable(name)), inks.colour(name.partition("-")[0]))]
    handles = f" ({', '.join(map(printable, shown.handles))})" if shown.handles else ""
    return Text.assemble(*parts, inks.told(handles), sight)


def _few(names: Sequence[str]) -> list[str]:
    """Names as they are, unless they are many in a row: `gpu0-3`."""
    return list(names) if len(names) <= _FEW else list(_spans(names))


def _spans(names: Sequence[str]) -> Iterator[str]:
    numbered = [(index, int(name[3:]) if name[:3] == "gpu" and name[3:].isdecimal() else None, name)
                for index, name in enumerate(names)]  # fmt: skip
    for _, group in groupby(numbered, key=lambda each: each[2] if each[1] is None else each[1] - each[0]):
        found = list(group)
        yield found[0][2] if len(found) == 1 else f"{found[0][2]}-{found[-1][1]}"


def _offset(offset: int) -> str:
    """An offset in full where that is short, else to a tenth."""
    whole = exact(offset)
    digits = whole.rstrip("BKMGTi")
    return f"{digits} {whole[len(digits) :]}".rstrip() if len(digits) <= _DIGITS else rounded(offset)
