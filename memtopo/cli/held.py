"""Commands on held layouts: `memtopo ls`, `show`, `check`, `switch`, `load`, `save`, `release`, `metrics` and `who`."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from msgspec.structs import replace

from memtopo.cli import options
from memtopo.cli.options import AllowUid, AsJson, LayoutName, LayoutOrRecord, Socket, argument, option
from memtopo.cli.process import Interrupted
from memtopo.cli.results import pages, show
from memtopo.common.errors import Exit, MemtopoError, NoLayout, UsageError, on_failure
from memtopo.common.text import first_of
from memtopo.diagnostics.messages import LISTED
from memtopo.driver.trace_files import is_record
from memtopo.output import plain
from memtopo.output.progress import activity, progress
from memtopo.sharing.client import Client, connect
from memtopo.sharing.endpoints import endpoint, is_folder, is_held
from memtopo.sharing.held import TIMEOUT, Entry, answers, held_source, layout_end, survey
from memtopo.sharing.status import Looked, Statistics, Status

if TYPE_CHECKING:
    from memtopo.sharing.offers import Offer


def _states(ctx: typer.Context) -> options.Values:
    """States of the held layout that the command names."""
    with connect(endpoint(ctx.params["name"], ctx.params.get("socket")), timeout=TIMEOUT) as client:
        return options.described(client.status().layout_states)


_CHECK = (
    "Extent of the check afterwards: fast: queries; full: also all kept bytes, which must not be written meanwhile."
)
Files = Annotated[list[str], argument("FILE…", "Files of safetensors, in the order of their tensors in memory.")]
Into = Annotated[str | None, option("--into", "Export of chunks; may be omitted if there is only one.", "EXPORT")]
Folder = Annotated[str, argument("FOLDER", "Folder of an earlier save of the layout, an empty one, or one to be made.")]


def ls_command(socket: Socket = None, allow_uid: AllowUid = None, as_json: AsJson = False) -> int:
    """List the layouts that are held.

    Sockets of dead holders are removed. Where nothing is held, nothing is written to stdout.
    """
    found = survey(socket, allow_uids=allow_uid or ())
    if not found.layouts and not as_json:
        plain.print_message("no layout is held")
    else:
        show(found, lambda: pages("held").layout_list(found, time.time()), as_json=as_json, marker="layouts")
    return 0


def show_command(
    name: LayoutOrRecord = None,
    socket: Socket = None,
    allow_uid: AllowUid = None,
    at: options.At = None,
    every: options.Every = False,
    as_json: AsJson = False,
) -> int:
    """Show a held layout, or the memory in a record.

    A record is a file or folder of 'memtopo capture' or 'memtopo apply --trace'.
    """
    if name is not None and is_record(name):
        from memtopo.records import moment_of, summary

        found = summary(name, moment_of(name, at))
        show(found, lambda: pages("calls").show_page(found), as_json=as_json, marker="record")
        return Exit.OK
    if name is not None and os.path.isfile(name):  # noqa: PTH113 a path as it was written
        from memtopo.plans.trace import no_record

        raise no_record(name)
    with connect_to(name, socket, allow_uid) as client:
        status = complete_status(client)
    show(status, lambda: pages("held").layout(status, time.time(), every=every), as_json=as_json, marker="layout")
    return 0


def check_command(
    name: LayoutName = None, socket: Socket = None, allow_uid: AllowUid = None, as_json: AsJson = False
) -> int:
    """Check a held layout, by queries only.

    Nothing is written to its memory. The exit status is 1 if something is not as declared.
    """
    with connect_to(name, socket, allow_uid) as client:
        status = client.status()
        with followed(client, "check"):
            checks = client.check()
    found = Looked(status.name, checks.different == 0, checks)
    show(found, lambda: pages("held").checked(found), as_json=as_json, marker="check")
    return Exit.OK if found.ok else Exit.INVALID


def switch_command(
    name: options.HeldName,
    state: Annotated[str, argument("STATE", "One of its states, or awake.", autocompletion=_states)],
    socket: Socket = None,
    check: Annotated[Literal["fast", "full"], option("--check", _CHECK, variable="MEMTOPO_SWITCH_CHECK")] = "fast",
    force: options.ForceChange = False,
    wait: options.WaitForImporters = "5s",
    allow_uid: AllowUid = None,
    as_json: AsJson = False,
) -> int:
    """Bring a held layout to one of its states.

    Memory goes or comes back, and addresses stay. Others that imported memory that goes have --wait to let go of it;
    if one still has handles then, the switch is refused. If a call fails, the layout stays as it was. The exit status
    is 6 if the check afterwards finds a difference.
    """
    seconds = options.duration(wait)
    if socket is None and is_held(state) and not is_held(name):
        raise UsageError(f"{state!r} is a held layout", hint=f"memtopo switch {state} {name}")
    with connect_to(name, socket, allow_uid) as client, followed(client, "switch"):
        done = client.switch(state, full=check == "full", force=force, wait=seconds)
    show(done, lambda: pages("held").switched(done), as_json=as_json, marker="switch")
    return Exit.DIFFERENT if done.checks.different else Exit.OK


def load_command(
    name: options.HeldName,
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
    from memtopo.api.attachment import attach  # other commands need no layouts of this process
    from memtopo.api.imports import entry_names
    from memtopo.storage.tensors import Loaded

    with connect_to(name, socket, allow_uid) as client:
        export, path = _target(client.offers(), into), client.path
    terms: Any = {"access": "rw"} if export.commit is None else {"role": "writer"}
    with activity("load"), attach(path, [export.name], allow_uids=allow_uid or (), **terms) as shared:
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
        from memtopo.sharing.offers import unknown_export

        message, hint = unknown_export(into, chunks)
        raise UsageError(message, hint=hint)
    return chunks[into]


def save_command(name: options.HeldName, folder: Folder, socket: Socket = None, as_json: AsJson = False) -> int:
    """Save the bytes of a held layout to a folder.

    'memtopo apply SPEC --from FOLDER' restores them. Programs must not write meanwhile. Memory that has not changed
    since the save before is not written again. After an error or a crash the folder has the save before.
    """
    path = options.absolute_path(folder, "FOLDER")
    if socket is None and is_held(folder) and not is_held(name):
        raise UsageError(f"{folder!r} is a held layout", hint=f"memtopo save {folder} {name}")
    with connect_to(name, socket, None) as client, followed(client, "save"):
        done = client.save(path)
    show(done, lambda: pages("held").saved(done), as_json=as_json, marker="save")
    return Exit.OK


def release_command(
    name: LayoutName = None,
    socket: Socket = None,
    force: Annotated[bool, option("--force", "Release it even if it is in use over ipc.")] = False,
    grace: options.Grace = "5s",
    wait: Annotated[str, option("--wait", "Time limit for its teardown.", "TIME")] = "60s",
    allow_uid: AllowUid = None,
    as_json: AsJson = False,
) -> int:
    """Release a held layout, and wait until it is taken down.

    Refused while it is used over ipc; with --force its importers are notified, and have --grace to end. The exit status
    is that of its holder, or 4 if it has not finished within --wait.
    """
    limits = {"grace": options.duration(grace), "wait": options.duration(wait)}
    with connect_to(name, socket, allow_uid) as client, activity("release"):
        done = client.release(force=force, end=lambda: layout_end(client, allow_uid or ()), **limits)
    show(done, lambda: pages("held").released(done), as_json=as_json, marker="release")
    return done.exit_code or (Exit.OK if done.gone else Exit.FAILED)


def metrics_command(name: LayoutName = None, socket: Socket = None, allow_uid: AllowUid = None) -> int:
    """Print metrics of held layouts for Prometheus.

    Of one layout, or of all that are held. A holder that does not answer has only memtopo_layout_up, which is 0.
    """
    from memtopo.output import monitoring

    if name is not None or (socket is not None and not is_folder(socket)):
        with connect_to(name, socket, allow_uid) as client:
            answered: list[tuple[Status, Statistics | None] | Entry] = [_reported(client)]
    else:
        answered = list(answers(_reported, socket, allow_uids=allow_uid or ()))
    text = monitoring.metrics(
        [each for each in answered if not isinstance(each, Entry)],
        [each for each in answered if isinstance(each, Entry)],
        now=time.time(),
    )
    plain.print_lines(text.splitlines())
    return 0


def _reported(client: Client) -> tuple[Status, Statistics | None]:
    return client.status(), client.statistics()


def who_command(socket: Socket = None, allow_uid: AllowUid = None, as_json: AsJson = False) -> int:
    """List the processes of this machine that use GPU memory.

    As far as NVML, /proc and the holders of layouts show them: bytes by GPU, open device files and dma-bufs, held
    layouts, and importers whose holder has ended. What cannot be read is listed. Root sees the descriptors of all
    users.
    """
    from memtopo.drivers.cuda.nvml import gpu_usage
    from memtopo.usage import locked_layouts, usage

    found = usage(gpu_usage(), answers(Client.status, socket, allow_uids=allow_uid or ()), locked=locked_layouts())
    show(found, lambda: pages("held").usage_page(found, time.time()), as_json=as_json, marker="usage")
    return 0


def connect_to(name: str | None, socket: str | None, allow_uids: Collection[int] | None) -> Client:
    """Connect to the holder of a layout, by its name or by the path of its socket, which has a slash.

    If both are given, `socket` is a folder with the layout's socket, or the layout at the socket must have the name.

    Raises `UsageError` where nothing is named, `NoLayout`, `ExchangeError`.
    """
    if name is None and socket is None:
        raise UsageError("missing argument 'NAME'", hint="name a layout, or --socket PATH; 'memtopo ls' lists them")
    if socket is None and name is not None and "/" in name:
        name, socket = None, name
    client = connect(endpoint(name, socket), allow_uids=allow_uids or ())
    if name is not None and socket is not None:
        with on_failure(client.close):
            found = client.status().name
            if found != name:
                raise NoLayout(f"the layout at {socket!r} is {found!r}, not {name!r}", hint="omit one of the two")
    return client


@contextmanager
def followed(client: Client, phase: str) -> Iterator[None]:
    """Show the progress of a request that the holder works on inside. Raises `Interrupted` after Ctrl-C."""
    with progress(simulated=True) as shown, client.followed(shown):  # rates are not known to be measured
        shown.phase(phase, 0)
        try:
            yield
        except KeyboardInterrupt:
            raise Interrupted(hint=f"the holder may still finish the {phase}") from None


def complete_status(client: Client) -> Status:
    """Status of a held layout with its diagram in its state, its digest, and its bytes of memory by location.

    Without these if the holder sends no source, or one that is not valid. A holder sends the spec and the machine and
    never a drawing. They are read as if they came from a file, so that nothing in them is trusted.
    """
    from memtopo import planner  # check and release do not need these
    from memtopo.drivers.target import recorded
    from memtopo.kinds.views import in_state
    from memtopo.output.diagram.build import build_diagram
    from memtopo.session.composition import Composition
    from memtopo.session.saved import spec_digest

    status = client.status()
    if status.end:
        return status  # some of what the spec declares is gone
    with suppress(ValueError, RecursionError, TypeError, KeyError, AttributeError, MemtopoError):
        if source := held_source(client):
            document, machine = source
            status = replace(status, digest=spec_digest(document), params=document.values)
            held = Composition.of(document, recorded(status.machine.name, machine))
            memory = planner.memory_by_state(held.plan, held.geometry).get(status.layout_state or "", {})
            present = in_state(held.geometry, status.layout_state) if status.layout_state else held.geometry
            return replace(status, picture=build_diagram(present, machine), memory=memory)
    return status
