"""Records of programs that ran on H100s: PyTorch, torch_memory_saver, CuPy, JAX, RMM, NCCL, and memtopo itself."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from memtopo.records import Moment, moment, read_record, summary
from memtopo.records.spec import spec_of
from tests.cli.conftest import InlineRunner
from tests.helpers.records import MIB, shape
from tests.helpers.specs import ROOT

RECORDS = sorted((ROOT / "tests" / "data" / "records").glob("*.jsonl.xz"))
M = ("--machine", "h200x4")


def recorded(name: str, folder: Path, at: str = "peak") -> Moment:
    """The memory of a record, which is unpacked into a folder."""
    file = folder / f"{name}.jsonl"
    file.write_bytes(lzma.decompress((ROOT / "tests" / "data" / "records" / f"{name}.jsonl.xz").read_bytes()))
    return moment(read_record([file]), at)


@pytest.mark.parametrize("name", [path.name.partition(".")[0] for path in RECORDS])
def test_the_spec_of_a_program_builds_the_memory_of_the_program(
    run_inline: InlineRunner, tmp_path: Path, name: str
) -> None:
    found = recorded(name, tmp_path)
    spec, trace = tmp_path / "spec.yaml", tmp_path / "trace"
    spec.write_text(spec_of(found, name))
    done = run_inline("apply", spec, *M, "--check", "none", "--trace", trace)
    assert done.status == 0, done.err
    again = moment(read_record([trace]))
    assert [each[:2] for each in shape(again)] == [each[:2] for each in shape(found)]
    assert run_inline("diff", spec, tmp_path / f"{name}.jsonl", *M).status == 0
    assert run_inline("draw", tmp_path / f"{name}.jsonl", *M).status == 0


@pytest.mark.parametrize("name", ["single-gpu", "legacy-ipc", "managed", "host-staging"])
def test_what_was_captured_of_an_apply_is_the_memory_of_its_spec(
    run_inline: InlineRunner, tmp_path: Path, name: str
) -> None:
    recorded(f"apply-{name}", tmp_path)
    found = run_inline("diff", ROOT / "specs" / f"{name}.yaml", tmp_path / f"apply-{name}.jsonl", *M)
    assert found.status == 0, found.out


def test_memory_is_that_of_the_library_that_asked_for_it(tmp_path: Path) -> None:
    """PyTorch's segments, and the workspace that cuBLAS allocates beside its allocator."""
    rows = {row.source: row for row in summary("torch", recorded("torch-c", tmp_path)).memory}
    assert {*rows} == {"torch", "cublas"}
    assert rows["torch"].size == 292 * MIB
    assert rows["cublas"].objects == 6


def test_segments_that_grow_are_chunks_in_one_range(tmp_path: Path) -> None:
    found = recorded("torch-expandable", tmp_path)
    text = spec_of(found, "torch")
    assert "chunk: {location: gpu0, size: 20MiB, handles: fd, rdma: true, count: 15}" in text
    assert found.processes[0].mapped.within(0, 1 << 48)[0].grants == {"gpu0": "rw"}


def test_rings_of_nccl_have_the_buffers_of_its_spec(run_inline: InlineRunner, tmp_path: Path) -> None:
    """On two GPUs. NCCL's own structures, host memory and windows are not the same."""
    recorded("nccl", tmp_path)
    spec, given = ROOT / "specs" / "real" / "nccl.yaml", ("--set", "ranks=2", "--set", "channels=24")
    found = run_inline("diff", spec, tmp_path / "nccl.jsonl", "--machine", "h200x2", *given, "--json").document
    rows = {(row["section"], row["location"], row["size"] >> 20): row for row in found["differences"]}
    assert not {("chunks", f"gpu{gpu}", 10) for gpu in (0, 1)} & {*rows}
    assert ("imports", "", 10) not in rows
    assert [rows["chunks", f"gpu{gpu}", 2]["in_record"] - 24 for gpu in (0, 1)] == [98, 98]


def test_resources_of_rmm_have_the_memory_of_its_spec(tmp_path: Path) -> None:
    """An arena is one allocation, and a pool of managed memory is fetched to the GPU."""
    assert "buffers:\n  rmm: {location: gpu0, size: 2GiB}" in spec_of(recorded("rmm-arena", tmp_path), "arena")
    assert "managed:\n  rmm: {size: 1GiB, prefetch: gpu0}" in spec_of(recorded("rmm-managed", tmp_path), "managed")


def test_memory_that_slept_has_a_state(tmp_path: Path) -> None:
    assert "asleep: {drop: [range, range-2]}" in spec_of(recorded("torch-memory-saver", tmp_path), "saver")
