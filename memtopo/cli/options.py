"""The arguments and flags that several commands share. Every flag has a `MEMTOPO_…` variable."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from memtopo.common.errors import UsageError
from memtopo.common.units import NotADuration, parse_duration

SpecFile = Annotated[str, typer.Argument(metavar="SPEC", help="A spec; - reads standard input.", show_default=False)]
MachineName = Annotated[
    str,
    typer.Option(
        "--machine",
        "-m",
        envvar="MEMTOPO_MACHINE",
        metavar="NAME|FILE",
        help="local, a shipped machine (see 'memtopo machines'), or a file made by 'memtopo probe -o'.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", envvar="MEMTOPO_JSON", help="One JSON document on stdout.")]


def seconds(text: str) -> float:
    """A duration of the command line, in seconds. Raises `UsageError`."""
    try:
        return parse_duration(text)
    except NotADuration as error:
        raise UsageError(str(error), hint=f"write {error.meant}" if error.meant else None) from error


def patience(text: str) -> float:
    """How long something is waited for, in seconds. Raises `UsageError`."""
    if not (found := seconds(text)):
        raise UsageError("a --timeout of 0 waits for nothing", hint="write --timeout 30s")
    return found


LayoutName = Annotated[str | None, typer.Argument(metavar="NAME", help="A held layout.", show_default=False)]
Socket = Annotated[
    str | None,
    typer.Option("--socket", envvar="MEMTOPO_SOCKET", metavar="PATH", help="Its socket, where that stands elsewhere."),
]
AllowUid = Annotated[
    list[int] | None,
    typer.Option("--allow-uid", envvar="MEMTOPO_ALLOW_UID", metavar="UID", help="Trust that user as well.", min=0),
]
Grace = Annotated[
    str,
    typer.Option("--grace", envvar="MEMTOPO_GRACE", metavar="TIME", help="What users over ipc get to let go: 5s."),
]
Hold = Annotated[
    bool, typer.Option("--hold", envvar="MEMTOPO_HOLD", help="Keep the layout, and serve its exports to others.")
]
HoldFor = Annotated[
    str | None,
    typer.Option("--for", envvar="MEMTOPO_FOR", metavar="TIME", help="With --hold: let go after that time: 10m."),
]
Thoroughly = Annotated[
    Literal["none", "fast", "full"],
    typer.Option(
        "--check",
        envvar="MEMTOPO_CHECK",
        help="What is looked at: none; fast: queries, and samples of the bytes; full: every byte, by kernels.",
    ),
]
