"""The context managers of the API have their end in common: taking down, and saying what was still in use."""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from types import TracebackType
from typing import Generic, TypeVar

from memtopo.api.errors import NotApplied, Unsuitable, ViewOutlived
from memtopo.api.live import Live
from memtopo.plans.report import Report

L = TypeVar("L", bound=Live)


class Standing(Generic[L]):
    """Something for a `with`: builds on entering, takes down on leaving, once."""

    def __init__(self) -> None:
        self._live: L | None = None
        self._entered = False
        self._around = ExitStack()
        """What has to be there for as long as the layout is."""

    def __enter__(self) -> L:
        if self._entered:
            raise Unsuitable("a layout is entered once; call again for another one")
        self._entered = True
        with ExitStack() as stack:
            stack.push(self._around)
            self._live = self._build()
            stack.pop_all()
        return self._live

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        live, self._live = self._live, None
        if live is None:
            return
        with self._around:
            report, outlived = live.end()
        live.report = report = self._over(report)
        if outlived:
            told = f"layout {live.name!r} was taken down under views that are still in use: {', '.join(outlived)}"
            warnings.warn(f"{told}; delete them within the 'with'", ViewOutlived, stacklevel=2)
        if not report.exit_code:
            return
        if error is None:
            raise NotApplied(report)
        error.add_note(str(NotApplied(report)))

    def _over(self, report: Report) -> Report:
        """The report, once what was around the layout is gone as well."""
        return report

    def _build(self) -> L:
        raise NotImplementedError
