"""Families of one process: allocations, events and streams, managed memory."""

from __future__ import annotations

from typing import ClassVar

from tests.differential.family import WORD, FamilyGenerator
from tests.differential.notation import KiB, MiB, size_text


class Buffers(FamilyGenerator):
    """`cuMemAlloc` memory."""

    frequencies: ClassVar = {
        "push": 4, "pop": 3, "alloc": 8, "freemem": 4, "fill": 5, "write": 5, "read": 6, "range": 4, "get": 1,
        "copy": 4, "stream": 1,
    }  # fmt: skip

    def _alloc(self) -> str | None:
        sizes = (1, 100, 512, 513, 4 * KiB, 64 * KiB, MiB, 2 * MiB, 3 * MiB, 5 * MiB)
        size = self.random.choice(sizes)
        if self.chance(5):
            size = 32 << 40 if self.chance(2) else 0  # a refusal takes a driver up to 0.1 s
        return self.new("alloc", size_text(size)) if len(self.of("a")) < 5 else None

    def _freemem(self) -> str | None:
        if self.chance(8):
            inside = self.one("a")
            return f"freemem {self.at(inside, 1)}" if inside and self.size(inside) > 1 else "freemem null"
        symbol = self.one("am")
        return f"freemem {symbol}" if symbol else None

    def _fill(self) -> str | None:
        return self.fill("a")

    def _write(self) -> str | None:
        return self.write("a")

    def _read(self) -> str | None:
        return self.read("a")

    def _range(self) -> str | None:
        symbol = self.one("am")
        return f"range {self.at(symbol, self.some_offset(symbol))}" if symbol else "range junk"

    def _get(self) -> str | None:
        symbol = self.one("am")
        return f"get {symbol} gpu{self.random.randrange(self.gpus)}" if symbol else None

    def _copy(self) -> str | None:
        """Copy words whose bytes are known."""
        source, to = self.one("a"), self.one("a")
        if source is None or to is None or source == to or 0 not in self.known[source]:
            return None
        if self.size(to) < WORD or 0 not in self.known[to]:
            return None
        return f"copy {to} {source} {WORD} {self.one('s') or '0'}"

    def _stream(self) -> str | None:
        return self.new("stream", "1") if len(self.of("s")) < 3 else None


class Events(Buffers):
    """Events and streams."""

    frequencies: ClassVar = {
        "push": 4, "pop": 3, "event": 8, "endevent": 3, "record": 8, "eventdone": 8, "eventsync": 4, "streamwait": 6,
        "stream": 4, "endstream": 2, "streamdone": 4, "alloc": 2, "fill": 2, "read": 2, "copy": 3,
    }  # fmt: skip

    def _event(self) -> str | None:
        flags = self.random.choice((4, 5, 8, 16)) if self.chance(8) else self.random.choice((0, 1, 2, 2, 3, 6, 7))
        return self.new("event", str(flags)) if len(self.of("e")) < 5 else None

    def _endevent(self) -> str | None:
        return self._with_event("endevent {}")

    def _record(self) -> str | None:
        return self._with_event(f"record {{}} {self.one('s') or 0}")

    def _eventdone(self) -> str | None:
        return self._with_event("eventdone {}")

    def _eventsync(self) -> str | None:
        return self._with_event("eventsync {}") if self.contexts[""] else None

    def _streamwait(self) -> str | None:
        """Wait, but for an interprocess event on a stream of another GPU: the process would die (fact 76)."""
        stream, event = self.one("s") or "0", self.one("e")
        if event is None or (self._is_shared(event) and self.contexts_of[event] != self._context_of(stream)):
            return None
        return f"streamwait {stream} {event}"

    def _is_shared(self, event: str) -> bool:
        made = self.open[event]
        return made.name == "openevent" or int(made.arguments[0]) & 4 > 0

    def _context_of(self, stream: str, where: str = "") -> str:
        return self.current(where) if stream == "0" else self.contexts_of[stream]

    def _endstream(self) -> str | None:
        symbol = self.one("s")
        return f"endstream {symbol}" if symbol else None

    def _streamdone(self) -> str | None:
        return f"streamdone {self.one('s') or 0}"

    def _with_event(self, call: str) -> str | None:
        symbol = self.one("e")
        return call.format(symbol) if symbol else None


class Managed(Buffers):
    """Managed memory and advice."""

    frequencies: ClassVar = {
        "push": 2, "pop": 1, "managed": 8, "freemem": 3, "advise": 12, "attribute": 16, "attach": 3, "prefetch": 5,
        "ismanaged": 2, "hostwrite": 3, "hostread": 3, "fill": 2, "write": 2, "read": 2, "range": 2, "get": 1,
        "stream": 1,
    }  # fmt: skip

    def _managed(self) -> str | None:
        sizes = (1, 100, 512, 513, 4095, 4 * KiB, 5000, 8 * KiB, 100 * KiB, MiB, MiB + 1, 3 * MiB)
        size = 0 if self.chance(3) else self.random.choice(sizes)
        flags = self.random.choice((0, 3, 4, 8)) if self.chance(5) else self.random.choice((1, 1, 2))
        return self.new("managed", f"{size_text(size)} {flags}") if len(self.of("m")) < 6 else None

    def _advise(self) -> str | None:
        advice = self.random.choice(("mostly", "prefer", "prefer", "by"))
        return self._ranged(f"advise {{}} {advice} {self._location()}")

    def _attribute(self) -> str | None:
        return self._ranged(f"attribute {{}} {self.random.choice(('mostly', 'prefer', 'prefer', 'by', 'last'))}")

    def _prefetch(self) -> str | None:
        return self._ranged(f"prefetch {{}} {self._location()} {self.one('s') or 0}")

    def _attach(self) -> str | None:
        symbol = self.one("m")
        return f"attach {self.one('s') or 0} {symbol} {self.random.choice((1, 2, 4))}" if symbol else None

    def _ismanaged(self) -> str | None:
        symbol = self.one("m")
        return f"ismanaged {self.at(symbol, self.some_offset(symbol))}" if symbol and self.contexts[""] else None

    def _hostwrite(self) -> str | None:
        return self.write("m", "hostwrite")

    def _hostread(self) -> str | None:
        return self.read("m", "hostread")

    def _fill(self) -> str | None:
        return self.fill("m")

    def _write(self) -> str | None:
        return self.write("m")

    def _read(self) -> str | None:
        return self.read("m")

    def _location(self) -> str:
        if self.chance(5):
            return self.random.choice(("gpu9", "host:9", "host:current"))
        return self.random.choice((*(f"gpu{each}" for each in range(self.gpus)), "host", "host:0"))

    def _ranged(self, call: str) -> str | None:
        """Call over the whole, a part, or past the end of an allocation; a context must be current."""
        symbol = self.one("m")
        if symbol is None or not self.contexts[""]:
            return None
        size = self.size(symbol)
        if self.chance(60):
            return call.format(f"{symbol} {size_text(size)}")
        start = self.random.choice((0, 1, size // 2, size // 2 // 4096 * 4096))
        count = size + 1 if self.chance(5) else self.random.choice((0, 1, size - start, min(4096, size - start)))
        return call.format(f"{self.at(symbol, min(start, size - 1))} {size_text(count)}")
