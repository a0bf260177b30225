"""The exports of a live layout, as whoever asks for them gets them: each handle made when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from memtopo.common.errors import MemtopoError
from memtopo.driver.protocol import Driver
from memtopo.driver.types import HandleType, LocationKind
from memtopo.geometry import ChunkGroup, ExportGroup
from memtopo.kinds.layout import Layout, current
from memtopo.plans.report import Checks
from memtopo.sharing import Handle, Offer, Secret


class LayoutExports:
    """Serves what a layout exports; `look` asks the driver whether everything is still as declared.

    Nothing is kept: an open descriptor pins memory (fact 29), and IPC and fabric bytes are secrets.
    """

    def __init__(
        self, exports: Mapping[str, ExportGroup], layout: Layout, driver: Driver, look: Callable[[], Checks]
    ) -> None:
        self._exports, self._layout, self._driver, self._look = exports, layout, driver, look

    def offers(self) -> Sequence[Offer]:
        return [self._offer(name, export) for name, export in self._exports.items()]

    def handle(self, export: str, index: int) -> Handle:
        run = self._exports[export]
        if not 0 <= index < run.count:
            raise MemtopoError(f"export {export!r} has {run.count} handles, and none of number {index}")
        label = run.label(index)
        match run.kind:
            case "chunk":
                kind = HandleType[run.via.upper()]
                shared = self._driver.mem_export_to_shareable_handle(self._layout.chunks[label], kind)
                return Handle(fd=shared) if isinstance(shared, int) else Handle(secret=Secret(shared))
            case "buffer":
                with current(self._driver, self._layout.contexts[run.place(index).id]):
                    return Handle(secret=Secret(self._driver.ipc_get_mem_handle(self._layout.buffers[label].address)))
            case "event":
                with current(self._driver, self._layout.contexts[run.place(index).id]):
                    return Handle(secret=Secret(self._driver.ipc_get_event_handle(self._layout.events[label])))

    def check(self) -> Checks:
        return self._look()

    def _offer(self, name: str, run: ExportGroup) -> Offer:
        places = [run.place(index) for index in range(run.count)]
        words = ", ".join(dict.fromkeys(map(str, places)))
        gpus = list(dict.fromkeys(place.id for place in places if place.kind is LocationKind.GPU))
        # By UUID where they all are GPUs; else by their names, which a machine's processes agree on.
        alike = len(gpus) == len(words.split(", "))
        uuids = ",".join(self._driver.device_get_uuid(each).hex() for each in gpus) if alike else None
        return Offer(name, run.kind, run.via, run.count, run.size, words, uuids, _properties(run))


def _properties(run: ExportGroup) -> tuple[str, ...]:
    if not isinstance(run.run, ChunkGroup):
        return ()
    asked = run.run.properties[0]
    return tuple(word for word, wanted in (("rdma", asked.rdma), ("compressible", asked.compressible)) if wanted)
