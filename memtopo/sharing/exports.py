"""Exports of a live layout, whose handles are made on request."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from memtopo.common.errors import MemtopoError
from memtopo.driver.handles import Handle
from memtopo.driver.protocol import Driver
from memtopo.driver.recorder import CallContext
from memtopo.driver.types import LocationKind
from memtopo.geometry import Geometry
from memtopo.kinds.exports.groups import ExportGroup
from memtopo.kinds.layout import Layout
from memtopo.plans.report import Checks
from memtopo.sharing.errors import ExchangeError
from memtopo.sharing.offers import Offer

SEND = "send"
"""Verb of the calls that make a handle for another process."""


class LayoutExports:
    """Export provider of a live layout; `check` compares everything with what the driver reports.

    No handle is kept: an open descriptor pins memory (fact 29), and IPC and fabric handles are secrets.
    """

    def __init__(
        self,
        geometry: Geometry,
        layout: Layout,
        driver: Driver,
        check: Callable[[], Checks],
        context: CallContext | None = None,
    ) -> None:
        self._exports = geometry.of(ExportGroup)
        self._layout, self._driver, self._check = layout, driver, check
        self._context = context or CallContext()

    def offers(self) -> Sequence[Offer]:
        return [self._offer(name, group) for name, group in self._exports.items()]

    def handle(self, export: str, index: int) -> Handle:
        group = self._exports[export]
        if not 0 <= index < group.count:
            raise MemtopoError(f"export {export!r} has {group.count} handles, and none of number {index}")
        try:
            with self._context.within(SEND, f"{export}.{index}"):
                return group.exporter.handle(self._driver, self._layout, group, index)
        except KeyError as error:
            message = f"export {export!r} has no memory in the current state of the layout"
            raise ExchangeError("absent", message, hint="'memtopo switch NAME awake' brings it back") from error

    def check(self) -> Checks:
        return self._check()

    def _offer(self, name: str, group: ExportGroup) -> Offer:
        locations = list(dict.fromkeys(group.locations))
        # By UUID if all are GPUs; else by their names, which are the same in all processes of a machine.
        gpus = [each.id for each in locations if each.kind is LocationKind.GPU]
        uuids = None
        if len(gpus) == len(locations):
            uuids = ",".join(self._driver.device_get_uuid(each).hex() for each in gpus)
        words = ", ".join(map(str, locations))
        objects, properties = group.group, group.exporter.properties(group.group)
        assert objects.offered_as
        whole = group.size == objects.size
        return Offer(
            name=name,
            kind=objects.offered_as,
            via=group.via,
            count=group.count,
            size=group.size,
            location=words,
            gpu=uuids,
            properties=properties,
            declared=objects.declared_size if whole else group.size,
            parts=tuple(objects.parts) if whole else (),
            commit="empty" if group.commit else None,
            entry=group.group.name,
            first=group.first,
        )
