"""The arguments and flags that several commands share. Every flag has a `MEMTOPO_…` variable."""

from __future__ import annotations

from typing import Annotated

import typer

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
