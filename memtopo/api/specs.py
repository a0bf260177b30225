"""Loading and planning of specs that a program provides."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from memtopo import language
from memtopo import spec as specs
from memtopo.api.errors import raise_errors, valid
from memtopo.common.arguments import checked, refused
from memtopo.common.errors import Unavailable
from memtopo.drivers import target
from memtopo.drivers.target import Target
from memtopo.language import Document
from memtopo.language.document import scalar_text
from memtopo.planner import Plan
from memtopo.session.composition import Composition
from memtopo.session.machines import with_needed_trials
from memtopo.session.saved import spec_digest
from memtopo.spec import Spec


class Loaded(Struct, frozen=True):
    """Spec whose entries are each well formed: as data (`spec`), and as it was read (`document`)."""

    document: Document
    spec: Spec

    @property
    def name(self) -> str:
        """The layout's name."""
        return self.spec.name

    @property
    def params(self) -> Mapping[str, str]:
        """Parameters of the spec with the values that are in effect, as text."""
        return self.document.values

    @property
    def digest(self) -> str:
        """Digest of the spec, `sha256:…`, for `memtopo.attach(expect=…)`; comments do not matter."""
        return spec_digest(self.document)


SpecLike = str | os.PathLike[str] | Mapping[Any, Any] | Document | Loaded
"""Path of a file, Python mapping with the keys of a spec, document, or result of `load`."""

Params = Mapping[str, str | int | bool]
"""Values of a spec's parameters by name."""

MachineLike = str | os.PathLike[str] | Target
"""`local`, the name of a shipped machine, the path of a recorded machine, or a target."""

MachinesLike = MachineLike | Mapping[str, MachineLike]
"""One machine, or a mapping from the nodes of a spec to theirs."""


@checked()
def load(spec: SpecLike, *, params: Params | None = None) -> Loaded:
    """Read a spec and check each of its entries; no machine is needed.

    `params` are values of the spec's parameters, in place of the declared ones. Raises `InvalidSpec` with all
    diagnostics.
    """
    if isinstance(spec, Loaded) and not params:
        return spec
    document = _document(spec, params)
    raise_errors(document.diagnostics if not document.root else (), document)
    read, found = specs.read(document.root, document.left_out)
    raise_errors(document.noted((*document.diagnostics, *found)), document)
    return Loaded(document, read)


@checked()
def plan(spec: SpecLike, machine: MachinesLike = "local", *, params: Params | None = None) -> Plan:
    """Return the steps that build a spec on a machine.

    The driver is called only for `local`, to query the machine; what alternatives of the spec need is tried there, in
    child processes.

    `params` are values of the spec's parameters. Raises `InvalidSpec` with all diagnostics, and `Unavailable` if there
    is no such machine.
    """
    return plan_new(spec, machine, params).plan


def resolved(machine: MachinesLike) -> Target:
    """Return the target of a machine argument. Raises `Unavailable`, without causes, and `UsageError`."""
    if isinstance(machine, Mapping) and machine:
        return target.of_nodes({node: resolved(each) for node, each in machine.items()})
    if isinstance(machine, Target):
        return machine
    if not isinstance(machine, str | os.PathLike):
        hint = "write 'local', a name such as 'h200x2', or a path; for a spec of several nodes {'NODE': 'NAME'}"
        raise refused("machine", machine, "a machine", hint)
    try:
        return target.resolve(os.fspath(machine))
    except Unavailable as error:
        raise error from None


def plan_new(spec: SpecLike, machine: MachinesLike, params: Params | None = None) -> Composition:
    """Validate and plan a spec that nothing is built of yet, after the trials that its alternatives need."""
    document = _document(spec, params)
    return plan_spec(document, with_needed_trials(resolved(machine), document))


def plan_spec(spec: SpecLike, found: Target, params: Params | None = None) -> Composition:
    """Validate a spec against a machine. Raises `InvalidSpec` with all diagnostics."""
    return valid(Composition.of(_document(spec, params), found))


def _document(spec: SpecLike, params: Params | None) -> Document:
    document = _read(spec)
    if not params:
        return document
    settings = dict(document.settings)
    for name, value in params.items():
        text = scalar_text(value)
        if text is None:
            raise refused(f"params[{name!r}]", value, "text or a whole number", "write it as text")
        settings[name] = text
    return document.with_settings(settings)


def _read(spec: SpecLike) -> Document:
    match spec:
        case Loaded():
            return spec.document
        case Document():
            return spec
        case Mapping():
            return Document.from_object(spec)
        case str() if "\n" in spec or spec.lstrip().startswith("{"):
            raise refused("spec", spec, "a path", "write the path of a file, or pass yaml.safe_load(…) of a text")
        case str() | os.PathLike():
            return language.read_file(Path(spec), name=os.fspath(spec))
    raise refused(
        "spec", spec, "a spec", "write a path, a mapping with the keys of a spec, or a result of memtopo.load"
    )
