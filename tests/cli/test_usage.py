"""Help, version, and messages about wrong command lines."""

from __future__ import annotations

import json
import sys
import tomllib
from typing import Any

import pytest

from memtopo.cli.app import program
from memtopo.common import __version__
from memtopo.output.formats import FORMATS
from tests.cli.conftest import InlineRunner
from tests.helpers.command_line import QUICKSTART, ROOT, CommandResult, environment, run_memtopo
from tests.helpers.python_process import run_python

GROUP: Any = program()
COMMANDS = sorted(GROUP.commands)


def test_no_command_is_wrong_usage_with_help_on_stderr() -> None:
    result = run_memtopo()
    assert (result.status, result.out) == (2, "")
    assert all(f"  {command} " in result.err for command in COMMANDS)


@pytest.mark.parametrize("command", [None, *COMMANDS])
@pytest.mark.parametrize("flag", ["-h", "--help"])
@pytest.mark.parametrize("width", [60, 80])
def test_help_begins_with_the_usage_of_its_command(
    run_inline: InlineRunner, command: str | None, flag: str, width: int
) -> None:
    """It is on stdout and fits the terminal."""
    result = run_inline(*([command] if command else []), flag, COLUMNS=str(width))
    assert (result.status, result.err) == (0, "")
    assert result.out.startswith(f"Usage: memtopo {command or '[OPTIONS]'} ")
    assert result.widest <= width


def test_commands_are_listed_once_and_their_summaries_are_not_cut_at_80_columns(run_inline: InlineRunner) -> None:
    _, _, listed = run_inline("--help", COLUMNS="80").out.partition("Specs:\n")
    names = [line.split()[0] for line in listed.partition("Example:")[0].splitlines() if line.startswith("  ")]
    assert sorted(names) == sorted(COMMANDS)
    assert "..." not in listed


def test_the_help_of_a_command_has_each_variable_once(run_inline: InlineRunner) -> None:
    for command in COMMANDS:
        options, _, listed = run_inline(command, "--help").out.partition("Variables with the values of options:\n")
        variables = listed.replace(",", " ").split()
        assert sorted({*variables}) == sorted(variables)
        assert "[env var" not in options


def test_version_is_one_line_on_stdout() -> None:
    assert run_memtopo("--version").out == f"memtopo {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["frobnicate"], "no such command 'frobnicate'", "see 'memtopo --help'"),
        (["validat", "x"], "no such command 'validat'", "did you mean 'validate'? see 'memtopo --help'"),
        (["stop", "kv"], "no such command 'stop'", "did you mean 'memtopo release NAME'? see 'memtopo --help'"),
        (["release", "kv", "--all"], "no such option: --all", "see 'memtopo release --help'"),
        (["validate", "x", "--report", "a.md"], "report 'a.md' names no file", "write --report markdown=a.md"),
        (["explain", "301"], "not known: no cause of FILE_NOT_FOUND is known", "did you mean 'MT301'?"),
        (
            ["machines", "--draft", "x", "--gpus", "8", "--memory", "80"],
            "--memory '80' has no unit",
            "write 80MiB or 80GiB, or 80B for bytes",
        ),
        (["plan"], "missing argument 'SPEC'", "see 'memtopo plan --help'"),
        (["plan", ""], "SPEC is empty", "name a file, or - for standard input"),
        (["plan", "a", "b", "c"], "unexpected argument: c", "see 'memtopo plan --help'"),
        (["apply", "x", "--frobnicate"], "no such option: --frobnicate", "see 'memtopo apply --help'"),
        (
            ["apply", "x", "--rehears"],
            "no such option: --rehears",
            "did you mean --rehearse? see 'memtopo apply --help'",
        ),
        (["apply", "x", "--machine"], "option '--machine' requires an argument", "see 'memtopo apply --help'"),
        (["apply", "x", "--json=3"], "option '--json' does not take a value", "see 'memtopo apply --help'"),
        (
            ["--machine", "h200x2", "plan", "x"],
            "no such option: --machine",
            "options follow the command; see 'memtopo plan --help'",
        ),
        (
            ["apply", "x", "--check", "lots"],
            "invalid value for '--check' (env var: 'MEMTOPO_CHECK'): 'lots' is not one of 'none', 'fast', 'full'",
            "see 'memtopo apply --help'",
        ),
        (
            ["ls", "--allow-uid", "x"],
            "invalid value for '--allow-uid' (env var: 'MEMTOPO_ALLOW_UID'): it should be a valid integer",
            "see 'memtopo ls --help'",
        ),
        (
            ["draw", "x", "--width", "3"],
            "invalid value for '--width' (env var: 'MEMTOPO_WIDTH'): it should be greater than or equal to 20",
            "see 'memtopo draw --help'",
        ),
        (["machines", "local"], "local is not a recorded machine", "'memtopo probe' shows this computer"),
        (["probe", "-m", "h200x2", "-o", "-"], "-o needs a file", "--json writes the same document to standard output"),
        (
            ["apply", "specs/quickstart.yaml", "--timeout", "0s"],
            "--timeout must be greater than 0",
            "write --timeout 30s",
        ),
    ],
)
def test_wrong_command_lines_exit_with_2_and_two_lines(
    run_inline: InlineRunner, arguments: list[str], message: str, hint: str
) -> None:
    """One line has what was found, one what to write or read; stdout is empty."""
    result = run_inline(*arguments)
    assert (result.status, result.out) == (2, "")
    assert result.err == f"memtopo: error: {message}\nmemtopo: hint: {hint}\n"


