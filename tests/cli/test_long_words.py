"""Errors repeat a part of a long word that a user has given."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import InlineRunner
from tests.helpers.specs import ROOT

LONG = "x" * 1_000_000
SPEC = str(ROOT / "specs" / "quickstart.yaml")
WORDS = [
    (LONG,), (f"--{LONG}",), ("validate", f"--{LONG}"), ("diff", LONG), ("diff", SPEC, LONG), ("explain", LONG),
    ("plan", SPEC, "-m", LONG), ("plan", SPEC, "-m", f"{LONG}.json"), ("plan", SPEC, "-m", "h200x2", "--set", LONG),
    ("plan", SPEC, "-m", "h200x2", "--set", f"{LONG}=1"), ("apply", SPEC, "-m", "h200x2", "--with", LONG),
    ("draw", SPEC, "-m", "h200x2", "--format", LONG), ("show", LONG), ("replay", LONG), ("import", LONG),
    ("apply", SPEC, "-m", "h200x2", "--report", LONG), ("validate", LONG),
]  # fmt: skip
ENTRIES = {
    "key": f"{LONG}: 1",
    "name": f"chunks: {{{LONG}: {{size: 2M, location: gpu9}}}}",
    "size": f"chunks: {{a: {{size: {LONG}, location: gpu0}}}}",
    "location": f"chunks: {{a: {{size: 2M, location: {LONG}}}}}",
    "reference": f"map: {{r: [{LONG}]}}\nranges: {{r: 2M}}",
    "machine": f"machines: [{LONG}]",
    "holder": f"external: {{f: {{from: /{LONG}/f, via: opaque_fd, device: gpu0, size: 8MiB, dedicated: true}}}}",
}


@pytest.mark.parametrize(
    "words", WORDS, ids=lambda words: " ".join(words).replace(LONG, "LONG").replace(f"{ROOT}/", "")
)
def test_an_error_repeats_a_part_of_a_long_argument(run_inline: InlineRunner, words: tuple[str, ...]) -> None:
    found = run_inline(*words)
    assert found.status in {1, 2, 3, 4}, found.err[:2000]
    assert len(found.out + found.err) < 20_000


@pytest.mark.parametrize("entry", ENTRIES)
def test_an_error_repeats_a_part_of_a_long_entry(run_inline: InlineRunner, tmp_path: Path, entry: str) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(f"memtopo: 1\n{ENTRIES[entry]}\n")
    for command in ("validate", "plan"):
        found = run_inline(command, str(file), "-m", "h200x2")
        assert found.status in {1, 2, 3}, found.err[:2000]
        assert len(found.out + found.err) < 20_000
