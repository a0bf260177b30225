"""The forms in which a check can be written, by name. Each is imported where it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Literal, Protocol, cast, get_args

from memtopo.common.errors import MemtopoError
from memtopo.output.plain import DEFAULT_WIDTH
from memtopo.rules.files import Checked

Format = Literal["text", "concise", "json", "sarif", "junit", "github", "gitlab", "markdown"]
FORMATS: tuple[Format, ...] = get_args(Format)


class _Form(Protocol):
    """What the module of a form has, which is named after it."""

    def lines(self, checked: Checked, /) -> list[str]: ...

    def failure(self, error: MemtopoError, /) -> list[str]: ...


def written(form: Format, checked: Checked, *, width: int = DEFAULT_WIDTH, colour: bool = False) -> list[str]:
    """A check in one of the forms, as lines; width and colour are for those that people read."""
    if form not in ("text", "concise"):
        return _form(form).lines(checked)
    from memtopo.output import prose  # noqa: PLC0415 imported where it is used

    return prose.text(checked, width=width, colour=colour) if form == "text" else prose.concise(checked, colour=colour)


def failure(form: Format, error: MemtopoError) -> list[str]:
    """What is written where the check could not be made: in every form that is a document, a whole one."""
    return [] if form in ("text", "concise") else _form(form).failure(error)


def _form(form: Format) -> _Form:
    return cast("_Form", import_module(f"memtopo.output.{form}"))
