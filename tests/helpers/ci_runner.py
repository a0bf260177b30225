"""GitHub's runner as the reader of a step's output: lines that are commands, and their contents.

After actions/runner, src/Runner.Common/ActionCommand.cs and src/Runner.Worker/ActionCommandManager.cs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

COMMANDS = {"error", "warning", "notice", "debug", "group", "endgroup", "add-mask", "add-matcher", "echo", "set-output"}
_STOP = "stop-commands"
_DATA = (("%0D", "\r"), ("%0A", "\n"))
_PROPERTY = (*_DATA, ("%3A", ":"), ("%2C", ","))


@dataclass(frozen=True)
class Command:
    """A command as the runner understands it."""

    name: str
    properties: dict[str, str]
    data: str


def commands(output: str) -> list[Command]:
    """Every command that the runner would carry out."""
    found: list[Command] = []
    stopped: str | None = None
    for line in output.splitlines():
        known = {*COMMANDS, _STOP} | ({stopped} if stopped else set())
        command = _modern(line, known) or _old(line, known)
        if command is None or (stopped and command.name != stopped):
            continue
        if command.name == _STOP:
            stopped = command.data
        elif command.name == stopped:
            stopped = None
        else:
            found.append(command)
    return found


def azure_commands(output: str) -> list[str]:
    """Every line that the agent of Azure Pipelines executes or formats: `##vso[…]` or `##[…]` anywhere in it."""
    return [line for line in output.splitlines() if re.search(r"##(vso)?\[", line)]


def _modern(line: str, known: set[str]) -> Command | None:
    """`::name property=value,property=value::data`, after any white space."""
    line = line.strip()
    if not line.startswith("::") or "::" not in line[2:]:
        return None
    head, _, data = line[2:].partition("::")
    name, _, rest = head.partition(" ")
    return Command(name, _properties(rest.split(","), _PROPERTY), _unescaped(data, _DATA)) if name in known else None


def _old(line: str, known: set[str]) -> Command | None:
    """`##[name property=value;property=value]data`, wherever it stands in the line."""
    _, found, rest = line.partition("##[")
    if not found or "]" not in rest:
        return None
    head, _, data = rest.partition("]")
    name, _, properties = head.partition(" ")
    return Command(name, _properties(properties.split(";"), ()), data) if name in known else None


def _properties(parts: Iterable[str], escapes: tuple[tuple[str, str], ...]) -> dict[str, str]:
    pairs = (part.strip().split("=", 1) for part in parts)
    return {pair[0]: _unescaped(pair[1], escapes) for pair in pairs if len(pair) == 2}


def _unescaped(text: str, escapes: tuple[tuple[str, str], ...]) -> str:
    for escape, char in (*escapes, ("%25", "%")):
        text = text.replace(escape, char)
    return text


def marked(command: Command) -> bool:
    """Return true if the runner uses the lines and columns of a mark unchanged."""
    numbers = {
        key: int(command.properties[key])
        for key in ("line", "endLine", "col", "endColumn")
        if key in command.properties
    }
    if not numbers:
        return True
    if "line" not in numbers or numbers.get("endLine", numbers["line"]) < numbers["line"]:
        return False
    if "col" not in numbers:
        return "endColumn" not in numbers
    return numbers["line"] == numbers.get("endLine", numbers["line"]) and numbers["col"] <= numbers["endColumn"]
