"""Folders that keep the bytes of states: memory is dropped once its bytes are safe, and has them again afterwards."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

import memtopo
from memtopo.api.live import Live
from memtopo.common.errors import Stopped
from memtopo.plans.progress import CountedProgress
from memtopo.storage.saved import INDEX, Index, opened_folder
from tests.cli.conftest import InlineRunner, held, run_inline
from tests.helpers.namespaces import CONTAINER, require_namespaces
from tests.storage.test_saved import FAULTS, UNUSABLE, at_call, flipped, in_child

__all__ = ["run_inline"]

SPEC = """
memtopo: 1
name: sleeper
ranges: {weights: {size: 4MiB}, kv: {size: 4MiB}}
chunks: {w: {location: gpu0, size: 2MiB, count: 2}, page: {location: gpu0, size: 2MiB, count: 2}}
map: {weights: [w], kv: [page]}
access: {weights: {gpu0: rw}, kv: {gpu0: rw}}
states:
  asleep: {drop: kv, offload: {weights: FOLDER/}}
  half: {offload: {w.0: FOLDER, kv: "host:0"}}
  other: {offload: {weights: pinned, kv: FOLDER}}
"""

WORKERS = """
memtopo: 1
name: workers
processes:
  rank:
    count: 2
    ranges: {weights: {size: 2MiB}}
    chunks: {w: {location: gpu0, size: 2MiB}}
    map: {weights: [w]}
    access: {weights: {gpu0: rw}}
    states: {asleep: {offload: {weights: FOLDER}}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Folder of the states of `spec.yaml` beside it."""
    (tmp_path / "spec.yaml").write_text(SPEC.replace("FOLDER", str(tmp_path / "kept")))
    return tmp_path / "kept"


def applied(folder: Path, **terms: object) -> AbstractContextManager[Live]:
    return memtopo.applied(folder.parent / "spec.yaml", machine="h100x1", **terms)  # type: ignore[arg-type]


def write(layout: Live, name: str, value: int) -> None:
    view = np.from_dlpack(layout.range(name, dtype="uint8"))
    view[:] = np.arange(view.size) // 4096 + value


def has(layout: Live, name: str, value: int) -> bool:
    view = np.from_dlpack(layout.range(name, dtype="uint8"))
    return bool((view == (np.arange(view.size) // 4096 + value).astype("uint8")).all())


def test_the_bytes_of_each_chunk_return_through_any_states_that_keep_them(folder: Path) -> None:
    with applied(folder) as layout:
        for value, path in enumerate(permutations(("asleep", "half", "other"), 2)):
            write(layout, "weights", value)
            write(layout, "kv", value + 9)
            for state in (*path, "awake"):
                layout.switch(state)
            assert has(layout, "weights", value)
            assert "asleep" in path or has(layout, "kv", value + 9)


def test_what_has_not_changed_is_not_written_again_also_by_the_next_layout(folder: Path) -> None:
    def files() -> set[int]:
        return {each.stat().st_ino for each in folder.glob("*.bin")}

    with applied(folder) as layout:
        write(layout, "weights", 5)
        layout.switch("asleep")
        first = files()
        layout.switch("awake")
        layout.switch("asleep")
        assert files() == first
    with applied(folder, source=folder) as layout:
        assert (layout.restored.pieces, layout.restored.without) == (("w.0", "w.1"), ("page.0", "page.1"))
        layout.switch("asleep")
        assert files() == first
        layout.switch("awake")
        assert has(layout, "weights", 5)
        write(layout, "weights", 6)
        layout.switch("asleep")
        assert files().isdisjoint(first)


def saved_names(folder: Path) -> set[str]:
    """Names of the files of the save that the index names."""
    with opened_folder(str(folder), lock=False) as opened:
        index = opened.read_index()
        assert index
        part = opened.read_part(index, "")
    assert part
    return {INDEX, index.parts[""].name, *(file.name for file in part.files)}


EVERY_FAULT = [
    pytest.param(fault, first, 5, marks=pytest.mark.exhaustive(seconds=4)) for fault in FAULTS for first in range(5)
]
"""Faults at all calls, a fifth of them in each test."""


@pytest.mark.parametrize(
    ("fault", "first", "step"), [("killed", 0, 15), ("full", 1, 15), ("broken", 8, 15), *EVERY_FAULT]
)
def test_a_fault_at_any_call_of_a_switch_drops_nothing_that_is_not_safe(
    folder: Path, fault: str, first: int, step: int
) -> None:
    with applied(folder) as layout:
        write(layout, "weights", 1)
        layout.switch("asleep")
    seen = set()
    for number in range(first, 1000, step):

        def switch_with_fault(number: int = number) -> None:
            with applied(folder) as layout:
                write(layout, "weights", 1)
                layout.switch("asleep")
                layout.switch("awake")
                write(layout, "weights", 2)
                hit: list[bool] = []

                def act() -> None:
                    hit.append(True)
                    FAULTS[fault]()

                at_call(number, act)
                try:
                    layout.switch("asleep")
                except memtopo.NotSwitched:
                    assert has(layout, "weights", 2)
                    assert {each.name for each in folder.iterdir()} == saved_names(folder)
                    layout.switch("asleep")
                sys.setprofile(None)
                if not hit:
                    os._exit(7)
                layout.switch("awake")
                assert has(layout, "weights", 2)

        status = in_child(switch_with_fault)
        assert status in ((-9, 7) if fault == "killed" else (0, 7))
        with applied(folder, source=folder) as layout:
            assert has(layout, "weights", 1) or has(layout, "weights", 2)
            seen.add(has(layout, "weights", 1))
            write(layout, "weights", 1)
            layout.switch("asleep")
        if status == 7:
            break
    assert number > 20
    assert seen == ({True, False} if fault == "killed" else {False})


def test_a_stop_while_bytes_are_written_drops_nothing(folder: Path) -> None:
    with applied(folder) as layout:
        inner = layout._session.run.execution.layout
        for value in (1, 2):
            write(layout, "weights", value)
            inner.stop = lambda: 1
            with pytest.raises(Stopped):
                layout.switch("asleep")
            assert has(layout, "weights", value)
            assert value == 1 or {each.name for each in folder.iterdir()} == saved_names(folder)
            inner.stop = lambda: 0
            for state in ("asleep", "awake"):
                layout.switch(state)
            assert has(layout, "weights", value)


@pytest.mark.parametrize(
    "number", [2, 26, 50, *(pytest.param(each, marks=pytest.mark.exhaustive(seconds=0.5)) for each in range(56))]
)
def test_what_a_folder_keeps_returns_after_a_fault_at_any_call_of_another_switch(folder: Path, number: int) -> None:
    def switch_with_fault() -> None:
        with applied(folder) as layout:
            write(layout, "weights", 1)
            layout.switch("half")
            at_call(number, FAULTS["broken"])
            with suppress(memtopo.NotSwitched):
                layout.switch("asleep")
            sys.setprofile(None)
            threading.setprofile(None)
            layout.switch("awake")
            assert has(layout, "weights", 1)

    assert in_child(switch_with_fault) == 0


def test_the_parts_of_a_write_are_steps_of_the_progress(folder: Path) -> None:
    found = []
    with applied(folder) as layout:
        counted = CountedProgress()
        layout._session.run.execution.progress._others = (counted,)
        for _ in range(2):
            counted.phase("switch", 0)
            layout.switch("asleep")
            assert counted.state
            found.append(counted.state.whole)
            layout.switch("awake")
    first, unchanged = found
    assert first.done == first.total == unchanged.total + 2  # a reservation and a sync; the chunks are compared, else


def test_bytes_that_are_not_as_they_were_saved_are_refused_and_the_state_stays(folder: Path) -> None:
    with applied(folder) as layout:
        write(layout, "weights", 1)
        layout.switch("asleep")
        (file,) = folder.glob("*.bin")
        flipped(file, 3 << 20)
        with pytest.raises(memtopo.NotSwitched, match=r"'w.1' is not as it was saved; .* asleep, as before .hint"):
            layout.switch("awake")
        flipped(file, 3 << 20)
        saved = {each: each.read_bytes() for each in folder.iterdir()}
        layout.switch("awake")
        write(layout, "weights", 2)
        layout.switch("asleep")
        last = {each: each.read_bytes() for each in folder.iterdir()}
        for each, data in saved.items():
            each.write_bytes(data)
        with pytest.raises(memtopo.NotSwitched, match="has not the bytes that were saved last"):
            layout.switch("awake")
        for each, data in last.items():
            each.write_bytes(data)
        folder.rename(folder.parent / "moved")
        assert layout.check().different == 1
        layout.switch("awake")
        assert has(layout, "weights", 2)


def test_a_switch_to_a_folder_that_was_removed_leaves_the_layout_as_it_was(folder: Path) -> None:
    with applied(folder) as layout:
        write(layout, "weights", 1)
        shutil.rmtree(folder)
        with pytest.raises(memtopo.NotSwitched, match="no such file or directory; the layout is awake, as before"):
            layout.switch("asleep")
        assert has(layout, "weights", 1)


@pytest.mark.parametrize(("prepare", "message"), UNUSABLE)
def test_a_folder_that_cannot_be_used_is_refused_when_the_layout_is_built(
    folder: Path, prepare: Callable[[Path], Iterator[None]], message: str
) -> None:
    prepared = prepare(folder)
    next(prepared)
    with pytest.raises(memtopo.NotApplied, match=f"open folder {folder}: .*{message}"), applied(folder):
        pass
    next(prepared, None)


def test_folders_of_processes_are_not_put_into_a_saved_folder(tmp_path: Path, run_inline: InlineRunner) -> None:
    """It would be what the layout is restored from."""
    (tmp_path / "spec.yaml").write_text(WORKERS.replace("FOLDER", str(tmp_path / "kept")))
    with opened_folder(str(tmp_path / "kept"), write=True) as saved:
        saved.write_index(Index("workers", "", {}))
    done = run_inline("apply", tmp_path / "spec.yaml", "-m", "h100x1", "--json")
    assert (done.status, "has a save of a layout" in done.document["failure"]["error"]) == (4, True)


def test_each_process_has_its_own_folder(tmp_path: Path, run_inline: InlineRunner) -> None:
    kept, here = tmp_path / "kept", {"XDG_RUNTIME_DIR": str(tmp_path)}
    (tmp_path / "spec.yaml").write_text(WORKERS.replace("FOLDER", str(kept)))
    with held(tmp_path):
        for state in ("asleep", "awake", "asleep"):
            done = run_inline("switch", "workers", state, "--check", "full", **here)
            assert (done.status, done.out.splitlines()[-1]) == (0, f"ok: state {state} is as declared")
        shown = run_inline("show", "workers", "--json", **here).document
        assert (shown["layout_state"], shown["memory"]) == ("asleep", {"gpu0": 0})
        refused = run_inline("save", "workers", tmp_path / "saved", **here)
        assert (refused.status, "is in state 'asleep', without memory that can be saved" in refused.err) == (4, True)
        damaged = next((kept / "rank.1").glob("*.bin"))
        flipped(damaged, 0)
        failed = run_inline("switch", "workers", "awake", **here)
        assert (failed.status, "hint: copy the folder from where it is whole" in failed.err) == (4, True)
        flipped(damaged, 0)
    assert sorted(each.name for each in kept.iterdir()) == ["rank.0", "rank.1"]
    assert run_inline("apply", tmp_path / "spec.yaml", "-m", "h100x1", "--from", kept).status == 0
    flipped(damaged, 0)
    done = run_inline("apply", tmp_path / "spec.yaml", "-m", "h100x1", "--from", kept, "--json")
    assert (done.status, done.document["failure"]["step"]) == (4, "rank.1: restore of saved bytes")


HEAPS = """
memtopo: 1
name: heaps
heaps: {h: {location: gpu0, size: 64MiB}}
access: {h: {gpu0: rw}}
states: {asleep: {offload: {h: FOLDER}}}
"""


def test_the_allocations_of_a_heap_return_from_a_folder(folder: Path) -> None:
    (folder.parent / "spec.yaml").write_text(HEAPS.replace("FOLDER", str(folder)))
    with applied(folder) as layout:
        heap = layout.heap("h")

        def filled(address: int, value: int) -> bool:
            return bool((np.from_dlpack(heap.view(address, dtype="uint8")) == value).all())

        first, second = heap.allocate(4 << 20), heap.allocate(2 << 20)
        np.from_dlpack(heap.view(first, dtype="uint8"))[:] = 3
        layout.switch("asleep")
        layout.switch("awake")
        assert filled(first, 3)
        heap.free(first)
        np.from_dlpack(heap.view(second, dtype="uint8"))[:] = 4
        layout.switch("asleep")
        (file,) = folder.glob("*.bin")
        flipped(file, 1 << 20)
        with pytest.raises(memtopo.NotSwitched, match=r"'h.1' is not as it was saved; .* asleep, as before .hint"):
            layout.switch("awake")
        flipped(file, 1 << 20)
        layout.switch("awake")
        assert filled(second, 4)


SMALL = """
memtopo: 1
name: small
ranges: {weights: {size: 2MiB}}
chunks: {w: {location: gpu0, size: 2MiB}}
map: {weights: [w]}
access: {weights: {gpu0: rw}}
states: {asleep: {offload: {weights: FOLDER}}}
"""

FULL = """
import subprocess, sys
import numpy as np
import memtopo

folder, size, spec = sys.argv[1:]
subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "none", folder], check=True)
try:
    for _ in range(2):
        with memtopo.applied(spec, machine="h100x1") as layout:
            for value in (1, 2):
                view = np.from_dlpack(layout.range("weights", dtype="uint8"))
                view[:] = value
                try:
                    layout.switch("asleep")
                except memtopo.NotSwitched as error:
                    print("not switched:", error, bool((view == value).all()))
                layout.switch("awake")
                print(bool((view == value).all()))
                del view
except memtopo.NotApplied as error:
    print("not applied:", error)
"""


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ("1M", "not applied: .* needs 2 MiB;"),
        ("3M", 2 * "True\nnot switched: .* needs 2 MiB beside the last one.* True\nTrue\n"),
        ("6M", 4 * "True\n"),
    ],
)
def test_a_small_file_system_is_refused_when_the_layout_is_built_or_nothing_is_dropped(
    folder: Path, size: str, expected: str
) -> None:
    require_namespaces()
    spec = folder.parent / "spec.yaml"
    folder.mkdir(mode=0o700)
    spec.write_text(SMALL.replace("FOLDER", str(folder)))
    command = [*CONTAINER, sys.executable, "-c", FULL, str(folder), size, str(spec)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert re.match(expected, done.stdout), done.stdout + done.stderr
