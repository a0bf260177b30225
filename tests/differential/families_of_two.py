"""Families of two processes: legacy IPC, and chunks that are exported and imported."""

from __future__ import annotations

from typing import ClassVar

from tests.differential.calls import OK, Call
from tests.differential.families_of_one import Events
from tests.differential.family import WORD, FamilyGenerator
from tests.differential.notation import KiB, MiB, place_of, size_of, size_text
from tests.differential.resources import Needs


class Ipc(Events):
    """Allocations and events of two processes, by legacy IPC."""

    needs: ClassVar = Needs(resources=True, process=True)
    length = 30

    def __init__(self, seed: int, gpus: int) -> None:
        super().__init__(seed, gpus)
        self.sizes: dict[str, int] = {}

    frequencies: ClassVar = {
        "push": 2, "pop": 1, "alloc": 5, "freemem": 2, "share": 6, "open": 9, "closeopened": 3, "sizeat": 3, "fill": 3,
        "write": 5, "read": 8, "event": 3, "shareevent": 4, "openevent": 5, "record": 4, "eventdone": 4, "eventsync": 2,
        "streamwait": 2, "endevent": 1,
    }  # fmt: skip

    def _alloc(self) -> str | None:
        size = self.random.choice((512, 4 * KiB, 64 * KiB, 2 * MiB, 3 * MiB))
        return self.new("alloc", size_text(size), self._side()) if len(self.of("a")) < 5 else None

    def _freemem(self) -> str | None:
        symbol = self.one("a")
        return f"{self.place[symbol]}freemem {symbol}" if symbol else None

    def _share(self) -> str | None:
        symbol = self.one("a")
        return self.new("share", self.at(symbol, self.some_offset(symbol)), self.place[symbol]) if symbol else None

    def _open(self) -> str | None:
        """Open mostly in the other process."""
        symbol = self.one("h")
        if symbol is None or len(self.of("o")) > 5:
            return None
        where = self._away(self.place[symbol])
        return self.new("open", symbol + " 0" * self.chance(4), where)

    def _closeopened(self) -> str | None:
        symbol = self.one("a" if self.chance(5) else "o")
        return f"{self.place[symbol]}closeopened {symbol}" if symbol and self.contexts[self.place[symbol]] else None

    def _sizeat(self) -> str | None:
        symbol = self.one("o")
        return f"{self.place[symbol]}sizeat {symbol}" if symbol else None

    def _fill(self) -> str | None:
        return self.fill("ao")

    def _write(self) -> str | None:
        return self.write("ao")

    def _read(self) -> str | None:
        return self.read("ao")

    def _event(self) -> str | None:
        flags = self.random.choice((2, 6, 6, 6, 6))
        return self.new("event", str(flags), self._side()) if len(self.of("e")) < 6 else None

    def _shareevent(self) -> str | None:
        symbol = self.one("e")
        return self.new("shareevent", symbol, self.place[symbol]) if symbol else None

    def _openevent(self) -> str | None:
        symbol = self.one("g")
        if symbol is None or self.open[symbol].arguments[0] not in self.open:
            return None  # of a destroyed event, nothing was measured
        return self.new("openevent", symbol, self._away(self.place[symbol]))

    def _eventsync(self) -> str | None:
        symbol = self.one("e")
        return f"{self.place[symbol]}eventsync {symbol}" if symbol and self.contexts[self.place[symbol]] else None

    def _streamwait(self) -> str | None:
        symbol = self.one("e")
        if symbol is None or self.contexts_of[symbol] != self.current(self.place[symbol]):
            return None
        return f"{self.place[symbol]}streamwait 0 {symbol}"

    def _with_event(self, call: str) -> str | None:
        symbol = self.one("e")
        return self.place[symbol] + call.format(symbol) if symbol else None

    def made(self, call: Call) -> None:
        """Take the bytes of opened memory from its allocation."""
        if call.name == "open":
            shared = self.open[call.arguments[0]].arguments[0]
            self.roots[call.target] = self.root(shared.partition("+")[0])
            return
        super().made(call)
        if call.name == "alloc":
            self.sizes[call.target] = size_of(call.arguments[0])

    def size(self, symbol: str) -> int:
        """Bytes of memory, whose allocation may have been freed."""
        return self.sizes[self.root(symbol)]

    def _side(self) -> str:
        return self.random.choice(self.sides())

    def _away(self, where: str) -> str:
        """The other process, or now and then the same."""
        other = "" if where else "there "
        return where if self.chance(8) else other


