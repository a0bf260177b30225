"""Completion of command lines: the words that are offered, and the scripts of the shells, in these shells."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest

from memtopo import machine
from memtopo.cli import app
from memtopo.cli.completion import completions
from memtopo.diagnostics import CODES
from tests.cli.conftest import InlineRunner
from tests.helpers.command_line import ROOT, environment
from tests.helpers.python_process import shell_command
from tests.helpers.tools import tool

SHIPPED = machine.shipped()
SPEC = ROOT / "specs" / "real" / "tensorrt-llm.yaml"


def offered(line: str) -> list[str]:
    return [word for word, _ in completions(line)]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("memtopo val", ["validate"]),
        ("memtopo s", ["show", "switch", "save", "simulator", "spec", "schema"]),
        ("MEMTOPO_JSON=1 memtopo val", ["validate"]),
        ("memtopo apply x --rehe", ["--rehearse"]),
        ("memtopo apply x --check f", ["fast", "full"]),
        ("memtopo plan x --machine ", ["local", *SHIPPED]),
        ("memtopo plan x -m h2", [name for name in SHIPPED if name.startswith("h2")]),
        ("memtopo plan x --machine=h1", [f"--machine={name}" for name in SHIPPED if name.startswith("h1")]),
        ("memtopo plan x --machine b=h1", [f"b={name}" for name in SHIPPED if name.startswith("h1")]),
        ("memtopo validate x -m no", ["none"]),
        ("memtopo validate x -m b=no", []),
        ("memtopo machines ", list(SHIPPED)),
        ("memtopo explain MT3", [code for code in CODES if code.startswith("MT3")]),
        ("memtopo explain MT301 MT90", [code for code in CODES if code.startswith("MT90")]),
        ("memtopo validate x --ignore MT50", [code for code in CODES if code.startswith("MT50")]),
        ("memtopo validate x --report sa", ["sarif="]),
        ("memtopo explain fact-2 fact-15", ["fact-15"]),
        ("memtopo schema dia", ["diagnostics"]),
        ("memtopo apply x --on ray:", ["ray://"]),
        (f"memtopo plan {SPEC} --set k", ["kv="]),
        (f"memtopo validate {ROOT}/specs/quickstart.yaml {SPEC} --set k", ["kv="]),
        (f"memtopo plan '{SPEC}' --set=k", ["--set=kv="]),
        ("memtopo completion ", ["bash", "zsh", "fish"]),
        ("memtopo plan specs/q", []),
        ("memtopo plan x --machine ./ours", []),
        ("memtopo frobnicate x", []),
        ("memtopo plan 'open", []),
        ("memtopo plan x --set ", []),
    ],
)
def test_words_that_may_stand_there_are_offered(line: str, words: list[str]) -> None:
    """None where a file is expected: a shell completes it."""
    assert offered(line) == words


def test_every_command_and_option_is_offered_with_its_help() -> None:
    group: Any = app.program()
    assert dict(completions("memtopo ")) == {
        name: each.help.partition("\n")[0].removesuffix(".") for name, each in group.commands.items()
    }
    for name, command in group.commands.items():
        longest = {option for each in command.params for option in each.opts if option.startswith("--")}
        found = dict(completions(f"memtopo {name} --"))
        assert longest - {"--help"} <= {*found}, name
        assert all(found.values()), name


def test_held_layouts_and_their_states_are_offered(
    runtime: Path, start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    assert offered("memtopo show ") == []
    start()
    for command in ("show", "check", "release", "switch", "change", "metrics"):
        assert offered(f"memtopo {command} ") == ["kv"], command
    assert offered("memtopo switch kv ") == []
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/nowhere")
    assert completions(f"memtopo show --socket {runtime}/memtopo/ ") == [("kv", "kv.yaml")]


def test_a_script_is_printed_for_each_shell(run_inline: InlineRunner) -> None:
    for shell in ("bash", "zsh", "fish"):
        result = run_inline("completion", shell)
        assert (result.status, result.err) == (0, "")
        assert f"completion {shell} " in result.out
    assert run_inline("completion", "tcsh").status == 2


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    """Environment of a shell in which `memtopo` is this program, which prints all other commands than `completion`."""
    program = tmp_path / "bin" / "memtopo"
    program.parent.mkdir()
    real = f'exec {shell_command()} "$@"'
    program.write_text(f'#!/bin/sh\ncase $1 in completion) {real};; *) echo "ran $*";; esac\n')
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    return environment() | {"PATH": path, "HOME": str(tmp_path), "TERM": "dumb", "PS1": "$ "}


def test_fish_completes_with_the_script(variables: dict[str, str]) -> None:
    script = (
        "memtopo completion fish | source; complete -C 'memtopo plan x --machine=h1'; complete -C 'memtopo plan READ'"
    )
    done = subprocess.run(
        [tool("fish"), "-c", script], env=variables, cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["--machine=h100x1", "README.md"]


BASH = ["bash", "--norc", "--noprofile", "-i"]
ZSH = ["zsh", "-f", "-i"]
ZSH_SETUP = "autoload -U compinit && compinit -D\n"


@pytest.mark.parametrize(
    ("command", "setup"), [pytest.param(BASH, "", id="bash"), pytest.param(ZSH, ZSH_SETUP, id="zsh")]
)
def test_a_shell_completes_what_is_typed(variables: dict[str, str], command: list[str], setup: str) -> None:
    """A command, a machine in both ways of writing it, the machine of a node, and a file."""
    typed = {
        "expl\tMT30\t5": "explain MT305",
        "plan x -m h1\t": "plan x -m h100x1",
        "plan x --machine=h1\t": "plan x --machine=h100x1",
        "plan x -m b=h1\t": "plan x -m b=h100x1",
        "plan REA\t": "plan README.md",
    }
    with Terminal([tool(command[0]), *command[1:]], variables) as terminal:
        terminal.write(f'{setup}eval "$(memtopo completion {command[0]})"\n')
        for line, completed in typed.items():
            terminal.write(f"memtopo {line}\n")
            assert terminal.read_until(f"ran {completed}\r?\n"), (line, terminal.text)


class Terminal:
    """A shell on a terminal of its own."""

    def __init__(self, command: list[str], variables: dict[str, str]) -> None:
        self.text = ""
        self._pid, self._fd = pty.fork()
        if not self._pid:
            os.chdir(ROOT)
            os.execve(command[0], command, variables)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        os.close(self._fd)
        os.waitpid(self._pid, 0)

    def write(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def read_until(self, pattern: str) -> bool:
        while not re.search(pattern, self.text):
            if not select.select([self._fd], [], [], 30)[0]:
                return False
            self.text += os.read(self._fd, 65536).decode(errors="replace")
        return True
