"""`memtopo completion`: scripts by which bash, zsh and fish complete command lines, and the completions themselves."""

from __future__ import annotations

import re
from importlib import resources
from typing import Annotated, Any, Literal

import typer

from memtopo.output import plain

Shell = Annotated[Literal["bash", "zsh", "fish"], typer.Argument(metavar="SHELL", help="bash, zsh or fish.")]
Line = Annotated[str | None, typer.Argument(hidden=True, help="The command line up to the cursor.")]

_ASSIGNED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_OPTION = re.compile("--[a-z-]+=")
_LONGEST = 80


def completion_command(shell: Shell, line: Line = None) -> int:
    """Print the script that completes command lines in a shell.

    In bash: eval "$(memtopo completion bash)".
    """
    if line is None:
        plain.print_document(resources.files(__package__).joinpath(f"completion.{shell}").read_text().splitlines())
    else:
        plain.print_document(_line(shell, line, *each) for each in completions(line))
    return 0


def completions(line: str) -> list[tuple[str, str]]:
    """Return the words that may stand in place of the last word of a command line, each with a description.

    None for a word that is not known, and where something fails: a shell then completes the names of files.
    """
    from memtopo.cli import app

    *words, last = _words(line)
    try:
        group: Any = typer.main.get_command(app.program(words[0] if words else None))
        found = {each.value: each.help or "" for each in _completer(group, words).get_completions(words, last)}
    except Exception:  # noqa: BLE001 an error must not be printed into a line that is being written
        return []
    if not words:
        found |= {name: group.commands[name].help.partition("\n")[0] for name in found if name in group.commands}
    option = match[0] if (match := _OPTION.match(last)) else ""
    return [(option + value, _shortened(text)) for value, text in found.items()]


def _completer(group: Any, words: list[str]) -> Any:
    """Return what finds completions in the option parser; functions in `candidates` find all words in `ctx.obj`."""
    from typer._completion_classes import BashComplete

    return BashComplete(group, {"obj": words}, "memtopo", "_MEMTOPO_COMPLETE")


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


def _shortened(text: str) -> str:
    line = " ".join(text.split()).removesuffix(".")
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def _line(shell: str, line: str, value: str, text: str) -> str:
    """Return a completion as the script of a shell reads it. bash replaces only what follows the last = or :."""
    if shell == "bash":
        before = re.match(r".*[=:]", _words(line)[-1])
        return value[before.end() :] if before else value
    return f"{value}\t{text}"
