"""Hostile names and values of specs, files and sockets in the output of every command and format: no line of theirs."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from memtopo.diagnostics.model import Diagnostic
from memtopo.drivers import target
from memtopo.language import read_text
from memtopo.machine import dump, load
from memtopo.output.diagram import FORMATS as PICTURES
from memtopo.output.formats import FORMATS
from memtopo.rules import validate
from tests.cli.conftest import InlineRunner
from tests.helpers.child_process import PATIENCE
from tests.helpers.ci_runner import azure_commands, commands
from tests.helpers.command_line import MEMTOPO, CommandResult, environment
from tests.helpers.python_process import PythonProcess
from tests.helpers.scripted_producer import scripted_producer

M = "-mh200x2"
TEXT = "e\n::error::pwn\t##[error]x[red]'"
"""Text that a value of a spec may have."""
NAME = f"{TEXT}\x1b[95m\x1b]0;x\x07\u202e"
"""Name that a file may have."""
_STYLE = re.compile(r"\x1b\[[0-9;]*m")


def quoted(text: str) -> str:
    """A scalar of YAML with escapes."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t") + '"'


def valid(folder: Path, *, imports: bool = True) -> str:
    """A spec that has memory of sockets in a folder; `imports` has a chunk of a held layout too."""
    camera, kv = quoted(f"{folder}/camera.sock")[:-1], quoted(f"{folder}/kv.sock/w")
    imported = f"imports: {{i: {{from: {kv}, via: fd, size: 2MiB, location: gpu0}}}}\n" if imports else ""
    return f"""memtopo: 1
name: hostile
params: {{note: {quoted(TEXT)}}}
ranges: {{r: {{size: {4 if imports else 2}MiB}}}}
chunks: {{c: {{location: gpu0, size: 2MiB, handles: fd}}}}
exports: {{w: {{chunk: c, via: fd}}}}
{imported}map: {{r: [c{", i" if imports else ""}]}}
access: {{r: {{gpu0: rw}}}}
external: {{f: {{from: {camera}/frame", via: opaque_fd, device: gpu0, size: 8MiB, dedicated: true}}}}
semaphores: {{s: {{from: {camera}/ready", via: timeline_fd, device: gpu0, signal: 1}}}}
"""


BROKEN = f"""memtopo: 1
name: {quoted(TEXT)}
params: {{a: {quoted(TEXT)}, {quoted(TEXT)}: 1}}
ranges: {{{quoted(TEXT)}: {{size: 2MiB}}, r: {{size: {quoted(TEXT)}}}, q: {{size: $a}}}}
chunks:
  {quoted(TEXT)}: {{location: gpu0, size: 2MiB}}
  c: {{location: {quoted(TEXT)}, size: 2MiB, handles: {quoted(TEXT)}, {quoted(TEXT)}: 1}}
map: {{w: [w], {quoted(TEXT)}: [{quoted(TEXT)}], r: [w]}}
access: {{{quoted(TEXT)}: {{{quoted(TEXT)}: {quoted(TEXT)}}}}}
exports: {{w: {{chunk: {quoted(TEXT)}, via: {quoted(TEXT)}}}}}
imports: {{i: {{from: {quoted(TEXT)}}}, j: {{from: {quoted(f"{TEXT}/w")}}}}}
external: {{f: {{from: {quoted(TEXT)}}}}}
pinned: {{p: {{size: 2MiB, file: {quoted(f"/dev/shm/{TEXT}")}}}}}
states: {{{quoted(TEXT)}: {{drop: [{quoted(TEXT)}]}}}}
processes: {{{quoted(TEXT)}: {{node: {quoted(TEXT)}}}}}
{quoted(TEXT)}: 1
"""


