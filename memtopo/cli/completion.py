"""`memtopo completion`: the scripts of shells, and the words that these ask for at each press of a key."""

from __future__ import annotations

import re
from importlib import resources
from typing import Annotated, Literal

import typer

from memtopo.common.units import shorten
from memtopo.output import plain

_ASSIGNED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_OPTION = re.compile("--[a-z-]+=")
_LONGEST = 80

Shell = Annotated[Literal["bash", "zsh", "fish"], typer.Argument(metavar="SHELL", help="bash, zsh or fish.")]
CommandLine = Annotated[str | None, typer.Argument(hidden=True, help="The command line up to the cursor.")]


def completion_command(shell: Shell, line: CommandLine = None) -> int:
    """Print the script that completes command lines in a shell.

    In bash: eval "$(memtopo completion bash)".
    """
    if line is None:
        plain.print_document(resources.files(__package__).joinpath(f"completion.{shell}").read_text().splitlines())
    else:
        # bash replaces only what follows the last = or : of a word.
        before = re.match(r".*[=:]", _words(line)[-1])
        start = before.end() if before else 0
        plain.print_document(
            value[start:] if shell == "bash" else f"{value}\t{text}" for value, text in completions(line)
        )
    return 0


def completions(line: str) -> list[tuple[str, str]]:
    """Return the words that may stand in place of the last word of a command line, each with a description.

    None for a word that is not known, and where something fails: a shell then completes the names of files.
    """
    from typer._completion_classes import BashComplete

    from memtopo.cli import app

    *words, last = _words(line)
    try:
        if not words and not last.startswith("-"):
            found = {name: summary for name, (_, summary) in app.COMMANDS.items() if name.startswith(last)}
        else:
            # Functions for completions find all words in `ctx.obj`.
            completer = BashComplete(app.program(), {"obj": words}, "memtopo", "_MEMTOPO_COMPLETE")
            found = {each.value: each.help or "" for each in completer.get_completions(words, last)}
    except Exception:  # noqa: BLE001 an error must not be printed into a line that is being written
        return []
    option = match[0] if (match := _OPTION.match(last)) else ""
    lines = {value: " ".join(text.split()).removesuffix(".") for value, text in found.items()}
    return [(option + value, shorten(line, _LONGEST)) for value, line in lines.items()]


def _words(line: str) -> list[str]:
    """Words after the name of the program; the last one is the one to complete, and may be empty."""
    from shlex import shlex

    reader = shlex(line, posix=True, punctuation_chars=False)
    reader.whitespace_split, reader.commenters = True, ""
    words: list[str] = []
    try:
        words.extend(reader)
    except ValueError:  # an open quote, or a \ at the end
        words.append(reader.token)
    if line[-1:].isspace() and not line.endswith("\\ "):
        words.append("")
    while words and _ASSIGNED.match(words[0]):
        del words[0]
    return words[1:] or [""]
