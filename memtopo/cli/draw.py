"""`memtopo draw`: draw a layout, in the terminal or as a document, without building it."""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated

from msgspec import Struct
from msgspec.structs import replace

from memtopo.cli import options
from memtopo.cli.options import option
from memtopo.cli.results import require_replaceable, write
from memtopo.cli.specs import load, print_diagnostics
from memtopo.common.errors import UsageError
from memtopo.diagnostics.messages import unknown_state
from memtopo.driver.trace_files import is_record
from memtopo.geometry import Geometry
from memtopo.kinds.views import in_state, state_names
from memtopo.output import humanize, json, plain
from memtopo.output.blocks import Drawing
from memtopo.output.diagram import FORMATS, SUFFIXES, text_page
from memtopo.output.diagram.build import build_diagram
from memtopo.plans.folding import picture as folded

_DRAWINGS = (
    rb'(?s)\{\s*"memtopo_picture"|draw(  |\n)|<svg xmlns="[^"]*" class="m"|<!doctype html>.{,60}content="memtopo draw"'
    rb"|digraph memtopo \{|flowchart LR\n  accTitle: "
)
"""How drawings begin."""
_FORMATS_BY_SUFFIX = {".txt": "text", ".json": "json", **SUFFIXES}
_NAMES = ("text", "json", *FORMATS)

_FILES = "Draw into a file, in the format of its suffix; can be repeated."
_FORMAT = f"Format on stdout: {', '.join(_NAMES)}."
Form = Annotated[str | None, options.format_option(_FORMAT, _NAMES, "MEMTOPO_DRAW_FORMAT", show_default="text")]
_WIDTH = "Width of text, if not the terminal's."
_STATE = "Draw it in one of its states."


class DrawOptions(Struct, frozen=True):
    """Options of a drawing; `ascii` and `width` apply to text."""

    at: options.At = None
    state: Annotated[str | None, option("--state", _STATE, "STATE", "MEMTOPO_DRAW_STATE")] = None
    output: Annotated[list[str] | None, option("--output -o", _FILES, "FILE", "MEMTOPO_DRAW_OUTPUT")] = None
    form: Form = None
    ascii: Annotated[bool, option("--ascii", "Draw text with only ASCII characters.")] = False
    width: Annotated[int | None, option("--width", _WIDTH, "COLUMNS", min=plain.NARROWEST, max=plain.WIDEST)] = None
    every: options.Every = False
    as_json: options.AsJson = False


@options.grouped
def draw_command(
    spec: options.SpecFile, machine: options.MachineNames = None, given: options.Set = None, *, how: DrawOptions
) -> int:
    """Draw a layout: ranges, mappings, and the memory that they map.

    Without -o it goes to stdout, and with -o - as well.
    """
    stdout = options.stdout_format(how.form, _NAMES, as_json=how.as_json, hint="write one of them to a file") or "text"
    files = {file: _format_of(file) for file in how.output or ()}
    loaded = load(spec, machine, options.settings(given, how.at), dry=True)
    geometry, line = loaded.geometry, loaded.target.line
    print_diagnostics(loaded)
    note = f"on {humanize.machine(line)}"
    if how.state is not None:
        geometry, note = _in_state(geometry, how.state), f"in state {how.state}, {note}"
    whole = build_diagram(geometry, loaded.target.machines)
    picture = json.PictureDocument(json.VERSION, geometry.name, line, whole, how.state)
    shown = Drawing(folded(whole, every=how.every), geometry.name, note, loaded.document.position, every=how.every)
    if is_record(spec):
        note = f"at {how.at or 'its peak'}, {note}"
        shown = replace(shown, note=note)
    if "html" in (stdout, *files.values()) and is_record(spec):
        from memtopo.output.calls import timeline
        from memtopo.records import moment_of, summary

        shown = replace(shown, timeline=timeline(summary(spec, moment_of(spec, how.at))))
    for file, form in files.items():
        if file != "-":
            write(file, _document(form, shown, picture, how))
            plain.print_message(f"drawn to {file}")
    if files and "-" not in files:
        return 0
    if stdout == "text":
        from memtopo.output import console

        console.show(text_page(picture, shown, ascii=how.ascii), width=how.width)
    else:
        plain.print_document(_document(stdout, shown, picture, how).splitlines())
    return 0


def _document(form: str, shown: Drawing, picture: json.PictureDocument, how: DrawOptions) -> str:
    if form == "text":
        from memtopo.output import console

        return console.unstyled(text_page(picture, shown, ascii=how.ascii), how.width or plain.DEFAULT_WIDTH)
    return json.dumps(picture) if form == "json" else FORMATS[form](shown)


def _in_state(geometry: Geometry, state: str) -> Geometry:
    """Geometry of a layout in a state. Raises `UsageError`."""
    names = state_names(geometry)
    if state not in names:
        message, hint = unknown_state(geometry.name, state, names)
        raise UsageError(message, hint=hint)
    return in_state(geometry, state)


def _format_of(file: str) -> str:
    """Format by the suffix of a file; empty for `-`. Raises `UsageError` for another suffix or file."""
    if file == "-":
        return ""
    suffix = PurePath(file).suffix.lower()
    if suffix not in _FORMATS_BY_SUFFIX:
        message = f"{file!r} has no suffix of a drawing" if file else "-o names no file"
        raise UsageError(message, hint=f"there are {', '.join(_FORMATS_BY_SUFFIX)}")
    require_replaceable(file, _DRAWINGS)
    return _FORMATS_BY_SUFFIX[suffix]
