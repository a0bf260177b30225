"""Dma-bufs: exports of addresses, which network cards and other devices map, and no CUDA driver imports (fact 84)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from memtopo.diagnostics.model import Path
from memtopo.driver.handles import Handle, Via
from memtopo.geometry.groups import Group, RangeGroup
from memtopo.kinds.exportable import Exported, ExportKind
from memtopo.kinds.kind import Kind

if TYPE_CHECKING:
    from memtopo.driver.protocol import Driver
    from memtopo.kinds.layout import Layout
    from memtopo.kinds.step import Step

DMABUF: Via = "dmabuf"


class DmaBufs(ExportKind):
    """Export of the objects of one kind as dma-bufs."""

    transports = (DMABUF,)
    trials: ClassVar[Mapping[Via, str]] = {DMABUF: "dmabuf"}
    commit_note = "a process that imports committed memory maps it, and a dma-buf cannot be imported (fact 84)"

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self.group, self.plural, self.article = kind.group, kind.plural, kind.article  # type: ignore[misc]

    def try_export(self, path: Path, export: Exported) -> Step:
        from memtopo.kinds.dmabuf.steps import TryExportDmaBuf

        memory, first = export.dma_buf, export.first
        assert memory
        noun = RangeGroup.noun if memory.placements else memory.group.noun
        needs = dict.fromkeys([(noun, memory.span(first).label), *memory.resources(first)])
        return TryExportDmaBuf(
            path, export.name, export.label(0), *memory.bytes, export.count, tuple(needs), memory, first
        )

    def properties(self, group: Group) -> tuple[str, ...]:
        return self._kind.properties(group) if isinstance(self._kind, ExportKind) else ()

    def handle(self, driver: Driver, layout: Layout, export: Exported, index: int) -> Handle:
        from memtopo.kinds.dmabuf.steps import export_dma_buf

        memory = export.dma_buf
        assert memory
        return Handle.of(export_dma_buf(driver, layout, memory, export.first + index))
