"""Names in a program: identifiers of objects and of constants, each of which is used once."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable
from itertools import chain, count

from memtopo.driver.types import PoolProperties, Properties
from memtopo.output.programs.statements import Reference, Variable

_OTHER = re.compile(r"[^A-Za-z0-9]+")


class Names:
    """Identifiers by what they name; one that is reserved or has another use gets a number."""

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self._found: dict[Hashable, str] = {}
        self._taken = set(reserved)

    def of(self, key: Hashable, wanted: str) -> str:
        """Return the identifier of a key, as near to the wanted one as there is."""
        if key not in self._found:
            plain = _OTHER.sub("_", wanted).strip("_")
            numbered = (f"{plain}_{number}" for number in count(2))
            self._found[key] = next(name for name in chain((plain,), numbered) if name not in self._taken)
            self._taken.add(self._found[key])
        return self._found[key]

    def variable(self, held: Variable | Reference) -> str:
        """Identifier of the objects of an entry: `chunk_page`."""
        return self.of((held.kind, held.entry), f"{held.kind}_{held.entry}")


def word_of(value: object) -> str:
    """Words for a constant's identifier: `gpu0_fd` for properties, `gpu0_rw_gpu1_r` for access."""
    if isinstance(value, Properties):
        return " ".join((str(value.location), *value.words))
    if isinstance(value, PoolProperties):
        return f"{value.location} {' '.join(value.handles.words)}"
    if isinstance(value, tuple) and not hasattr(value, "kind"):
        return " ".join(f"{each.location} {each.access.word}" for each in value)
    return str(value)
