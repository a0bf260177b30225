"""What a program can be told by the API, each with all that is known of it in its text."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from memtopo.common.errors import MemtopoError
from memtopo.diagnostics.model import Diagnostic, has_errors
from memtopo.plans.report import Failure, Report

if TYPE_CHECKING:
    from memtopo.language import Document

_TOLD = 10
"""Differences that a message names."""


class ApiError(MemtopoError):
    """An error whose text has the hint too, since a program's traceback shows nothing else."""

    def __str__(self) -> str:
        return f"{self.message} (hint: {self.hint})" if self.hint else self.message


class InvalidSpec(ApiError, ValueError):
    """A spec that is wrong, or that the machine cannot carry out: the text has every diagnostic with its place.

    `diagnostics` has them as data, warnings too.
    """

    exit_code = 1

    def __init__(self, diagnostics: Sequence[Diagnostic], document: Document) -> None:
        from memtopo.output.diagnostics import text  # noqa: PLC0415 nobody needs it where nothing is wrong

        self.diagnostics = tuple(diagnostics)
        lines = text(self.diagnostics if document.text else _with_paths(self.diagnostics), document)
        super().__init__("\n".join([f"invalid spec: {lines[-1]}", "", *lines[:-1]]).rstrip())


class NotApplied(ApiError):
    """A layout that was not built as declared, or not taken down whole. `report` says all of it.

    `exit_code` is the one of `memtopo apply`: 4 where everything was undone, 5 where something is left, 6 where the
    memory was not found as declared.
    """

    def __init__(self, report: Report) -> None:
        self.report = report
        self.exit_code = report.exit_code
        super().__init__("; ".join(_told(report)), hint=report.failure.hint if report.failure else None)


class Unsuitable(ApiError, ValueError):
    """Something that is there and cannot be used in the way that was asked for, or is not there at all."""

    exit_code = 2


class ViewOutlived(ResourceWarning):
    """A view was still in use when its layout was taken down: using it from then on is a fault, or reads nothing."""


def _with_paths(diagnostics: Iterable[Diagnostic]) -> Iterator[Diagnostic]:
    """The same for a spec without lines: each begins with the keys that lead to it."""
    for each in diagnostics:
        yield each._replace(message=f"{'.'.join(map(str, each.path))}: {each.message}") if each.path else each


def _told(report: Report) -> Iterator[str]:
    ways = {"different": "was not found as declared", "ok": "was taken down", "leaked": "was not taken down whole"}
    yield f"layout {report.name!r} on machine {report.machine.name!r} {ways.get(report.outcome, 'was not built')}"
    if report.failure:
        yield _failed(report.failure)
    if report.checks:
        for each in report.checks.differences[:_TOLD]:
            yield f"{each.aspect} of {each.subject} is {each.seen}, not {each.wanted}"
        if report.checks.different > _TOLD:
            yield f"and {report.checks.different - _TOLD:,} differences more"
    for leak in report.leaks:
        stays = f", and with it {', '.join(leak.stays)}" if leak.stays else ""
        yield f"{leak.what} is left: {leak.error}{stays}"
    if not report.leaks:
        yield "everything was undone"


def _failed(failure: Failure) -> str:
    place = f"{failure.place}: " if failure.place else ""
    return f"{place}{failure.step}: {failure.error}{f' ({failure.reason})' if failure.reason else ''}"


def raise_faults(diagnostics: Sequence[Diagnostic], document: Document) -> None:
    """Raise `InvalidSpec` where a diagnostic is an error."""
    if has_errors(diagnostics):
        raise InvalidSpec(diagnostics, document)


def _be_heard() -> None:
    """Have our warning shown where nobody chose otherwise: Python's own rule drops every `ResourceWarning`."""
    for action, message, category, module, _ in warnings.filters:
        if issubclass(ViewOutlived, category) and not message and not module:
            if action == "ignore" and category is ResourceWarning:
                warnings.simplefilter("default", ViewOutlived)
            return


_be_heard()
