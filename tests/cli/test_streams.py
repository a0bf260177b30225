"""Readers who leave, disks that are full, streams that were closed, and encodings that know few characters."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.running import QUICKSTART, memtopo, shell

APPLY = f"apply {QUICKSTART} --machine h200x2"


@pytest.mark.parametrize("command", [APPLY, f"plan {QUICKSTART} -m h200x2", "probe -m h200x4", "machines", "--help"])
@pytest.mark.parametrize("reader", ["head -1", "true"])
def test_a_reader_who_leaves(command: str, reader: str) -> None:
    """A reader who has read enough ends nothing early: no message, and the status is what was found out"""
    said = shell(f'memtopo {command} | {reader} >/dev/null; echo "${{PIPESTATUS[0]}}"')
    assert (said.out, said.err) == ("0\n", "")


def test_a_reader_who_leaves_early(tmp_path: Path) -> None:
    """Output of many pages, of which one line is read, is no failure either, and hides none"""
    spec = tmp_path / "spec.yaml"
    spec.write_text("chunks:\n" + "".join(f"  c{i}: {{size: {i}MB}}\n" for i in range(900)))
    said = shell('memtopo validate "$1" -m h200x2 | head -1 >/dev/null; echo "${PIPESTATUS[0]}"', str(spec))
    assert (said.out, said.err) == ("1\n", "")


def test_messages_that_nobody_reads() -> None:
    """A reader of messages who leaves changes neither the results nor the status"""
    said = shell("memtopo apply nowhere -m h200x2 --json 2>&1 >/dev/null | true; echo ${PIPESTATUS[0]}")
    assert (said.out, said.err) == ("1\n", "")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams(closed: str) -> None:
    """A stream that was closed is as one that goes nowhere, and its number never becomes a handle's"""
    assert shell(f"memtopo {APPLY} {closed}; echo $?").out.endswith("0\n")
    assert shell(f"memtopo apply nowhere -m h200x2 --json {closed}; echo $?").out.endswith("1\n")
    assert shell(f"memtopo nonsense {closed}; echo $?").out.endswith("2\n")


def test_descriptors_of_closed_streams(tmp_path: Path) -> None:
    """With closed streams, apply counts as many file descriptors afterwards as before"""
    said = shell(f'memtopo {APPLY} --json <&- 2>&- >"$1"', str(tmp_path / "out"))
    assert said.status == 0
    assert '"exit_code": 0' in (tmp_path / "out").read_text()


@pytest.mark.parametrize("command", [APPLY, "machines", "--help", "--version"])
def test_a_full_disk(command: str) -> None:
    """Results that cannot be written are a failure, told on stderr"""
    said = shell(f"memtopo {command} >/dev/full")
    assert (said.status, said.err) == (4, "memtopo: error: the results cannot be written: no space left on device\n")


def test_a_full_disk_hides_nothing() -> None:
    """A command that failed keeps its own status where its results cannot be written"""
    said = shell("memtopo plan nowhere -m h200x2 --json >/dev/full")
    assert said.status == 1
    assert "cannot be written" in said.err


@pytest.mark.parametrize("encoding", [{"LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii:strict"}])
def test_poor_encodings(tmp_path: Path, encoding: dict[str, str]) -> None:
    """What an encoding lacks is escaped: in results, in messages, in the names of files"""
    plain = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"} | encoding
    spec = tmp_path / "spéc.yaml"
    spec.write_text("memtopo: 1\nname: é\n", encoding="utf-8")
    assert "page.0 \\u2026 page.15" in memtopo("plan", QUICKSTART, "-m", "h200x2", **plain).out
    assert "1 \\xd7 NVIDIA" in memtopo("machines", **plain).out
    said = memtopo("validate", spec, "-m", "h200x2", **plain)
    assert said.status == 1
    assert said.out.isascii()
    assert memtopo("x\u2026", **plain).err.isascii()


def test_names_that_are_no_text() -> None:
    """A name of bytes that are no UTF-8 is escaped, in text and in JSON"""
    said = shell("memtopo plan $'/\\xff' -m h200x2")
    assert (said.status, said.err.split(":")[0]) == (1, "/\\udcff")
    assert shell("memtopo plan $'/\\xff' -m h200x2 --json").document["results"][0]["file"] == "/\udcff"
    assert "/\\udcff" in shell("memtopo plan x -m $'/\\xff'").err
