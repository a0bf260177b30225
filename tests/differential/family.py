"""A family of calls beside the VMM's: random sequences of its own, shorter, with a shadow of what is open.

No call is generated whose use is undefined: nothing is used after it was destroyed, nothing waits for ever (fact 58).
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import ClassVar

from tests.differential.calls import OK, Call
from tests.differential.notation import size_of, size_text
from tests.differential.resources import Needs

MAKERS = {
    "alloc": "a", "event": "e", "stream": "s", "managed": "m", "share": "h", "open": "o", "shareevent": "g",
    "openevent": "e", "make": "p", "importmemory": "x", "mapbuffer": "b", "timeline": "t", "importsemaphore": "q",
    "reserve": "r", "create": "c", "export": "f", "import": "c", "pool": "l", "poolalloc": "v", "poolexport": "f",
    "poolimport": "l", "poolpointer": "z", "poolopen": "v", "hostalloc": "k", "file": "w", "mapfile": "u",
    "register": "n", "dmabuf": "d",
}  # fmt: skip
"""Calls that make something, with the letter of its symbol."""
ENDS = {
    "freemem", "endevent", "endstream", "closeopened", "endmemory", "endsemaphore", "free", "release", "unmap", "close",
    "endpool", "poolfree", "poolfreenow", "hostfree", "unmapfile", "unregister",
}  # fmt: skip
WORD = 4
"""Bytes of a copy, at a multiple of 8."""


class FamilyGenerator:
    """Calls of one sequence. `open` has the calls that made what is open, by symbol; subclasses give the calls.

    A method named after a call in `frequencies` returns its text, or None if it has no meaning now.
    """

    length = 24
    needs: ClassVar[Needs] = Needs(resources=True)
    frequencies: ClassVar[Mapping[str, int]] = {}

    def __init__(self, seed: int, gpus: int) -> None:
        self.random, self.gpus = Random(f"{type(self).__name__} {seed}"), gpus
        self.open: dict[str, Call] = {}
        self.place: dict[str, str] = {}  # "there " for what the second process has
        self.roots: dict[str, str] = {}  # what an opened or mapped symbol has its bytes of
        self.known: dict[str, set[int]] = {}  # offsets of known bytes, by root
        self.contexts: dict[str, list[str]] = {"": [], "there ": []}
        self.contexts_of: dict[str, str] = {}  # what was current where a symbol was made
        self._numbers: dict[str, int] = {}
        self._first = [f"{where}push gpu0" for where in self.sides()]

    def sides(self) -> tuple[str, ...]:
        """Prefixes of calls: of this process, and of the second one."""
        return ("", "there ") if self.needs.process else ("",)

    def next(self) -> str:
        """Return the next call."""
        if self._first:
            return self._first.pop(0)
        names, weights = list(self.frequencies), list(self.frequencies.values())
        while True:
            call: str | None = getattr(self, f"_{self.random.choices(names, weights)[0]}")()
            if call:
                return call

    def queue(self, call: str) -> None:
        """Make `call` the one after those that are queued, before any random one."""
        self._first.append(call)

    def note(self, text: str, answer: str) -> None:
        """Take the answer to a call."""
        call = Call.parse(text)
        where = "there " if call.name == "there" else ""
        if where:
            call = Call(call.target, call.arguments[0], call.arguments[1:])
        if call.name in {"push", "pop"} and not answer.isupper():
            self._note_context(call, self.contexts[where])
        if answer not in {OK, "again"}:
            return
        if call.target:
            self.open[call.target], self.place[call.target] = call, where
            self.contexts_of[call.target] = self.current(where)
            self.made(call)
        elif call.name in ENDS:
            self.open.pop(call.arguments[0], None)
        else:
            self._note_bytes(call)

    def _note_context(self, call: Call, stack: list[str]) -> None:
        if call.name == "push":
            stack.append(call.arguments[0])
        else:
            stack.pop()

    def current(self, where: str) -> str:
        """Context that is current in a process, by its GPU, or an empty text."""
        return self.contexts[where][-1] if self.contexts[where] else ""

    def made(self, call: Call) -> None:
        """Take what a call has made; the bytes of new memory are not known."""
        self.known[call.target] = set()

    def chance(self, percent: float) -> bool:
        """Return true in `percent` of 100 cases."""
        return self.random.random() * 100 < percent

    def of(self, kinds: str, where: str | None = None) -> list[str]:
        """Open symbols whose letter is in `kinds`, of one process or of all."""
        return [each for each in self.open if each[0] in kinds and where in {None, self.place[each]}]

    def one(self, kinds: str, where: str | None = None) -> str | None:
        """Any of them; None if there is none."""
        found = self.of(kinds, where)
        return self.random.choice(found) if found else None

    def new(self, name: str, arguments: str, where: str = "") -> str:
        """Call that makes something."""
        letter = MAKERS[name]
        self._numbers[letter] = self._numbers.get(letter, -1) + 1
        return f"{letter}{self._numbers[letter]} = {where}{name} {arguments}"

    def size(self, symbol: str) -> int:
        """Bytes of memory."""
        call = self.open.get(self.root(symbol)) or self.open[symbol]
        return size_of(call.arguments[3] if call.name == "mapbuffer" else call.arguments[0])

    def root(self, symbol: str) -> str:
        """Memory whose bytes a symbol has."""
        return self.roots.get(symbol, symbol)

    def at(self, symbol: str, offset: int) -> str:
        """Text of a place."""
        return f"{symbol}+{size_text(offset)}" if offset else symbol

    def some_offset(self, symbol: str) -> int:
        """Offset of a word in memory, a multiple of 8."""
        last = max(0, self.size(symbol) - WORD) // 8 * 8
        return self.random.choice((0, 0, min(8, last), last, last // 16 * 8))

    def fill(self, kinds: str) -> str | None:
        """Fill memory as a whole, or a part of it."""
        symbol = self.one(kinds)
        if symbol is None:
            return None
        count = self.random.choice((self.size(symbol), self.size(symbol), min(16, self.size(symbol)), 0))
        return f"{self.place[symbol]}fill {symbol} {self.random.randrange(256)} {size_text(count)}"

    def write(self, kinds: str, call: str = "write") -> str | None:
        """Write a word."""
        symbol = self.one(kinds)
        if symbol is None or self.size(symbol) < WORD:
            return None
        place = self.at(symbol, self.some_offset(symbol))
        return f"{self.place[symbol]}{call} {place} {self.random.getrandbits(32):08x}"

    def read(self, kinds: str, call: str = "read") -> str | None:
        """Read a word that was written."""
        for symbol in self.random.sample(found := self.of(kinds), len(found)):
            if known := self.known.get(self.root(symbol)):
                return f"{self.place[symbol]}{call} {self.at(symbol, self.random.choice(sorted(known)))} {WORD}"
        return None

    def _push(self) -> str | None:
        where = self.random.choice(self.sides())
        return f"{where}push gpu{self.random.randrange(self.gpus)}" if len(self.contexts[where]) < 2 else None

    def _pop(self) -> str | None:
        where = self.random.choice(self.sides())
        stack = self.contexts[where]
        return f"{where}pop" if stack and (len(stack) > 1 or self.chance(10)) else None

    def _note_bytes(self, call: Call) -> None:
        """Keep the offsets whose bytes are known now: a filled area's first and last word."""
        if call.name not in {"fill", "write", "hostwrite"}:
            return
        symbol, _, offset = call.arguments[0].partition("+")
        known, start = self.known.setdefault(self.root(symbol), set()), size_of(offset or "0")
        if call.name != "fill":
            known.add(start)
        elif (count := size_of(call.arguments[2])) >= WORD:
            known.update((start, start + (count - WORD) // 8 * 8))
