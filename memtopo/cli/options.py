"""Arguments and options that several commands share. Every option has a `MEMTOPO_…` variable."""

from __future__ import annotations

import os
from typing import Annotated, Literal

import typer

from memtopo.cli import candidates
from memtopo.common.errors import UsageError
from memtopo.common.units import NotADuration, parse_duration
from memtopo.drivers import target
from memtopo.drivers.target import Target

SpecFile = Annotated[str, typer.Argument(metavar="SPEC", help="A spec; - reads standard input.", show_default=False)]
MachineName = Annotated[
    str,
    typer.Option(
        "--machine",
        "-m",
        envvar="MEMTOPO_MACHINE",
        metavar="NAME|FILE",
        autocompletion=candidates.machines,
        help="local, a shipped machine (see 'memtopo machines'), or a file made by 'memtopo probe -o'.",
    ),
]
MachineNames = Annotated[
    list[str] | None,
    typer.Option(
        "--machine",
        "-m",
        envvar="MEMTOPO_MACHINE",
        metavar="[NODE=]NAME|FILE",
        autocompletion=candidates.machines,
        help="local, a shipped machine (see 'memtopo machines'), or a file made by 'memtopo probe -o'; of a spec with "
        "nodes, that of all of them, or again for each: a=h200x4.",
        show_default="local",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", envvar="MEMTOPO_JSON", help="One JSON document on stdout.")]


def machine_names(given: list[str] | None) -> list[str]:
    """Names of machines. If the whole variable is the path of a file, its spaces do not separate names."""
    whole = os.environ.get("MEMTOPO_MACHINE", "")
    if given and given == whole.split() and os.path.exists(whole):  # noqa: PTH110 a path as it was written
        return [whole]
    return given or [target.LOCAL]


def one_target(given: list[str] | None) -> Target:
    """Return the target of `--machine`: the last one, or the machines of the nodes of a spec. Raises `MemtopoError`."""
    *_, last = names = machine_names(given)
    return target.resolve_nodes(names) if any(map(target.of_node, names)) else target.resolve(last)


def duration(text: str) -> float:
    """Parse a duration; returns seconds. Raises `UsageError`."""
    try:
        return parse_duration(text)
    except NotADuration as error:
        raise UsageError(str(error), hint=f"write {error.meant}" if error.meant else None) from error


def optional_duration(text: str | None) -> float | None:
    """Parse a duration that may be left out. Raises `UsageError`."""
    return None if text is None else duration(text)


def timeout_seconds(text: str) -> float:
    """Parse the duration of `--timeout`; returns seconds. Raises `UsageError`, also for 0."""
    if not (found := duration(text)):
        raise UsageError("a --timeout of 0 waits for nothing", hint="write --timeout 30s")
    return found


def stdout_format(form: str | None, *, as_json: bool, hint: str) -> str | None:
    """Format of stdout by `--format` and `--json`; None without either. Raises `UsageError`, with a hint, for two."""
    if as_json and form not in (None, "json"):
        raise UsageError(f"--json and --format {form} are two formats for one output", hint=hint)
    return "json" if as_json else form


LayoutName = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME",
        help="A held layout, or the path of its socket.",
        show_default=False,
        autocompletion=candidates.layouts,
    ),
]
Socket = Annotated[
    str | None,
    typer.Option(
        "--socket",
        envvar="MEMTOPO_SOCKET",
        metavar="PATH|FOLDER",
        help="Socket of a holder that is not at the default path, or a folder that has FOLDER/NAME.sock.",
    ),
]
AllowUid = Annotated[
    list[int] | None,
    typer.Option("--allow-uid", envvar="MEMTOPO_ALLOW_UID", metavar="UID", help="Trust this user as well.", min=0),
]
Grace = Annotated[
    str,
    typer.Option("--grace", envvar="MEMTOPO_GRACE", metavar="TIME", help="Time for importers over ipc to end: 5s."),
]
Hold = Annotated[
    bool,
    typer.Option("--hold", envvar="MEMTOPO_HOLD", help="Keep the layout, and serve its exports to other processes."),
]
HoldFor = Annotated[
    str | None,
    typer.Option(
        "--for", envvar="MEMTOPO_FOR", metavar="TIME", help="With --hold: release the layout after this time: 10m."
    ),
]
MetricsPlace = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        envvar="MEMTOPO_METRICS",
        metavar="FILE|unix:PATH",
        help="With --hold: keep metrics for Prometheus in a file, or answer HTTP requests on a socket.",
    ),
]
Detach = Annotated[
    bool,
    typer.Option(
        "--detach", envvar="MEMTOPO_DETACH", help="With --hold: return once it serves; the holder goes on by itself."
    ),
]
LogFile = Annotated[
    str | None,
    typer.Option(
        "--log",
        envvar="MEMTOPO_LOG",
        metavar="FILE|FOLDER/",
        help="With --hold: append the log and, once it serves, all output to a file, or to FOLDER/NAME.log.",
    ),
]
LogLevel = Annotated[
    Literal["quiet", "info"],
    typer.Option(
        "--log-level",
        envvar="MEMTOPO_LOG_LEVEL",
        help="With --hold: what is logged while it serves: quiet: warnings and errors; info: every event.",
    ),
]
ReadyFd = Annotated[
    int | None,
    typer.Option(
        "--ready-fd",
        envvar="MEMTOPO_READY_FD",
        metavar="N",
        min=3,
        help="With --hold: write a line to this descriptor and close it once it serves.",
    ),
]
Reload = Annotated[
    bool,
    typer.Option(
        "--reload",
        envvar="MEMTOPO_RELOAD",
        help="With --hold: SIGHUP reads the spec again and changes to it; --detach and systemd imply it.",
    ),
]
CheckLevel = Annotated[
    Literal["none", "fast", "full"],
    typer.Option(
        "--check",
        envvar="MEMTOPO_CHECK",
        help="What is checked: none; fast: queries, and samples of the bytes; full: every byte, by kernels.",
    ),
]

