"""Exportable kinds: kinds whose objects one process exports by handles, and another imports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from memtopo.common.units import Size
from memtopo.diagnostics.model import Path
from memtopo.driver.handles import Handle, Via
from memtopo.driver.types import Location
from memtopo.geometry.groups import Group, Origin
from memtopo.kinds.alternatives import Support
from memtopo.kinds.kind import Kind, Scope
from memtopo.kinds.resolution import Resolution
from memtopo.language.names import NamedDevice
from memtopo.machine import Machine

if TYPE_CHECKING:
    from memtopo.driver.protocol import Driver
    from memtopo.kinds.dmabuf.memory import DmaBufMemory
    from memtopo.kinds.layout import Layout
    from memtopo.kinds.step import Step


class ExportKind(Kind):
    """Kind whose objects can be exported to other processes, and imported from them."""

    transports: ClassVar[tuple[Via, ...]]
    """Supported transports; messages suggest the first, which is the default of an import from outside of the spec."""
    transport_note: ClassVar[str] = "legacy IPC supports buffers and events, but not VMM chunks (fact 31)"
    """Note for exports via another transport."""
    trials: ClassVar[Mapping[Via, str]] = {}
    """Trials of a machine that show whether a transport works, apart from those of the kind's own rules."""
    import_keys: ClassVar[tuple[str, ...]] = ("location", "size")
    """Keys by which an import declares its objects: all of them outside of the spec, any of them from a process."""
    commit_note: ClassVar[str] = "memory over legacy IPC is invalid once it is freed, so it is not replaced (fact 31)"
    """Note for exports that cannot be committed; empty if a writer can fill the objects, whose memory is replaced."""
    outside: ClassVar[bool] = True
    """True if processes outside of the spec can import the objects, and a spec can import those of others."""
    in_granules: ClassVar[bool] = False
    """True if an import may declare the size in granules."""
    anywhere: ClassVar[bool] = False
    """True if a process can import objects of locations other than its visible GPUs."""

    opens_own: ClassVar[bool] = True
    """True if a process can import what it exports itself."""
    own_note: ClassVar[str] = "legacy IPC returns INVALID_CONTEXT (fact 31)"
    """Note for an import from the process that exports it, of objects that cannot be opened there."""
    unseen_note: ClassVar[str] = "legacy IPC opens it on its own GPU"
    """Note for an import of objects of a GPU that the process does not see, where not `anywhere`."""

    takes_access: ClassVar[bool] = False
    """True if an import declares the devices with access by a key of its own, `accessed_by`, and may be of the host."""
    has_parts: ClassVar[bool] = False
    """True if the objects can have named parts, which an import from outside of the spec may declare."""

    def handle_types(self, group: Group) -> tuple[str, ...]:
        """Transports that the objects of a group are created for."""
        return self.transports

    def other_handle_types(self, scope: Scope, group: Group) -> tuple[str, ...]:
        """Handle types that the entry of a group declares as alternatives, taken or not."""
        return ()

    def properties(self, group: Group) -> tuple[str, ...]:
        """Properties that are reported to importers."""
        return ()

    def supports(self, scope: Scope, names: Sequence[NamedDevice], via: Via) -> Support:
        """Support of a transport for objects of other processes, at the locations of some names."""
        raise NotImplementedError

    def try_export(self, path: Path, export: Exported) -> Step:
        """Step that exports one handle as a test, so that a driver error occurs during building."""
        raise NotImplementedError

    def handle(self, driver: Driver, layout: Layout, export: Exported, index: int) -> Handle:
        """Export one handle, which the caller closes."""
        raise NotImplementedError

    def import_exported(self, imported: Imported, exported: Sequence[Group]) -> Group:
        """Group of an import from a process of the spec: of what each of its instances exports."""
        raise NotImplementedError

    def import_declared(self, imported: Imported, size: Size, machine: Machine) -> Resolution[Group | None]:
        """Group of an import from outside of the spec, as declared; `size` is 0 if no key declares bytes."""
        raise NotImplementedError

    def has_size(self, size: Size, imported: Group, exported: Group) -> bool:
        """Return true if a declared size is that of the objects, before or after rounding."""
        return size.bytes(1) in (imported.size, exported.declared_size)


class Exported(Protocol):
    """Objects that are exported under one name, as `count` handles via one transport."""

    @property
    def name(self) -> str: ...
    @property
    def via(self) -> Via: ...
    @property
    def first(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def dma_buf(self) -> DmaBufMemory | None: ...
    @property
    def group(self) -> Group: ...
    def label(self, index: int) -> str: ...
    def location_of(self, index: int) -> Location: ...


@dataclass(frozen=True, slots=True)
class Imported:
    """Entry of an import, resolved apart from its kind: `count` objects, distributed round-robin over `locations`."""

    path: Path
    count: int
    counted: bool
    locations: tuple[Location, ...]
    origin: Origin
    parts: Mapping[str, Size | str] | None = None
    """Declared parts of each object, of an import from outside of the spec."""
    accessed_by: tuple[Location, ...] = ()
    """Declared devices with access, besides the location of the objects."""
    home: int = 0
    """Ordinal of a GPU whose context is used to import objects of the host."""

    @property
    def name(self) -> str:
        """Name of the entry."""
        return str(self.path[-1])
