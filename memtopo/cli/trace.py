"""`memtopo trace`: the summary of the driver calls that a run has traced."""

from __future__ import annotations

from typing import Annotated

import typer

from memtopo.cli.options import AsJson
from memtopo.output import json, plain
from memtopo.plans.trace import read_traces, summary

Files = Annotated[
    list[str],
    typer.Argument(metavar="FILE", help="A trace, or a folder with those of several processes.", show_default=False),
]


def trace_command(files: Files, as_json: AsJson = False) -> int:
    """Summarize the driver calls of a run that apply --trace wrote.

    A call that failed comes first, or one that did not return, with the calls before it. Then all calls by function:
    their number, errors, and total, median and longest time.
    """
    found = summary(read_traces(files))
    if as_json:
        plain.print_document(json.dumps(json.marked("trace", found)).splitlines())
    else:
        from memtopo.output import console
        from memtopo.output.trace import page

        console.show(page(found))
    return 0
