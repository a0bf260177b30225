"""Reasons that the simulator states for refused calls, from its source, with `…` for what is filled in."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent / "memtopo"
MAKERS = {"invalid", "unsupported", "documented", "RefusedCall", "DriverError", "Numbered"}


def reasons() -> set[str]:
    """Return the reasons of all refusals, without the facts that they cite."""
    files = [*(ROOT / "drivers" / "sim").glob("*.py"), *(ROOT / "testing").glob("*.py")]
    trees = [ast.parse(file.read_text()) for file in files]
    constants = {name: value for tree in trees for name, value in _constants(tree)}
    return {reason.partition(" (fact")[0] for tree in trees for reason in _reasons(tree, constants)}


def _constants(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value


def _reasons(tree: ast.Module, constants: dict[str, ast.expr]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in MAKERS:
            for argument in node.args:
                text = _text(constants.get(argument.id, argument) if isinstance(argument, ast.Name) else argument)
                if text and " " in text:
                    yield text


def _text(node: ast.expr) -> str | None:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(_text(each) or "…" for each in values)
    return None
