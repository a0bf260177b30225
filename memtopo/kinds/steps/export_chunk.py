"""A chunk, handed out as a file descriptor or as a fabric handle."""

from __future__ import annotations

import os
from dataclasses import dataclass

from memtopo.driver.protocol import Driver
from memtopo.driver.types import HandleType
from memtopo.kinds.layout import Layout
from memtopo.kinds.steps.base import Phase, Step, StepDescription


@dataclass(frozen=True, slots=True)
class TryExportChunk(Step):
    """Exports the first of `count` once, so that a refusal comes now and not to whoever asks for the handle.

    Nothing is kept: an open file descriptor counts against the process's limit and pins memory (fact 29), so each
    importer gets one of its own when it asks.
    """

    label: str
    chunk: str
    kind: HandleType
    count: int

    phase = Phase.EXPORT
    verb = "export"
    call = "cuMemExportToShareableHandle"

    def do(self, driver: Driver, layout: Layout) -> None:
        shared = driver.mem_export_to_shareable_handle(layout.chunks[self.chunk], self.kind)
        if isinstance(shared, int):
            os.close(shared)

    def undo(self, driver: Driver, layout: Layout) -> None:
        del driver, layout

    def describe(self) -> StepDescription:
        note = ", ".join([*self.kind.words, *([f"{self.count:,} handles"] if self.count > 1 else [])])
        return StepDescription(self.label, self.chunk.partition(".")[0], note=note)
