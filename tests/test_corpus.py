"""Inputs that once were, or could be, more than memtopo can take: each is answered."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memtopo.source import read_text
from tests.fuzz import answers
from tests.fuzz.mutating import mutations, seeds
from tests.specs import ROOT

CORPUS = sorted((Path(__file__).parent / "corpus").iterdir())
MANY = """
import json, os, resource, sys, time
from tests.fuzz import answers
from tests.fuzz.mutating import mutations, seeds
slowest, worst = 0.0, b""
inputs = mutations(int(sys.argv[1]), seeds())
for _ in range(int(sys.argv[2])):
    data = next(inputs)
    start = time.process_time()
    answers.source(data)
    answers.spec(data)
    took = time.process_time() - start
    if took > slowest:
        slowest, worst = took, data
print(json.dumps([slowest, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10, worst[:200].decode("latin-1")]))
"""


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_every_input_is_answered(path: Path) -> None:
    """Every file of the corpus gets a document or diagnostics with places, within a second, and never a traceback"""
    data = path.read_bytes()
    start = time.process_time()
    validated = answers.answered(read_text(data, path.name))
    assert time.process_time() - start < 1
    assert validated.diagnostics or validated.geometry
    answers.spec(data)


@pytest.mark.parametrize("path", CORPUS[::8], ids=lambda path: path.name)
def test_the_command_line_answers_too(path: Path) -> None:
    """The command line answers with its exit status, one JSON document, and no control characters"""
    command = [sys.executable, "-m", "memtopo", "validate", str(path), "--machine", "h200x2", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    assert "diagnostics" in json.loads(done.stdout)
    assert b"Traceback" not in done.stderr
    assert all(byte >= 0x20 or byte == 0x0A for byte in done.stdout + done.stderr)


@given(st.binary(max_size=400))
@settings(max_examples=300)
def test_any_structure_is_answered(data: bytes) -> None:
    """Any structure of the language's own words is answered"""
    answers.spec(data)


def test_mutations_are_answered() -> None:
    """A few hundred inputs that chance made of the corpus are answered"""
    inputs = mutations(4711, seeds())
    for _ in range(300):
        answers.source(next(inputs))


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
def test_very_many_mutations_are_answered(capsys: pytest.CaptureFixture[str]) -> None:
    """MEMTOPO_FUZZ inputs (20,000) of up to 64 KiB: each is answered within two seconds, all of them within 1 GiB"""
    count = os.environ.get("MEMTOPO_FUZZ", "20000")
    command = [sys.executable, "-c", MANY, os.environ.get("MEMTOPO_FUZZ_SEED", "1"), count]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    slowest, peak, worst = json.loads(done.stdout)
    with capsys.disabled():
        sys.stdout.write(f"\n{count} inputs, slowest {slowest:.3f} s, peak {peak} MiB\n")
    assert slowest < 2, worst
    assert peak < 1024
