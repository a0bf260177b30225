"""Specs that cannot be read or carried out: a diagnostic with its place, exit 1, and nothing else."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from tests.cli.conftest import InlineRunner
from tests.helpers.command_line import run_with_input

M = "--machine=h200x2"
HEAD = "memtopo: 1\nname: x\n"
GOOD = b"""# text
memtopo: 1
name: good # text
ranges: {a: {size: 4MiB}}
chunks: {c: {location: gpu0, size: 2MiB, count: 2}}
map: {a: [c]}
access: {a: {gpu0: rw}}
"""
BAD = GOOD.replace(b"count", b"cuont")
FAULT = ":5:42: error[MT101]"


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("a: [1, 2", "", "error[MT0"),
        ("a: b: c", ":1:", "error[MT0"),
        (HEAD + "chunks:\n\ta: 1\n", ":4:1:", "tabs are not allowed for indentation"),
        ("- a\n- b\n", ":1:1:", "error[MT010]"),
        ("", ":1:1:", "the file is empty"),
        ("<<<<<<< HEAD\n", ":1:1:", "error[MT0"),
        ("a: &x 1\nb: *x\n", ":1:4:", "error[MT006]"),
        (HEAD + "name: y\n", ":3:1:", "error[MT009]"),
        (HEAD + "rangs: {}\n", ":3:1:", "did you mean 'ranges'?"),
        (HEAD + "chunks: {c: {locaton: gpu0, size: 2MiB}}\n", ":3:14:", "did you mean 'location'?"),
        (HEAD + "chunks: [a]\n", ":3:9:", "error[MT103]"),
        (HEAD + "chunks: {c: {location: gpu0, size: [2MiB]}}\n", ":3:36:", "error[MT103]"),
        (HEAD + "chunks: {c: {location: gpu0, size: 2MiB, rdma: yes}}\n", ":3:48:", "write true or false"),
        (HEAD + "chunks: {c: {location: gpu0, size: 2}}\n", ":3:36:", "'2' has no unit"),
        (HEAD + "chunks: {c: {location: gpu0, size: 3MiB}}\n", ":3:36:", "error[MT301]"),
        (HEAD + "chunks: {c: {location: gpu9, size: 2MiB}}\n", ":3:24:", "error[MT401]"),
        (HEAD + "chunks: {c: {location: gpu0, size: 99999999999999999999999999999MiB}}\n", ":3:36:", "error[MT105]"),
        (HEAD + "chunks: {\x1b[31m: {location: gpu0, size: 2MiB}}\n", ":3:10:", "error[MT004]"),
        ("memtopo: 2\nname: x\n", ":1:10:", "this memtopo reads version 1"),
    ],
)
def test_errors_of_a_spec_are_reported_at_their_position_with_help(
    run_inline: InlineRunner, tmp_path: Path, text: str, place: str, message: str
) -> None:
    """Nothing unprintable reaches the terminal."""
    spec = tmp_path / "spec.yaml"
    spec.write_text(text)
    result = run_inline("apply", spec, M)
    assert (result.status, result.out) == (1, "")
    assert f"{spec}{place}" in result.err
    assert message in result.err
    assert "\x1b" not in result.err
    assert run_inline("apply", spec, M, "--json").document["errors"] >= 1


@pytest.mark.parametrize(
    "section", ["ranges: {a: {size: 2MiB, count: N}}", "chunks: {a: {location: gpu0, size: 2MiB, count: N}}"]
)
@pytest.mark.parametrize("count", [999_999_999_999, 10**19, 10**100])
def test_absurd_counts_are_rejected_quickly(run_inline: InlineRunner, tmp_path: Path, section: str, count: int) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(HEAD + section.replace("N", str(count)))
    start = time.monotonic()
    assert run_inline("apply", spec, M).status == 1
    assert time.monotonic() - start < 2


def test_an_unreadable_file_is_reported_in_one_line(run_inline: InlineRunner, tmp_path: Path) -> None:
    (tmp_path / "dangling.yaml").symlink_to("nowhere")
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"name: \xe9\n")
    plug = socket.socket(socket.AF_UNIX)
    before = Path.cwd()
    os.chdir(tmp_path)  # the path of a socket has to be short
    plug.bind("plug.yaml")
    os.chdir(before)
    for name, message in {
        "missing.yaml": "no such file or directory",
        "dangling.yaml": "no such file or directory",
        "loo.yaml": "did you mean",
        "loop.yaml": "too many levels of symbolic links",
        "latin.yaml": "error[MT003]",
        "latin.yaml/x": "not a directory",
        "n" * 300: "file name too long",
        ".": "is a directory",
        "plug.yaml": "no such device or address",
        "/dev/zero": "is a device",
    }.items():
        result = run_inline("plan", tmp_path / name, M)
        assert (result.status, result.out) == (1, ""), name
        assert message in result.err, name
    plug.close()


def test_messages_call_a_dash_standard_input() -> None:
    assert run_with_input(GOOD, "validate", "-", M).out == "<stdin>: ok on h200x2\n"
    assert f"<stdin>{FAULT}" in run_with_input(BAD, "validate", "-", M).out
    empty = run_with_input(b"", "validate", "-", M)
    assert empty.status == 1
    assert "the file is empty" in empty.out


@pytest.mark.parametrize(
    "change", [(b"\n", b"\r\n"), (b"# text\nm", b"\xef\xbb\xbf# text\nm"), (b"text", "コメント 🎉".encode())]
)
def test_windows_line_ends_a_bom_and_any_script_are_accepted(
    run_inline: InlineRunner, tmp_path: Path, change: tuple[bytes, bytes]
) -> None:
    """Positions stay correct."""
    spec = tmp_path / "spec.yaml"
    spec.write_bytes(GOOD.replace(*change))
    assert run_inline("apply", spec, M).status == 0
    spec.write_bytes(BAD.replace(*change))
    assert f"{spec}{FAULT}" in run_inline("validate", spec, M).out


def test_all_errors_are_reported_in_one_run_and_counted(run_inline: InlineRunner, tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(HEAD + "chunks:\n" + "".join(f"  c{i}: {{location: gpu0, size: {i + 1}MB}}\n" for i in range(300)))
    result = run_inline("validate", spec, M)
    assert result.out.count("error[MT105]") == 300
    assert result.out.endswith(f"\n\n300 errors in {spec}\n")


def test_source_lines_are_cut_to_the_terminal_around_the_error(run_inline: InlineRunner, tmp_path: Path) -> None:
    spec = tmp_path / "s.yaml"
    good = ", ".join(f"c{i}: {{location: gpu0, size: 2MiB}}" for i in range(300))
    spec.write_text(f"{HEAD}chunks: {{{good}, x: {{location: gpu0, size: 2MiB, cuont: 3}}}}\n")
    shown = [line for line in run_inline("validate", spec, M, COLUMNS="60").out.splitlines() if " | " in line]
    assert any("cuont" in line for line in shown)
    assert max(map(len, shown)) <= 60
