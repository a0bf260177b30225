"""Rules of exports: the transports of a machine, and commits."""

from __future__ import annotations

from collections.abc import Iterator

from memtopo.diagnostics.model import Diagnostic, Label
from memtopo.geometry.model import Geometry
from memtopo.kinds.exports.entry import EXPORTABLE
from memtopo.kinds.exports.groups import ExportGroup
from memtopo.machine import Machine

_COMMITTABLE = next(noun for noun, kind in EXPORTABLE.items() if not kind.commit_note)


def transports(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT404 for exports via a transport whose trial between two processes failed."""
    for export in geometry.of(ExportGroup).values():
        what = export.exporter.trials.get(export.via)
        if what is None:
            continue
        via = {"ipc": "legacy IPC", "dmabuf": "dma-buf"}.get(export.via, export.via)
        objects = f"{via} of {export.exporter.plural}"
        for location in sorted(set(export.locations)):
            if (trial := machine.trial(location, what)).refused:
                message = f"export {export.name!r}: {objects} does not work on {geometry.place(location)}"
                note = "the device does not advertise it"
                if trial.works is False:
                    note = trial.failure(
                        "a trial" if export.dma_buf else "a trial with two processes", "read wrong bytes"
                    )
                help = "'memtopo probe' reports the likely cause"
                yield Diagnostic("MT404", message, export.path, notes=(note,), help=help)
                break


def committed_kinds(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT607 for committed exports of objects that a writer cannot fill, or whose memory cannot be replaced."""
    for export in _committed(geometry):
        if export.exporter.commit_note:
            what = "a dma-buf" if export.dma_buf else export.exporter.article
            message = f"export {export.name!r}: {what} cannot be committed"
            help = f"remove 'commit', or export {EXPORTABLE[_COMMITTABLE].article}"
            help += f" via {EXPORTABLE[_COMMITTABLE].transports[0]}" * bool(export.dma_buf)
            notes = (export.exporter.commit_note,)
            yield Diagnostic("MT607", message, (*export.path, "commit"), notes=notes, help=help)


def committed_alone(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT607 for committed exports of objects that another export offers without a commit of this one."""
    exports = geometry.of(ExportGroup).values()
    for export in _committed(geometry):
        own = frozenset(export.resources)
        for other in exports:
            if other is not export and not own.isdisjoint(other.resources):
                message = f"export {export.name!r} is committed, and export {other.name!r} offers the same objects"
                label = Label("exported again here", other.path, "key")
                help = "export each object once"
                yield Diagnostic("MT607", message, (*export.path, "commit"), labels=(label,), help=help)
                break


def committed_processes(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT607 for committed exports of a process among several, which may import them while they are written."""
    for process in geometry.processes.values():
        for export in _committed(process):
            message = f"export {export.name!r} is committed, and its layout has several processes"
            note = "processes of a spec import from one another while the layout is built, before anything is committed"
            help = "hold a layout of one process, and import from it"
            yield Diagnostic("MT607", message, (*export.path, "commit"), notes=(note,), help=help)


def without_importers(geometry: Geometry, machine: Machine) -> Iterator[Diagnostic]:
    """Yield MT601 for exports of a spec of one process that only processes of the same spec could import."""
    for export in geometry.of(ExportGroup).values():
        kind = EXPORTABLE.get(export.kind)
        if kind and not kind.outside:
            message = f"export {export.name!r}: {kind.article} is for processes of the same spec"
            help = "declare the processes that import it under 'processes', or leave the export out"
            yield Diagnostic("MT601", message, export.path, help=help)


def _committed(geometry: Geometry) -> Iterator[ExportGroup]:
    return (export for export in geometry.of(ExportGroup).values() if export.commit)
