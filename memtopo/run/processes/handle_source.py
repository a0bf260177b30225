"""Handles for the steps that import: from siblings a batch at a time, and from holders outside."""

from __future__ import annotations

from collections.abc import Callable

from memtopo.common.errors import InternalError
from memtopo.geometry import Geometry
from memtopo.kinds.layout import HandleSource
from memtopo.sharing.client import IN_FLIGHT
from memtopo.sharing.wire import Packet, close_all

Ask = Callable[[str, str, int, int], Packet]


class Siblings:
    """What a process imports from its siblings; `ask` gets some handles of one export, in order.

    What its siblings do not have comes from `outside`.
    """

    def __init__(self, geometry: Geometry, ask: Ask, outside: HandleSource) -> None:
        self._each = {
            (holder, run.origin.export): run.origin.each
            for run in geometry.runs
            if run.origin and run.origin.siblings
            for holder in run.origin.holders
        }
        self._ask, self._outside = ask, outside
        self._batch: dict[tuple[str, str, int], int | bytes] = {}

    def attach(self, holder: str) -> int:
        return self._outside.attach(holder)

    def detach(self, holder: str) -> None:
        self._outside.detach(holder)

    def take(self, holder: str, export: str, index: int) -> int | bytes:
        if (holder, export) not in self._each:
            return self._outside.take(holder, export, index)
        if (holder, export, index) not in self._batch:
            self.settle()
            self._fetch(holder, export, index)
        return self._batch[holder, export, index]

    def gone(self, holder: str) -> bool:
        return self._outside.gone(holder)

    def settle(self) -> None:
        self._outside.settle()
        close_all(handle for handle in self._batch.values() if isinstance(handle, int))
        self._batch.clear()

    def _fetch(self, holder: str, export: str, first: int) -> None:
        count = min(IN_FLIGHT, self._each[holder, export] - first)
        packet = self._ask(holder, export, first, count)
        found: list[int | bytes] = [*packet.fds, *(bytes.fromhex(text) for text in packet.message["secrets"])]
        if len(found) != count:
            packet.close()
            raise InternalError(f"{holder} gave {len(found)} of {count} handles of {export}")
        self._batch = {(holder, export, first + index): handle for index, handle in enumerate(found)}