@pytest.mark.parametrize(
    ("arguments", "form"),
    [
        (["--format", "json"], ""),
        (["--format=json"], ""),
        (["--format", "text", "--format", "json"], "sarif"),
        ([], "json"),
    ],
)
def test_wrong_usage_is_a_document_in_the_requested_format(
    run_inline: InlineRunner, arguments: list[str], form: str
) -> None:
    result = run_inline("validate", *arguments, "--nonsense", MEMTOPO_FORMAT=form)
    assert result.status == 2
    assert result.document["error"]["message"] == "no such option: --nonsense"


def test_no_document_is_printed_unless_requested(run_inline: InlineRunner) -> None:
    """Not for a file's name, for flags of another command, or for text."""
    assert run_inline("ls", "--", "--json", "--format=json").out == ""
    for words in (["validate", "--", "--format=json"], ["plan", "--nonsense"]):
        assert "{" not in run_inline(*words, "-m", MEMTOPO_FORMAT="" if "--" in words else "json").out
    assert run_inline("validate", "--nonsense", "--format=text", MEMTOPO_FORMAT="json").out == ""


SPEC = str(ROOT / "examples" / "ci" / "specs" / "cache.yaml")
"""A spec that names no machine."""


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("words", [["--nonsense"], ["nowhere*"], ["x", "-m", "nowhere"], [SPEC, "--select", "MT9"]])
def test_a_failure_is_one_document_in_machine_readable_formats(
    run_inline: InlineRunner, form: str, words: list[str]
) -> None:
    """In the other formats there is none."""
    result = run_inline("validate", *words, "--format", form)
    assert result.status in (2, 3)
    assert bool(result.out) == (form not in ("text", "concise"))
    if form in ("json", "sarif", "gitlab"):
        json.loads(result.out)


def test_controls_in_arguments_are_escaped_in_messages(run_inline: InlineRunner) -> None:
    for arguments in (["\x1b[31m"], ["plan", "--\x1b[31m"], ["plan", "\x1b[31m", "-mh200x2"], ["plan", "x", "-m\x1b["]):
        result = run_inline(*arguments)
        assert result.status in (1, 2, 3)
        assert "\x1b" not in result.out + result.err
        assert "\\x1b" in result.err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_flag_has_a_memtopo_variable(name: str) -> None:
    for parameter in GROUP.commands[name].params:
        if parameter.param_type_name == "option" and parameter.name != "help":
            assert str(parameter.envvar).startswith("MEMTOPO_"), parameter.name


def test_console_script_equals_the_module() -> None:
    module, _, function = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"][
        "memtopo"
    ].partition(":")
    script = f"import sys; sys.argv[0] = 'memtopo'; from {module} import {function}; sys.exit({function}())"
    for arguments in (["--help"], ["plan"], ["plan", QUICKSTART, "--machine=h200x2"]):
        done = run_python(
            [sys.executable, "-c", script, *arguments], env=environment(CUDA_VISIBLE_DEVICES=""), capture_output=True
        )
        result = CommandResult(done.returncode, done.stdout.decode(), done.stderr.decode())
        assert result == run_memtopo(*arguments, CUDA_VISIBLE_DEVICES="")
