"""Paths of files for output, in folders where other users may put links."""

from __future__ import annotations

import fcntl
import os
import select
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path

import pytest

from memtopo.cli.results import write
from memtopo.cli.service import HoldOptions, metrics_target, opened_service
from memtopo.common.errors import MemtopoError
from memtopo.common.files import (
    PATIENCE,
    NotAFile,
    NotInTime,
    TooLarge,
    closing_fd,
    open_output,
    output_path,
    read_descriptor,
    read_file,
    write_pipe,
)
from memtopo.driver.recorder import CallContext
from memtopo.driver.trace import Trace
from tests.helpers.command_line import run_memtopo
from tests.helpers.processes import open_descriptors

ANOTHER = 7
MOST = 1 << 18
"""Bytes, more than a pipe holds."""


def _log(path: str) -> None:
    with opened_service(HoldOptions(log=path), "kv"):
        pass


def _log_in_folder(path: str) -> None:
    with opened_service(HoldOptions(log=f"{Path(path).parent}/"), Path(path).stem):
        pass


def _metrics(path: str) -> None:
    with metrics_target(path) as target:
        assert target
        assert target.write
        target.write("# HELP memtopo_layout_up\n")
        assert Path(path).exists()


def _trace(path: str) -> None:
    Trace(path, CallContext(), {}).close()


WRITERS: list[Callable[[str], None]] = [_log, _log_in_folder, _metrics, _trace, lambda path: write(path, "report")]
IDS = ["log", "log in a folder", "metrics", "trace", "report"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link to another user")
@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("output", WRITERS, ids=IDS)
def test_no_link_of_another_user_is_followed(tmp_path: Path, output: Callable[[str], None], *, exists: bool) -> None:
    """Neither to a file of this user, nor to a path where none is."""
    shared, private, link = tmp_path / "shared", tmp_path / "private", tmp_path / "shared" / "kv.log"
    shared.mkdir()
    shared.chmod(0o777)
    if exists:
        private.touch()
    link.symlink_to(private)
    os.lchown(link, ANOTHER, ANOTHER)
    with pytest.raises(MemtopoError, match=f"link of uid {ANOTHER}"):
        output(str(link))
    assert (private.exists(), link.is_symlink()) == (exists, True)
    assert not exists or not private.read_text()


@pytest.mark.parametrize("output", WRITERS, ids=IDS)
def test_links_of_this_user_are_followed(tmp_path: Path, output: Callable[[str], None]) -> None:
    target, link = tmp_path / "target", tmp_path / "kv.log"
    (tmp_path / "middle").symlink_to(target)
    link.symlink_to("middle")
    output(str(link))
    assert link.is_symlink()
    assert target.exists() or output is _metrics  # which are removed at their end
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        open_output(link, 0, follow=False)


@pytest.mark.parametrize("output", [_log, _log_in_folder, _trace], ids=["log", "log in a folder", "trace"])
def test_a_pipe_is_refused_with_and_without_a_reader(tmp_path: Path, output: Callable[[str], None]) -> None:
    pipe = tmp_path / "kv.log"
    os.mkfifo(pipe)
    for flags in (os.O_PATH, os.O_RDONLY | os.O_NONBLOCK):
        reader = os.open(pipe, flags)
        with pytest.raises(MemtopoError, match="a pipe or a socket, and no file"):
            output(str(pipe))
        os.close(reader)


def test_a_loop_of_links_has_no_path(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        output_path(str(loop))


def test_as_many_links_as_the_kernel_follows_lead_to_a_file(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"{number}").symlink_to(f"{number + 1}")
    (tmp_path / "40").write_text("found")
    assert (tmp_path / "0").read_text() == "found"
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        output_path(str(tmp_path / "0"))
    assert output_path(str(tmp_path / "1")) == str(tmp_path / "40")


def test_no_link_to_a_pipe_is_written(tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    with closing_fd(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)) as reader:
        with pytest.raises(OSError, match="Too many levels of symbolic links"):
            write_pipe(str(link), b"secret")
        assert not os.read(reader, 1)


def test_a_device_is_written_and_waited_for() -> None:
    fd = open_output(os.devnull, 0)
    assert os.get_blocking(fd)
    os.close(fd)


def test_a_pipe_without_a_writer_and_one_that_does_not_end_are_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(NotInTime):
        read_file(pipe, MOST, 0.01)
    both = os.open(pipe, os.O_RDWR)
    os.write(both, b"x")
    with pytest.raises(NotInTime):
        read_file(pipe, MOST, 0.01)
    os.close(both)


def test_a_pipe_is_written_only_as_long_as_it_is_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="No such device or address"):
        write_pipe(str(pipe), b"x", 0.01)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(NotInTime):
        write_pipe(str(pipe), bytes(MOST), 0.01)
    assert os.read(reader, MOST)
    os.close(reader)


@pytest.mark.exhaustive(seconds=5)
def test_a_reader_of_a_pipe_has_its_patience_for_each_part(tmp_path: Path) -> None:
    """And not for all of them together."""
    pipe, patience, parts = tmp_path / "pipe", 3.0, 12
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool, closing_fd(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)) as reader:
        size = fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, select.PIPE_BUF)
        written = pool.submit(write_pipe, str(pipe), bytes(parts * size), patience)
        for _ in range(parts):
            assert select.select([reader], [], [], PATIENCE)[0]
            wait([written], patience / 10)
            os.read(reader, size)
        written.result()


