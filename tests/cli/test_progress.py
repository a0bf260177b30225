"""Progress on a real terminal, and in a real pipe."""

from __future__ import annotations

import os
import pty
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest

from memtopo.driver.ledger import Ledger
from memtopo.drivers.sim import SimDriver
from memtopo.drivers.target import recorded
from memtopo.machine import load
from memtopo.output.progress import ProgressLines, activity, progress
from memtopo.run.apply import apply
from tests.cli.test_terminal import drained, on_terminal
from tests.helpers.specs import document, request_of

PAGES = 8
SPEC = f"""memtopo: 1
name: big
ranges: {{pages: {{size: {2 * PAGES}MiB}}}}
chunks: {{page: {{location: [gpu0, gpu1], size: 2MiB, count: {PAGES}}}}}
map: {{pages: [page]}}
access: {{pages: {{gpu0: rw, gpu1: rw}}}}
"""
SHOWN_FROM_THE_START = "from memtopo.output import progress; progress.DELAY = 0.0; from memtopo.cli import main; main()"
ESCAPE = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")
FRAME = re.compile(r"([a-z][a-z ]+?) +[━╸╺ ]* ([\d,]+) of ([\d,]+)(.*)")


def number(text: str) -> int:
    return int(text.replace(",", ""))


def test_a_terminal_shows_counts_that_grow_to_the_total_of_their_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    machine = load("h200x2")
    request = request_of(document(SPEC), recorded("h200x2", machine), exclusive=False)
    driver = SimDriver(machine)
    driver.init()
    ours, theirs = pty.openpty()
    with ThreadPoolExecutor() as pool, os.fdopen(theirs, "w") as stream:
        drawn = pool.submit(drained, ours)
        hooks = ProgressLines(stream, count().__next__, simulated=True)  # each look at the clock is a second later
        report = apply(request, Ledger(driver), progress=hooks)
        hooks.end()
        stream.close()
        shown = ESCAPE.sub("", drawn.result()).replace("\r", "\n")
    os.close(ours)
    driver.close()
    assert report.outcome == "ok"
    frames = [found for line in shown.splitlines() if (found := FRAME.search(line))]
    before = "", 0, 0
    for name, done, total, rest in (frame.groups() for frame in frames):
        assert 0 <= number(done) <= number(total)
        assert number(total) > 0
        assert "/s" not in rest, "a simulator has no rates"
        if name == before[0]:
            assert number(done) >= before[1]
        before = name, number(done), number(total)
    assert {frame[1].strip() for frame in frames if number(frame[2]) == number(frame[3])} >= {"create", "write", "read"}


def test_progress_is_erased_before_the_result(tmp_path: Path) -> None:
    """And does not keep the report from the terminal."""
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC)
    program = sys.executable, "-c", SHOWN_FROM_THE_START
    out = on_terminal("apply", str(spec), "--machine=h200x2", program=program, MEMTOPO_PROGRESS="auto").out
    before, report = out.split("apply", 1)
    assert before.removesuffix("\x1b[1m").endswith("\x1b[J")
    assert "\x1b[J" not in report


def test_a_phase_that_lasts_has_one_line_in_a_pipe() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading) as lines, os.fdopen(writing, "w") as stream:
        with progress(stream) as hooks:
            hooks.phase("open", 8)
            hooks.advance(2)
            assert re.fullmatch(r"memtopo: open: 2 of 8, [\d.]+/s, \d+ s, \d+ s left\n", lines.readline())
            hooks.advance(6)
        stream.close()
        assert lines.read() == ""


def test_a_short_activity_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with activity("switch"):
        pass
    assert capfd.readouterr() == ("", "")