def harmless(result: CommandResult, *, github: bool = False) -> CommandResult:
    """Return a result after verifying that no line begins as a command to a CI runner, and none has a control code.

    With `github`, commands with memtopo's own titles are expected; its runner looks for no other ones in them.
    """
    for text in (result.out, result.err):
        lines = text.split("\n")
        assert [line for line in lines if not line.isprintable()] == []
        assert all(each.properties["title"].startswith(("MT", "memtopo")) for each in commands(text))
        assert github or not [line for line in lines if line.lstrip().startswith((":", "pwn"))]
        assert github or azure_commands(text) == []
    return result


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a hostile name, and specs with hostile texts in it."""
    found = tmp_path / TEXT.replace("/", "")
    found.mkdir()
    (found / f"{NAME}.yaml").write_text(valid(found))
    (found / f"broken{NAME}.yaml").write_text(BROKEN)
    return found


COMMANDS = [
    ("validate",),
    *(("validate", f"--format={form}") for form in FORMATS),
    ("plan",),
    ("plan", "--json"),
    ("plan", "--calls"),
    ("plan", "--calls", "--json"),
    ("draw",),
    ("draw", "--json"),
    *(("draw", f"--format={form}") for form in PICTURES),
    ("apply",),
    ("apply", "--json"),
    ("apply", "--hold", "--for=1ms"),
    ("diff", "specs/quickstart.yaml"),
    ("validate", "--fix", "--diff"),
]


@pytest.mark.parametrize("which", [NAME, f"broken{NAME}", f"missing{NAME}"], ids=["valid", "broken", "missing"])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_text_of_a_spec_leaves_its_line(
    run_inline: InlineRunner, folder: Path, runtime: Path, command: tuple[str, ...], which: str
) -> None:
    result = run_inline(*command, folder / f"{which}.yaml", M, XDG_RUNTIME_DIR=str(runtime), COLUMNS="400")
    harmless(result, github="--format=github" in command)


@pytest.mark.parametrize(
    "command", [("plan", "--as=c"), ("plan", "--as=cuda-python"), ("plan",), ("draw",), ("apply",), ("validate",)]
)
def test_no_name_of_a_machine_leaves_its_line(
    run_inline: InlineRunner, tmp_path: Path, command: tuple[str, ...]
) -> None:
    machine = tmp_path / f"{NAME.replace('/', '')}.json"
    machine.write_text(dump(load("h200x2")))
    result = harmless(run_inline(*command, "specs/quickstart.yaml", f"--machine={machine}", COLUMNS="400"))
    assert result.status == 0


@pytest.mark.parametrize("command", [("validate",), ("plan",), ("plan", "--calls"), ("draw",), ("apply",)])
def test_colours_are_memtopo_s_own(run_inline: InlineRunner, folder: Path, command: tuple[str, ...]) -> None:
    for which in (NAME, f"broken{NAME}"):
        result = run_inline(*command, folder / f"{which}.yaml", M, FORCE_COLOR="1", COLUMNS="400")
        assert "\x1b[95m" not in result.out + result.err
        harmless(CommandResult(result.status, _STYLE.sub("", result.out), _STYLE.sub("", result.err)))


@pytest.mark.parametrize(
    "arguments",
    [
        ("validate", "specs/quickstart.yaml", f"--machine={NAME}"),
        ("validate", "specs/quickstart.yaml", f"--format={NAME}"),
        ("validate", "specs/quickstart.yaml", f"--select={NAME}"),
        ("validate", "specs/quickstart.yaml", M, f"--set={NAME}=1"),
        ("validate", "specs/quickstart.yaml", M, f"--report=json={NAME}/x.json"),
        ("validate", "specs/quickstart.yaml", M, f"--{NAME}"),
        ("apply", "specs/quickstart.yaml", M, f"--check={NAME}"),
        ("apply", "specs/quickstart.yaml", M, f"--trace={NAME}/x"),
        ("apply", "specs/quickstart.yaml", M, f"--report={NAME}/x.html"),
        ("apply", "specs/quickstart.yaml", M, "--hold", "--for=1ms", f"--log={NAME}/x"),
        ("apply", "specs/quickstart.yaml", M, "--hold", "--for=1ms", f"--metrics={NAME}/x"),
        ("apply", "specs/quickstart.yaml", M, "--hold", "--for=1ms", f"--socket={NAME}/x"),
        ("apply", "specs/vulkan-frame.yaml", M, f"--with=camera={NAME}/x"),
        ("apply", "specs/vulkan-frame.yaml", M, f"--with={NAME}=x"),
        ("draw", "specs/quickstart.yaml", M, "-o", f"{NAME}/x.svg"),
        ("plan", "specs/quickstart.yaml", M, "-o", f"{NAME}/x.json"),
        ("show", NAME),
        ("show", f"{NAME}/x.sock"),
        ("check", NAME),
        ("change", NAME, "specs/quickstart.yaml"),
        ("switch", NAME, NAME),
        ("release", NAME),
        ("metrics", NAME),
        ("who", "--socket", NAME),
        ("ls", "--socket", NAME),
        ("trace", NAME),
        ("capture", NAME),
        ("capture", "--cupti", NAME, "/bin/true"),
        ("machines", NAME),
        ("explain", NAME),
        ("schema", NAME),
        ("completion", NAME),
        (NAME,),
    ],
)
def test_no_argument_leaves_its_line(run_inline: InlineRunner, runtime: Path, arguments: tuple[str, ...]) -> None:
    result = run_inline(*arguments, XDG_RUNTIME_DIR=str(runtime), COLUMNS="400")
    harmless(result)


@pytest.fixture
def held(folder: Path, runtime: Path) -> Iterator[Path]:
    """A layout that is held on a socket with a hostile path, with memory of a producer on such a one; its log."""
    spec, log = folder / f"held{NAME}.yaml", folder / f"log{NAME}"
    spec.write_text(valid(folder, imports=False))
    command = [*MEMTOPO, "apply", str(spec), M, "--hold", f"--socket={folder}/kv.sock", f"--log={log}", "--json"]
    variables = environment(XDG_RUNTIME_DIR=str(runtime))
    with (
        scripted_producer(folder, bytes.fromhex(target.uuids(load("h200x2"))[0])),
        PythonProcess(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, env=variables, text=True) as process,
    ):
        assert process.stderr
        assert any(line.startswith("holding hostile") for line in process.stderr)
        yield log
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE)


def test_no_text_of_a_held_layout_leaves_its_line(
    run_inline: InlineRunner, folder: Path, runtime: Path, held: Path
) -> None:
    socket = f"--socket={folder}/kv.sock"
    for command in (
        ("ls", f"--socket={folder}/"),
        ("show", socket),
        ("show", f"{folder}/kv.sock"),
        ("check", socket),
        ("who", f"--socket={folder}/"),
        ("metrics", socket),
        ("plan", f"{folder}/kv.sock", folder / f"broken{NAME}.yaml"),
        ("change", f"{folder}/kv.sock", folder / f"broken{NAME}.yaml"),
        ("apply", folder / f"{NAME}.yaml", M),
        ("release", socket),
    ):
        result = harmless(run_inline(*command, XDG_RUNTIME_DIR=str(runtime), COLUMNS="400"))
        assert result.status in (0, 1), (command, result, held.read_text())
    harmless(CommandResult(0, held.read_text(), ""))


def test_texts_of_diagnostics_are_printable() -> None:
    """As data too, whatever the names of a spec are."""
    sections = f"ranges: {{r: {{size: 2MiB}}}}\nmap: {{r: [w]}}\nchunks: {{{quoted(TEXT)}: {{size: 2MiB}}}}\n"
    text = f"memtopo: 1\nname: x\n{sections}"
    found: tuple[Diagnostic, ...] = validate(read_text(text.encode(), "x.yaml"), load("h200x2")).diagnostics
    helps = [each.help for each in found if each.code == "MT201"]
    assert helps == ["known are e\\n::error::pwn\\t##[error]x[red]'"]
