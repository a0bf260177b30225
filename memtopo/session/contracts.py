"""Contracts between specs that are validated together: what one imports by the name of another, as that exports it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from memtopo import spec
from memtopo.common.text import qualified
from memtopo.diagnostics.messages import LISTED, choose
from memtopo.diagnostics.model import Diagnostic, has_errors
from memtopo.geometry import Geometry
from memtopo.geometry.groups import Group, from_outside
from memtopo.kinds import lay_out
from memtopo.kinds.exportable import ExportGroup
from memtopo.language import Document
from memtopo.machine import Machines
from memtopo.rules.files import Variant
from memtopo.sharing.offers import Offer, offer_of
from memtopo.sharing.terms import correction, described, differences


class _Exporter(Struct, frozen=True):
    """Exports of a spec by name, each with its place; they are not `complete` if the spec has errors."""

    file: str
    exports: Mapping[str, tuple[Offer, str]]
    complete: bool


class SpecSet:
    """Specs that are validated together. Each that others import from is laid out once for each machine and variant."""

    def __init__(self, documents: Iterable[Document]) -> None:
        self._named: dict[str, list[Document]] = {}
        for each in documents:
            if isinstance(name := each.root.get("name"), str):
                self._named.setdefault(name, []).append(each)
        self._known: dict[tuple[str, str], _Exporter] = {}

    def diagnose(
        self, document: Document, machines: Machines, variant: Variant, on: str, geometry: Geometry
    ) -> Iterator[Diagnostic]:
        """Yield MT604 for imports that differ from the exports of other specs, and MT201 for unknown exports.

        `on` is the name of the machines with the variant. Of several specs with the name of a holder, one has to fit.
        """
        for node, part in geometry.by_node:
            gpus = [f"gpu{number}" for number in range(len(machines.of(node).devices))]
            for member in {id(each): each for each in part.members.values()}.values():
                for group, holder, export in _imports(member):
                    others = (each for each in self._named.get(holder, ()) if each.name != document.name)
                    exporters = (self._exporter(each, machines, on, variant) for each in others)
                    found = [_mismatches(group, export, exporter, gpus) for exporter in exporters]
                    if all(found):
                        yield from next(iter(found), ())

    def _exporter(self, document: Document, machines: Machines, on: str, variant: Variant) -> _Exporter:
        key = (document.name, on)
        if key not in self._known:
            self._known[key] = _laid_out(variant.applied(document), machines)
        return self._known[key]


def _laid_out(document: Document, machines: Machines) -> _Exporter:
    """Exports of a spec on some machines, without rules about the whole layout."""
    entries, invalid = spec.read(document.root, document.left_out)
    geometry, misplaced = lay_out(entries, machines)
    exports = {
        qualified(label, name): (offer_of(member, name, lambda gpu: f"gpu{gpu}"), document.position(group.path) or "")
        for label, member in geometry.held_part.members.items()
        for name, group in member.of(ExportGroup).items()
        if group.group.offered_as
    }
    return _Exporter(document.name, exports, not has_errors((*document.diagnostics, *invalid, *misplaced)))


def _imports(geometry: Geometry) -> Iterator[tuple[Group, str, str]]:
    """Imports of a process from held layouts of other specs, each with the layout and the name of the export there."""
    for group in geometry.every:
        if group.origin and from_outside(group) and not group.origin.layout:
            yield from ((group, *source) for source in dict.fromkeys(group.origin.sources))


def _mismatches(group: Group, export: str, exporter: _Exporter, gpus: Sequence[str]) -> list[Diagnostic]:
    """Return the differences of an import from what a spec exports; none if the exports of that have errors."""
    assert group.origin
    holder, path = group.origin.holders[0], group.path
    if export not in exporter.exports:
        if not exporter.complete:
            return []
        message = f"{described(group)}: {exporter.file} has no export {export!r}"
        help = choose(export, [*exporter.exports][:LISTED]) if exporter.exports else "declare it under 'exports' there"
        return [Diagnostic("MT201", message, (*path, "from"), help=help)]
    offer, place = exporter.exports[export]
    return [
        Diagnostic(
            "MT604",
            f"{described(group)} declares {each.what} {each.declared}, but {holder}/{export} has {each.offered}",
            (*path, each.key),
            notes=(f"exported at {place}",),
            help=correction([each]),
        )
        for each in differences(group, export, offer, gpus)
    ]
