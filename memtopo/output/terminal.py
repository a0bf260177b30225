"""The only place where consoles are made: stdout for results, stderr for messages."""

from __future__ import annotations

import io
import re
import sys
from typing import TextIO

from rich.console import Console, RenderableType

from memtopo.output import plain

_BLANK_ENDS = re.compile(r" +(?=(?:\x1b\[0m)?$)", re.MULTILINE)


def results(stream: TextIO | None = None) -> Console:
    """A console for what was asked for: stdout."""
    return _console(stream or sys.stdout)


def messages(stream: TextIO | None = None) -> Console:
    """A console for progress and messages: stderr."""
    return _console(stream or sys.stderr)


def text(renderable: RenderableType, console: Console) -> str:
    """What a console would show, without blanks at the ends of lines."""
    with console.capture() as capture:
        console.print(renderable)
    return _BLANK_ENDS.sub("", capture.get())


def show(renderable: RenderableType, stream: TextIO | None = None, *, width: int | None = None) -> None:
    """Write a plan, a report or another result to stdout; of a `width` in columns where it is not the stream's."""
    stream = stream or sys.stdout
    plain.print_lines(text(renderable, _console(stream, width)).splitlines(), stream)


def unstyled(renderable: RenderableType, width: int) -> str:
    """What a stream of a width without colours would get."""
    stream = io.StringIO()
    console = _console(stream, width, colour=False)
    return "".join(f"{line}\n" for line in text(renderable, console).splitlines())


def _console(stream: TextIO, width: int | None = None, *, colour: bool | None = None) -> Console:
    colour = plain.colour(stream) if colour is None else colour
    return Console(
        file=stream,
        width=width or plain.width(stream),
        color_system="auto" if colour else None,
        force_terminal=colour or stream.isatty(),
        no_color=not colour,
        markup=False,
        emoji=False,
        highlight=False,
        soft_wrap=False,
    )
