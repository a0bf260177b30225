"""Layouts of other users, by their locks."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from memtopo.sharing.status import Status
from memtopo.usage import LayoutUse, ProcessFiles, locked_layouts, usage
from tests.helpers.memfd_exports import MACHINE
from tests.usage.test_survey import NOTHING, uses


@pytest.mark.parametrize("folder", ["run/user/1000/memtopo", "tmp/memtopo-1000"])
def test_a_locked_layout_belongs_to_the_process_that_has_the_lock(
    tmp_path: Path, files: ProcessFiles, folder: str
) -> None:
    """A lock that a dead holder left is none."""
    place = tmp_path / folder
    place.mkdir(parents=True)
    lock = place / "kv.sock.lock"
    lock.touch()
    assert list(locked_layouts(tmp_path)) == []
    with lock.open() as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        held = LayoutUse("kv", "holder", os.getpid(), None, None, None, str(place / "kv.sock"))
        assert list(locked_layouts(tmp_path)) == [(os.getpid(), held)]
        assert uses(usage(NOTHING, [], files, locked_layouts(tmp_path)), os.getpid()) == [held]
    assert list(locked_layouts(tmp_path)) == []


def test_a_layout_that_answers_is_not_listed_by_its_lock_too(tmp_path: Path, files: ProcessFiles) -> None:
    place = tmp_path / "tmp" / "memtopo-1000"
    place.mkdir(parents=True)
    status = Status("kv", str(place / "kv.sock"), os.getpid(), 0, 1.5, "serving", None, None, MACHINE, (), ())
    with (place / "kv.sock.lock").open("w") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        (held,) = uses(usage(NOTHING, [status], files, locked_layouts(tmp_path)), os.getpid())
    assert (held.role, held.since) == ("holder", 1.5)


@pytest.mark.parametrize("name", ["kv.join", "kv.engine.0"])
def test_a_lock_beside_that_of_a_layout_is_no_layout(tmp_path: Path, name: str) -> None:
    place = tmp_path / "tmp" / "memtopo-1000"
    place.mkdir(parents=True)
    with (place / f"{name}.sock.lock").open("w") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        assert list(locked_layouts(tmp_path)) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_lock_of_another_user_than_the_process_does_not_count(tmp_path: Path) -> None:
    """Any user may make a folder in /tmp with the name of another."""
    place = tmp_path / "tmp" / "memtopo-7"
    place.mkdir(parents=True)
    lock = place / "kv.sock.lock"
    lock.touch()
    os.chown(lock, 7, 7)
    with lock.open() as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        assert list(locked_layouts(tmp_path)) == []


def test_only_the_process_that_has_a_lock_counts_and_none_that_waits_for_it_or_has_one_of_another_type(
    tmp_path: Path,
) -> None:
    place, proc = tmp_path / "tmp" / "memtopo-7", tmp_path / "proc"
    for folder in (place, proc / "7", proc / "8"):
        folder.mkdir(parents=True)
    lock = place / "kv.sock.lock"
    lock.touch()
    found = lock.stat()
    file = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino} 0 EOF"
    lines = ("1: FLOCK  ADVISORY  WRITE 7", "1: -> FLOCK  ADVISORY  WRITE 8", "2: POSIX  ADVISORY  WRITE 8")
    (proc / "locks").write_text("".join(f"{line} {file}\n" for line in lines))
    assert [pid for pid, _ in locked_layouts(tmp_path, proc)] == [7]
