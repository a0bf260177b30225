"""Colour on terminals only, unless disabled; no line is wider than the requested width."""

from __future__ import annotations

import os
import pty
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cli.conftest import InlineRunner
from tests.helpers.command_line import MEMTOPO, QUICKSTART, CommandResult, environment, run_memtopo, without_crash
from tests.helpers.python_process import PythonProcess
from tests.helpers.samples import sampled
from tests.helpers.specs import SPECS

M = "--machine=h200x4"
COLOUR = re.compile(r"\x1b\[[\d;]*m")


def on_terminal(*arguments: str, program: Sequence[str] = MEMTOPO, **variables: str) -> CommandResult:
    """Run memtopo, or a program that calls it, with a terminal as both of its streams."""
    ours, theirs = pty.openpty()
    variables = {"TERM": "xterm-256color", "COLUMNS": "80"} | variables
    process = PythonProcess(
        [*program, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=environment(**variables)
    )
    os.close(theirs)
    shown = drained(ours)
    os.close(ours)
    return without_crash(CommandResult(process.wait(timeout=60), shown.replace("\r\n", "\n"), ""))


def drained(terminal: int) -> str:
    """Return everything that is written to a terminal until no process has it open."""
    shown = b""
    try:
        while block := os.read(terminal, 65536):
            shown += block
    except OSError:  # the last one has closed it
        pass
    return shown.decode()


COMMANDS = (["apply", QUICKSTART, M], ["plan", QUICKSTART, M], ["machines", "h200x2"], ["apply", "nowhere", M], ["x"])


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: arguments[0])
def test_terminals_get_colour_unless_no_color_or_dumb(arguments: list[str]) -> None:
    """The text is the same."""
    coloured = on_terminal(*arguments).out
    assert COLOUR.search(coloured)
    assert not COLOUR.search(on_terminal(*arguments, NO_COLOR="1").out)  # progress may move the cursor
    assert "\x1b" not in on_terminal(*arguments, TERM="dumb").out


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: arguments[0])
def test_pipes_get_colour_only_with_force_color(arguments: list[str]) -> None:
    """NO_COLOR takes precedence."""
    for variables in ({"TERM": "xterm-256color"}, {"FORCE_COLOR": "1", "NO_COLOR": "1"}):
        result = run_memtopo(*arguments, **variables)
        assert "\x1b" not in result.out + result.err
    result = run_memtopo(*arguments, FORCE_COLOR="1")
    assert "\x1b[" in result.out + result.err


@pytest.mark.parametrize("command", ["apply", "plan"])
def test_json_is_never_coloured(command: str) -> None:
    assert "\x1b" not in on_terminal(command, QUICKSTART, M, "--json").out


def test_width_is_that_of_the_terminal_or_80() -> None:
    shown = on_terminal("plan", QUICKSTART, M, COLUMNS="", NO_COLOR="1").out
    assert shown == run_memtopo("plan", QUICKSTART, M, COLUMNS="80").out


@pytest.mark.parametrize("spec", sampled(SPECS, 0.2))
@pytest.mark.parametrize("width", [60, pytest.param(80, marks=pytest.mark.exhaustive(seconds=0.2))])
def test_plans_and_reports_of_all_specs_fit_the_terminal(run_inline: InlineRunner, spec: Path, width: int) -> None:
    for command in ("plan", "apply"):
        result = run_inline(command, spec, M, COLUMNS=str(width))
        assert result.status == 0
        assert result.widest <= width


@pytest.mark.parametrize("width", ["1", "0", "-5", "x", "", "99999999", "²"])
def test_odd_values_of_columns_cause_no_failure(run_inline: InlineRunner, width: str) -> None:
    result = run_inline("plan", QUICKSTART, M, COLUMNS=width)
    assert result.status == 0
    assert "quickstart" in result.out.replace("\n", "")
