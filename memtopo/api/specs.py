"""Specs as a program has them, read and held against a machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memtopo import language, planner
from memtopo import spec as specs
from memtopo.api.errors import raise_faults
from memtopo.common.errors import InternalError
from memtopo.geometry import Geometry
from memtopo.language import Document
from memtopo.machine import target
from memtopo.machine.target import Target
from memtopo.planner import Plan
from memtopo.rules.validation import Validated, validate
from memtopo.spec import Spec


@dataclass(frozen=True, slots=True)
class Loaded:
    """A spec whose entries are each well formed: as data (`spec`), and as it was read (`document`)."""

    document: Document
    spec: Spec

    @property
    def name(self) -> str:
        """The layout's name."""
        return self.spec.name


SpecLike = str | os.PathLike[str] | Mapping[Any, Any] | Document | Loaded
"""A path of a file, a mapping of Python's with a spec's keys, or what `load` gave."""

MachineLike = str | os.PathLike[str] | Target
"""`local`, the name of a machine that comes with memtopo, the path of a recorded one, or what is known of it."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A spec without a fault on a machine."""

    document: Document
    target: Target
    geometry: Geometry
    plan: Plan
    warnings: tuple[str, ...]


def load(spec: SpecLike) -> Loaded:
    """Read a spec, and look at each of its entries by itself; no machine is needed.

    Raises `InvalidSpec` with every fault.
    """
    if isinstance(spec, Loaded):
        return spec
    document = _document(spec)
    raise_faults(document.diagnostics if not document.root else (), document)
    read, faults = specs.read(document.root, document.left_out)
    raise_faults((*document.diagnostics, *faults), document)
    return Loaded(document, read)


def plan(spec: SpecLike, machine: MachineLike = "local") -> Plan:
    """The steps that would build a spec on a machine. No driver is called, but for `local`, whose facts are read.

    Raises `InvalidSpec` with every fault, `Unavailable` where there is no such machine.
    """
    return judge(spec, targeted(machine)).plan


def targeted(machine: MachineLike) -> Target:
    """The target that is meant. Raises `Unavailable`."""
    return machine if isinstance(machine, Target) else target.resolve(os.fspath(machine))


def judge(spec: SpecLike, found: Target) -> Judged:
    """Hold a spec against a machine, and plan it. Raises `InvalidSpec` with every fault."""
    document = spec.document if isinstance(spec, Loaded) else _document(spec)
    validated = validate(document, found.machine)
    raise_faults(validated.diagnostics, document)
    if validated.geometry is None:
        raise InternalError(f"{document.name} has no fault, and no geometry")
    steps = planner.plan(validated.geometry, found.machine)
    return Judged(document, found, validated.geometry, steps, _warnings(validated))


def _document(spec: str | os.PathLike[str] | Mapping[Any, Any] | Document) -> Document:
    match spec:
        case Document():
            return spec
        case Mapping():
            return Document.from_object(spec)
        case str() | os.PathLike():
            return language.read_file(Path(spec), name=os.fspath(spec))
    raise TypeError(f"a spec is a path, a mapping, or what memtopo.load gives, and not a {type(spec).__name__}")


def _warnings(validated: Validated) -> tuple[str, ...]:
    if not validated.diagnostics:
        return ()
    from memtopo.output.diagnostics import concise  # noqa: PLC0415 nobody needs it where nothing is wrong

    return tuple(concise(validated.diagnostics, validated.document))
