"""Mutants of a module: its source with one small change each, made by the operators of mutmut.

mutmut itself leaves out decorated functions, which here are most properties, class methods and context managers, and
selects tests by their coverage, which processes started by a test do not report. Its operators have neither limit.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators

_TRIVIAL = ("cast", "isinstance", "len")
"""Functions whose arguments are not mutated: every such mutant fails at once, or none can."""


@dataclass(frozen=True)
class Mutant:
    """One change of one file: a node of its syntax tree, and the node that replaces it."""

    file: str
    line: int
    module: cst.Module
    old: cst.CSTNode
    new: cst.CSTNode

    @cached_property
    def source(self) -> str:
        """Source with the change; empty if it does not compile."""
        changed = self.module.deep_replace(self.old, self.new)
        code = changed.code if isinstance(changed, cst.Module) else ""
        try:
            compile(code, self.file, "exec")
        except SyntaxError:
            return ""
        return code

    @cached_property
    def key(self) -> tuple[str, str, str]:
        """File, lines before and lines after, without indentation: an identity that no other line changes."""
        lines = list(difflib.unified_diff(self.module.code.splitlines(), self.source.splitlines(), n=0))[2:]
        before, after = ([line[1:].strip() for line in lines if line[0] == sign] for sign in "-+")
        return self.file, "\n".join(before), "\n".join(after)

    def __str__(self) -> str:
        _, before, after = self.key
        changes = [f"    - {line}" for line in before.splitlines()] + [f"    + {line}" for line in after.splitlines()]
        return "\n".join((f"{self.file}:{self.line}", *changes))


def mutants(root: Path, file: str) -> list[Mutant]:
    """Return the mutants of a file, in the order of its lines."""
    wrapper = MetadataWrapper(cst.parse_module((root / file).read_text()))
    visitor = _Visitor()
    wrapper.visit(visitor)
    return [Mutant(file, line, wrapper.module, old, new) for line, old, new in visitor.found]


class _Visitor(cst.CSTVisitor):  # type: ignore[misc] # libcst is not installed where types are checked
    """Collects lines with pairs of nodes: the original, and one that an operator makes of it."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[int, cst.CSTNode, cst.CSTNode]] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        if _is_skipped(node):
            return False
        position = self.get_metadata(PositionProvider, node, None)
        if position is not None:
            self.found += ((position.start.line, node, new) for new in _replacements(node))
        return True


def _replacements(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    for kind, operator in mutation_operators:
        if isinstance(node, kind):
            results = [new for new in operator(node) if not _is_alike(node, new)]
            yield from results[:1] if isinstance(node, cst.BaseString) else results  # the others change its case
    if isinstance(node, cst.Expr) and isinstance(node.value, cst.Call | cst.Yield):
        yield cst.Expr(cst.Ellipsis())


def _is_alike(old: cst.CSTNode, new: cst.CSTNode) -> bool:
    """Return true if one false value replaces another: False by None, or None by an empty text."""
    match old, new:
        case cst.Call(args=[*before]), cst.Call(args=[*after]) if len(before) == len(after):
            return any(_is_alike(one, other) for one, other in zip(before, after, strict=True) if one is not other)
        case (
            (cst.Assign(value=before), cst.Assign(value=after))
            | (cst.AnnAssign(value=before), cst.AnnAssign(value=after))
            | (cst.Arg(value=before), cst.Arg(value=after))
            | (cst.Lambda(body=before), cst.Lambda(body=after))
        ):
            return isinstance(before, cst.Name) and before.value in {"False", "None"} and before is not after
    return False


def _is_skipped(node: cst.CSTNode) -> bool:
    """Return true for annotations, decorators, imports, texts for people, aliases of types and trivial calls."""
    match node:
        case cst.Annotation() | cst.Decorator() | cst.Import() | cst.ImportFrom():
            return True
        case cst.SimpleString() | cst.FormattedString() | cst.ConcatenatedString():
            return " " in cst.Module([]).code_for_node(node)
        case cst.Call(func=cst.Name(value=name)):
            return name in _TRIVIAL
        case cst.Assign(value=cst.Call(func=cst.Name(value="TypeVar"))):
            return True
        case cst.Assign(targets=[cst.AssignTarget(target=cst.Name(value=name))], value=value):
            return name == "__all__" or (
                name[:1].isupper() and not name.isupper() and isinstance(value, cst.Subscript | cst.BinaryOperation)
            )
    return False
