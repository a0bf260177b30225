"""Family of external memory and timelines, with their producer: Vulkan on hardware, simulated elsewhere.

A stream waits for a value only while nothing is called that would wait for the stream (fact 58).
"""

from __future__ import annotations

from typing import ClassVar

from tests.differential.calls import OK, Call
from tests.differential.family import WORD, FamilyGenerator
from tests.differential.notation import KiB, MiB, size_of, size_text
from tests.differential.resources import Needs

_WHILE_WAITING = {"signal", "madesignal", "counter"}


class External(FamilyGenerator):
    """External memory, buffers of it, and timelines."""

    needs: ClassVar = Needs(resources=True, maker=True)
    length = 30
    frequencies: ClassVar = {
        "push": 1, "pop": 1, "make": 4, "importmemory": 6, "mapbuffer": 8, "endmemory": 2, "freemem": 3, "fill": 3,
        "write": 5, "read": 6, "madewrite": 4, "maderead": 5, "sizeat": 2, "timeline": 4, "importsemaphore": 5,
        "endsemaphore": 1, "stream": 3, "endstream": 1, "signal": 7, "wait": 8, "madesignal": 5, "counter": 3,
    }  # fmt: skip

    def __init__(self, seed: int, gpus: int) -> None:
        super().__init__(seed, gpus)
        self.values: dict[str, int] = {}
        self.waiting: dict[str, tuple[str, int]] = {}  # timelines and values, by stream
        self.bases: dict[str, int] = {}  # offsets of buffers in the memory that was made

    def next(self) -> str:
        """Return the next call; while a stream waits, only what ends its wait, or looks at it."""
        while True:
            call = super().next()
            name = call.rpartition(" = ")[2].split()[0]
            if not self.waiting or name in _WHILE_WAITING or (name in {"streamdone", "streambusy"}):
                return call

    def made(self, call: Call) -> None:
        """Take timelines and buffers."""
        super().made(call)
        if call.name == "timeline":
            self.values[call.target] = int(call.arguments[0])
        elif call.name in {"importsemaphore", "importmemory"}:
            self.roots[call.target] = call.arguments[0]
        elif call.name == "mapbuffer":
            self.roots[call.target] = self.root(call.arguments[0])
            self.bases[call.target] = size_of(call.arguments[1])

    def note(self, text: str, answer: str) -> None:
        """Take the answer, and what streams wait for."""
        super().note(text, answer)
        name, *arguments = text.rpartition(" = ")[2].split()
        if answer != OK:
            return
        if name == "wait":
            self._note_wait(self.root(arguments[0]), int(arguments[1]), arguments[2])
        elif name in {"signal", "madesignal"}:
            if name == "signal":
                self.queue(f"streamdone {arguments[2]}")
            self._note_value(self.root(arguments[0]), int(arguments[1]))
        elif name == "madewrite":
            self.known[arguments[0]].add(size_of(arguments[1]))

    def size(self, symbol: str) -> int:
        """Bytes of a buffer, or of what was made."""
        call = self.open[symbol]
        return size_of(call.arguments[2] if call.name == "mapbuffer" else call.arguments[0])

    def _note_wait(self, timeline: str, value: int, stream: str) -> None:
        if value <= self.values[timeline]:
            self.queue(f"streamdone {stream}")
        else:
            self.waiting[stream] = timeline, value
            self.queue(f"streambusy {stream}")

    def _note_value(self, timeline: str, value: int) -> None:
        self.values[timeline] = value
        for stream, (awaited, least) in list(self.waiting.items()):
            if awaited == timeline and least <= value:
                del self.waiting[stream]
                self.queue(f"streamdone {stream}")

    def _note_bytes(self, call: Call) -> None:
        if call.name not in {"fill", "write"}:
            return
        symbol, _, offset = call.arguments[0].partition("+")
        known, start = self.known[self.root(symbol)], self.bases[symbol] + size_of(offset or "0")
        if call.name == "write":
            known.add(start)
        elif (count := size_of(call.arguments[2])) >= WORD:
            known.update((start, start + (count - WORD) // 8 * 8))

    def _push(self) -> str | None:
        return "push gpu0" if len(self.contexts[""]) < 2 else None

    def _make(self) -> str | None:
        size = self.random.choice((MiB, 2 * MiB, 3 * MiB, 8 * MiB))
        return self.new("make", size_text(size) + " dedicated" * self.chance(20)) if len(self.of("p")) < 3 else None

    def _importmemory(self) -> str | None:
        symbol = self.one("p")
        if symbol is None or len(self.of("x")) > 4:
            return None
        size = self.size(symbol)
        declared = self.random.choice((size, size, size, size // 2, 2 * size, 0))
        return self.new("importmemory", f"{symbol} {size_text(declared)}" + " dedicated" * self.chance(25))

    def _mapbuffer(self) -> str | None:
        symbol = self.one("x")
        if symbol is None or len(self.of("b")) > 5:
            return None
        size = self.size(self.root(symbol))
        offset = self.random.choice((0, 0, 0, 64 * KiB, size // 2))
        count = self.random.choice((size - offset, size - offset, 4 * KiB, 1, size // 2, size + MiB, 0))
        return self.new("mapbuffer", f"{symbol} {size_text(offset)} {size_text(count)}")

    def _endmemory(self) -> str | None:
        return self._with("x", "endmemory {}")

    def _freemem(self) -> str | None:
        return self._with("b", "freemem {}")

    def _fill(self) -> str | None:
        return self.fill("b")

    def _write(self) -> str | None:
        return self.write("b")

    def _sizeat(self) -> str | None:
        return self._with("b", "sizeat {}")

    def _read(self) -> str | None:
        symbol = self.one("b")
        if symbol is None:
            return None
        base, end = self.bases[symbol], self.bases[symbol] + self.size(symbol) - WORD
        inside = sorted(each for each in self.known[self.root(symbol)] if base <= each <= end)
        return f"read {self.at(symbol, self.random.choice(inside) - base)} {WORD}" if inside else None

    def _madewrite(self) -> str | None:
        symbol = self.one("p")
        return f"madewrite {symbol} {self.some_offset(symbol)} {self.random.getrandbits(32):08x}" if symbol else None

    def _maderead(self) -> str | None:
        symbol = self.one("p")
        known = sorted(self.known[symbol]) if symbol else []
        return f"maderead {symbol} {self.random.choice(known)} {WORD}" if known else None

    def _timeline(self) -> str | None:
        return self.new("timeline", str(self.random.randrange(4))) if len(self.of("t")) < 3 else None

    def _importsemaphore(self) -> str | None:
        symbol = self.one("t")
        return self.new("importsemaphore", symbol) if symbol and len(self.of("q")) < 5 else None

    def _endsemaphore(self) -> str | None:
        return self._with("q", "endsemaphore {}")

    def _stream(self) -> str | None:
        return self.new("stream", "1") if len(self.of("s")) < 3 else None

    def _endstream(self) -> str | None:
        return self._with("s", "endstream {}")

    def _signal(self) -> str | None:
        """Signal a value, lower ones too, in a stream that waits for nothing."""
        return self._in_stream("signal", self.random.randrange(30))

    def _wait(self) -> str | None:
        return self._in_stream("wait", self.random.randrange(30))

    def _madesignal(self) -> str | None:
        """Signal a higher value: an external API does not lower it."""
        symbol = self.one("t")
        return f"madesignal {symbol} {self.values[symbol] + self.random.randrange(1, 9)}" if symbol else None

    def _counter(self) -> str | None:
        return self._with("t", "counter {}")

    def _in_stream(self, call: str, value: int) -> str | None:
        semaphore = self.one("q")
        idle = [each for each in self.of("s") if each not in self.waiting]
        return f"{call} {semaphore} {value} {self.random.choice(idle)}" if semaphore and idle else None

    def _with(self, kinds: str, call: str) -> str | None:
        symbol = self.one(kinds)
        return call.format(symbol) if symbol else None
