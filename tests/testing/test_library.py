"""The library of the simulator: its folder, its variables, and what goes on in this process while it answers a call."""

from __future__ import annotations

import gc
import os
import resource
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from memtopo.native import LIBCUDA, NoLibrary
from memtopo.testing import library
from memtopo.testing.library import SOCKET, folder, variables

Called = Callable[..., int]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that has the compiled library alone."""
    built, found = LIBCUDA.file(), tmp_path / "memtopo"
    found.mkdir()
    shutil.copy2(built, found)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return found


def folders(cache: Path) -> set[Path]:
    return {each for each in cache.iterdir() if each.is_dir()}


def test_the_folder_of_the_library_is_made_once_and_whole(cache: Path) -> None:
    made = folder()
    assert made.parent == cache
    assert {each.name for each in made.iterdir()} == {"libcuda.so", "libcuda.so.1", "simulator"}
    assert (made / "libcuda.so.1").read_bytes() == LIBCUDA.file().read_bytes()
    assert (made / "libcuda.so").samefile(made / "libcuda.so.1")
    assert os.access(made / "simulator", os.X_OK)
    assert "memtopo" in (made / "simulator").read_text()
    (made / "simulator").write_text("of another process")
    assert folder() == made
    assert (made / "simulator").read_text() == "of another process"
    assert folders(cache) == {made}


def test_processes_that_make_the_folder_at_once_have_the_same_one(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = shutil.copy

    def copy_late(source: Path, target: Path) -> None:
        monkeypatch.setattr(shutil, "copy", copy)
        others.append(folder())
        copy(source, target)

    others: list[Path] = []
    monkeypatch.setattr(shutil, "copy", copy_late)
    assert [folder()] == others
    assert folders(cache) == {*others}


def test_another_interpreter_has_another_folder(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = folder()
    monkeypatch.setattr(library, "python_command", lambda _: ["/another/python", "with space"])
    other = folder()
    assert {one, other} == folders(cache)
    assert one != other
    assert (other / "simulator").read_text() == "#!/bin/sh\nexec /another/python 'with space' \"$@\"\n"


def test_a_cache_that_cannot_be_written_is_an_error_with_a_way_out_and_nothing_is_left(cache: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(NoLibrary, match=r"cannot be written to .*: file too large") as caught:
            folder()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "XDG_CACHE_HOME" in str(caught.value.hint)
    assert not folders(cache)


def test_a_relative_cache_is_found_from_every_folder(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(cache.parent)
    monkeypatch.setenv("XDG_CACHE_HOME", ".")
    assert folder().is_absolute()


@pytest.mark.parametrize("before", [None, "/own/libraries"])
@pytest.mark.usefixtures("cache")
def test_programs_find_the_simulator_before_their_own_libraries(
    before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    if before:
        monkeypatch.setenv("LD_LIBRARY_PATH", before)
    found = variables("@simulator")
    assert found == {"LD_LIBRARY_PATH": f"{folder()}:{before}" if before else str(folder()), SOCKET: "@simulator"}


@pytest.mark.parametrize("enabled", [True, False])
def test_no_garbage_is_collected_while_a_call_is_answered(*, enabled: bool) -> None:
    """Also within another call, and after one that fails. The setting of the program is kept."""
    found = []

    def answer(number: int, words: Sequence[int]) -> int:
        found.append(gc.isenabled())
        if number:
            called(number - 1, *words)
            found.append(gc.isenabled())
        else:
            raise ValueError("failed")
        return number

    called: Called = library._without_collection(answer)
    was = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with pytest.raises(ValueError, match="failed"):
            called(1, 7)
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if was else gc.disable)()
    assert found == [False, False]


def test_garbage_is_collected_again_after_the_last_of_calls_of_several_threads() -> None:
    inside, may_end, found = threading.Event(), threading.Event(), list[bool]()

    def answer(number: int, words: Sequence[int]) -> int:
        if number:
            inside.set()
            assert may_end.wait(30)
        return len(words)

    called: Called = library._without_collection(answer)
    thread = threading.Thread(target=called, args=(1,))
    thread.start()
    try:
        assert inside.wait(30)
        assert called(0, 1, 2) == 2
        found.append(gc.isenabled())
    finally:
        may_end.set()
        thread.join()
    assert [*found, gc.isenabled()] == [False, True]
