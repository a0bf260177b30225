"""Entries of a spec as typed data: the base of every entry, the spec that holds them, the nodes of its processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

from msgspec import Struct
from pydantic import BaseModel, ConfigDict

from memtopo.common.units import by_key
from memtopo.diagnostics.model import Path
from memtopo.language.document import Document
from memtopo.language.names import NamedDevice

_WHOLE = ("", "<<")
"""Names that stand for a whole section in `left_out`: the section itself, and a merge key in it."""

_NONE: Mapping[str, Any] = MappingProxyType({})


class Entry(BaseModel):
    """Base of every entry: frozen, without extra keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Spec(Struct, frozen=True, dict=True):
    """A spec, or one process of it. Each entry is well formed by itself; names are not resolved.

    `sections` has the entries of each section by name. A spec with
    `processes` has nothing in its own sections. `path` is the position of the sections in the document.
    """

    name: str
    sections: Mapping[str, Mapping[str, Any]] = {}
    left_out: frozenset[tuple[str, str]] = frozenset()
    """(section, name) of each entry with an error: what depends on it is not judged."""
    path: Path = ()
    instances: int | None = None
    """Number of processes of a counted process; None where it is not counted."""
    visible: tuple[NamedDevice, ...] = ()
    """Names of the only GPUs that this process sees, in order; empty for all that the launching process sees."""
    processes: Mapping[str, Spec] = {}
    nodes: tuple[str, ...] = ()
    """Nodes of a process, in order; instances of a counted process are divided among them in equal blocks."""
    held: bool = False
    """True if the process is held, and others join it one by one."""
    node_key: str = "node"
    """Key with which the spec names the nodes of a process: `node` or `nodes`."""

    def section(self, name: str) -> Mapping[str, Any]:
        """Entries of a section by name; empty where the spec has none."""
        return self.sections.get(name, _NONE)

    def names(self, section: str) -> Iterator[str]:
        """Yield the names in a section: of its entries, and of those with an error."""
        yield from self.section(section)
        yield from self._with_errors.get(section, ())

    @cached_property
    def _with_errors(self) -> Mapping[str, Sequence[str]]:
        """Names of the entries that have an error, by section."""
        return by_key(each for each in sorted(self.left_out) if each[1] not in _WHOLE)

    def may_have(self, section: str, name: str) -> bool:
        """Return true if an entry was written, or may have been: it, or its whole section, was left out."""
        return name in self.section(section) or any((section, each) in self.left_out for each in (name, *_WHOLE))

    @property
    def labels(self) -> list[str]:
        """Labels of all processes: `server`, and `reader.0`, `reader.1` and so on of a counted one."""
        return [
            f"{name}.{index}" if process.instances else name
            for name, process in self.processes.items()
            for index in range(process.instances or 1)
        ]

    @cached_property
    def held_processes(self) -> frozenset[str]:
        """Names of the processes that are held where others join them one by one; none if all are built together."""
        return frozenset(name for name, process in self.processes.items() if process.held)

    @property
    def countless(self) -> bool:
        """True if the number of processes is unknown, since `count` had an error."""
        return ("count", "") in self.left_out or ("<<", "") in self.left_out

    def at(self, *keys: str | int) -> Path:
        """Path in the document of something in this spec's sections."""
        return (*self.path, *keys)


class NodeRank(NamedTuple):
    """Node of one instance of a process, and its number among the instances there, as LOCAL_RANK of torchrun."""

    node: str | None
    local: int


def rank(process: Spec, index: int) -> NodeRank:
    """Rank of an instance: the nodes of a process have equal blocks of instances, in order."""
    if not process.nodes:
        return NodeRank(None, index)
    block = max(1, (process.instances or 1) // len(process.nodes))
    return NodeRank(process.nodes[min(index // block, len(process.nodes) - 1)], index % block)


def nodes_of(spec: Spec) -> tuple[str, ...]:
    """Nodes of all processes of a spec, in the order in which it names them first."""
    return tuple(dict.fromkeys(chain.from_iterable(process.nodes for process in spec.processes.values())))


def names_nodes(document: Document) -> tuple[str, ...]:
    """Nodes that the processes of a document name, correctly or not."""
    processes = document.root.get("processes")
    found: dict[str, None] = {}
    for process in processes.values() if isinstance(processes, dict) else ():
        if isinstance(process, dict):
            for value in (process.get(key, []) for key in ("node", "nodes")):
                found |= dict.fromkeys(map(str, value if isinstance(value, list) else [value]))
    return tuple(found)
