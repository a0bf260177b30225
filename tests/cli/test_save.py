"""`memtopo save`, `apply --from` and their functions: the bytes of a layout come back in another process."""

from __future__ import annotations

import re
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import memtopo
from memtopo.cli.held import followed
from memtopo.sharing.client import connect
from memtopo.sharing.endpoints import endpoint
from memtopo.storage.saved import Index, PartFile, opened_folder
from tests.cli.conftest import InlineRunner, held
from tests.cli.test_switch import SPEC
from tests.helpers.command_line import ROOT

SEVERAL = """
memtopo: 1
name: several
processes:
  server:
    ranges: {weights: {size: 4MiB}}
    chunks: {w: {location: gpu0, size: 2MiB, count: 2, handles: fd}}
    map: {weights: [w]}
    access: {weights: {gpu0: rw}}
    exports: {weights: {chunk: w, via: fd}}
  engine:
    count: 2
    ranges: {view: {size: 4MiB}, kv: {size: 2MiB}}
    imports: {w: {from: server.weights}}
    chunks: {page: {location: gpu0, size: 2MiB}}
    map: {view: [w], kv: [page]}
    access: {view: {gpu0: r}, kv: {gpu0: rw}}
"""
"""A layout whose engines import chunks, which only the server has to save."""


@pytest.fixture(autouse=True)
def spec(tmp_path: Path) -> None:
    """`spec.yaml` in the folder of the test."""
    (tmp_path / "spec.yaml").write_text(SPEC)