class Chunks(FamilyGenerator):
    """Chunks of 2 MiB that two processes create, export, import and map."""

    length = 40
    needs: ClassVar = Needs(resources=True, process=True)
    frequencies: ClassVar = {
        "reserve": 4, "create": 5, "export": 6, "import": 8, "map": 10, "set": 12, "write": 8, "read": 10, "fill": 2,
        "props": 3, "range": 3, "get": 3, "unmap": 4, "release": 3, "close": 3, "free": 1, "push": 1, "pop": 1,
    }  # fmt: skip

    def __init__(self, seed: int, gpus: int) -> None:
        super().__init__(seed, gpus)
        self.mapped: dict[str, str] = {}  # roots of the bytes, by place

    def note(self, text: str, answer: str) -> None:
        """Take the answer to a call, and what is mapped where."""
        super().note(text, answer)
        name, *arguments = text.rpartition(" = ")[2].removeprefix("there ").split()
        if answer != OK:
            return
        if name == "map":
            self.mapped[arguments[0]] = self.root(arguments[2])
        elif name == "unmap":
            self.mapped.pop(arguments[0], None)

    def made(self, call: Call) -> None:
        """Take the bytes of an import from the chunk that was exported."""
        if call.name in {"export", "import"}:
            self.roots[call.target] = self.root(call.arguments[0])
        else:
            super().made(call)

    def _reserve(self) -> str | None:
        return self.new("reserve", "4M", self._side()) if len(self.of("r")) < 4 else None

    def _create(self) -> str | None:
        where = f"gpu{self.random.randrange(self.gpus)}"
        handles = "/fd" * self.chance(90) + "/rdma" * self.chance(15) + "/compressible" * self.chance(15)
        return self.new("create", f"2M {where}{handles}", self._side()) if len(self.of("c")) < 6 else None

    def _export(self) -> str | None:
        symbol = self.one("c")
        if symbol is None or len(self.of("f")) > 3:
            return None
        return self.new("export", f"{symbol} {'fabric' if self.chance(3) else 'fd'}", self.place[symbol])

    def _import(self) -> str | None:
        symbol = self.one("f")
        if symbol is None or self.open[symbol].arguments[1] != "fd" or len(self.of("c")) > 9:
            return None
        other = "" if self.place[symbol] else "there "
        return self.new("import", symbol, self.place[symbol] if self.chance(15) else other)

    def _map(self) -> str | None:
        chunk = self.one("c")
        reservation = self.one("r", self.place[chunk]) if chunk else None
        if chunk is None or reservation is None:
            return None
        place = self.at(reservation, self.random.choice((0, 2 * MiB)))
        return f"{self.place[chunk]}map {place} 2M {chunk}"

    def _set(self) -> str | None:
        access = self.random.choice((3, 3, 3, 1, 0))
        return self._with_mapping(f"set {{}} 2M gpu{self.random.randrange(self.gpus)}={access}")

    def _write(self) -> str | None:
        return self._with_mapping(f"write {{}} {self.random.getrandbits(32):08x}", self._offset())

    def _fill(self) -> str | None:
        return self._with_mapping(f"fill {{}} {self.random.randrange(256)} 2M")

    def _read(self) -> str | None:
        for place in self.random.sample(list(self.mapped), len(self.mapped)):
            if known := self.known[self.mapped[place]]:
                at = place_of(place)
                offset = at.offset + self.random.choice(sorted(known))
                return f"{self.place[at.symbol]}read {self.at(at.symbol, offset)} {WORD}"
        return None

    def _range(self) -> str | None:
        return self._with_mapping("range {}", self._offset())

    def _get(self) -> str | None:
        return self._with_mapping(f"get {{}} gpu{self.random.randrange(self.gpus)}", self._offset())

    def _unmap(self) -> str | None:
        return self._with_mapping("unmap {} 2M")

    def _props(self) -> str | None:
        symbol = self.one("c")
        return f"{self.place[symbol]}props {symbol}" if symbol else None

    def _release(self) -> str | None:
        symbol = self.one("c")
        return f"{self.place[symbol]}release {symbol}" if symbol else None

    def _close(self) -> str | None:
        symbol = self.one("f")
        return f"close {symbol}" if symbol and self.open[symbol].arguments[1] == "fd" else None

    def _free(self) -> str | None:
        symbol = self.one("r")
        return f"{self.place[symbol]}free {symbol} 4M" if symbol else None

    def _note_bytes(self, call: Call) -> None:
        if call.name not in {"fill", "write"}:
            return
        at = place_of(call.arguments[0])
        slot = at.offset // (2 * MiB) * 2 * MiB
        known, start = self.known[self.mapped[self.at(at.symbol, slot)]], at.offset - slot
        known.update((0, 2 * MiB - 8) if call.name == "fill" else (start,))

    def _with_mapping(self, call: str, offset: int = 0) -> str | None:
        if not self.mapped:
            return None
        at = place_of(self.random.choice(list(self.mapped)))
        return self.place[at.symbol] + call.format(self.at(at.symbol, at.offset + offset))

    def _offset(self) -> int:
        return self.random.choice((0, 0, 64 * KiB, 2 * MiB - 8))

    def _side(self) -> str:
        return self.random.choice(self.sides())
