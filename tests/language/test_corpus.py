"""Inputs that once were, or could be, more than memtopo can take: each is answered."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memtopo.kinds import KINDS
from memtopo.language import read_text
from tests.fuzz import checks
from tests.fuzz.mutation import mutations, seeds
from tests.helpers.examples import examples
from tests.helpers.python_process import run_python
from tests.helpers.specs import ROOT

CORPUS = sorted((Path(__file__).parent.parent / "corpus").iterdir())
SHARDS = 100


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_every_input_of_the_corpus_gets_a_document_or_diagnostics(path: Path) -> None:
    """With positions, within a second, and never a traceback."""
    data = path.read_bytes()
    start = time.process_time()
    validated = checks.answered(read_text(data, path.name))
    assert time.process_time() - start < 1
    assert validated.diagnostics or validated.geometry
    checks.spec(data)


@pytest.mark.parametrize("path", CORPUS[::8], ids=lambda path: path.name)
def test_validate_prints_one_json_document_for_any_input(path: Path) -> None:
    """Without control characters, and with its exit status."""
    command = [sys.executable, "-m", "memtopo", "validate", str(path), "--machine", "h200x2", "--json"]
    done = run_python(command, cwd=ROOT, capture_output=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    assert "diagnostics" in json.loads(done.stdout)
    assert b"Traceback" not in done.stderr
    assert all(byte >= 0x20 or byte == 0x0A for byte in done.stdout + done.stderr)


@given(st.binary(max_size=400))
@settings(max_examples=examples(300))
def test_any_structure_of_known_words_is_validated(data: bytes) -> None:
    checks.spec(data)


def test_known_words_are_those_of_every_section() -> None:
    sections = {kind.section for kind in KINDS}
    assert sections <= set(checks.KEYS)
    assert sections <= {word.decode() for text in seeds() for word in re.findall(rb"^ *(\w+):", text, re.MULTILINE)}


def test_random_mutations_of_the_corpus_are_validated() -> None:
    inputs = mutations(4711, seeds())
    for _ in range(300):
        checks.source(next(inputs))


@pytest.mark.exhaustive(seconds=25)
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_million_mutations_take_at_most_a_second_and_256_mib_each(shard: int) -> None:
    """A million inputs of up to 64 KiB: none takes a crash, a traceback, more than a second or 256 MiB

    MEMTOPO_FUZZ is how many, and MEMTOPO_FUZZ_SEED chooses others. Each shard is a process, for its memory's sake.
    """
    count = int(os.environ.get("MEMTOPO_FUZZ", "1000000")) // SHARDS
    seed = int(os.environ.get("MEMTOPO_FUZZ_SEED", "1")) * SHARDS + shard
    command = [sys.executable, "-m", "tests.fuzz.shard", str(seed), str(count)]
    done = run_python(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    slowest, peak = json.loads(done.stdout)
    assert slowest < 1, command
    assert peak < 256, command
