"""Shadow of a sequence: what its successful calls have made, from their texts and answers alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from memtopo.driver.types import Properties
from tests.differential.calls import OK, Call
from tests.differential.notation import Place, place_of, properties_of, size_of


class Mapped(NamedTuple):
    """A mapping: where, its size, and its chunk."""

    at: Place
    size: int
    chunk: str


@dataclass
class Chunk:
    """A chunk with its references in this process; `written` are offsets that have known bytes, shared with imports."""

    size: int
    properties: Properties
    references: int = 1
    imported: bool = False
    written: set[int] = field(default_factory=set)


@dataclass
class Shadow:
    """Open resources of a sequence, by symbol."""

    reservations: dict[str, int] = field(default_factory=dict)
    freed: dict[str, int] = field(default_factory=dict)
    chunks: dict[str, Chunk] = field(default_factory=dict)
    mappings: dict[Place, Mapped] = field(default_factory=dict)
    fds: dict[str, str] = field(default_factory=dict)
    allocations: dict[str, int] = field(default_factory=dict)
    contexts: list[int] = field(default_factory=list)

    def note(self, text: str, answer: str) -> None:
        """Update the state by one call and its answer."""
        call = Call.parse(text)
        update = getattr(self, f"_{call.name}", None)
        if update and (answer == OK or (call.name in {"retain", "pop"} and not answer.isupper())):
            update(call._replace(target=answer) if call.name == "retain" else call)

    def open_chunks(self) -> list[str]:
        """Symbols of the chunks with an open handle."""
        return [symbol for symbol, chunk in self.chunks.items() if chunk.references > 0]

    def mapped_in(self, reservation: str) -> list[Mapped]:
        """Mappings of one reservation by offset."""
        return sorted(each for each in self.mappings.values() if each.at.symbol == reservation)

    def mapping_at(self, at: Place) -> Mapped | None:
        """Mapping around an address."""
        for each in self.mappings.values():
            if each.at.symbol == at.symbol and each.at.offset <= at.offset < each.at.offset + each.size:
                return each
        return None

    def _reserve(self, call: Call) -> None:
        self.reservations[call.target] = size_of(call.arguments[0])

    def _free(self, call: Call) -> None:
        symbol = place_of(call.arguments[0]).symbol
        if symbol in self.reservations:
            self.freed[symbol] = self.reservations.pop(symbol)

    def _create(self, call: Call) -> None:
        self.chunks[call.target] = Chunk(size_of(call.arguments[0]), properties_of(call.arguments[1]))

    def _release(self, call: Call) -> None:
        self.chunks[call.arguments[0]].references -= 1

    def _map(self, call: Call) -> None:
        at, size, chunk = call.arguments[:3]
        self.mappings[place_of(at)] = Mapped(place_of(at), size_of(size), chunk)

    def _unmap(self, call: Call) -> None:
        at, size = place_of(call.arguments[0]), size_of(call.arguments[1])
        for place in [each for each in self.mappings if each.symbol == at.symbol]:
            if at.offset <= place.offset < at.offset + size:
                del self.mappings[place]

    def _retain(self, call: Call) -> None:
        if call.target in self.chunks:
            self.chunks[call.target].references += 1

    def _export(self, call: Call) -> None:
        if call.arguments[1] == "fd":
            self.fds[call.target] = call.arguments[0]

    def _import(self, call: Call) -> None:
        source = self.chunks[self.fds[call.arguments[0]]]
        self.chunks[call.target] = Chunk(source.size, source.properties, imported=True, written=source.written)

    def _close(self, call: Call) -> None:
        self.fds.pop(call.arguments[0], None)

    def _alloc(self, call: Call) -> None:
        self.allocations[call.target] = size_of(call.arguments[0])

    def _freemem(self, call: Call) -> None:
        self.allocations.pop(call.arguments[0], None)

    def _push(self, call: Call) -> None:
        self.contexts.append(int(call.arguments[0][3:]))

    def _pop(self, _: Call) -> None:
        self.contexts.pop()

    def _fill(self, call: Call) -> None:
        at = place_of(call.arguments[0])
        if (found := self.mapping_at(at)) and found.chunk in self.chunks:
            start = at.offset - found.at.offset
            count = size_of(call.arguments[2])
            written = (start, start + count - 4) if count >= 4 else ()
            self.chunks[found.chunk].written.update(each for each in written if each <= found.size - 4)

    def _write(self, call: Call) -> None:
        at = place_of(call.arguments[0])
        found = self.mapping_at(at)
        if found and found.chunk in self.chunks and len(call.arguments[1]) == 8:
            start = at.offset - found.at.offset
            if start <= found.size - 4:
                self.chunks[found.chunk].written.add(start)

    def _safely(self, call: Call) -> None:
        if call.arguments[2] == "write":
            self._write(Call("", "write", (call.arguments[1], *call.arguments[3:])))
