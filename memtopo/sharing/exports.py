"""Exports of a live layout, whose handles are made on request."""

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
    """Export provider of a live layout; `check` asks the driver whether everything is as declared.

    No handle is kept: an open descriptor pins memory (fact 29), and IPC and fabric handles are secrets.
    """

    def __init__(
        self, exports: Mapping[str, ExportGroup], layout: Layout, driver: Driver, check: Callable[[], Checks]
    ) -> None:
        self._exports, self._layout, self._driver, self._check = exports, layout, driver, check

    def offers(self) -> Sequence[Offer]:
        return [self._offer(name, group) for name, group in self._exports.items()]

    def handle(self, export: str, index: int) -> Handle:
        group = self._exports[export]
        if not 0 <= index < group.count:
            raise MemtopoError(f"export {export!r} has {group.count} handles, and none of number {index}")
        label = group.label(index)
        match group.kind:
            case "chunk":
                kind = HandleType[group.via.upper()]
                handle = self._driver.mem_export_to_shareable_handle(self._layout.chunks[label], kind)
                return Handle(fd=handle) if isinstance(handle, int) else Handle(secret=Secret(handle))
            case "buffer":
                with current(self._driver, self._layout.contexts[group.place(index).id]):
                    return Handle(secret=Secret(self._driver.ipc_get_mem_handle(self._layout.buffers[label].address)))
            case "event":
                with current(self._driver, self._layout.contexts[group.place(index).id]):
                    return Handle(secret=Secret(self._driver.ipc_get_event_handle(self._layout.events[label])))

    def check(self) -> Checks:
        return self._check()

    def _offer(self, name: str, group: ExportGroup) -> Offer:
        locations = list(dict.fromkeys(group.place(index) for index in range(group.count)))
        # By UUID if all are GPUs; else by their names, which are the same in all processes of a machine.
        gpus = [each.id for each in locations if each.kind is LocationKind.GPU]
        uuids = None
        if len(gpus) == len(locations):
            uuids = ",".join(self._driver.device_get_uuid(each).hex() for each in gpus)
        words = ", ".join(map(str, locations))
        return Offer(name, group.kind, group.via, group.count, group.size, words, uuids, _properties(group))


def _properties(group: ExportGroup) -> tuple[str, ...]:
    if not isinstance(group.run, ChunkGroup):
        return ()
    requested = group.run.properties[0]
    words = {"rdma": requested.rdma, "compressible": requested.compressible}
    return tuple(word for word, is_requested in words.items() if is_requested)