def test_bytes_come_back_in_another_layout_and_the_rest_is_listed(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    with memtopo.applied(tmp_path / "spec.yaml", machine="h100x1") as layout:
        for name, value in (("weights", 7), ("kv", 9)):
            np.from_dlpack(layout.range(name, dtype="uint8"))[:] = value
        done = layout.save(folder)
        assert (done.pieces, done.written, done.unchanged, done.left_out) == (4, 8 << 20, 0, ())
        layout.switch("asleep")
        assert layout.save(tmp_path / "asleep").pieces == 2
    (tmp_path / "spec.yaml").write_text(SPEC.replace("kv: {gpu0: rw}", "kv: {gpu0: r}"))
    with memtopo.applied(tmp_path / "spec.yaml", machine="h100x1", source=folder) as layout:
        assert {*layout.restored.pieces} == {"w.0", "w.1", "page.0", "page.1"}
        assert (np.from_dlpack(layout.range("weights", dtype="uint8")) == 7).all()
        assert (np.from_dlpack(layout.range("kv", dtype="uint8")) == 9).all()
        assert layout.save(folder).written == 0
    (tmp_path / "spec.yaml").write_text(SPEC.replace("page", "block"))
    with memtopo.applied(tmp_path / "spec.yaml", machine="h100x1", source=tmp_path / "asleep") as layout:
        assert (layout.restored.unused, layout.restored.without) == ((), ("block.0", "block.1"))
        assert (np.from_dlpack(layout.range("weights", dtype="uint8")) == 7).all()


@pytest.mark.parametrize(
    ("before", "after", "notes"),
    [
        ("count: 2", "count: 3", ["not in FOLDER, so of undefined content: w.2, page.2"]),
        ("count: 2", "count: 1", ["in FOLDER, and not in the layout: w.1, page.1"]),
        ("page: {location: gpu0, size: 2MiB", "page: {location: gpu0, size: 4MiB", [
            "of another size in FOLDER, so of undefined content: page (2)"]),
    ],
)  # fmt: skip
def test_what_a_changed_spec_does_not_restore_is_noted(
    tmp_path: Path, run_inline: InlineRunner, before: str, after: str, notes: list[str]
) -> None:
    folder = tmp_path / "saved"
    with memtopo.applied(tmp_path / "spec.yaml", machine="h100x1") as layout:
        layout.save(folder)
    (tmp_path / "spec.yaml").write_text(SPEC.replace(before, after).replace("size: 4MiB}", "size: 8MiB}"))
    done = run_inline("apply", tmp_path / "spec.yaml", "-m", "h100x1", "--from", folder, "--json")
    assert [each.replace(str(folder), "FOLDER") for each in done.document["notes"][1:]] == notes


LEFT_OUT = """
memtopo: 1
name: left-out
ranges: {w: {size: 2MiB}, grows: {size: 64MiB, elastic: true}}
chunks: {w: {location: gpu0, size: 2MiB}, seg: {location: gpu0, size: 2MiB, count: {min: 1, max: 8}}}
map: {w: [w]}
access: {w: {gpu0: rw}, grows: {gpu0: rw}, h: {gpu0: rw}}
managed: {m: {size: 2MiB, prefer: gpu0}}
heaps: {h: {location: gpu0, size: 64MiB}}
states: {asleep: {offload: {w: FOLDER}}}
"""


def test_what_is_not_saved_is_named(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(LEFT_OUT.replace("FOLDER", str(tmp_path / "kept")))
    with memtopo.applied(tmp_path / "spec.yaml", machine="h100x1") as layout:
        assert layout.save(tmp_path / "saved").left_out == ("seg", "h", "m")
        layout.switch("asleep")
        assert layout.save(tmp_path / "saved").left_out == ("seg", "h", "m", "w")


def test_what_programs_allocate_is_left_out(tmp_path: Path) -> None:
    with (
        memtopo.applied("specs/engine-heaps.yaml", machine="h100x1") as layout,
        pytest.raises(memtopo.FolderRefused, match="has created no memory that can be saved"),
    ):
        layout.save(tmp_path / "saved")
    assert list((tmp_path / "saved").iterdir()) == []


def flipped(folder: Path) -> str:
    file = max(folder.glob("*.bin"))
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    return "is not as it was saved"


def of_another_layout(folder: Path) -> str:
    shutil.rmtree(folder)
    with memtopo.applied("specs/single-gpu.yaml", machine="h100x1") as layout:
        layout.save(folder)
    return "has layout 'single-gpu', and nothing of it has a name and size of this layout"


@pytest.mark.parametrize("damage", [flipped, of_another_layout])
def test_a_damaged_folder_is_refused_and_everything_undone(
    tmp_path: Path, run_inline: InlineRunner, damage: object
) -> None:
    assert callable(damage)
    folder = tmp_path / "saved"
    with memtopo.applied(tmp_path / "spec.yaml", machine="h100x1") as layout:
        layout.save(folder)
    message = damage(folder)
    with (
        pytest.raises(memtopo.NotApplied, match=message),
        memtopo.applied(tmp_path / "spec.yaml", machine="h100x1", source=folder),
    ):
        pass
    done = run_inline("apply", tmp_path / "spec.yaml", "-m", "h100x1", "--from", folder, "--json")
    assert (done.status, done.document["outcome"], done.document["leaks"]) == (4, "failed", [])
    assert message in done.document["failure"]["error"]


@pytest.mark.parametrize(
    ("text", "note"),
    [(SPEC, "restored 4 of 4 pieces"), (SEVERAL, "engine.0, engine.1: restored 1 of 1 pieces")],
    ids=["one", "several"],
)
def test_a_held_layout_is_saved_and_applied_again(
    tmp_path: Path, run_inline: InlineRunner, text: str, note: str
) -> None:
    here, name = {"XDG_RUNTIME_DIR": str(tmp_path)}, text.split()[3]
    (tmp_path / "spec.yaml").write_text(text)
    with held(tmp_path):
        assert run_inline("save", name, tmp_path / "saved", **here).out.splitlines()[-1] == (
            "saved: 4 pieces, 8 MiB written, 0 B unchanged"
        )
        document = run_inline("save", name, tmp_path / "saved", "--json", **here).document
        assert (document["memtopo_save"], document["written"], document["unchanged"]) == (1, 0, 8 << 20)
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "thesis.tex").touch()
        refused = run_inline("save", name, tmp_path / "other", **here)
        assert (refused.status, "has other files" in refused.err) == (4, True)
        assert run_inline("check", name, **here).status == 0
        with (
            connect(endpoint(name, str(tmp_path / "memtopo"))) as client,
            pytest.raises(memtopo.MemtopoError, match=r"interrupted .hint: the holder may still finish the save"),
            followed(client, "save"),
        ):
            raise KeyboardInterrupt
    with held(tmp_path, "spec.yaml", "--from", tmp_path / "saved"):
        assert run_inline("save", name, tmp_path / "saved", "--json", **here).document["written"] == 0
    done = run_inline("apply", tmp_path / "spec.yaml", "-m", "h100x1", "--from", tmp_path / "saved", "--json")
    assert any(each.startswith(note) for each in done.document["notes"])


def test_the_content_of_a_weights_server_is_committed_again(tmp_path: Path, run_inline: InlineRunner) -> None:
    """Its chunks are mapped nowhere in the holder. Another size of a shard is not what was committed."""
    here, spec = {"XDG_RUNTIME_DIR": str(tmp_path)}, ROOT / "specs" / "weights-server.yaml"
    socket, saved = str(tmp_path / "memtopo" / "weights-server.sock"), tmp_path / "saved"
    with held(tmp_path, spec, "--set", "size=2MiB"):
        with memtopo.attach(socket, role="writer") as shared:
            np.from_dlpack(shared.range("weights", dtype="uint8"))[:] = 7
            shared.commit()
        assert run_inline("save", "weights-server", saved, **here).status == 0
    with (
        held(tmp_path, spec, "--set", "size=2MiB", "--from", saved),
        memtopo.attach(socket, role="reader") as shared,
    ):
        assert (np.from_dlpack(shared.range("weights", dtype="uint8")) == 7).all()
    with held(tmp_path, spec, "--set", "size=2MiB", "--set", "shards=3", "--from", saved):
        assert run_inline("show", "weights-server", "--json", **here).document["offers"][0]["commit"] == "empty"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing", "no such file or directory (hint: name a folder that exists)"),
        ("empty", "has no saved layout (hint: 'memtopo save"),
        ("spec.yaml", "not a directory (hint: name a folder)"),
        ("server", "has layout 'several', and nothing of it is of a process of this layout (hint: it has server"),
    ],
)
def test_a_folder_without_a_save_is_refused_before_anything_is_built(
    tmp_path: Path, run_inline: InlineRunner, name: str, message: str
) -> None:
    (tmp_path / "empty").mkdir()
    with opened_folder(str(tmp_path / "server"), write=True) as folder, suppress(memtopo.FolderRefused):
        folder.write_index(Index("several", "", {"server": PartFile(f"{0:016x}-server.json", 64 * "0")}))
    with (
        pytest.raises(memtopo.FolderRefused, match=re.escape(message)) as error,
        memtopo.applied(tmp_path / "spec.yaml", machine="h100x1", source=tmp_path / name),
    ):
        pass
    done = run_inline("apply", tmp_path / "spec.yaml", "-m", "h100x1", "--from", tmp_path / name, "--json")
    assert (done.status, done.document.keys()) == (4, {"error"})
    assert done.document["error"]["message"] == error.value.message
