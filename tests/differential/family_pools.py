"""Family of memory pools of two processes: attributes, access, allocations, and their exports and imports."""

from __future__ import annotations

from typing import ClassVar

from tests.differential.calls import OK, Call
from tests.differential.family import WORD, FamilyGenerator
from tests.differential.notation import KiB, MiB, size_of, size_text
from tests.differential.pool_calls import POOL_ATTRIBUTES
from tests.differential.resources import Needs

_WRONG = ("host/fd", "host:current", "host:9/fd", "gpu9/fd", "gpu0/win32")
_SIZES = (1, 513, 4 * KiB, 64 * KiB, MiB, 8 * MiB, 8 * MiB, 20 * MiB, 31 * MiB, 33 * MiB, 40 * MiB)


class Pools(FamilyGenerator):
    """Pools. A pool is not used after it was destroyed, nor an allocation imported after it was freed (fact 82)."""

    length = 40
    needs: ClassVar = Needs(resources=True, process=True)
    frequencies: ClassVar = {
        "push": 2, "pop": 1, "pool": 3, "endpool": 1, "poolalloc": 10, "poolfree": 5, "poolfreenow": 1, "poolset": 3,
        "poolget": 7, "poolgrant": 4, "poolaccess": 3, "pooltrim": 2, "poolexport": 3, "poolimport": 2,
        "poolpointer": 4, "poolopen": 6, "offer": 16, "fill": 4, "write": 5, "read": 9, "hostwrite": 2, "sizeat": 3,
        "get": 1, "sync": 2, "copy": 3, "stream": 1, "endstream": 1, "import": 1, "close": 1,
    }  # fmt: skip

    def __init__(self, seed: int, gpus: int) -> None:
        super().__init__(seed, gpus)
        self.pool_of: dict[str, str] = {}
        self.sizes: dict[str, int] = {}
        self.sources: dict[str, str] = {}  # pools that were created, by their imports and descriptors
        self.properties: dict[str, str] = {}

    def note(self, text: str, answer: str) -> None:
        """Take the answer to a call; an allocation that is imported twice ends with the first free (fact 82)."""
        super().note(text, answer)
        name, *arguments = text.rpartition(" = ")[2].removeprefix("there ").split()
        if answer == OK and name in {"poolfree", "poolfreenow"} and arguments[0] in self.pool_of:
            freed = arguments[0]
            for each in self.of("v", self.place[freed]):
                if self._is_opened(each) and self._is_opened(freed) and self.root(each) == self.root(freed):
                    del self.open[each]

    def made(self, call: Call) -> None:
        """Take pools, and the bytes of what is imported."""
        first = call.arguments[0]
        match call.name:
            case "pool":
                self.properties[call.target] = first
                self.sources[call.target] = call.target
            case "poolexport":
                self.sources[call.target] = self.sources[first]
            case "poolimport":
                self.sources[call.target] = self.sources[first]
                self.properties[call.target] = self.properties[self.sources[first]]
            case "poolpointer":
                self.roots[call.target] = self.root(first)
            case "poolopen":
                self.roots[call.target] = self.root(call.arguments[1])
                self.pool_of[call.target] = first
            case _:
                super().made(call)
        if call.name == "poolalloc":
            self.sizes[call.target] = size_of(first)
            self.pool_of[call.target] = call.arguments[1]

    def size(self, symbol: str) -> int:
        """Bytes of an allocation."""
        return self.sizes[self.root(symbol)]

    def _pool(self) -> str | None:
        if len(self.of("l")) > 4:
            return None
        place = f"gpu{self.random.randrange(self.gpus)}" if self.chance(75) else "host:0"
        properties = place + "/fd" * self.chance(85)
        if self.chance(5):
            properties = self.random.choice((*_WRONG, "host", "gpu0/fd+fabric"))
        most = self.random.choice(("1", "64M", "100M", "1T", "128T")) if self.chance(25) else "0"
        if most == "1T":
            properties = place  # the import of such a pool hangs (fact 82)
        return self.new("pool", f"{properties} {most}", self.random.choice(self.sides()))

    def _endpool(self) -> str | None:
        """End a pool that is imported nowhere, or an import: an exporter ends last (fact 82)."""
        pools = self.of("l")
        used = {self.sources[each] for each in pools if self.sources[each] != each}
        unused = [each for each in pools if each not in used]
        symbol = self.random.choice(unused) if unused else None
        return f"{self.place[symbol]}endpool {symbol}" if symbol else None

    def _poolalloc(self) -> str | None:
        imported = [self.sources[each] for each in self.of("l") if self.sources[each] in self.open]
        symbol = self.random.choice(imported) if imported and self.chance(50) else self._own_pool()
        symbol = self.one("l") if self.chance(5) else symbol
        if symbol is None or len(self.of("v")) > 9:
            return None
        size = self.random.choice((0, 32 << 40)) if self.chance(3) else self.random.choice(_SIZES)
        where = self.place[symbol]
        return self.new("poolalloc", f"{size_text(size)} {symbol} {self._stream_of(where)}", where)

    def _poolfree(self) -> str | None:
        if self.chance(6):
            inside = self.one("v")
            if inside and self.size(inside) > 1:
                return f"{self.place[inside]}poolfree {self.at(inside, 1)} 0"
            return "poolfree null 0"
        symbol = self._unused()
        if symbol is None:
            return None
        where = self.place[symbol]
        if self._is_opened(symbol):
            return f"{where}poolfreenow {symbol}"
        return f"{where}poolfree {symbol} {self._stream_of(where)}"

    def _poolfreenow(self) -> str | None:
        """Free at once, unless the pool was destroyed, which ends the process (fact 80)."""
        symbol = self._unused()
        if symbol is None or self.pool_of[symbol] not in self.open:
            return None
        return f"{self.place[symbol]}poolfreenow {symbol}"

    def _poolset(self) -> str | None:
        name = self.random.choice((*POOL_ATTRIBUTES, "threshold", "threshold"))
        value = self.random.choice(("0", "32M", "48M", "64M", "1T")) if name == "threshold" else self._flag()
        return self._with("l", f"poolset {{}} {name} {value}")

    def _poolget(self) -> str | None:
        name = self.random.choice((*POOL_ATTRIBUTES, "reserved", "reserved", "used"))
        symbol = self._own_pool() if self.chance(95) else self.one("l")
        return f"{self.place[symbol]}poolget {symbol} {name}" if symbol else None

    def _poolgrant(self) -> str | None:
        grants = [self._grant() for _ in range(2 if self.chance(20) else 1)]
        return self._with("l", f"poolgrant {{}} {','.join(grants)}")

    def _poolaccess(self) -> str | None:
        places = (*(f"gpu{each}" for each in range(self.gpus)), "gpu0", "gpu9", "host", "host:0", "host:current")
        return self._with("l", f"poolaccess {{}} {self.random.choice(places)}")

    def _pooltrim(self) -> str | None:
        keep = self.random.choice(("0", "0", "1", "32M", "40M", "1T"))
        return self._with("l", f"pooltrim {{}} {keep}")

    def _poolexport(self) -> str | None:
        symbol = self._own_pool() if self.chance(92) else self.one("l")
        if symbol is None or len(self.of("f")) > 3:
            return None
        kind = self.random.choice(("none", "fd 1", "fabric")) if self.chance(6) else "fd"
        return self.new("poolexport", f"{symbol} {kind}", self.place[symbol])

    def _poolimport(self) -> str | None:
        """Import a pool that is not destroyed, mostly in the other process."""
        known = {self.open[each].arguments[0] for each in self.of("l") if self.open[each].name == "poolimport"}
        new = [each for each in self.of("f") if each not in known]
        symbol = self.random.choice(new) if new and self.chance(90) else self.one("f")
        if symbol is None or self.sources[symbol] not in self.open or len(self.of("l")) > 7:
            return None
        wrong = self.random.choice((" none", " fd 1")) * self.chance(4)
        return self.new("poolimport", symbol + wrong, self._away(self.place[symbol]))

    def _poolpointer(self) -> str | None:
        """Pointer of an allocation whose pool is not destroyed."""
        exported = {self.sources[each] for each in self.of("f")}
        fitting = [each for each in self.of("v") if self.pool_of[each] in exported]
        symbol = self.random.choice(fitting) if fitting and self.chance(90) else self.one("v")
        if symbol is None or self.pool_of[symbol] not in self.open or len(self.of("z")) > 6:
            return None
        offset = 512 if self.chance(4) and self.size(symbol) > KiB else 0
        return self.new("poolpointer", self.at(symbol, offset), self.place[symbol])

    def _poolopen(self) -> str | None:
        """Import what is still allocated, mostly into a pool that is imported, and seldom twice."""
        pointer, pools = self.one("z"), self.of("l")
        if pointer is None or self.root(pointer) not in self.open:
            return None
        fitting = [each for each in pools if self.sources[each] == self.pool_of[self.root(pointer)] != each]
        pool = (
            self.random.choice(fitting) if fitting and self.chance(95) else self.one("l") if self.chance(15) else None
        )
        if pool is None or (self._is_open_in(pointer, self.place[pool]) and not self.chance(10)):
            return None
        return self.new("poolopen", f"{pool} {pointer}", self.place[pool])

    def _offer(self) -> str | None:
        """The next call that is missing until the other process has an allocation of a pool."""
        pool = next((each for each in self.of("l") if self._is_shareable(each)), None)
        if pool is None or not all(self.contexts.values()):
            return None
        descriptors = [each for each in self.of("f") if self.sources[each] == pool]
        imports = [each for each in self.of("l") if self.sources[each] == pool != each]
        parts = [each for each in self.of("v") if self.pool_of[each] == pool]
        pointers = [each for each in self.of("z") if self.root(each) in parts]
        if not imports and not descriptors:
            return self.new("poolexport", f"{pool} fd", self.place[pool])
        if not imports:
            return self.new("poolimport", descriptors[0], "" if self.place[pool] else "there ")
        if not parts:
            return self.new("poolalloc", f"{size_text(self.random.choice(_SIZES))} {pool} 0", self.place[pool])
        if not pointers:
            return self.new("poolpointer", self.random.choice(parts), self.place[pool])
        return self._poolopen()

    def _is_shareable(self, pool: str) -> bool:
        return self.sources[pool] == pool and "/fd" in self.properties[pool]

    def _fill(self) -> str | None:
        if self.chance(4) and (symbol := self.one("v")):
            return f"{self.place[symbol]}fill {symbol} 1 {size_text(self.size(symbol) + 1)}"
        return self.fill("v")

    def _write(self) -> str | None:
        return self.write("v")

    def _read(self) -> str | None:
        call = self.read("v", "read")
        if call is None:
            return None
        on_host = self._on_host(call.removeprefix("there ").split()[1].partition("+")[0])
        return call.replace("read ", "hostread ", 1) if on_host and self.chance(85) else call

    def _hostwrite(self) -> str | None:
        on_host = [each for each in self.of("v") if self._on_host(each) and self.size(each) >= WORD]
        if not on_host:
            return None
        symbol = self.random.choice(on_host)
        place = self.at(symbol, self.some_offset(symbol))
        return f"{self.place[symbol]}hostwrite {place} {self.random.getrandbits(32):08x}"

    def _sizeat(self) -> str | None:
        symbol = self.one("v")
        return f"{self.place[symbol]}sizeat {self.at(symbol, self.some_offset(symbol))}" if symbol else None

    def _get(self) -> str | None:
        return self._with("v", f"get {{}} gpu{self.random.randrange(self.gpus)}")

    def _sync(self) -> str | None:
        where = self.random.choice(self.sides())
        return f"{where}sync" if self.contexts[where] else None

    def _copy(self) -> str | None:
        """Copy words whose bytes are known."""
        source = self.one("v")
        to = self.one("v", self.place[source]) if source else None
        if source is None or to is None or self.root(source) == self.root(to):
            return None
        if 0 not in self.known[self.root(source)] or 0 not in self.known[self.root(to)]:
            return None
        return f"{self.place[source]}copy {to} {source} {WORD} {self._stream_of(self.place[source])}"

    def _stream(self) -> str | None:
        return self.new("stream", "1", self.random.choice(self.sides())) if len(self.of("s")) < 3 else None

    def _endstream(self) -> str | None:
        return self._with("s", "endstream {}")

    def _import(self) -> str | None:
        """Import a pool's descriptor as a chunk, which is refused (fact 82)."""
        symbol = self.one("f")
        return self.new("import", symbol) if symbol and self.chance(25) else None

    def _close(self) -> str | None:
        symbol = self.one("f")
        return f"close {symbol}" if symbol and self.open[symbol].arguments[1] == "fd" else None

    def _own_pool(self) -> str | None:
        """A pool that its process has created."""
        own = [each for each in self.of("l") if self.open[each].name == "pool"]
        return self.random.choice(own) if own else None

    def _is_opened(self, symbol: str) -> bool:
        return symbol in self.roots

    def _is_open_in(self, pointer: str, where: str) -> bool:
        return any(self._is_opened(each) and self.root(each) == self.root(pointer) for each in self.of("v", where))

    def _unused(self) -> str | None:
        """An allocation that nothing is imported from: an exporter frees last (fact 82)."""
        used = {self.root(each) for each in self.of("v") if self._is_opened(each)}
        free = [each for each in self.of("v") if each not in used]
        return self.random.choice(free) if free else None

    def _on_host(self, symbol: str) -> bool:
        return self.properties[self.pool_of[symbol]].startswith("host")

    def _stream_of(self, where: str) -> str:
        return self.one("s", where) or "0"

    def _flag(self) -> str:
        return self.random.choice(("0", "0", "1", "2"))

    def _grant(self) -> str:
        if self.chance(12):
            return self.random.choice(("gpu9=3", "host=3", "host:0=3", "host:0=0", "gpu0=1"))
        return f"gpu{self.random.randrange(self.gpus)}={self.random.choice((3, 3, 0))}"

    def _away(self, where: str) -> str:
        """The other process, or now and then the same."""
        other = "" if where else "there "
        return where if self.chance(12) else other

    def _with(self, kinds: str, call: str) -> str | None:
        symbol = self.one(kinds)
        return self.place[symbol] + call.format(symbol) if symbol else None
