"""Entry of an import: the objects that it declares."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from pydantic import Field

from memtopo.common.text import enumerated
from memtopo.common.units import Size
from memtopo.diagnostics.model import Diagnostic, Path
from memtopo.driver.handles import Via
from memtopo.driver.types import Location, LocationKind
from memtopo.kinds.chunks.parts import Parts
from memtopo.kinds.exportable import ExportKind
from memtopo.kinds.exports.entry import EXPORTABLE
from memtopo.kinds.imports.order import Order
from memtopo.kinds.kind import Scope
from memtopo.kinds.resolution import Resolution
from memtopo.language.alternatives import Alternatives
from memtopo.language.entries import Entry
from memtopo.language.fields import (
    Count,
    DeviceName,
    Devices,
    PositiveAmount,
    SourceText,
    Transport,
)
from memtopo.language.names import NamedDevice

LOCATIONS = ("location", "device", "pool")
"""Keys that declare locations."""

FORMS = tuple(dict.fromkeys(kind.import_keys for kind in EXPORTABLE.values() if kind.outside))
"""Keys by which imports declare their objects, each for some of the kinds."""

_KEYS = tuple(dict.fromkeys(chain(LOCATIONS, *FORMS)))


class Import(Entry):
    """Objects exported by another process. Properties of imports from outside of the spec are declared, and checked."""

    source: SourceText = Field(
        alias="from",
        description="server.weights of a process, weights-server/w of a held layout, /path/to/socket/w.",
    )
    via: Transport | None = Field(default=None, description="fd, fabric or ipc; by default that of the export, or fd.")
    location: Devices | None = Field(default=None, description="Location of the memory, as for a chunk.")
    size: PositiveAmount | None = Field(default=None, description="Bytes of each chunk, buffer or allocation.")
    count: Count | None = Field(default=None, description="Number of handles of a counted export.")
    device: DeviceName | None = Field(default=None, description="GPU of an event.")
    pool: Devices | None = Field(default=None, description="Location of the pool of an allocation.")
    accessed_by: Devices | None = Field(
        default=None, description="GPUs with access to an allocation, besides that of its pool."
    )
    parts: Parts | None = Field(default=None, description="Named parts of each chunk, as its holder declares them.")
    order: Order | None = Field(
        default=None,
        description="own-first: those of the same number, then of the next ones, around; own-node: those on the same "
        "node; or the neighbours of a ring.",
    )

    @property
    def transports(self) -> tuple[Via, ...]:
        """Transport that an import declares, or the alternatives; none by default."""
        if isinstance(self.via, Alternatives):
            return self.via.options
        return () if self.via is None else (self.via,)

    @property
    def declared(self) -> list[str]:
        """Declared keys of the objects."""
        return [key for key in _KEYS if getattr(self, key) is not None]

    def locations(self, key: str) -> list[NamedDevice]:
        """Locations that a key declares."""
        value = getattr(self, key)
        return value if isinstance(value, list) else [value]

    def amount(self, keys: Iterable[str]) -> Size | None:
        """Bytes that one of some keys declares; None if none of them declares bytes."""
        return next((getattr(self, key) for key in keys if key not in LOCATIONS), None)


def no_granules(path: Path, entry: Import, kind: ExportKind) -> Diagnostic | None:
    """Return MT105 for an amount in granules of a kind without granules."""
    amounts = {key: entry.amount([key]) for key in kind.import_keys}
    key = next((key for key, amount in amounts.items() if amount and amount.in_granules), None)
    if kind.in_granules or key is None:
        return None
    noun = kind.group.noun
    message = f"import {path[-1]!r} is {kind.article}, and a {noun} has no granules"
    return Diagnostic("MT105", message, (*path, key), help="write bytes: 2MiB")


def declared_access(
    scope: Scope, path: Path, entry: Import, kind: ExportKind
) -> Resolution[tuple[tuple[Location, ...], int] | None]:
    """Devices that an import declares to have access, and the ordinal of a GPU to import with; None for an error."""
    if entry.accessed_by and not kind.takes_access:
        message = f"import {path[-1]!r} declares 'accessed_by', and is {kind.article}"
        help = f"leave it out: only {enumerated(_taking_access())} take it; access to a range is in 'access'"
        if entry.location:
            help += "; for an allocation, write 'pool: …' in place of 'location: …'"
        yield Diagnostic("MT603", message, (*path, "accessed_by"), help=help)
        return None
    listed = yield from scope.devices.resolve_all(entry.accessed_by or [], path, "accessed_by")
    if listed is None:
        return None
    users = [each.id for each in (*listed, *scope.devices.gpus) if each.kind is LocationKind.GPU]
    return tuple(dict.fromkeys(listed)), users[0] if users else 0


def _taking_access() -> list[str]:
    return [kind.plural for kind in EXPORTABLE.values() if kind.takes_access]
