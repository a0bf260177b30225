"""Comparison of the memory of a record with that of a spec."""

from __future__ import annotations

from pathlib import Path

import pytest

from memtopo.driver.types import PROPERTY_FLAGS
from tests.cli.conftest import InlineRunner
from tests.helpers.records import Calls

M = ("--machine", "h200x2")


@pytest.mark.parametrize("flag", PROPERTY_FLAGS)
def test_chunks_that_differ_in_a_property_alone_are_not_equal(
    run_inline: InlineRunner, tmp_path: Path, flag: str
) -> None:
    calls = Calls()
    calls.create(2, "gpu0", flags=[flag])
    record, spec = calls.write(tmp_path / "r.jsonl"), tmp_path / "spec.yaml"
    found = []
    for words in ("", f", {flag}: true"):
        spec.write_text(f"memtopo: 1\nname: s\nchunks: {{c: {{location: gpu0, size: 2MiB{words}}}}}\n")
        rows = run_inline("diff", spec, record, *M, "--json").document["differences"]
        found.append({(row["words"], row["in_spec"], row["in_record"]) for row in rows})
    assert found == [{("", 1, 0), (flag, 0, 1)}, set()]


def test_pinned_memory_that_differs_in_how_it_is_cached_alone_is_not_equal(
    run_inline: InlineRunner, tmp_path: Path
) -> None:
    spec, other = tmp_path / "spec.yaml", tmp_path / "other.yaml"
    spec.write_text("memtopo: 1\nname: s\npinned: {p: {size: 2MiB, write_combined: true}}\n")
    other.write_text(spec.read_text().replace(", write_combined: true", ""))
    record = tmp_path / "calls.jsonl"
    assert run_inline("apply", spec, *M, "--check", "none", "--trace", record).status == 0
    assert run_inline("diff", spec, record, *M).status == 0
    rows = run_inline("diff", other, record, *M, "--json").document["differences"]
    assert {(row["words"], row["in_spec"], row["in_record"]) for row in rows} == {("", 1, 0), ("write_combined", 0, 1)}


@pytest.mark.parametrize(
    ("sizes", "equal"), [([96], {"4%", "100%"}), ([100, 4], {"4%", "100%"}), ([60, 44], {"4%", "100%"}), ([300], set())]
)
def test_a_share_of_the_bytes_may_be_missing_or_too_many(
    run_inline: InlineRunner, tmp_path: Path, sizes: list[int], equal: set[str]
) -> None:
    spec, calls = tmp_path / "spec.yaml", Calls()
    spec.write_text("memtopo: 1\nname: s\nbuffers: {b: {location: gpu0, size: 100MiB}}\n")
    for number, size in enumerate(sizes, 40):
        calls.call("mem_alloc", {"size": size << 20}, result=1 << number, device=0)
    record, shares = calls.write(tmp_path / "r.jsonl"), ("0%", "3%", "4%", "100%")
    statuses = {share: run_inline("diff", spec, record, *M, "--within", share).status for share in shares}
    assert statuses == {share: int(share not in equal) for share in shares}


def test_memory_that_the_spec_does_not_have_is_no_share_of_it(run_inline: InlineRunner, tmp_path: Path) -> None:
    """And the differences of most bytes are the first ones, in the spec or in the record."""
    spec, calls = tmp_path / "spec.yaml", Calls()
    spec.write_text("memtopo: 1\nname: s\nbuffers: {b: {location: gpu0, size: 100MiB}}\n")
    calls.call("mem_alloc", {"size": 8 << 20}, result=1 << 40, device=0)
    for number in range(10):
        calls.call("mem_alloc", {"size": 4 << 20}, result=(2 + number) << 40, device=1)
    record = calls.write(tmp_path / "r.jsonl")
    rows = run_inline("diff", spec, record, *M, "--within", "100%", "--json").document["differences"]
    assert [(row["location"], row["in_spec"], row["in_record"]) for row in rows] == [("gpu1", 0, 10)]
    rows = run_inline("diff", spec, record, *M, "--json").document["differences"]
    assert [row["size"] >> 20 for row in rows] == [100, 4, 8]


def test_ranges_differ_in_their_access_and_imports_are_apart_from_own_memory(
    run_inline: InlineRunner, tmp_path: Path
) -> None:
    """The place in the spec is that of the process."""
    spec, calls = tmp_path / "spec.yaml", Calls("a")
    lines = ["ranges: {kv: {size: 2MiB}}", "chunks: {c: {location: gpu0, size: 2MiB}}", "map: {kv: [c]}"]
    process = "\n".join(f"    {line}" for line in (*lines, "access: {kv: {gpu0: rw}}"))
    spec.write_text(f"memtopo: 1\nname: s\nprocesses:\n  a:\n{process}\n")
    base = calls.reserve(2)
    calls.map(base, 0, calls.create(2, "gpu0"), 2)
    calls.grant(base, 2, gpu0="r")
    calls.call("mem_import_from_shareable_handle", {"shared": "handle:1", "kind": 8, "location": "gpu0"}, result=7)
    record = calls.write(tmp_path / "r.jsonl")
    rows = run_inline("diff", spec, record, *M, "--json").document["differences"]
    found = {(row["section"], row["location"], row["words"]): (row["in_record"], row["position"]) for row in rows}
    assert found == {
        ("ranges", "", "gpu0 rw"): (0, f"{spec}:5:14"),
        ("ranges", "", "gpu0 r"): (1, None),
        ("imports", "", "chunks"): (1, None),
    }
