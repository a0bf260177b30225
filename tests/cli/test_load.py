"""`memtopo load` and `layout.load`: tensors of files in a layout, where readers find them by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import memtopo
from memtopo.api import Live
from memtopo.storage.tensors import read_header
from tests.cli.conftest import InlineRunner, held
from tests.cli.test_switch import SPEC
from tests.helpers.command_line import ROOT


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Two files of one model; the larger tensor has more bytes than a buffer."""
    random = np.random.default_rng(1)
    first: dict[str, Any] = {
        "bias": np.arange(5, dtype=np.float16),
        "scale": np.array(2, dtype=np.int8),
        "none": np.zeros((0, 2)),
    }
    second: dict[str, Any] = {"large": random.random((1000, 2200)), "odd": np.arange(3, dtype=np.uint8)}
    save_file(first, tmp_path / "1.safetensors")
    save_file(second, tmp_path / "2.safetensors")
    return [tmp_path / "1.safetensors", tmp_path / "2.safetensors"]


def require_tensors(layout: Live, files: list[Path]) -> None:
    """Require the tensors that the package's reader finds."""
    expected = {name: array for file in files for name, array in load_file(file).items()}
    assert layout.tensors.keys() == expected.keys()
    for name, array in expected.items():
        if array.size:
            np.testing.assert_array_equal(np.from_dlpack(layout.tensor(name)), array)
        else:
            with pytest.raises(memtopo.Unsuitable, match=r"of shape \[0, 2\] has no elements"):
                layout.tensor(name)


def test_memory_that_programs_allocate_is_refused(tmp_path: Path, run_inline: InlineRunner, files: list[Path]) -> None:
    spec = ROOT / "specs" / "engine-heaps.yaml"
    with memtopo.applied(spec, machine="h100x1") as layout:
        for into in (None, "weights"):
            with pytest.raises(memtopo.Unsuitable, match="memory that programs allocate"):
                layout.load(files, into=into)
    with held(tmp_path, spec):
        refused = run_inline("load", "engine-heaps", files[0], XDG_RUNTIME_DIR=str(tmp_path))
        assert (refused.status, "has no export of chunks" in refused.err) == (2, True)


def test_tensors_of_files_are_viewed_by_name(files: list[Path]) -> None:
    with memtopo.applied(ROOT / "specs" / "sleep-mode.yaml", machine="h100x1") as layout:
        with pytest.raises(memtopo.Unsuitable, match="nothing was loaded"):
            layout.tensor("bias")
        table = layout.load(files, into="weights")
        assert list(table) == [*load_order(files[0]), *load_order(files[1])]
        require_tensors(layout, files)
        with pytest.raises(memtopo.Unsuitable, match="there is no tensor 'baas'"):
            layout.tensor("baas")
        layout.load(files[0], into="weights")
        require_tensors(layout, files[:1])
        layout.switch("level-1")
        assert layout.tensors == {}
        layout.switch("awake")
        require_tensors(layout, files[:1])


def load_order(file: Path) -> list[str]:
    return [each.name for each in read_header(file)]


def test_what_cannot_be_loaded_is_refused_before_anything_is_written(tmp_path: Path, files: list[Path]) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC)
    (tmp_path / "cut").write_bytes(files[0].read_bytes()[:-1])
    with memtopo.applied(tmp_path / "spec.yaml", machine="h100x1") as layout:
        layout.load(files[0], into="kv")
        for given, message in (
            (files, r"the tensors of 2 files need \d+B, and 'kv' has 4MiB .hint: .* to 17MiB or more"),
            (files[1], r"the tensors of 1 file need"),
            ([files[0], tmp_path / "cut"], "its tensors have"),
            ([files[0], copied(files[0])], "is in several files"),
            ([], "there are no tensors in the files"),
        ):
            with pytest.raises(memtopo.BadTensors, match=message):
                layout.load(given, into="kv")
        with pytest.raises(memtopo.Unsuitable, match="has 2 ranges"):
            layout.load(files)
        require_tensors(layout, files[:1])
        layout.switch("asleep")
        with pytest.raises(memtopo.Unsuitable, match="no tensor 'w' in the memory of state 'asleep'"):
            layout.tensor("w")
        with pytest.raises(memtopo.Unsuitable, match=r"no memory in state 'asleep' .hint: switch\('awake'\) first"):
            layout.load(files[0], into="kv")


def copied(file: Path) -> Path:
    (copy := file.with_name("copy")).write_bytes(file.read_bytes())
    return copy


def test_a_weights_server_is_filled_by_a_command(tmp_path: Path, run_inline: InlineRunner, files: list[Path]) -> None:
    """Readers find the tensors of a saved layout, too."""
    here, spec = {"XDG_RUNTIME_DIR": str(tmp_path)}, ROOT / "specs" / "weights-server.yaml"
    socket = str(tmp_path / "memtopo" / "weights-server.sock")
    with held(tmp_path, spec):
        document = run_inline("load", "weights-server", *files, "--json", **here).document
        assert (document["memtopo_load"], document["into"], document["tensors"]) == (1, "weights", 5)
        with memtopo.attach(socket, role="reader") as shared:
            require_tensors(shared, files)
            with pytest.raises(memtopo.Unsuitable, match="can only be read here"):
                shared.load(files)
        refused = run_inline("load", "weights-server", files[0], **here)
        assert (refused.status, "export 'weights' is committed" in refused.err) == (4, True)
        assert run_inline("load", "weights-server", files[0], "--into", "kv", **here).status == 2
        assert run_inline("save", "weights-server", tmp_path / "saved", **here).status == 0
    with held(tmp_path, spec, "--from", tmp_path / "saved"), memtopo.attach(socket, role="reader") as shared:
        require_tensors(shared, files)
