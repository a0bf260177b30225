"""`memtopo load`: tensors of files into an export of a held layout, for its readers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from memtopo.api.attachment import attach
from memtopo.api.imports import entry_names
from memtopo.cli.held import connect_to
from memtopo.cli.options import AllowUid, AsJson, HeldName, Socket, argument, option
from memtopo.cli.results import pages, show
from memtopo.common.errors import Exit, UsageError
from memtopo.common.text import first_of
from memtopo.diagnostics.messages import LISTED
from memtopo.output.progress import activity
from memtopo.sharing.offers import Offer, unknown_export
from memtopo.storage.tensors import Loaded

Files = Annotated[list[str], argument("FILE…", "Files of safetensors, in the order of their tensors in memory.")]
Into = Annotated[str | None, option("--into", "Export of chunks; may be omitted if there is only one.", "EXPORT")]


def load_command(
    name: HeldName,
    files: Files,
    into: Into = None,
    socket: Socket = None,
    allow_uid: AllowUid = None,
    as_json: AsJson = False,
) -> int:
    """Copy tensors of files to an export of a held layout.

    Its start has a table of them, by which readers find each one. An export that is declared 'commit: required' is
    written as by its writer, and committed. What the export had before is lost.
    """
    users: Any = allow_uid or ()
    with connect_to(name, socket, users) as client:
        export, path = _target(client.offers(), into), client.path
    terms: Any = {"access": "rw"} if export.commit is None else {"role": "writer"}
    with activity("load"), attach(path, [export.name], allow_uids=users, **terms) as shared:
        table = shared.load(files, into=entry_names(shared.exports)[export.name])
        if export.commit is not None:
            shared.commit()
    done = Loaded(name, export.name, len(table), sum(each.size for each in table.values()))
    show(done, lambda: pages("held").loaded(done), as_json=as_json, marker="load")
    return Exit.OK


def _target(offers: Mapping[str, Offer], into: str | None) -> Offer:
    """Return the export with chunks that is named, or the only one. Raises `UsageError`."""
    chunks = {name: each for name, each in offers.items() if each.kind == "chunk" and not each.lends}
    if into is None and len(chunks) == 1:
        return next(iter(chunks.values()))
    if not chunks:
        hint = "export the chunks of a range; programs load what they allocate in heaps and elastic ranges"
        raise UsageError("the layout has no export of chunks", hint=hint)
    if into is None:
        raise UsageError(
            f"the layout has {len(chunks)} exports of chunks",
            hint=f"name one with --into: {first_of([*chunks], LISTED)}",
        )
    if into not in chunks:
        message, hint = unknown_export(into, chunks)
        raise UsageError(message, hint=hint)
    return chunks[into]