# of runs

With = Annotated[
    list[str] | None,
    typer.Option(
        "--with",
        envvar="MEMTOPO_WITH",
        metavar="NAME=SOCKET|COMMAND",
        help="Bind a holder that the spec names to a socket, or to a program to start, which finds its socket's path "
        "in MEMTOPO_SOCKET.",
    ),
]
Timeout = Annotated[
    str,
    typer.Option(
        "--timeout",
        envvar="MEMTOPO_TIMEOUT",
        metavar="TIME",
        help="Limit for a silent process (a starting one: ten times that, up to 60s), a semaphore, and a commit.",
    ),
]

On = Annotated[
    str | None,
    typer.Option(
        "--on",
        envvar="MEMTOPO_ON",
        metavar="CLUSTER",
        autocompletion=candidates.clusters,
        help="Apply a spec with nodes on a Ray cluster: ray, that of RAY_ADDRESS or of this host, or ray://HOST:PORT.",
        show_default="this host",
    ),
]
Gpus = Annotated[
    int | None,
    typer.Option(
        "--gpus",
        envvar="MEMTOPO_GPUS",
        metavar="N",
        min=0,
        help="With --on: GPUs of each node.",
        show_default="as many as each has",
    ),
]
Rehearse = Annotated[
    bool,
    typer.Option(
        "--rehearse", envvar="MEMTOPO_REHEARSE", help="Also go through the states of the spec and back, and check each."
    ),
]


TraceFile = Annotated[
    str | None,
    typer.Option(
        "--trace",
        envvar="MEMTOPO_TRACE",
        metavar="FILE",
        help="Write a line of JSON for each driver call, for 'memtopo trace'; of several processes into a folder, a "
        "file for each.",
    ),
]

# of changes and switches of a held layout

HeldName = Annotated[
    str,
    typer.Argument(metavar="NAME", help="A held layout.", show_default=False, autocompletion=candidates.layouts),
]
ForceChange = Annotated[
    bool,
    typer.Option(
        "--force", envvar="MEMTOPO_FORCE", help="Go on even if others have imported memory that goes; they keep it."
    ),
]
WaitForImporters = Annotated[
    str,
    typer.Option(
        "--wait", envvar="MEMTOPO_CHANGE_WAIT", metavar="TIME", help="Time for importers to let go of memory that goes."
    ),
]
NOT_AS_DECLARED = 6
"""Exit status of a change that was made, and whose check found a difference."""