def test_all_that_is_written_to_a_pipe_is_read_in_order(tmp_path: Path) -> None:
    """Of more bytes than a pipe holds, which go in several parts; and not one byte more than is allowed is read."""
    pipe, data = tmp_path / "pipe", bytes(range(256)) * (MOST // 256)
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        for most in (MOST, MOST - 1):
            reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # from before the writer begins
            found = pool.submit(write_pipe, str(pipe), data)
            try:
                if most == MOST:
                    assert read_descriptor(reader, most, time.monotonic() + PATIENCE) == data
                else:
                    with pytest.raises(TooLarge):
                        read_descriptor(reader, most, time.monotonic() + PATIENCE)
            finally:
                os.close(reader)
            with suppress(BrokenPipeError):
                found.result()


def test_a_new_file_for_output_is_of_its_user_alone_and_what_is_refused_is_closed(tmp_path: Path) -> None:
    fd = open_output(tmp_path / "log", os.O_APPEND)
    assert os.fstat(fd).st_mode & 0o777 == 0o600
    os.close(fd)
    before, pipe = open_descriptors(), tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    for path in (pipe, "/dev/zero/x", tmp_path):
        with pytest.raises(OSError, match=r"no file|Not a directory|Is a directory"):
            open_output(path, 0)
    os.close(reader)
    assert open_descriptors() == before


def test_at_most_the_bytes_that_are_allowed_are_read(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(MOST))
    assert len(read_file(file, MOST)) == MOST
    with pytest.raises(TooLarge):
        read_file(file, MOST - 1)
    with pytest.raises(NotAFile, match="is a device"):
        read_file("/dev/zero", MOST)


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (("trace", "/dev/zero"), 2),
        (("machines", "/dev/zero"), 3),
        (("validate", "specs/quickstart.yaml", "-m", "/dev/zero"), 3),
        (("plan", "specs/quickstart.yaml", "-mh200x2", "-o", "pipe"), 4),
        (("apply", "specs/quickstart.yaml", "-mh200x2", "--report", "pipe.json"), 4),
        (("apply", "specs/quickstart.yaml", "-mh200x2", "--hold", "--metrics", "pipe"), 2),
        (("apply", "specs/quickstart.yaml", "-mh200x2", "--hold", "--log", "pipe"), 2),
    ],
    ids=lambda value: " ".join(value[:1]) if isinstance(value, tuple) else "",
)
def test_no_command_waits_for_a_pipe_that_nobody_reads_or_a_device_without_an_end(
    tmp_path: Path, command: tuple[str, ...], status: int
) -> None:
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / "pipe.json")
    here = [str(tmp_path / word) if word.startswith("pipe") else word for word in command]
    result = run_memtopo(*here, XDG_RUNTIME_DIR=str(tmp_path))
    assert result.status == status, result
