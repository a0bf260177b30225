"""Errors and warnings of the API."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from memtopo.common.errors import Exit, MemtopoError
from memtopo.diagnostics.model import Diagnostic, Path, has_errors
from memtopo.plans.report import Report
from memtopo.rules import NeverTried

if TYPE_CHECKING:
    from memtopo.language import Document
    from memtopo.session.composition import Composition

_LISTED = 10
"""Differences that a message lists."""


class ApiError(MemtopoError):
    """Failure of a function of the API."""

    exit_code: int = Exit.FAILED


class InvalidSpec(ApiError, ValueError):
    """Spec with errors, or one that the machine does not support; the text has every diagnostic and its position.

    `diagnostics` has them as data, including warnings.
    """

    exit_code = Exit.INVALID

    def __init__(self, diagnostics: Sequence[Diagnostic], document: Document) -> None:
        from memtopo.output.diagnostics import text  # noqa: PLC0415 needed for errors only

        self.diagnostics = tuple(diagnostics)
        shown = list(self.diagnostics)
        if not document.text:  # a spec without lines
            for index, each in enumerate(shown):
                labels = tuple(label._replace(text=_at(label.path, label.text)) for label in each.labels)
                shown[index] = each._replace(message=_at(each.path, each.message), labels=labels)
        lines = text(shown, document)
        super().__init__("\n".join([f"invalid spec: {lines[-1]}", "", *lines[:-1]]).rstrip())


class NotApplied(ApiError):
    """Layout that was not built as declared, or not taken down completely; `report` has the details.

    If it was `built` completely, it has failed later. `exit_code` is that of `memtopo apply`: 4 if everything was
    undone (3 if a holder was missing), 5 if something is left, 6 if the memory is not as declared.
    """

    def __init__(self, report: Report, *, built: bool = False) -> None:
        self.report = report
        hint = report.failure.hint if report.failure else None
        super().__init__("; ".join(_summary(report, built=built)), hint=hint, exit_code=report.exit_code)


class NotJoined(ApiError):
    """Layout that this process did not join: the processes that came do not make it. Nothing is left of it."""


class NotBuilt(ApiError):
    """Valid spec with objects that were never tried on the machine, which are planned only; nothing was built."""


class NotSwitched(ApiError):
    """Layout that was not switched to a state; the text says which call failed, and the state that it is in."""


class NotMapped(ApiError):
    """Elastic range, chunks or heap that a driver error left as they were; the text says if they are not."""


class OutOfMemory(ApiError, MemoryError):
    """Allocation for which a heap has no addresses, no more of its limit, or its GPU no memory."""


class NotChanged(ApiError):
    """Layout that was not changed to another spec; the text says what failed, or what does not fit."""


class Unsuitable(ApiError, ValueError):
    """Object that does not exist, or that does not support the requested use."""

    exit_code = Exit.USAGE


class NotElastic(Unsuitable, AttributeError):
    """Attribute of an elastic range that a view does not have, because its range is not elastic."""


class ViewOutlived(UserWarning):
    """View that is still in use when its layout is taken down: accessing it afterwards is a fault, or reads zeros."""


class MemoryHeld(UserWarning):
    """Memory that a heap gave back and that others keep in use: they do not see what the heap has afterwards."""


class ReadOnlyIgnored(UserWarning):
    """View of memory without write access, for a library that writes to it all the same."""


def _at(path: Path, text: str) -> str:
    return f"{'.'.join(map(str, path))}: {text}" if path else text


def _summary(report: Report, *, built: bool) -> Iterator[str]:
    outcomes = {"different": "is not as declared", "ok": "was taken down", "leaked": "was not taken down completely"}
    failed = "failed after it was built" if built else "was not built"
    yield f"layout {report.name!r} on machine {report.machine.name!r} {outcomes.get(report.outcome, failed)}"
    if report.failure:
        place = f"{report.failure.place}: " if report.failure.place else ""
        reason = f" ({report.failure.reason})" if report.failure.reason else ""
        yield f"{place}{report.failure.step}: {report.failure.error}{reason}"
    if report.checks:
        for each in report.checks.differences[:_LISTED]:
            yield f"{each.aspect} of {each.subject} is {each.seen}, not {each.wanted}"
        if report.checks.different > _LISTED:
            yield f"and {report.checks.different - _LISTED:,} more differences"
    for leak in report.leaks:
        stays = f", and with it {', '.join(leak.stays)}" if leak.stays else ""
        yield f"{leak.what} is left: {leak.error}{stays}"
    if not report.leaks:
        yield "everything was undone"


def require_tried(composition: Composition) -> None:
    """Raise `NotBuilt` for a layout with objects that may be planned, but were never tried on the machine."""
    try:
        composition.require_tried()
    except NeverTried as error:
        raise NotBuilt("\n".join((error.message, *error.details)), hint=error.hint) from None


def valid(composition: Composition) -> Composition:
    """Return a spec that has no error on a machine. Raises `InvalidSpec`."""
    raise_errors(composition.diagnostics, composition.document)
    return composition


def raise_errors(diagnostics: Sequence[Diagnostic], document: Document) -> None:
    """Raise `InvalidSpec` if any diagnostic is an error."""
    if has_errors(diagnostics):
        raise InvalidSpec(diagnostics, document)
