"""Families of page-locked host memory, allocated or registered, and of dma-bufs; of two processes."""

from __future__ import annotations

from typing import ClassVar

from tests.differential.calls import OK, Call
from tests.differential.families_of_two import Chunks
from tests.differential.family import WORD, FamilyGenerator
from tests.differential.notation import KiB, MiB, place_of, size_of, size_text
from tests.differential.resources import Needs

_PAGE = 4 * KiB


class Pinned(FamilyGenerator):
    """Page-locked memory. Files stay mapped while their bytes are registered (fact 86).

    Bytes of files are known by their offsets in the file, which several registrations have parts of.
    """

    length = 36
    needs: ClassVar = Needs(resources=True, process=True)
    frequencies: ClassVar = {
        "push": 2, "pop": 1, "hostalloc": 5, "hostfree": 3, "hostflags": 4, "hostpointer": 4, "sizeat": 4, "get": 1,
        "file": 3, "mapfile": 5, "unmapfile": 1, "register": 10, "unregister": 4, "fill": 4, "write": 6, "read": 8,
        "hostwrite": 5, "hostread": 7, "copy": 3, "stream": 1, "freemem": 1, "share": 1,
    }  # fmt: skip

    def __init__(self, seed: int, gpus: int) -> None:
        super().__init__(seed, gpus)
        self.bases: dict[str, int] = {}

    def note(self, text: str, answer: str) -> None:
        """Take the answer to a call; a registration also ends by the address of its file."""
        super().note(text, answer)
        call = Call.parse(text.replace("there ", ""))
        if call.name == "unregister" and answer == OK:
            for each in self.of("n"):
                if self.open[each].arguments[0] == call.arguments[0]:
                    del self.open[each]

    def made(self, call: Call) -> None:
        """Take the offset of registered bytes in their file; a new file has zeros."""
        first = call.arguments[0]
        if call.name == "mapfile":
            self.roots[call.target], self.bases[call.target] = first, 0
        elif call.name == "register":
            at = place_of(first)
            self.roots[call.target], self.bases[call.target] = self.root(at.symbol), at.offset
        else:
            super().made(call)
        if call.name == "file":
            self.known[call.target].update((0, size_of(first) - 8))

    def size(self, symbol: str) -> int:
        """Bytes of memory or of a registration."""
        call = self.open[symbol]
        return size_of(call.arguments[1 if call.name == "register" else 0])

    def _hostalloc(self) -> str | None:
        size = self.random.choice((1, 100, _PAGE, 64 * KiB, MiB, 3 * MiB))
        if self.chance(4):
            size = self.random.choice((0, 32 << 40))
        flags = self.random.choice((8, 16, 64)) if self.chance(5) else self.random.randrange(8)
        return self.new("hostalloc", f"{size_text(size)} {flags}", self._side()) if len(self.of("k")) < 5 else None

    def _hostfree(self) -> str | None:
        if self.chance(10):
            return self._inside("hostfree {}") or "hostfree null"
        return self._with("n" if self.chance(8) else "k", "hostfree {}")

    def _hostflags(self) -> str | None:
        return self._inside("hostflags {}")

    def _hostpointer(self) -> str | None:
        return self._inside("hostpointer {}")

    def _sizeat(self) -> str | None:
        return self._inside("sizeat {}")

    def _get(self) -> str | None:
        return self._with("kn", f"get {{}} gpu{self.random.randrange(self.gpus)}")

    def _file(self) -> str | None:
        size = self.random.choice((_PAGE, 64 * KiB, MiB))
        return self.new("file", size_text(size)) if len(self.of("w")) < 3 else None

    def _mapfile(self) -> str | None:
        symbol = self.one("w")
        return self.new("mapfile", symbol, self._side()) if symbol and len(self.of("u")) < 6 else None

    def _unmapfile(self) -> str | None:
        """Unmap a file of which nothing is registered: fact 86."""
        used = {place_of(self.open[each].arguments[0]).symbol for each in self.of("n")}
        free = [each for each in self.of("u") if each not in used]
        symbol = self.random.choice(free) if free else None
        return f"{self.place[symbol]}unmapfile {symbol}" if symbol else None

    def _register(self) -> str | None:
        symbol = self.one("u")
        if symbol is None or len(self.of("n")) > 6:
            return None
        whole = size_of(self.open[self.root(symbol)].arguments[0])
        offset = self.random.choice((0, 0, 0, 1, 104, _PAGE, whole // 2))
        size = self.random.choice((whole, whole, whole, 1, 104, _PAGE, 2 * _PAGE, whole // 2))
        size = 0 if self.chance(3) else max(0, min(size, whole - offset))
        flags = self.random.choice((4, 12, 16, 64)) if self.chance(5) else self.random.choice((0, 1, 2, 3, 3, 8, 11))
        where = self.place[symbol]
        return self.new("register", f"{self.at(symbol, offset)} {size_text(size)} {flags}", where)

    def _unregister(self) -> str | None:
        if self.chance(15):
            return self._inside("unregister {}", "knu")
        return self._with("n", "unregister {}")

    def _fill(self) -> str | None:
        if self.chance(4):
            symbol = self.one("n")
            return f"{self.place[symbol]}fill {symbol} 1 {size_text(self.size(symbol) + 1)}" if symbol else None
        return self.fill("kn")

    def _write(self) -> str | None:
        return self.write("kn")

    def _read(self) -> str | None:
        return self._read_by("read")

    def _hostwrite(self) -> str | None:
        return self.write("kn", "hostwrite")

    def _hostread(self) -> str | None:
        return self._read_by("hostread")

    def _copy(self) -> str | None:
        """Copy words whose bytes are known."""
        source = self.one("kn")
        to = self.one("kn", self.place[source]) if source else None
        if source is None or to is None or self.root(source) == self.root(to):
            return None
        if self._base(source) not in self._known(source) or self._base(to) not in self._known(to):
            return None
        return f"{self.place[source]}copy {to} {source} {WORD} {self.one('s', self.place[source]) or '0'}"

    def _stream(self) -> str | None:
        return self.new("stream", "1", self._side()) if len(self.of("s")) < 3 else None

    def _freemem(self) -> str | None:
        """Free by the wrong call, which is refused (facts 74 and 85)."""
        return self._with("kn", "freemem {}")

    def _share(self) -> str | None:
        """Share by legacy IPC, which is refused (facts 74 and 85)."""
        symbol = self.one("kn")
        return self.new("share", symbol, self.place[symbol]) if symbol else None

    def _note_bytes(self, call: Call) -> None:
        if call.name not in {"fill", "write", "hostwrite"}:
            return
        at = place_of(call.arguments[0])
        known, start = self.known[self.root(at.symbol)], self._base(at.symbol) + at.offset
        if call.name != "fill":
            known.add(start)
        elif (count := size_of(call.arguments[2])) >= WORD:
            known.update((start, start + (count - WORD) // 8 * 8))

    def _read_by(self, call: str) -> str | None:
        """Read a word that is known, and wholly inside."""
        for symbol in self.random.sample(found := self.of("kn"), len(found)):
            if known := self._known(symbol):
                offset = self.random.choice(known) - self._base(symbol)
                return f"{self.place[symbol]}{call} {self.at(symbol, offset)} {WORD}"
        return None

    def _known(self, symbol: str) -> list[int]:
        """Known offsets in the file or allocation that are words of a symbol's bytes."""
        start, end = self._base(symbol), self._base(symbol) + self.size(symbol) - WORD
        return sorted(each for each in self.known[self.root(symbol)] if start <= each <= end)

    def _base(self, symbol: str) -> int:
        return self.bases.get(symbol, 0)

    def _inside(self, call: str, kinds: str = "kn") -> str | None:
        """Call at the begin of memory, or somewhere in it."""
        symbol = self.one(kinds)
        if symbol is None:
            return None
        whole = symbol if symbol[0] != "u" else self.root(symbol)
        return self.place[symbol] + call.format(self.at(symbol, self.random.choice((0, 0, self.size(whole) // 2))))

    def _with(self, kinds: str, call: str) -> str | None:
        symbol = self.one(kinds)
        return self.place[symbol] + call.format(symbol) if symbol else None

    def _side(self) -> str:
        return self.random.choice(self.sides())


class DmaBufs(Chunks):
    """Dma-bufs of mapped chunks, imported ones too, of allocations, pools and memory of the host."""

    length = 44
    frequencies: ClassVar = {
        **Chunks.frequencies, "get": 1, "range": 1, "props": 1, "write": 4, "read": 5, "set": 6, "map": 14, "push": 2,
        "pop": 1, "dmabuf": 20, "dmabufsize": 5, "enddmabuf": 6, "badimport": 1, "alloc": 4, "freemem": 2, "pool": 2,
        "poolalloc": 4, "poolfree": 2, "hostalloc": 1, "hostfree": 1, "managed": 1,
    }  # fmt: skip

    def _create(self) -> str | None:
        """Create a chunk, seldom of the host and without bytes, whose copy may end the process (fact 40)."""
        call = super()._create()
        return call.replace("gpu0", "host:0") if call and self.chance(8) else call

    def _write(self) -> str | None:
        return self._unless_host(super()._write())

    def _fill(self) -> str | None:
        return self._unless_host(super()._fill())

    def _read(self) -> str | None:
        return self._unless_host(super()._read())

    def _unless_host(self, call: str | None) -> str | None:
        made = [self.open[root].arguments[1] for root in self.mapped.values() if root in self.open]
        gone = any(root not in self.open for root in self.mapped.values())
        return None if gone or any(place.startswith("host") for place in made) else call

    def _dmabuf(self) -> str | None:
        """Dma-buf of pages inside of a reservation or an allocation: what lies beside it differs."""
        mapped = [symbol for each in self.mapped if (symbol := place_of(each).symbol) in self.open]
        found = mapped if mapped and self.chance(70) else self.of("avkm") if self.chance(85) else self.of("r")
        if not found or len(self.of("d")) > 5:
            return None
        symbol = self.random.choice(found)
        size = size_of(self.open[symbol].arguments[0])
        offset = self.random.choice((0, 0, 0, _PAGE, 64 * KiB, size // 2, size // 2)) + 512 * self.chance(4)
        count = self.random.choice((size, size // 2, size // 2, _PAGE, 64 * KiB, 64 * KiB, size - offset))
        count = self.random.choice((0, 2048)) if self.chance(4) else count
        count = max(0, min(count, size - offset))
        flags = self.random.choice((1, 2, 3)) if self.chance(6) else 0
        return self.new("dmabuf", f"{self.at(symbol, offset)} {size_text(count)} {flags}", self.place[symbol])

    def _dmabufsize(self) -> str | None:
        symbol = self.one("d")
        return f"dmabufsize {symbol}" if symbol else None

    def _enddmabuf(self) -> str | None:
        symbol = self.one("d")
        return f"close {symbol}" if symbol else None

    def _badimport(self) -> str | None:
        """Import a dma-buf as a chunk, which is refused (fact 84)."""
        symbol = self.one("d")
        return self.new("import", symbol, self._side()) if symbol else None

    def _alloc(self) -> str | None:
        """Allocate whole pages, so that all allocations begin at one."""
        size = self.random.choice((_PAGE, 64 * KiB, MiB, 2 * MiB, 3 * MiB))
        return self.new("alloc", size_text(size), self._side()) if len(self.of("a")) < 4 else None

    def _freemem(self) -> str | None:
        return self._with("am", "freemem {}")

    def _pool(self) -> str | None:
        place = "host:0" if self.chance(15) else f"gpu{self.random.randrange(self.gpus)}"
        return self.new("pool", f"{place}{'/fd' * self.chance(70)} 0", self._side()) if len(self.of("l")) < 3 else None

    def _poolalloc(self) -> str | None:
        symbol = self.one("l")
        if symbol is None or len(self.of("v")) > 4:
            return None
        size = self.random.choice((64 * KiB, 2 * MiB, 8 * MiB))
        return self.new("poolalloc", f"{size_text(size)} {symbol} 0", self.place[symbol])

    def _poolfree(self) -> str | None:
        return self._with("v", "poolfree {} 0")

    def _hostalloc(self) -> str | None:
        return self.new("hostalloc", "64K 3", self._side()) if len(self.of("k")) < 2 else None

    def _hostfree(self) -> str | None:
        return self._with("k", "hostfree {}")

    def _managed(self) -> str | None:
        return self.new("managed", "64K 1", self._side()) if len(self.of("m")) < 2 else None

    def _with(self, kinds: str, call: str) -> str | None:
        symbol = self.one(kinds)
        return self.place[symbol] + call.format(symbol) if symbol else None
